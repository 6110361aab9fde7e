"""The documents of a split: where sentences and documents start, how they are cut into samples, and all of them as one
stream of tokens with an end token after each document, read in windows of equal length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing.counter_random import mix_counters, permute, stream_key
from bertsmith.data.packing.packing import Numbers, PackedBatch, Packing, RowLayout, Texts, ranges
from bertsmith.data.shards import Shards
from bertsmith.errors import DataError

SPAN_SAMPLES = 256  # about; longer documents are cut into spans of that many samples, which are cut in parallel

Starts = NDArray[np.integer[Any]]
NextEnd = Callable[[Numbers, Numbers], Numbers]  # (starts of samples, their spans) -> their ends


class DocumentIndex:
    """Starts of the S sentences and D documents of a split, without documents that have no token.

    4 bytes per sentence and document while a split has fewer than 2**32 tokens, 8 bytes above.
    """

    def __init__(self, shards: Shards) -> None:
        sentences = np.empty(shards.sentences + 1, start_type(shards.tokens))
        documents = np.empty(shards.documents + 1, start_type(shards.sentences))
        sentences[-1], documents[-1] = shards.tokens, shards.sentences
        for part in shards.parts:
            span = slice(part.sentence_base, part.sentence_base + part.sentences)
            np.add(part.sentence_starts[:-1], np.int64(part.token_base), out=sentences[span], casting="unsafe")
            span = slice(part.document_base, part.document_base + part.documents)
            np.add(part.document_starts[:-1], np.int64(part.sentence_base), out=documents[span], casting="unsafe")
        self.sentences: Starts = sentences  # [S+1] first token of each sentence; last: all tokens
        self.documents: Starts = documents[np.append(np.diff(documents) > 0, True)]  # [D+1] first sentence; last: S

    @property
    def document_tokens(self) -> Numbers:
        """[D+1] first token of each document; last: all tokens."""
        return self.sentences[self.documents].astype(np.int64)

    def sentence_at(self, tokens: Numbers, side: Literal["left", "right"]) -> Numbers:
        """The number of the first sentence that starts at or after each token; with `right`, strictly after it."""
        return np.searchsorted(self.sentences, tokens.astype(self.sentences.dtype), side)

    def sentence_end(self, tokens: Numbers) -> Numbers:
        """The last boundary between sentences at or before each token."""
        return boundary_before(self.sentences, tokens)

    def document_of(self, sentences: Numbers) -> Numbers:
        """The document of each sentence."""
        return np.searchsorted(self.documents, sentences.astype(self.documents.dtype), "right") - 1


def boundary_before(sentences: Starts, positions: Numbers) -> Numbers:
    """The last of these sentence boundaries at or before each position."""
    return sentences[np.searchsorted(sentences, positions.astype(sentences.dtype), "right") - 1].astype(np.int64)


def start_type(limit: int) -> type[np.uint32 | np.int64]:
    """The smallest type for numbers up to `limit`."""
    return np.uint32 if limit < 1 << 32 else np.int64


def cut_evenly(starts: Numbers, ends: Numbers, length: int) -> Numbers:
    """Starts of the samples if each span is cut every `length` tokens."""
    counts = -(-(ends - starts) // length)
    return np.repeat(starts, counts) + length * ranges(counts)


def split_spans(starts: Numbers, ends: Numbers, *, length: int, sentences: Starts) -> tuple[Numbers, Numbers, Numbers]:
    """Long spans as several that start at sentences, about `SPAN_SAMPLES` samples each: starts, ends, old span.

    A corpus that is a single document is still indexed in seconds.
    """
    counts = -(-(ends - starts) // (SPAN_SAMPLES * length))
    span = np.repeat(np.arange(len(starts)), counts)
    index = ranges(counts)
    rough = starts[span] + SPAN_SAMPLES * length * index
    new_starts = np.where(index > 0, boundary_before(sentences, rough), rough)
    new_ends = np.where(index + 1 < counts[span], np.append(new_starts[1:], 0), ends[span])
    nonempty = new_starts < new_ends
    return new_starts[nonempty], new_ends[nonempty], span[nonempty]


def cut_spans(
    starts: Numbers, ends: Numbers, next_end: NextEnd, end_positions: Numbers | None = None
) -> tuple[Numbers, Numbers]:
    """Consecutive samples from the start to the end of each span, all spans in parallel: their starts and ends.

    A document-end token (`end_positions`, ascending) at the start of a sample is skipped.
    """
    sample_starts, sample_ends = [starts[:0]], [starts[:0]]
    span, position = np.arange(len(starts)), starts
    while len(span):
        end = np.minimum(next_end(position, span), ends[span])
        sample_starts.append(position)
        sample_ends.append(end)
        position = end if end_positions is None else end + _count_equal(end, end_positions)
        unfinished = position < ends[span]
        span, position = span[unfinished], position[unfinished]
    return np.sort(np.concatenate(sample_starts)), np.sort(np.concatenate(sample_ends))


def _count_equal(positions: Numbers, ascending: Numbers) -> Numbers:
    """1 for each position that is in the ascending array, else 0."""
    return np.searchsorted(ascending, positions, "right") - np.searchsorted(ascending, positions, "left")


class DocumentStream:
    """The D documents of a split, concatenated, each followed by `end_token` unless that is None."""

    def __init__(self, shards: Shards, index: DocumentIndex, end_token: int | None) -> None:
        ends = index.document_tokens[1:]
        self._shards, self._end_token = shards, end_token
        self.end_positions: Numbers = ends[:0] if end_token is None else ends + np.arange(len(ends))  # [D]
        self.length = shards.tokens + len(self.end_positions)

    def sentences(self, index: DocumentIndex) -> tuple[Numbers, Numbers]:
        """[S] first position of each sentence, and [S] the position after its last."""
        starts, ends = (some.astype(np.int64) for some in (index.sentences[:-1], index.sentences[1:]))
        if self._end_token is not None:
            before = np.repeat(np.arange(len(self.end_positions)), index.documents[1:] - index.documents[:-1])
            starts, ends = starts + before, ends + before
        return starts, ends

    def max_documents(self, length: int) -> int:
        """The maximum number of documents in any window of that length, where the stream repeats."""
        positions = np.concatenate([self.end_positions, self.end_positions + self.length])
        first = np.arange(len(self.end_positions))
        # an end token at the last position of the window starts no further document
        within = np.searchsorted(positions, positions[first] + length - 2, "right") - first
        return 1 + int(within.max(initial=0))

    def read(self, starts: Numbers, lengths: Numbers) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """The tokens [T] of these spans, concatenated, and which of them are document-end tokens."""
        first, last = (np.searchsorted(self.end_positions, position) for position in (starts, starts + lengths))
        ends = last - first
        tokens = self._shards.read(starts - first, lengths - ends).astype(np.int32)
        is_end = np.zeros(int(lengths.sum()), np.bool_)
        if self._end_token is None:
            return tokens, is_end
        numbers = np.repeat(first, ends) + ranges(ends)
        is_end[np.repeat(np.cumsum(lengths) - lengths - starts, ends) + self.end_positions[numbers]] = True
        result = np.full(len(is_end), self._end_token, np.int32)
        result[~is_end] = tokens
        return result, is_end


class WindowPacking(Packing):
    """Windows of the stream, each framed as a single text that fills its row.

    The windows of a run follow each other without a gap: tokens at the end of an epoch that do not fill a window start
    the next epoch. Within an epoch their order is a permutation. With `isolate` the documents of a window do not
    attend to each other.
    """

    texts_per_row = 1
    padding_fraction = 0.0

    def __init__(self, stream: DocumentStream, layout: RowLayout, *, seed: int, isolate: bool = False) -> None:
        self.max_length, self.dense = layout.max_length, not isolate
        self._stream, self._window = stream, layout.text_length(0, minimum=1)
        documents = stream.max_documents(self._window) if isolate else 0
        self._layout = replace(layout, full_rows=True, documents_per_row=documents)
        self._key = stream_key(seed, "packing/windows")
        self.rows_per_epoch = stream.length // self._window
        if not self.rows_per_epoch:
            raise DataError(f"{stream.length:,} tokens do not fill one row of max_length={self.max_length}: lower it")

    def rows(self, first: int, count: int) -> PackedBatch:
        epoch, row = self.epochs_and_rows(first, count)
        window = epoch * self.rows_per_epoch + permute(row, self.rows_per_epoch, mix_counters(self._key, epoch))
        starts = window * self._window % self._stream.length
        lengths = np.minimum(self._window, self._stream.length - starts)
        # a window that reaches the end of the stream continues at its start
        spans = np.stack([starts, np.zeros_like(starts)], axis=1), np.stack([lengths, self._window - lengths], axis=1)
        read = self._stream.read(*(span.ravel() for span in spans))
        return self._layout.make_batch(Texts(np.arange(count), window, np.tile([self._window, 0], (count, 1)), *read))
