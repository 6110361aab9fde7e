"""Pairs of a source and a target text for translation; several pairs share a row.

A batch has rows of source texts, `source [SEP]`, and in `target` rows of as many target texts, `[CLS] target`, which a
decoder continues with the end token. Pair n of a row has the document id n on both sides. Rows are filled by the longer
text of each pair, so that both sides have `max_length` tokens, and a step about as many tokens in every batch.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from bertsmith.data.packing.bin_packing import BinPacking
from bertsmith.data.packing.document_stream import DocumentIndex
from bertsmith.data.packing.packing import Numbers, PackedBatch, Packing, RowLayout, Texts, row_layout
from bertsmith.data.shards import Shards
from bertsmith.errors import DataError, SkippedWarning
from bertsmith.tokenizers.special_tokens import source_frame, target_frame
from bertsmith.types import Frame


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every pair of parallel shards once per epoch."""

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int) -> Packing:
        if "parallel" not in shards.index["settings"]:
            raise DataError(f"{shards.folder} has documents, not pairs of texts: prepare it with --parallel")
        frames = source_frame(frame), target_frame(frame)
        source, target = (row_layout(shards, one, max_length=max_length, padding_id=padding_id) for one in frames)
        source.text_length(0, minimum=2)
        return ParallelPacking(shards, source, target, seed=seed)


class ParallelPacking(BinPacking):
    """The pairs of a split; those that are too long for a row are left out."""

    def __init__(self, shards: Shards, source: RowLayout, target: RowLayout, *, seed: int) -> None:
        self._shards = shards
        sentences = DocumentIndex(shards).sentences
        self._starts = sentences[:-1].reshape(-1, 2)  # [N, 2] first token of source and target
        self._lengths = np.diff(sentences.astype(np.int64)).reshape(-1, 2).astype(np.uint16)  # [N, 2]
        tokens = self._lengths.astype(np.int64).max(1) + 1  # each side has one special token
        fits = tokens <= source.max_length
        self._left_out(int((~fits).sum()), int(tokens.max()), source.max_length)
        self._starts, self._lengths = self._starts[fits], self._lengths[fits]
        super().__init__(tokens[fits], max_length=source.max_length, seed=seed)
        slots = 2 * self.rows_per_epoch * self.max_length
        self.padding_fraction = 1 - (int(self._lengths.sum(dtype=np.int64)) + self._lengths.size) / slots
        self._layouts = [replace(one, texts_per_row=self.texts_per_row) for one in (source, target)]

    def _left_out(self, count: int, longest: int, max_length: int) -> None:
        total, where = len(self._lengths), f"the {self._shards.split} split of {self._shards.folder}"
        if count == total:
            raise DataError(
                f"every pair of {where} is too long for max_length={max_length}: write max_length={longest}"
            )
        if count:
            found = f"{count:,} of {total:,} pairs of {where} are longer than max_length={max_length}"
            warnings.warn(
                f"{found} and are not used: the longest needs max_length={longest}", SkippedWarning, stacklevel=2
            )

    def rows(self, first: int, count: int) -> PackedBatch:
        row, sample, sample_id = self.samples_of(first, count)
        sides = [self._side(side, row, sample, sample_id) for side in (0, 1)]
        return replace(sides[0], target=sides[1])

    def _side(self, side: int, row: Numbers, sample: Numbers, sample_id: Numbers) -> PackedBatch:
        starts, lengths = self._starts[sample, side].astype(np.int64), self._lengths[sample, side].astype(np.int64)
        slots = np.stack([lengths, np.zeros_like(lengths)], axis=1)
        return self._layouts[side].make_batch(Texts(row, sample_id, slots, self._shards.read(starts, lengths)))
