"""Sliding windows over passages (P-BERT 4.2, bert: run_squad.py), gathered by array operations.

E questions, W windows, N texts, T tokens. The rows of a chunk are views of shared arrays.
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
from bertsmith.tokenizers.batch_encoding import BatchEncoder, EncodedBatch
from bertsmith.tokenizers.spelling import TEXT_BEGIN, TEXT_END, mark, widened
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded, Frame, Row


@dataclass(frozen=True, kw_only=True)
class QAConfig:
    """Settings of extractive question answering; the defaults are those of bert: run_squad.py."""

    max_length: int = 384  # tokens of a window, including question and special tokens
    stride: int = 128  # passage tokens between the starts of neighbouring windows
    max_query_length: int = 64  # tokens of a question; longer ones are truncated
    max_answer_length: int = 30  # maximum length of an answer in tokens
    n_best: int = 20  # number of starts, ends and answers that are considered
    no_answer: float = 0.0  # null odds above which the prediction is "no answer" (SQuAD 2.0)

    def __post_init__(self) -> None:
        for name in ("max_length", "stride", "max_query_length", "max_answer_length", "n_best"):
            if getattr(self, name) < 1:
                raise ConfigError(f"task.{name}={getattr(self, name)} must be at least 1")
        if self.no_answer != self.no_answer:
            raise ConfigError("task.no_answer=nan must be a number")


Numbers = NDArray[np.int64]
CHUNK = 2048  # questions at a time: bounds the memory
NO_ANSWER = (0, 0)


class Question(NamedTuple):
    """A question, its passage, and the character span of its answer."""

    text: str
    passage: str
    answer: tuple[int, int] | None = None  # NO_ANSWER if there is none, None if unknown


class Pool(NamedTuple):
    """The special tokens of a frame, followed by all texts."""

    ids: NDArray[np.int32]  # [T]
    offsets: NDArray[np.int32]  # [T, 2]
    words: NDArray[np.int32]  # [T]
    begins: Numbers  # [N] first token of each text
    sizes: Numbers  # [N] tokens of each text
    characters: Numbers  # [N] start of each text in the concatenation of all
    spelling: NDArray[np.int16] | None  # [T, C] of each token, of tokenizers that spell


class Plan(NamedTuple):
    """The tokens of question and passage in each window."""

    owner: Numbers  # [W] index of the question in the chunk
    begin: Numbers  # [W] first passage token
    size: Numbers  # [W] number of passage tokens
    query: Numbers  # [E] tokens of the question after truncation


def passage_windows(
    questions: Sequence[Question], tokenizer: Tokenizer, config: QAConfig, *, max_length: int
) -> list[Features]:
    """The windows of all questions in order; `target` is (0, 0) if a window lacks the answer.

    It is None if the answer is unknown or overlaps no token of the passage.
    """
    specials = sum(isinstance(part, int) for part in tokenizer.frame_ids.pair)
    if max_length < specials + 2:
        raise BertsmithError(
            f"max_length={max_length} is too short for {specials} special tokens, question and passage: use 384"
        )
    features: list[Features] = []
    encode = BatchEncoder(tokenizer)
    for first in range(0, len(questions), CHUNK):
        features += _chunk(questions[first : first + CHUNK], encode, config, max_length=max_length, first=first)
    return features


def _chunk(
    questions: Sequence[Question], encode: BatchEncoder, config: QAConfig, *, max_length: int, first: int
) -> list[Features]:
    texts = dict.fromkeys(text for question in questions for text in (question.passage, question.text))
    numbers = {text: number for number, text in enumerate(texts)}
    frame = encode.tokenizer.frame_ids
    pool = _pool(list(numbers), frame, encode)
    passage = np.array([numbers[question.passage] for question in questions], np.int64)
    query = np.array([numbers[question.text] for question in questions], np.int64)
    specials = sum(isinstance(part, int) for part in frame.pair)
    plan = _plan(pool.sizes[query], pool.sizes[passage], config, capacity=max_length - specials)
    truncated = (pool.sizes[query] - plan.query)[plan.owner].tolist()
    starts = {"a": pool.begins[query][plan.owner], "b": pool.begins[passage][plan.owner] + plan.begin}
    sizes = {"a": plan.query[plan.owner], "b": plan.size}
    rows, passage_starts = _rows(frame, pool, starts=starts, sizes=sizes, truncated=truncated)
    targets = _targets([question.answer for question in questions], pool, passage, plan, passage_starts)
    owners, begins = (plan.owner + first).tolist(), plan.begin.tolist()
    return [
        Features(rows=(row,), example_index=owner, target=target, start=begin)
        for row, owner, target, begin in zip(rows, owners, targets, begins, strict=True)
    ]


def _pool(texts: list[str], frame: Frame, encode: BatchEncoder) -> Pool:
    specials = np.array([part for part in frame.pair if isinstance(part, int)], np.int32)
    flat = encode(texts)
    begins = np.cumsum(flat.lengths) - flat.lengths
    unicode = [number for number, text in enumerate(texts) if not text.isascii()]
    characters = set("".join([texts[number] for number in unicode]))
    marks = {character for character in characters if unicodedata.category(character) == "Mn"}
    for number in unicode if marks else ():
        _extend_over_marks(texts[number], marks, flat.offsets[begins[number] : begins[number] + flat.lengths[number]])
    return Pool(
        ids=np.concatenate([specials, flat.ids]),
        offsets=np.concatenate([np.zeros((len(specials), 2), np.int32), flat.offsets]),
        words=np.concatenate([np.full(len(specials), -1, np.int32), flat.words]),
        begins=len(specials) + begins,
        sizes=flat.lengths,
        characters=np.cumsum([0, *(len(text) + 1 for text in texts)])[:-1],
        spelling=_spelling(texts, flat, frame, encode.tokenizer) if encode.tokenizer.spells else None,
    )


def _spelling(texts: list[str], flat: EncodedBatch, frame: Frame, tokenizer: Tokenizer) -> NDArray[np.int16]:
    """Of the special tokens of a frame, then of all tokens [T, C]."""
    first = [number == 0 for number, part in enumerate(frame.pair) if isinstance(part, int)]
    parts = [mark(TEXT_BEGIN if begins else TEXT_END)[None] for begins in first]
    ends = np.cumsum(flat.lengths)
    for text, begin, end in zip(texts, ends - flat.lengths, ends, strict=True):
        encoded = Encoded(flat.ids[begin:end], flat.offsets[begin:end], flat.words[begin:end])
        spelled = tokenizer.spelled(text, encoded).characters
        assert spelled is not None, "a tokenizer that spells"
        parts.append(spelled)
    width = max(part.shape[1] for part in parts)
    return np.concatenate([widened(part, width) for part in parts])


def _extend_over_marks(text: str, marks: set[str], offsets: NDArray[np.int32]) -> None:
    """Extends tokens over the combining marks that the tokenizer stripped from their last letter.

    Otherwise an answer that ends there loses its last accent.
    """
    for position, character in enumerate(text):
        if character in marks:
            token = int(np.searchsorted(offsets[:, 0], position, "right")) - 1
            if token >= 0 and offsets[token, 1] == position:
                offsets[token, 1] = position + 1


def _plan(queries: Numbers, passages: Numbers, config: QAConfig, *, capacity: int) -> Plan:
    """Windows of `capacity` tokens minus the question; the last one ends with the passage. Sizes [E] in tokens."""
    # differs from the reference: a question never takes more than half of a short row
    query = np.minimum(queries, min(config.max_query_length, capacity // 2))
    left = capacity - query
    step = np.minimum(left, config.stride)
    counts = 1 + -(-np.maximum(passages - left, 0) // step)
    owner = np.repeat(np.arange(len(counts)), counts)
    window = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = window * step[owner]
    return Plan(owner=owner, begin=begin, size=np.minimum(left[owner], passages[owner] - begin), query=query)


def _rows(
    frame: Frame, pool: Pool, *, starts: dict[str, Numbers], sizes: dict[str, Numbers], truncated: list[int]
) -> tuple[list[Row], Numbers]:
    """Rows framed like the tokenizer's pairs, and the token index at which the passage starts in each [W]."""
    parts, special = frame.pair, iter(range(len(frame.pair)))
    one = np.ones(len(truncated), np.int64)
    begin_WP = np.stack([next(special) * one if isinstance(part, int) else starts[part] for part in parts], axis=1)
    size_WP = np.stack([one if isinstance(part, int) else sizes[part] for part in parts], axis=1)
    size = size_WP.ravel()
    end = np.cumsum(size)
    source = np.arange(end[-1]) + np.repeat(begin_WP.ravel() - (end - size), size)
    sides = np.array([-1 if isinstance(part, int) else "ab".index(part) for part in parts], np.int8)
    segments = np.array(frame.pair_segments or (0,) * len(parts), np.uint8)
    ids, offsets, words = pool.ids[source], pool.offsets[source], pool.words[source]
    segment, text = np.repeat(np.tile(segments, len(truncated)), size), np.repeat(np.tile(sides, len(truncated)), size)
    ends = end.reshape(size_WP.shape)[:, -1].tolist()
    spelling = None if pool.spelling is None else pool.spelling[source]
    rows = [
        Row(
            ids[begin:end],
            segment[begin:end],
            text[begin:end],
            offsets[begin:end],
            words[begin:end],
            truncated=(cut, 0),
            characters=None if spelling is None else spelling[begin:end],
        )
        for begin, end, cut in zip([0, *ends[:-1]], ends, truncated, strict=True)
    ]
    return rows, size_WP[:, : parts.index("b")].sum(axis=1)


def _targets(
    answers: Sequence[tuple[int, int] | None], pool: Pool, passage: Numbers, plan: Plan, passage_starts: Numbers
) -> list[tuple[int, int] | None]:
    """First and last token index of each window's answer: the fewest tokens that cover its characters.

    differs from the reference, which splits at white space and then searches the answer's pieces in those words; if it
    finds none (`1895` in `1895s`) it takes the full words, this takes only the overlapping tokens.
    """
    wanted = np.array([NO_ANSWER if answer is None else answer for answer in answers], np.int64).reshape(-1, 2)
    known = np.array([answer is not None for answer in answers])
    none = known & (wanted[:, 0] == wanted[:, 1])
    bases = pool.characters[passage]
    shifts = np.concatenate(
        [np.zeros(len(pool.ids) - pool.sizes.sum(), np.int64), np.repeat(pool.characters, pool.sizes)]
    )
    first = np.searchsorted(pool.offsets[:, 1] + shifts, wanted[:, 0] + bases, "right") - pool.begins[passage]
    last = np.searchsorted(pool.offsets[:, 0] + shifts, wanted[:, 1] + bases, "left") - 1 - pool.begins[passage]
    covered = known & ~none & (first <= last)
    owner = plan.owner
    begin, end = first[owner] - plan.begin, last[owner] - plan.begin
    inside = covered[owner] & (begin >= 0) & (end < plan.size)
    usable = (covered | none)[owner]
    pairs = np.where(inside[:, None], np.stack([passage_starts + begin, passage_starts + end], axis=1), 0).tolist()
    return [(pair[0], pair[1]) if use else None for pair, use in zip(pairs, usable.tolist(), strict=True)]
