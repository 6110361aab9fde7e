"""Continuous columns of text for recurrent models, which carry their state from row to row (Merity et al. 2018, §5).

The stream of an epoch is cut into as many columns as a step has rows, and each step reads the next window of every
column. A row whose first position is 0 starts a column, with a new state.
# differs from the paper: each epoch starts at another offset of the stream, so that its columns differ
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing.counter_random import bernoulli, mix_counters, stream_key, to_range
from bertsmith.data.packing.document_stream import DocumentIndex, DocumentStream
from bertsmith.data.packing.packing import (
    NO_FRAME,
    Numbers,
    PackedBatch,
    Packing,
    RowLayout,
    Texts,
    row_layout,
)
from bertsmith.data.shards import Shards
from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers.special_tokens import end_token
from bertsmith.types import Frame

# of random lengths (P-AWD-LSTM §5; awd: main.py)
HALF_SHARE, DEVIATION, SHORTEST = 0.05, 5.0, 5


@dataclass(frozen=True, kw_only=True)
class Config:
    """Windows of `max_length` tokens, or of random lengths."""

    # the paper's random lengths: normal around this mean, or in 5 % of the steps around half of it, with a standard
    # deviation of 5, at least 5 and at most max_length; the learning rate of a step is scaled by length / mean_length;
    mean_length: int = 0  # 0: every window has max_length tokens

    by_column: ClassVar[bool] = True

    def build(
        self,
        shards: Shards,
        *,
        frame: Frame,
        padding_id: int,
        seed: int,
        max_length: int,
        columns: int = 1,
        backward: bool = False,
    ) -> Columns:
        """See `PackingConfig`; `columns` are the rows of a step. `backward`: columns are read from their ends."""
        if self.mean_length and not SHORTEST <= self.mean_length <= max_length:
            raise ConfigError(
                f"packing.mean_length={self.mean_length} must be from {SHORTEST} to max_length={max_length}, or 0"
            )
        layout = row_layout(shards, NO_FRAME, max_length=max_length, padding_id=padding_id)
        stream = DocumentStream(shards, DocumentIndex(shards), end_token(frame))
        return Columns(stream, layout, columns=columns, mean_length=self.mean_length, seed=seed, backward=backward)


class Columns(Packing):
    """Row number r is the next window of column r % columns. Documents of a row are one text."""

    texts_per_row = 1
    padding_fraction = 0.0

    def __init__(
        self, stream: DocumentStream, layout: RowLayout, *, columns: int, mean_length: int, seed: int, backward: bool
    ) -> None:
        self.max_length, self.dense, self.columns = layout.max_length, not mean_length, columns
        self._stream, self._layout, self._mean_length, self._backward = stream, layout, mean_length, backward
        self._start_key, self._length_key = stream_key(seed, "columns/start"), stream_key(seed, "columns/length")
        self._column_length = stream.length // columns
        self.windows = self._column_length // (mean_length or self.max_length)
        self.rows_per_epoch = self.windows * columns
        self._ends: dict[int, Numbers] = {}  # of the last two epochs that were read
        if not self.windows:
            shortest = (mean_length or self.max_length) * columns
            raise DataError(
                f"{stream.length:,} tokens do not fill a step of {columns} rows (batch_size), which needs "
                f"{shortest:,}: lower batch_size, or max_length={self.max_length}"
            )

    def rows(self, first: int, count: int) -> PackedBatch:
        epoch, row = self.epochs_and_rows(first, count)
        window, column = np.divmod(row, self.columns)
        ends = np.stack([self._window_ends(int(one)) for one in epoch])  # [count, windows + 1]
        number = np.arange(count)
        offset, end, total = ends[number, window], ends[number, window + 1], ends[:, -1]
        lengths = end - offset
        base = to_range(mix_counters(self._start_key, epoch), self._stream.length) + column * self._column_length
        # the window and the token that is read after it
        starts = base + (total - end - 1 if self._backward else offset)
        tokens, is_end = self._read(starts % self._stream.length, lengths + 1)
        begins = np.cumsum(lengths + 1) - lengths - 1
        next_index = begins if self._backward else begins + lengths
        own = np.ones(len(tokens), np.bool_)
        own[next_index] = False
        layout = replace(self._layout, max_length=int(lengths.max()), full_rows=bool((lengths == lengths[0]).all()))
        slots = np.stack([lengths, np.zeros_like(lengths)], axis=1)
        packed = layout.make_batch(Texts(number, first + number, slots, tokens[own], is_end[own]))
        positions = np.where(packed.document_ids > 0, packed.position_ids + offset[:, None], 0).astype(np.int32)
        next_ids = tokens[next_index].astype(np.int64)
        return replace(packed, position_ids=positions, next_ids=next_ids, dense=layout.full_rows)

    def learning_rate_factor(self, step: int) -> float:
        if not self._mean_length:
            return 1.0
        epoch, window = divmod(step, self.windows)
        ends = self._window_ends(epoch)
        return float(ends[window + 1] - ends[window]) / self._mean_length

    def _window_ends(self, epoch: int) -> Numbers:
        """[windows + 1] where the windows of a column begin and end, counted from the start of the column."""
        if epoch not in self._ends:
            while len(self._ends) > 1:
                del self._ends[next(iter(self._ends))]
            self._ends[epoch] = np.append(0, np.cumsum(self._lengths(epoch)))
        return self._ends[epoch]

    def _lengths(self, epoch: int) -> Numbers:
        if not self._mean_length:
            return np.full(self.windows, self.max_length, np.int64)
        window = np.arange(self.windows)
        half, first, second = (mix_counters(self._length_key, epoch, window, number) for number in range(3))
        mean = np.where(bernoulli(half, HALF_SHARE), self._mean_length / 2, self._mean_length)
        lengths = np.trunc(mean + DEVIATION * _normal(first, second)).astype(np.int64)
        return lengths.clip(SHORTEST, self.max_length)

    def _read(self, starts: Numbers, lengths: Numbers) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """The tokens of these spans of the endlessly repeated stream; no span is longer than the stream."""
        before = np.minimum(lengths, self._stream.length - starts)
        spans = np.stack([starts, np.zeros_like(starts)], axis=1), np.stack([before, lengths - before], axis=1)
        return self._stream.read(*(span.ravel() for span in spans))


def _normal(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Standard normal numbers from two random integers each (Box and Muller 1958)."""
    uniform, angle = ((bits >> np.uint64(11)).astype(np.float64) / 2**53 for bits in (first, second))
    result: NDArray[np.float64] = np.sqrt(-2 * np.log1p(-uniform)) * np.cos(2 * np.pi * angle)
    return result
