"""The settings that every task over passages has.

Questions and passages become windows that fit into a model (P-BERT 4.2, bert: run_squad.py). Knows no files.

Every text is encoded once, however many questions are asked of it; windows are gathered by array operations and no
loop runs over tokens. The rows of a chunk are views of common arrays. E questions, W windows, N texts, T tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.tasks.task import Features
from bertsmith.tokenizers.batch_encoding import BatchEncoder
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Frame, Row


@dataclass(frozen=True, kw_only=True)
class QAConfig:
    """How questions are put to passages and how answers are read (bert: run_squad.py, whose values these are)."""

    max_length: int = 384  # places of a window, question and special tokens among them
    stride: int = 128  # tokens of the passage from the begin of one window to the begin of the next
    max_query_length: int = 64  # tokens of a question at most; the rest is cut
    max_answer_length: int = 30  # tokens
    n_best: int = 20  # starts, ends and answers that are looked at
    no_answer: float = 0.0  # null odds above which it is said that there is no answer; only where there may be none

    def __post_init__(self) -> None:
        for name in ("max_length", "stride", "max_query_length", "max_answer_length", "n_best"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.no_answer != self.no_answer:
            raise ConfigError("no_answer=nan must be a number")


Numbers = NDArray[np.int64]
CHUNK = 2048  # questions at a time: bounds the memory beside the rows themselves
NO_ANSWER = (0, 0)


class Question(NamedTuple):
    """What is asked of which passage, and the first and the character after the last of its answer there."""

    text: str
    passage: str
    answer: tuple[int, int] | None = None  # NO_ANSWER where there is none, None where nobody knows


class Pool(NamedTuple):
    """Special tokens of a frame and then texts, one after another."""

    ids: NDArray[np.int32]  # [T]
    offsets: NDArray[np.int32]  # [T, 2]
    words: NDArray[np.int32]  # [T]
    begins: Numbers  # [N] first token of each text
    sizes: Numbers  # [N] tokens of each text
    characters: Numbers  # [N] where each text would begin if all stood in one string


class Plan(NamedTuple):
    """Which tokens of which question and passage each window holds."""

    owner: Numbers  # [W] number of the question in the chunk
    begin: Numbers  # [W] first token of the passage
    held: Numbers  # [W] tokens of the passage
    query: Numbers  # [E] tokens of the question that stay


def passage_windows(
    questions: Sequence[Question], tokenizer: Tokenizer, config: QAConfig, *, max_length: int
) -> list[Features]:
    """The windows of all questions in their order; `Asked.target` is (0, 0) where a window lacks the answer.

    It is None where nobody knows the answer, and where no token of the passage holds any of it.
    """
    specials = sum(isinstance(part, int) for part in tokenizer.frame_ids.pair)
    if max_length < specials + 2:
        raise BertsmithError(
            f"length={max_length} has no room for {specials} special tokens, question and passage: take 384, or more"
        )
    found: list[Features] = []
    encode = BatchEncoder(tokenizer)
    for first in range(0, len(questions), CHUNK):
        found += _chunk(questions[first : first + CHUNK], encode, config, length=max_length, first=first)
    return found


def _chunk(
    questions: Sequence[Question], encode: BatchEncoder, config: QAConfig, *, length: int, first: int
) -> list[Features]:
    numbers = {text: number for number, text in enumerate(dict.fromkeys(_all_texts(questions)))}
    frame = encode.tokenizer.frame_ids
    pool = _pool(list(numbers), frame, encode)
    asked_of = np.array([numbers[question.passage] for question in questions], np.int64)
    asking = np.array([numbers[question.text] for question in questions], np.int64)
    specials = sum(isinstance(part, int) for part in frame.pair)
    plan = _plan(pool.sizes[asking], pool.sizes[asked_of], config, room=length - specials)
    lost = (pool.sizes[asking] - plan.query)[plan.owner].tolist()
    starts = {"a": pool.begins[asking][plan.owner], "b": pool.begins[asked_of][plan.owner] + plan.begin}
    sizes = {"a": plan.query[plan.owner], "b": plan.held}
    rows, passage_places = _rows(frame, pool, starts=starts, sizes=sizes, lost=lost)
    targets = _targets([question.answer for question in questions], pool, asked_of, plan, passage_places)
    owners, begins = (plan.owner + first).tolist(), plan.begin.tolist()
    return [
        Features(rows=(row,), example_index=owner, target=target, start=begin)
        for row, owner, target, begin in zip(rows, owners, targets, begins, strict=True)
    ]


def _all_texts(questions: Sequence[Question]) -> list[str]:
    return [text for question in questions for text in (question.passage, question.text)]


def _pool(texts: list[str], frame: Frame, encode: BatchEncoder) -> Pool:
    """The special tokens of the frame and all texts, encoded once."""
    specials = np.array([part for part in frame.pair if isinstance(part, int)], np.int32)
    flat = encode(texts)
    begins = np.cumsum(flat.lengths) - flat.lengths
    beyond = [number for number, text in enumerate(texts) if not text.isascii()]
    characters = set("".join([texts[number] for number in beyond]))
    marks = {character for character in characters if unicodedata.category(character) == "Mn"}
    for number in beyond if marks else ():
        _take_marks(texts[number], marks, flat.offsets[begins[number] : begins[number] + flat.lengths[number]])
    return Pool(
        ids=np.concatenate([specials, flat.ids]),
        offsets=np.concatenate([np.zeros((len(specials), 2), np.int32), flat.offsets]),
        words=np.concatenate([np.full(len(specials), -1, np.int32), flat.words]),
        begins=len(specials) + begins,
        sizes=flat.lengths,
        characters=np.cumsum([0, *(len(text) + 1 for text in texts)])[:-1],
    )


def _take_marks(text: str, marks: set[str], offsets: NDArray[np.int32]) -> None:
    """Has tokens go on over the combining marks that the tokenizer has stripped from their last letter.

    An answer that ends there would otherwise lose its last accent.
    """
    for place, character in enumerate(text):
        if character in marks:
            token = int(np.searchsorted(offsets[:, 0], place, "right")) - 1
            if token >= 0 and offsets[token, 1] == place:
                offsets[token, 1] = place + 1


def _plan(asking: Numbers, passages: Numbers, config: QAConfig, *, room: int) -> Plan:
    """Windows of `room` tokens less the question; the last one ends with the passage. Sizes [E] in tokens."""
    # differs from the reference: a question never takes more than half of a short row
    query = np.minimum(asking, min(config.max_query_length, room // 2))
    left = room - query
    step = np.minimum(left, config.stride)
    counts = 1 + -(-np.maximum(passages - left, 0) // step)
    owner = np.repeat(np.arange(len(counts)), counts)
    turn = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = turn * step[owner]
    return Plan(owner=owner, begin=begin, held=np.minimum(left[owner], passages[owner] - begin), query=query)


def _rows(
    frame: Frame, pool: Pool, *, starts: dict[str, Numbers], sizes: dict[str, Numbers], lost: list[int]
) -> tuple[list[Row], Numbers]:
    """Rows framed as the tokenizer frames pairs, and the place in each at which the passage begins [W]."""
    parts, special = frame.pair, iter(range(len(frame.pair)))
    one = np.ones(len(lost), np.int64)
    begin_WP = np.stack([next(special) * one if isinstance(part, int) else starts[part] for part in parts], axis=1)
    size_WP = np.stack([one if isinstance(part, int) else sizes[part] for part in parts], axis=1)
    size = size_WP.ravel()
    end = np.cumsum(size)
    source = np.arange(end[-1]) + np.repeat(begin_WP.ravel() - (end - size), size)
    sides = np.array([-1 if isinstance(part, int) else "ab".index(part) for part in parts], np.int8)
    segments = np.array(frame.pair_segments or (0,) * len(parts), np.uint8)
    ids, offsets, words = pool.ids[source], pool.offsets[source], pool.words[source]
    segment, text = np.repeat(np.tile(segments, len(lost)), size), np.repeat(np.tile(sides, len(lost)), size)
    ends = end.reshape(size_WP.shape)[:, -1].tolist()
    rows = [
        Row(ids[begin:end], segment[begin:end], text[begin:end], offsets[begin:end], words[begin:end], (cut, 0))
        for begin, end, cut in zip([0, *ends[:-1]], ends, lost, strict=True)
    ]
    return rows, size_WP[:, : parts.index("b")].sum(axis=1)


def _targets(
    answers: Sequence[tuple[int, int] | None], pool: Pool, asked_of: Numbers, plan: Plan, places: Numbers
) -> list[tuple[int, int] | None]:
    """The first and last place of each window's answer: the fewest tokens that hold all its characters.

    differs from the reference: that goes by words between white space and then looks for the pieces of the answer
    within them; where it finds none (`1895` in `1895s`) it takes the whole words, and this only the tokens touched.
    """
    wanted = np.array([NO_ANSWER if answer is None else answer for answer in answers], np.int64).reshape(-1, 2)
    known = np.array([answer is not None for answer in answers])
    none = known & (wanted[:, 0] == wanted[:, 1])
    bases = pool.characters[asked_of]
    shifts = np.concatenate(
        [np.zeros(len(pool.ids) - pool.sizes.sum(), np.int64), np.repeat(pool.characters, pool.sizes)]
    )
    first = np.searchsorted(pool.offsets[:, 1] + shifts, wanted[:, 0] + bases, "right") - pool.begins[asked_of]
    last = np.searchsorted(pool.offsets[:, 0] + shifts, wanted[:, 1] + bases, "left") - 1 - pool.begins[asked_of]
    there = known & ~none & (first <= last)
    owner = plan.owner
    begin, end = first[owner] - plan.begin, last[owner] - plan.begin
    inside = there[owner] & (begin >= 0) & (end < plan.held)
    told = (there | none)[owner]
    pairs = np.where(inside[:, None], np.stack([places + begin, places + end], axis=1), 0).tolist()
    return [(pair[0], pair[1]) if tell else None for pair, tell in zip(pairs, told.tolist(), strict=True)]
