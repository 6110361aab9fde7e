"""Decoding of start and end logits into answers (bert: run_squad.py, `write_predictions`), by array operations.

W windows, L tokens, K starts and ends per window, C candidate pairs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError
from bertsmith.tasks.qa_windows import QAConfig
from bertsmith.tasks.task import Features
from bertsmith.tokenizers.training import HANGUL

Numbers = NDArray[np.int64]
Scores = NDArray[np.float64]
CHUNK = 1024  # windows at a time
LENGTH_BONUS = 0.01  # per token of the window in the max-context score
UNSPACED = (  # Thai, Lao, Burmese, Khmer, kana, Chinese characters
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9d\U00020000-\U0003ffff"
)
MARKS = "\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u0dff"  # in words, not in \\w
LETTER = rf"(?:[^\W_{HANGUL.pattern[1:-1]}{UNSPACED}]|[{MARKS}]|(?<=\d)[.,](?=\d))"  # or a digit, or 1,000.5
STARTS = re.compile(rf"{LETTER}*{HANGUL.pattern}+|{LETTER}+")  # no answer starts inside of these
ENDS = re.compile(rf"{LETTER}+|[\u1100-\u115f][\u1160-\u11ff]+")  # no answer ends inside of these


class Answer(NamedTuple):
    """A span of the passage, or "" for no answer."""

    text: str
    start: int  # first character in the passage
    end: int  # one after the last character
    probability: float  # over the n-best answers of the question
    start_logit: float
    end_logit: float


@dataclass(frozen=True, slots=True)
class Answers:
    """The n-best answers to one question."""

    best: tuple[Answer, ...]  # by descending score; includes "" if questions may have no answer
    null_odds: float  # score of no answer minus that of the best non-empty answer (0 if there is none)

    @property
    def span(self) -> Answer | None:
        """The best non-empty answer, if there is one."""
        return next((answer for answer in self.best if answer.text), None)


class Windows(NamedTuple):
    """Windows as arrays, grouped by question and in passage order."""

    owner: Numbers  # [W] index of the question
    begin: Numbers  # [W] first passage token
    size: Numbers  # [W] number of passage tokens
    first: Numbers  # [W] row index of the first passage token
    logits: Scores  # [W, L, 2] -inf beyond the row
    base: Numbers  # [W] offset of the row in the concatenated rows
    offsets: NDArray[np.int32]  # [tokens of all rows, 2]


class Candidates(NamedTuple):
    """Pairs of a start and an end, by question and then by descending score."""

    owner: Numbers  # [C]
    score: Scores  # [C]
    logits: Scores  # [C, 2]
    span: NDArray[np.int32]  # [C, 2] characters of the passage

    def select(self, chosen: slice | Numbers) -> Candidates:
        """A subset."""
        return Candidates(self.owner[chosen], self.score[chosen], self.logits[chosen], self.span[chosen])


def decode_answers(
    passages: Sequence[str],
    features: Sequence[Features],
    logits: Sequence[NDArray[np.float32]],
    config: QAConfig,
    *,
    allow_no_answer: bool = False,
    whole_words: bool = False,
) -> list[Answers]:
    """The n-best answers to each question, from the start and end logits [tokens, 2] of its windows.

    `passages` has one passage per question. `allow_no_answer` scores the empty answer too.
    `whole_words` extends answers to full words, which the reference does not.
    """
    answers: dict[int, Answers] = {}
    for chosen in _chunks(features):
        windows = _windows([features[index] for index in chosen], [logits[index] for index in chosen])
        for question, pairs, null in _by_question(windows, config):
            if whole_words:
                pairs = pairs._replace(span=extended_to_words(passages[question], pairs.span))
            answers[question] = _n_best(passages[question], pairs, null if allow_no_answer else None, config.n_best)
    return [answers[question] for question in range(len(passages))]


def mean_answers(answers: Sequence[Answers], count: int) -> Answers:
    """The n-best answers of several models to one question: the mean probability of each distinct text.

    A text that a model does not list has probability 0 there. Span and logits are those of the model with the highest
    probability for it; the null odds are the mean.
    """
    listed: dict[str, list[Answer]] = {}
    for one in answers:
        for answer in one.best:
            listed.setdefault(answer.text, []).append(answer)
    means = [
        max(some, key=lambda answer: answer.probability)._replace(
            probability=sum(answer.probability for answer in some) / len(answers)
        )
        for some in listed.values()
    ]
    means.sort(key=lambda answer: -answer.probability)  # the first of equal ones stays before the others
    kept = [answer for number, answer in enumerate(means) if number < count or not answer.text]
    return Answers(best=tuple(kept), null_odds=sum(one.null_odds for one in answers) / len(answers))


def extended_to_words(passage: str, span: NDArray[np.int32]) -> NDArray[np.int32]:
    """Character spans [C, 2] whose ends inside a word are moved to the ends of that word.

    Korean: a span starts with an eojeol, but may end before a particle (of the gold answers of KorQuAD's dev set, 60 %
    end inside an eojeol, 1 of 5,774 starts after a Hangul syllable). Between numbers or foreign words and Hangul both
    are kept apart, as in 제|7조. Scripts without spaces have no word boundaries to extend to.
    """
    extended = span.copy()
    for side, pattern in enumerate((STARTS, ENDS)):
        words = np.array([match.span() for match in pattern.finditer(passage)], np.int32).reshape(-1, 2)
        words = np.concatenate([np.zeros((1, 2), np.int32), words])  # the first entry is for spans before all words
        word = words[np.searchsorted(words[1:, 0], span[:, side])]
        extended[:, side] = np.where(span[:, side] < word[:, 1], word[:, side], span[:, side])
    return extended


def _chunks(features: Sequence[Features]) -> Iterator[list[int]]:
    """Indices of the windows by question, in chunks that keep the windows of a question together."""
    owners = np.array([one.example_index for one in features], np.int64)
    order = np.lexsort((np.array([one.start for one in features], np.int64), owners))
    cuts = np.flatnonzero(np.diff(owners[order], prepend=-1))  # where questions begin
    while len(order):
        later = cuts[cuts >= CHUNK]
        end = int(later[0]) if len(later) else len(order)
        yield order[:end].tolist()
        order, cuts = order[end:], cuts[cuts >= end] - end


def _windows(features: Sequence[Features], logits: Sequence[NDArray[np.float32]]) -> Windows:
    rows = [one.rows[0] for one in features]
    sizes = np.array([len(row) for row in rows], np.int64)
    padded = np.full((len(rows), int(sizes.max()), 2), -np.inf)
    for index, (size, values) in enumerate(zip(sizes.tolist(), logits, strict=True)):
        padded[index, :size] = values[:size]
    if np.isnan(padded).any():
        raise DataError("the model's logits are nan: its training diverged, use an earlier checkpoint")
    base = np.cumsum(sizes) - sizes
    inside = np.concatenate([row.sequence_ids for row in rows]) == 1
    size_W = np.add.reduceat(inside, base, dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(size_W)])[:-1]
    tokens = np.append(np.flatnonzero(inside), 0)  # the last entry is for windows of empty passages
    return Windows(
        owner=np.array([one.example_index for one in features], np.int64),
        begin=np.array([one.start for one in features], np.int64),
        size=size_W,
        first=np.where(size_W > 0, tokens[np.minimum(before, len(tokens) - 1)] - base, 0),
        logits=padded,
        base=base,
        offsets=np.concatenate([row.offsets for row in rows]),
    )


def _by_question(windows: Windows, config: QAConfig) -> Iterator[tuple[int, Candidates, tuple[float, float]]]:
    """Each question with its candidates and its null logits: the smallest over its windows."""
    pairs = _candidates(windows, config)
    nulls = windows.logits[:, 0]
    firsts = np.flatnonzero(np.diff(windows.owner, prepend=-1))
    numbers = windows.owner[firsts]
    least = np.lexsort((nulls.sum(axis=1), windows.owner))[firsts]  # the first of equal ones
    begins, ends = (np.searchsorted(pairs.owner, numbers, side) for side in ("left", "right"))
    columns = (numbers.tolist(), begins.tolist(), ends.tolist(), nulls[least].tolist())
    for question, begin, end, null in zip(*columns, strict=True):
        yield question, pairs.select(slice(begin, end)), (null[0], null[1])


def _candidates(windows: Windows, config: QAConfig) -> Candidates:
    """The valid pairs of the best starts and the best ends of each window."""
    starts, ends = _best(windows.logits[:, :, 0], config.n_best), _best(windows.logits[:, :, 1], config.n_best)
    first, after = windows.first[:, None], (windows.first + windows.size)[:, None]
    valid_start = (starts >= first) & (starts < after)
    valid_start &= _has_most_context(windows, starts - first + windows.begin[:, None])
    valid_end = (ends >= first) & (ends < after)
    length = ends[:, None, :] - starts[:, :, None]  # [W, K, K]
    valid = valid_start[:, :, None] & valid_end[:, None, :] & (length >= 0) & (length < config.max_answer_length)
    window, start, end = np.nonzero(valid)
    first_token, last_token = starts[window, start], ends[window, end]
    logits = np.stack([windows.logits[window, first_token, 0], windows.logits[window, last_token, 1]], axis=1)
    base = windows.base[window]
    span = np.stack([windows.offsets[base + first_token, 0], windows.offsets[base + last_token, 1]], axis=1)
    pairs = Candidates(windows.owner[window], logits.sum(axis=1), logits, span)
    order = np.lexsort((-pairs.score, pairs.owner))  # the first of equal ones
    return pairs.select(order[np.isfinite(pairs.score[order])])


def _best(logits: Scores, count: int) -> Numbers:
    """Token indices of the highest logits [W, K] of all [W, L], the earlier of equal ones first."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :count]


def _has_most_context(windows: Windows, tokens: Numbers) -> NDArray[np.bool_]:
    """Whether no other window has more context for a passage token; tokens [W, K].

    The score is the smaller of the left and right context plus a bonus for the window's length; the first window wins
    ties (bert: run_squad.py, `_check_is_max_context`).
    """
    own = _context(windows.begin, windows.size, tokens)
    most = np.ones(tokens.shape, bool)
    same = windows.owner[1:] == windows.owner[:-1]
    steps = np.diff(windows.begin)[same]
    reach = int(windows.size.max()) // int(steps.min()) + 1 if len(steps) else 0
    for distance in range(1, min(reach, len(windows.owner) - 1) + 1):
        earlier, later = slice(None, -distance), slice(distance, None)
        neighbours = (windows.owner[earlier] == windows.owner[later])[:, None]
        before = _context(windows.begin[earlier], windows.size[earlier], tokens[later])
        most[later] &= ~(neighbours & (before >= own[later]))
        after = _context(windows.begin[later], windows.size[later], tokens[earlier])
        most[earlier] &= ~(neighbours & (after > own[earlier]))
    return most


def _context(begin: Numbers, size: Numbers, tokens: Numbers) -> Scores:
    """The context score of tokens [W, K] in windows [W]; -inf if a window lacks the token."""
    left = tokens - begin[:, None]
    least = np.minimum(left, size[:, None] - 1 - left)
    return np.where(least >= 0, least + LENGTH_BONUS * size[:, None], -np.inf)


def _n_best(passage: str, pairs: Candidates, null: tuple[float, float] | None, count: int) -> Answers:
    """The first `count` distinct texts; the empty answer in score order among them, or after them."""
    answers: list[Answer] = []
    texts: set[str] = set()
    empty = None if null is None else Answer("", 0, 0, 0.0, *null)
    pending = empty
    for score, (begin, end), both in zip(pairs.score.tolist(), pairs.span.tolist(), pairs.logits.tolist(), strict=True):
        if pending is not None and pending.start_logit + pending.end_logit > score:
            answers.append(pending)
            pending = None
        if len(answers) >= count:
            break
        text, begin, end = _stripped(passage, begin, end)
        if text and text not in texts:
            texts.add(text)
            answers.append(Answer(text, begin, end, 0.0, both[0], both[1]))
    if pending is not None:
        answers.append(pending)
    best = next((one.start_logit + one.end_logit for one in answers if one.text), 0.0)
    return Answers(best=_with_probabilities(answers), null_odds=sum(null or ()) - best)


def _stripped(passage: str, begin: int, end: int) -> tuple[str, int, int]:
    """A span of the passage without white space at its ends: tokens of some tokenizers start with it."""
    text = passage[begin:end]
    bare, begin = text.strip(), begin + len(text) - len(text.lstrip())
    return bare, begin, begin + len(bare)


def _with_probabilities(answers: list[Answer]) -> tuple[Answer, ...]:
    """The answers with the softmax over their scores."""
    scores = [one.start_logit + one.end_logit for one in answers]
    top = max(scores, default=0.0)
    powers = [math.exp(score - top) for score in scores]
    total = sum(powers)
    return tuple(one._replace(probability=power / total) for one, power in zip(answers, powers, strict=True))
