"""The logits of windows become answers (bert: run_squad.py, `write_predictions`). Knows no files and no scores.

Candidates are made and ordered by array operations over many windows at a time; only the best few of each question are
looked at one by one. W windows, L places, K candidates of a window's starts and ends, C pairs of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError
from bertsmith.tasks.qa_windows import QAConfig
from bertsmith.tasks.task import Features

Numbers = NDArray[np.int64]
Scores = NDArray[np.float64]
CHUNK = 1024  # windows at a time
PER_LENGTH = 0.01  # what a token of a window counts for in the rule of most context


class Answer(NamedTuple):
    """A stretch of the passage, or "" for no answer."""

    text: str
    start: int  # first character in the passage
    end: int  # the character after the last
    probability: float  # among the answers of its question
    start_logit: float
    end_logit: float


@dataclass(frozen=True, slots=True)
class Answers:
    """What is answered to one question."""

    best: tuple[Answer, ...]  # by falling score; "" among them where there may be no answer
    null_odds: float  # score of no answer less that of the best text (0 where there is none)

    @property
    def text(self) -> Answer | None:
        """The best answer that is not empty, if there is one."""
        return next((answer for answer in self.best if answer.text), None)

    @property
    def nothing(self) -> Answer | None:
        """The empty answer, where there may be none."""
        return next((answer for answer in self.best if not answer.text), None)


class Windows(NamedTuple):
    """The windows of some questions as arrays, those of a question together and in the order of the passage."""

    owner: Numbers  # [W] number of the question
    begin: Numbers  # [W] first token of the passage
    held: Numbers  # [W] tokens of the passage
    first: Numbers  # [W] place of that token
    logits: Scores  # [W, L, 2] -inf beyond the row
    base: Numbers  # [W] number of the row's first place among those of all rows
    offsets: NDArray[np.int32]  # [places of all rows, 2]


class Candidates(NamedTuple):
    """Pairs of a start and an end, by question and then by falling score."""

    owner: Numbers  # [C]
    score: Scores  # [C]
    logits: Scores  # [C, 2]
    span: NDArray[np.int32]  # [C, 2] in the characters of the passage

    def only(self, chosen: slice | Numbers) -> Candidates:
        """Some of them."""
        return Candidates(self.owner[chosen], self.score[chosen], self.logits[chosen], self.span[chosen])


class Found(NamedTuple):
    """One answer before its probability is known."""

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float


def decode_answers(
    passages: Sequence[str],
    asked: Sequence[Features],
    logits: Sequence[NDArray[np.float32]],
    config: QAConfig,
    *,
    may_be_none: bool = False,
) -> list[Answers]:
    """The answers to each question, from the logits of start and end [places, 2] of its windows.

    `passages` are by question and `Asked.example` is the number of the question. `may_be_none` weighs no answer too.
    """
    found: list[Answers | None] = [None] * len(passages)
    for chosen in _chunks(asked):
        windows = _windows([asked[place] for place in chosen], [logits[place] for place in chosen])
        for number, pairs, null in _by_question(windows, config):
            found[number] = _answers(passages[number], pairs, null if may_be_none else None, config.n_best)
    without = [number for number, each in enumerate(found) if each is None]
    assert not without, f"question {without[0]} has no window"
    return [each for each in found if each is not None]


def _chunks(asked: Sequence[Features]) -> Iterator[list[int]]:
    """The numbers of the windows, in order, cut into chunks between questions."""
    owners = np.array([one.example_index for one in asked], np.int64)
    order = np.lexsort((np.array([one.start for one in asked], np.int64), owners))
    cuts = np.flatnonzero(np.diff(owners[order], prepend=-1))  # where questions begin
    while len(order):
        later = cuts[cuts >= CHUNK]
        end = int(later[0]) if len(later) else len(order)
        yield order[:end].tolist()
        order, cuts = order[end:], cuts[cuts >= end] - end


def _windows(asked: Sequence[Features], logits: Sequence[NDArray[np.float32]]) -> Windows:
    rows = [one.rows[0] for one in asked]
    sizes = np.array([len(row) for row in rows], np.int64)
    padded = np.full((len(rows), int(sizes.max()), 2), -np.inf)
    for number, (size, values) in enumerate(zip(sizes.tolist(), logits, strict=True)):
        padded[number, :size] = values[:size]
    if np.isnan(padded).any():
        raise DataError(
            "the model's answers are no numbers (nan): its training went astray, take an earlier checkpoint"
        )
    base = np.cumsum(sizes) - sizes
    inside = np.concatenate([row.sequence_ids for row in rows]) == 1
    held = np.add.reduceat(inside, base, dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(held)])[:-1]
    places = np.append(np.flatnonzero(inside), 0)  # the last is for windows of empty passages
    return Windows(
        owner=np.array([one.example_index for one in asked], np.int64),
        begin=np.array([one.start for one in asked], np.int64),
        held=held,
        first=np.where(held > 0, places[np.minimum(before, len(places) - 1)] - base, 0),
        logits=padded,
        base=base,
        offsets=np.concatenate([row.offsets for row in rows]),
    )


def _by_question(windows: Windows, config: QAConfig) -> Iterator[tuple[int, Candidates, tuple[float, float]]]:
    """Each question with its candidates and the logits of no answer, those of the window that is least for it."""
    pairs = _candidates(windows, config)
    nulls = windows.logits[:, 0]
    firsts = np.flatnonzero(np.diff(windows.owner, prepend=-1))
    numbers = windows.owner[firsts]
    least = np.lexsort((nulls.sum(axis=1), windows.owner))[firsts]  # the first of equal ones
    begins, ends = (np.searchsorted(pairs.owner, numbers, side) for side in ("left", "right"))
    for number, begin, end, null in zip(
        numbers.tolist(), begins.tolist(), ends.tolist(), nulls[least].tolist(), strict=True
    ):
        yield number, pairs.only(slice(begin, end)), (null[0], null[1])


def _candidates(windows: Windows, config: QAConfig) -> Candidates:
    """The best starts with the best ends of each window, as far as they are answers."""
    starts, ends = _best(windows.logits[:, :, 0], config.n_best), _best(windows.logits[:, :, 1], config.n_best)
    first, after = windows.first[:, None], (windows.first + windows.held)[:, None]
    right_start = (starts >= first) & (starts < after)
    right_start &= _has_most_context(windows, starts - first + windows.begin[:, None])
    right_end = (ends >= first) & (ends < after)
    apart = ends[:, None, :] - starts[:, :, None]  # [W, K, K]
    right = right_start[:, :, None] & right_end[:, None, :] & (apart >= 0) & (apart < config.max_answer_length)
    window, start, end = np.nonzero(right)
    begin_place, end_place = starts[window, start], ends[window, end]
    logits = np.stack([windows.logits[window, begin_place, 0], windows.logits[window, end_place, 1]], axis=1)
    span = np.stack(
        [
            windows.offsets[windows.base[window] + begin_place, 0],
            windows.offsets[windows.base[window] + end_place, 1],
        ],
        axis=1,
    )
    found = Candidates(windows.owner[window], logits.sum(axis=1), logits, span)
    order = np.lexsort((-found.score, found.owner))  # the first of equal ones
    return found.only(order[np.isfinite(found.score[order])])


def _best(logits: Scores, count: int) -> Numbers:
    """The places of the highest logits [W, K] of all [W, L], the earlier of equal ones first."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :count]


def _has_most_context(windows: Windows, tokens: Numbers) -> NDArray[np.bool_]:
    """Whether no other window shows more on both sides of a token of the passage; tokens [W, K].

    The score is the lesser of what stands before and after it and a little for the window's length; of equal ones the
    first window has it.
    """
    own = _context(windows.begin, windows.held, tokens)
    most = np.ones(tokens.shape, bool)
    same = windows.owner[1:] == windows.owner[:-1]
    steps = np.diff(windows.begin)[same]
    reach = int(windows.held.max()) // int(steps.min()) + 1 if len(steps) else 0
    for distance in range(1, min(reach, len(windows.owner) - 1) + 1):
        earlier, later = slice(None, -distance), slice(distance, None)
        neighbours = (windows.owner[earlier] == windows.owner[later])[:, None]
        before = _context(windows.begin[earlier], windows.held[earlier], tokens[later])
        most[later] &= ~(neighbours & (before >= own[later]))
        after = _context(windows.begin[later], windows.held[later], tokens[earlier])
        most[earlier] &= ~(neighbours & (after > own[earlier]))
    return most


def _context(begin: Numbers, held: Numbers, tokens: Numbers) -> Scores:
    """The score of tokens [W, K] in windows [W]; -inf where a window does not hold the token."""
    left = tokens - begin[:, None]
    least = np.minimum(left, held[:, None] - 1 - left)
    return np.where(least >= 0, least + PER_LENGTH * held[:, None], -np.inf)


def _answers(passage: str, pairs: Candidates, null: tuple[float, float] | None, count: int) -> Answers:
    """The first `count` texts that differ, no answer at its place among them or else after them."""
    found: list[Found] = []
    seen: set[str] = set()
    nothing = None if null is None else Found("", 0, 0, *null)
    waiting = nothing is not None
    spans, logits = pairs.span.tolist(), pairs.logits.tolist()
    for score, (begin, end), both in zip(pairs.score.tolist(), spans, logits, strict=True):
        if nothing is not None and waiting and sum(null or ()) > score:
            found.append(nothing)
            waiting = False
        if len(found) >= count:
            break
        text, begin, end = _stripped(passage, begin, end)
        if text and text not in seen:
            seen.add(text)
            found.append(Found(text, begin, end, both[0], both[1]))
    if nothing is not None and waiting:
        found.append(nothing)
    best = next((one.start_logit + one.end_logit for one in found if one.text), 0.0)
    return Answers(best=_with_probabilities(found), null_odds=sum(null or ()) - best)


def _stripped(passage: str, begin: int, end: int) -> tuple[str, int, int]:
    """A stretch of the passage without white space at its ends: tokens of some kinds begin with it."""
    text = passage[begin:end]
    bare = text.strip()
    if len(bare) != len(text):
        begin += len(text) - len(text.lstrip())
    return bare, begin, begin + len(bare)


def _with_probabilities(found: list[Found]) -> tuple[Answer, ...]:
    """Softmax over the scores."""
    scores = [one.start_logit + one.end_logit for one in found]
    top = max(scores, default=0.0)
    powers = [math.exp(score - top) for score in scores]
    total = sum(powers)
    return tuple(
        Answer(one.text, one.start, one.end, power / total, one.start_logit, one.end_logit)
        for one, power in zip(found, powers, strict=True)
    )
