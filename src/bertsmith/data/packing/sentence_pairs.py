"""Samples of documents, each split at a sentence into two segments: shared by `pairs` and `ordered_pairs`."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing.bin_packing import BinPacking
from bertsmith.data.packing.counter_random import Bits, bernoulli, mix_counters, stream_key, to_range
from bertsmith.data.packing.document_stream import DocumentIndex, start_type
from bertsmith.data.packing.packing import (
    FrameArrays,
    Numbers,
    PackedBatch,
    Packing,
    RowLayout,
    Texts,
    make_batch,
    text_length,
)
from bertsmith.data.shards import Shards
from bertsmith.types import Frame


class Segments(NamedTuple):
    """The segments of N texts; those with an empty second segment are single texts."""

    starts: Numbers  # [N, 2] first token of each segment
    lengths: Numbers  # [N, 2]
    labels: Numbers  # [N] 0 if the second segment follows the first in the shards, 1 if not

    def spans(self) -> tuple[Numbers, Numbers]:
        """Starts and lengths to read from the shards: one span for both segments where the second follows."""
        follows = (self.labels != 1)[:, None]
        lengths = np.where(follows, self.lengths.sum(1, keepdims=True) * [1, 0], self.lengths)
        return self.starts.ravel(), lengths.ravel()


class Split(NamedTuple):
    """Where N samples are split, by tokens."""

    start: Numbers  # [N] first token
    middle: Numbers  # [N] first token of the second segment; the end if there is none
    end: Numbers  # [N] after the last token
    is_pair: NDArray[np.bool_]  # [N]
    first: Numbers  # [N] the first sentence that starts after `start`
    last: Numbers  # [N] the first sentence that starts at or after `end`


class SentencePairPacking(Packing):
    """A subclass decides how documents are cut into samples, and what their two segments contain."""

    objective: ClassVar[str]  # that the labels are for
    kind: ClassVar[str]  # part of the key of all random numbers

    def __init__(
        self,
        shards: Shards,
        index: DocumentIndex,
        *,
        frame: Frame,
        max_length: int,
        short_sequences: float,
        padding_id: int,
        seed: int,
    ) -> None:
        self.max_length = max_length
        self._shards, self._index, self._frame, self._seed = shards, index, FrameArrays(frame), seed
        length = text_length(max_length, special_tokens=int(self._frame.special_counts[1]), minimum=2)
        cuts = self._cut(length, short_sequences)
        is_pair = index.sentence_at(cuts[1:], "left") > index.sentence_at(cuts[:-1], "right")
        self._cuts = cuts.astype(start_type(shards.tokens))  # [samples + 1] first token of each; last: all tokens
        lengths = np.diff(cuts) + self._frame.special_counts[is_pair.astype(np.int64)]
        self._bins = BinPacking(lengths, max_length=max_length, seed=seed)
        self.rows_per_epoch, self.texts_per_row = self._bins.rows_per_epoch, self._bins.texts_per_row
        self.padding_fraction = self._bins.padding_fraction
        self._layout = RowLayout(max_length, padding_id, self.texts_per_row)

    def rows(self, first: int, count: int) -> PackedBatch:
        """See `Packing.rows`."""
        row, epoch, sample = self._bins.samples_of(*self.epochs_and_rows(first, count))
        sample_id = epoch * self._bins.samples + sample
        segments = self._segments(self._split(sample, sample_id), sample_id)
        form = (segments.lengths[:, 1] > 0).astype(np.int64)
        texts = Texts(
            row=row,
            sample_id=sample_id,
            form=form,
            part_lengths=self._frame.part_lengths(form, *segments.lengths.T),
            tokens=self._shards.read(*segments.spans()),
        )
        return make_batch(texts, self._frame, self._layout, {self.objective: segments.labels})

    def _cut(self, length: int, short_sequences: float) -> Numbers:
        """Starts of the samples of at most `length` tokens, and the end of the last sample."""
        raise NotImplementedError

    def _segments(self, split: Split, sample_id: Numbers) -> Segments:
        """The two segments of samples; drawn anew every epoch."""
        raise NotImplementedError

    def _split(self, sample: Numbers, sample_id: Numbers) -> Split:
        """Splits each sample at a random sentence that starts within it."""
        index = self._index
        start, end = (self._cuts[number].astype(np.int64) for number in (sample, sample + 1))
        first, last = index.sentence_at(start, "right"), index.sentence_at(end, "left")
        is_pair = first < last
        chosen = first + to_range(self._random_bits("split", sample_id), np.maximum(last - first, 1))
        middle = np.where(is_pair, index.sentences[chosen].astype(np.int64), end)
        return Split(start, middle, end, is_pair, first, last)

    def _short_documents(self, length: int, fraction: float) -> tuple[NDArray[np.bool_], Numbers]:
        """[D] which documents are cut into shorter samples, and [D] the length of these.

        "To minimize the mismatch between pre-training and fine-tuning" (bert: create_pretraining_data.py).
        """
        document = np.arange(len(self._index.documents) - 1)
        short = bernoulli(self._random_bits("short", document), fraction)
        return short, 2 + to_range(self._random_bits("target", document), length - 1)

    def _random_bits(self, purpose: str, number: Numbers) -> Bits:
        return mix_counters(stream_key(self._seed, f"{self.kind}/{purpose}"), number)
