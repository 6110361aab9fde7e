"""Contiguous sentences, for models without a sentence-pair objective (P-RoBERTa §4.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bertsmith.data.packing.bin_packing import BinPacking
from bertsmith.data.packing.document_stream import (
    DocumentIndex,
    DocumentStream,
    WindowPacking,
    cut_evenly,
    cut_spans,
    split_spans,
    start_type,
)
from bertsmith.data.packing.packing import Numbers, PackedBatch, Packing, RowLayout, Texts, row_layout
from bertsmith.data.shards import Shards
from bertsmith.tokenizers.special_tokens import end_token
from bertsmith.types import Frame


@dataclass(frozen=True, kw_only=True)
class Config:
    """FULL-SENTENCES, or DOC-SENTENCES with across_documents=false."""

    across_documents: bool = True  # a text continues with the next document after a separator
    # differs from the paper: documents of one text do not attend to each other; true: they do (with across_documents)
    attend_across_documents: bool = False
    # differs from the paper: a sentence that does not fit is cut and continues in another row, because moving it there
    # leaves much padding (a tenth of all tokens at max_length=128); true moves it
    whole_sentences: bool = False

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int) -> Packing:
        layout = row_layout(shards, frame, max_length=max_length, padding_id=padding_id)
        index = DocumentIndex(shards)
        stream = DocumentStream(shards, index, end_token(frame) if self.across_documents else None)
        isolate = self.across_documents and not self.attend_across_documents
        if self.across_documents and not self.whole_sentences:
            isolate = isolate and len(stream.end_positions) > 0
            return WindowPacking(stream, layout, seed=seed, isolate=isolate)
        samples = self._cut(stream, index, layout.text_length(0, minimum=1))
        return FullSentences(stream, *samples, layout, seed=seed, isolate=isolate)

    def _cut(self, stream: DocumentStream, index: DocumentIndex, length: int) -> tuple[Numbers, Numbers]:
        """Starts and ends of the samples in the stream."""
        bounds = np.array([0, stream.length]) if self.across_documents else index.document_tokens
        if not self.whole_sentences:
            starts = cut_evenly(bounds[:-1], bounds[1:], length)
            return starts, np.append(starts[1:], stream.length)
        sentence_starts, sentence_ends = stream.sentences(index)

        def next_end(position: Numbers, span: Numbers) -> Numbers:
            last = np.searchsorted(sentence_ends, np.minimum(position + length, ends[span]), "right") - 1
            end: Numbers = np.where(last < 0, 0, sentence_ends[last])
            return np.where(end > position, end, position + length)

        starts, ends, _ = split_spans(bounds[:-1], bounds[1:], length=length, sentences=sentence_starts)
        return cut_spans(starts, ends, next_end, stream.end_positions)


class FullSentences(BinPacking):
    """Samples of the document stream, framed as single texts; short ones share rows."""

    def __init__(
        self, stream: DocumentStream, starts: Numbers, ends: Numbers, layout: RowLayout, *, seed: int, isolate: bool
    ) -> None:
        super().__init__(ends - starts + layout.frame.special_counts[0], max_length=layout.max_length, seed=seed)
        self._stream = stream
        self._starts, self._lengths = starts.astype(start_type(stream.length)), (ends - starts).astype(np.uint16)
        documents = 0
        if isolate:  # the documents of a text do not attend to each other
            first, last = (np.searchsorted(stream.end_positions, position) for position in (starts, ends))
            documents = min(self.max_length, self.texts_per_row * (1 + int((last - first).max())))
        self._layout = replace(layout, texts_per_row=self.texts_per_row, documents_per_row=documents)

    def rows(self, first: int, count: int) -> PackedBatch:
        row, sample, sample_id = self.samples_of(first, count)
        starts, lengths = self._starts[sample].astype(np.int64), self._lengths[sample].astype(np.int64)
        slots = np.stack([lengths, np.zeros_like(lengths)], axis=1)
        return self._layout.make_batch(Texts(row, sample_id, slots, *self._stream.read(starts, lengths)))
