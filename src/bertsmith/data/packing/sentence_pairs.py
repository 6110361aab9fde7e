"""Samples of documents, each split at a sentence into two segments: shared by `pairs` and `ordered_pairs`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing.bin_packing import BinPacking
from bertsmith.data.packing.counter_random import Bits, bernoulli, mix_counters, stream_key, to_range
from bertsmith.data.packing.document_stream import DocumentIndex, start_type
from bertsmith.data.packing.packing import Numbers, PackedBatch, RowLayout, Texts
from bertsmith.data.shards import Shards
from bertsmith.types import IGNORE_INDEX


class SplitSamples(NamedTuple):
    """N samples, each split into two segments."""

    sample_id: Numbers  # [N]
    starts: Numbers  # [N, 2] first token of each segment
    lengths: Numbers  # [N, 2] the second is 0 if no sentence starts within the sample
    is_pair: NDArray[np.bool_]  # [N]
    first: Numbers  # [N] the first sentence that starts after the first token
    ends_complete: NDArray[np.bool_]  # [N] a sentence ends with the last token


class SentencePairPacking(BinPacking):
    """A subclass decides how documents are cut into samples, and which pairs get another second segment or order."""

    objective: ClassVar[str]  # that the labels are for
    kind: ClassVar[str]  # part of the key of all random numbers

    def __init__(self, config: Any, shards: Shards, index: DocumentIndex, layout: RowLayout, *, seed: int) -> None:
        self._config, self._shards, self._index, self._seed = config, shards, index, seed
        cuts = self._cut(layout.text_length(1, minimum=2))
        is_pair = index.sentence_at(cuts[1:], "left") > index.sentence_at(cuts[:-1], "right")
        self._cuts = cuts.astype(start_type(shards.tokens))  # [samples + 1] first token of each; last: all tokens
        lengths = np.diff(cuts) + layout.frame.special_counts[is_pair.astype(np.int64)]
        super().__init__(lengths, max_length=layout.max_length, seed=seed)
        self._layout = replace(layout, texts_per_row=self.texts_per_row)

    def rows(self, first: int, count: int) -> PackedBatch:
        """See `Packing.rows`. Label 0: the second segment follows the first in the shards; 1: it does not."""
        row, sample, sample_id = self.samples_of(first, count)
        samples = self._split(sample, sample_id)
        changed = self._change_pairs(samples)
        # one span for both segments where the second follows
        spans = np.where(changed[:, None], samples.lengths, samples.lengths.sum(1, keepdims=True) * [1, 0])
        tokens = self._shards.read(samples.starts.ravel(), spans.ravel())
        labels = np.where(samples.is_pair, changed, IGNORE_INDEX)
        return self._layout.make_batch(Texts(row, sample_id, samples.lengths, tokens), {self.objective: labels})

    def _cut(self, length: int) -> Numbers:
        """Starts of the samples of at most `length` tokens, and the end of the last sample."""
        raise NotImplementedError

    def _change_pairs(self, samples: SplitSamples) -> NDArray[np.bool_]:
        """Changes starts and lengths of some pairs, drawn anew every epoch; returns which [N]."""
        raise NotImplementedError

    def _split(self, sample: Numbers, sample_id: Numbers) -> SplitSamples:
        """Splits each sample at a random sentence that starts within it."""
        index = self._index
        start, end = (self._cuts[number].astype(np.int64) for number in (sample, sample + 1))
        first, last = index.sentence_at(start, "right"), index.sentence_at(end, "left")
        chosen = first + to_range(self._random_bits("split", sample_id), np.maximum(last - first, 1))
        middle = np.where(first < last, index.sentences[chosen].astype(np.int64), end)
        starts, lengths = np.stack([start, middle], axis=1), np.stack([middle - start, end - middle], axis=1)
        return SplitSamples(sample_id, starts, lengths, first < last, first, index.sentences[last] == end)

    def _short_documents(self, length: int) -> tuple[NDArray[np.bool_], Numbers]:
        """[D] which documents are cut into shorter samples, and [D] the length of these.

        "To minimize the mismatch between pre-training and fine-tuning" (bert: create_pretraining_data.py).
        """
        document = np.arange(len(self._index.documents) - 1)
        short = bernoulli(self._random_bits("short", document), self._config.short_sequences)
        return short, 2 + to_range(self._random_bits("target", document), length - 1)

    def _random_bits(self, purpose: str, number: Numbers) -> Bits:
        return mix_counters(stream_key(self._seed, f"{self.kind}/{purpose}"), number)
