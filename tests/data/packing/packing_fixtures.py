"""Shards in which every token is unique, and the texts of a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from faults.broken_disks import QuickDisk
from hypothesis import strategies as some
from numpy.typing import NDArray

from bertsmith.data.packing.packing import PackedBatch, Packing
from bertsmith.data.shards import EncodedDocuments, ShardBuilder, Shards
from bertsmith.data.shards.format import token_type
from bertsmith.types import Frame

PADDING, START, SEPARATOR, FIRST = 0, 1, 2, 10  # token n of the split has the id FIRST + n
FRAME = Frame((START, "a", SEPARATOR), (START, "a", SEPARATOR, "b", SEPARATOR), (0, 0, 0, 1, 1))
DOUBLE = Frame((START, "a", SEPARATOR), (START, "a", SEPARATOR, SEPARATOR, "b", SEPARATOR))  # as in RoBERTa
BARE = Frame(("a",), ("a", "b"))

Documents = Sequence[Sequence[int]]  # tokens of each sentence of each document


def make_shards(
    folder: Path, documents: Documents, *, documents_per_part: int = 10**9, settings: dict[str, Any] | None = None
) -> Shards:
    """A shard set of these documents in several parts; empty documents are kept."""
    lengths = np.array([length for document in documents for length in document], np.uint16)
    counts = np.array([len(document) for document in documents], np.uint32)
    size = FIRST + int(lengths.sum(dtype=np.int64))
    tokens = np.arange(FIRST, size).astype(token_type(size))
    whole = EncodedDocuments(tokens, lengths, counts)
    with ShardBuilder(
        folder,
        tokenizer_files={},
        fingerprint="0",
        vocab_size=size,
        settings=settings or {},
        shard_tokens=1,
        disk=QuickDisk(),
    ) as builder:
        for unit, begin in enumerate(range(0, len(documents), documents_per_part)):
            builder.add(unit, {"train": _part(whole, begin, begin + documents_per_part)}, {})
        builder.finish()
    return Shards.open(folder)


def _part(whole: EncodedDocuments, begin: int, end: int) -> EncodedDocuments:
    """The documents from number `begin` to `end`."""
    sentences = np.cumsum([0, *whole.document_sentences])[[begin, min(end, len(whole.document_sentences))]]
    tokens = np.cumsum([0, *whole.sentence_lengths])[sentences]
    return EncodedDocuments(
        whole.tokens[slice(*tokens)], whole.sentence_lengths[slice(*sentences)], whole.document_sentences[begin:end]
    )


def fixed_documents() -> list[list[int]]:
    """Documents that do not depend on the numpy version."""
    lengths = [
        [(7 * number + 5 * position * position) % 23 + 1 for position in range(number % 17 + 1)]
        for number in range(100)
    ]
    return [*lengths, [1], [300], [1, 200, 1], [2] * 300]


def some_documents(seed: int, *, documents: int, sentences: int = 30, tokens: int = 20) -> list[list[int]]:
    """Documents of up to that many sentences of up to that many tokens."""
    chance = np.random.default_rng(seed)
    counts = chance.integers(1, sentences + 1, documents)
    return [chance.integers(1, tokens + 1, count).tolist() for count in counts]


# For pairs: documents of all kinds, and any few that have very short, short and long sentences.
MIXED = [*some_documents(0, documents=400), [1], [1, 1], [700], [3, 400, 2], [64] * 5, [2] * 900]
TINY = some.lists(
    some.lists(some.one_of(some.just(1), some.integers(1, 6), some.integers(30, 50)), min_size=1, max_size=6),
    min_size=1,
    max_size=7,
)

# Arguments of a test of pairs, for hypothesis.
ANY = {
    "documents": TINY,
    "length": some.integers(5, 24),
    "parts": some.integers(1, 7),
    "short_sequences": some.sampled_from([0.0, 0.5, 1.0]),
    "epoch": some.integers(0, 3),
}


def build(
    config: type, shards: Shards, *, seed: int = 7, frame: Frame = FRAME, max_length: int = 64, **changes: Any
) -> Any:
    """A packing with these settings; the default length is 64 tokens."""
    return config(**changes).build(shards, frame=frame, padding_id=PADDING, seed=seed, max_length=max_length)


class TokenOwners(NamedTuple):
    """Documents and sentences of the tokens of a split."""

    documents: NDArray[np.int64]  # [tokens] number of each token's document
    sentence_begins: NDArray[np.bool_]  # [tokens + 1] the end of all counts too

    @classmethod
    def of(cls, documents: Documents) -> TokenOwners:
        lengths = [sum(document) for document in documents]
        begins = np.zeros(sum(lengths) + 1, np.bool_)
        begins[np.cumsum([0, *(length for document in documents for length in document)])] = True
        return cls(np.repeat(np.arange(len(documents)), lengths), begins)


class Text(NamedTuple):
    """One text of a batch."""

    row: int
    turn: int  # in its row, from 1
    ids: list[int]
    positions: list[int]
    segments: list[int]
    special: list[bool]
    sample: int
    label: int
    documents: list[int]  # document ids for attention

    @property
    def tokens(self) -> list[int]:
        """Token numbers in the split."""
        return [number - FIRST for number, special in zip(self.ids, self.special, strict=True) if not special]


def texts_of(batch: PackedBatch) -> list[Text]:
    """The texts of a batch, row by row, by sample id."""
    result = []
    every = next(iter(batch.labels.values()), batch.cls_positions)
    labels = dict(zip(batch.cls_positions.tolist(), every.tolist(), strict=True))
    length = batch.input_ids.shape[1]
    for row, samples in enumerate(batch.sample_ids):
        numbers = [number for number in dict.fromkeys(samples.tolist()) if number >= 0]
        for turn, sample in enumerate(numbers, start=1):
            (indices,) = np.nonzero(samples == sample)
            assert indices.tolist() == list(range(indices[0], indices[-1] + 1)), "a text is contiguous"
            planes = (batch.input_ids, batch.position_ids, batch.segment_ids, batch.special_mask)
            values = [plane[row, indices].tolist() for plane in planes]
            documents = batch.document_ids[row, indices].tolist()
            result.append(Text(row, turn, *values, sample, labels[row * length + int(indices[0])], documents))
    return result


def epoch_texts(packing: Packing, epoch: int = 0) -> list[Text]:
    """The texts of one epoch."""
    return texts_of(packing.rows(epoch * packing.rows_per_epoch, packing.rows_per_epoch))


class Pair(NamedTuple):
    """All pairs of a batch at once: tokens of the split, by number."""

    label: NDArray[np.int64]
    a_first: NDArray[np.int64]
    a_last: NDArray[np.int64]
    b_first: NDArray[np.int64]
    b_last: NDArray[np.int64]
    sample: NDArray[np.int64]


def pairs_of(batch: PackedBatch) -> Pair:
    """The pairs framed by FRAME; single texts are left out."""
    ids, samples = batch.input_ids.ravel().astype(np.int64), batch.sample_ids.ravel()
    separators = np.flatnonzero(ids == SEPARATOR)
    first, (label,) = batch.cls_positions, batch.labels.values()
    first, label = first[label >= 0], label[label >= 0]
    position = np.searchsorted(separators, first)
    middle, end = separators[position], separators[position + 1]
    assert np.array_equal(samples[first], samples[end])
    tokens = (ids[indices] - FIRST for indices in (first + 1, middle - 1, middle + 1, end - 1))
    return Pair(label, *tokens, samples[first])


def first_pairs(packing: Packing, count: int = 10**5) -> Pair:
    """The first `count` pairs of a run."""
    result, rows = [], 0
    while sum(len(pairs.label) for pairs in result) < count:
        result.append(pairs_of(packing.rows(rows, 2000)))
        rows += 2000
    return Pair(*(np.concatenate(values)[:count] for values in zip(*result, strict=True)))


def fingerprint(batches: Sequence[PackedBatch]) -> str:
    """A hash of all arrays in a fixed order, independent of their names."""
    digest = hashlib.sha256()
    for batch in batches:
        for values in (*batch.arrays.values(), *batch.labels.values()):
            digest.update(f"{values.dtype.str} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def same(one: PackedBatch, other: PackedBatch) -> bool:
    return fingerprint([one]) == fingerprint([other])
