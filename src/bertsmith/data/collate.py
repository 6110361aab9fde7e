"""Framed rows become batches: padded one to a line, or several to a line without seeing each other.

By array operations: nothing here loops over tokens. Knows rows and batches, no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError
from bertsmith.types import IGNORE_INDEX, Batch, Row

Numbers = NDArray[np.int64]


class Seats(NamedTuple):
    """Where each row sits. N rows."""

    line: Numbers  # [N]
    offset: Numbers  # [N] place within the line
    turn: Numbers  # [N] 1 for the first row of a line, 2 for the next, ...


class Reading(NamedTuple):
    """The places that one objective reads."""

    name: str
    flat: Numbers  # [R] in the order of the rows
    counts: list[int]  # of each row

    def fill(self, values: Numbers, slots: int | None, filler: int) -> Numbers:
        """The values in that many slots, or as they are."""
        if slots is not None and len(values) > slots:
            raise BertsmithError(
                f"{self.name} reads {len(values)} places, more than the {slots} of the shape asked for"
            )
        return _filled(values, len(values) if slots is None else slots, filler)


class Packed(Protocol):
    """The batch of a packing, in numpy."""

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """All array fields of `Batch`, in any integer width."""

    @property
    def labels(self) -> Mapping[str, NDArray[Any]]:
        """By objective."""

    @property
    def max_seqlen(self) -> int:
        """See `Batch`."""

    @property
    def dense(self) -> bool:
        """See `Batch`."""


def collate(
    rows: Sequence[Row],
    *,
    length: int,
    padding_id: int = 0,
    pack: bool = False,
    shape: tuple[int, int] | tuple[int, int, int] | None = None,
    sample_ids: Sequence[int] | None = None,
    epoch: int = 0,
    labels: Mapping[str, Sequence[Any]] | None = None,
    indices: Mapping[str, Sequence[Any]] | None = None,
) -> Batch:
    """A batch of lines of `length` places; `pack` puts several rows into one line where they fit.

    Text n of the batch (in `firsts`, pooled vectors and `labels`) is row n. `samples` are the rows' numbers in the
    whole corpus (0, 1, ... where absent): with `epoch`, the key of what is hidden in them.

    `labels`, by objective: for each row a whole number, a fraction or several whole numbers. `places`, by objective:
    for each row the places in it that are read; labels of that objective then are for each row as many. `shape` is the
    number of lines, of texts and of places that are read to fill the batch up to, so that shapes are constant; where
    it does not say the last, every place of the batch could be read.
    """
    sizes = _sizes(rows, length)
    seats = _first_fit(sizes, length) if pack else _one_each(len(rows))
    lines, texts, slots = _shape(shape, lines=int(seats.line.max()) + 1, texts=len(rows), length=length)
    begins = seats.line * length + seats.offset
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    flat_places = np.repeat(begins, sizes) + within
    readings = {name: _reading(name, rows_places, sizes, begins) for name, rows_places in (indices or {}).items()}

    def laid_out(values: NDArray[Any], filler: int, dtype: type[np.generic] = np.int64) -> NDArray[Any]:
        flat = np.full(lines * length, filler, dtype)
        flat[flat_places] = values
        return flat.reshape(lines, length)

    document = laid_out(np.repeat(seats.turn, sizes), 0, np.int32)
    numbers = _of_rows("sample_ids", range(len(rows)) if sample_ids is None else sample_ids, len(rows))
    return Batch(
        input_ids=torch.from_numpy(laid_out(np.concatenate([row.ids for row in rows]), padding_id)),
        position_ids=torch.from_numpy(laid_out(within, 0)),
        segment_ids=torch.from_numpy(laid_out(np.concatenate([row.segment_ids for row in rows]), 0)),
        document_ids=torch.from_numpy(document),
        special_mask=torch.from_numpy(laid_out(np.concatenate([row.sequence_ids for row in rows]) < 0, 1, np.bool_)),
        sample_ids=torch.from_numpy(laid_out(np.repeat(numbers, sizes), -1)),
        epoch=torch.tensor(epoch),
        cu_seqlens=torch.from_numpy(cu_seqlens_of(document, sequences=lines + texts)),
        cls_positions=torch.from_numpy(_filled(begins, texts, -1)),
        max_seqlen=length,
        dense=len(rows) == lines and bool((sizes == length).all()),
        labels={
            name: _labels_of_places(name, values, readings[name], slots)
            if name in readings
            else _labels_of_texts(name, values, len(rows), texts)
            for name, values in (labels or {}).items()
        },
        indices={name: torch.from_numpy(reading.fill(reading.flat, slots, 0)) for name, reading in readings.items()},
    )


def collate_unpadded(
    rows: Sequence[Row], *, padding_id: int = 0, indices: Mapping[str, Sequence[Any]] | None = None
) -> Batch:
    """A batch of one line that holds all rows and no padding; text n is row n.

    Rows of equal length that stand side by side are attended to together: bring them in the order of their lengths.
    """
    sizes = [len(row) for row in rows]
    found = collate(rows, length=sum(sizes), padding_id=padding_id, pack=True, indices=indices)
    runs = tuple((len(list(some)), size) for size, some in groupby(sizes))
    return found.replace(max_seqlen=max(sizes), equal_length_runs=runs)


def rows_needed(sizes: Sequence[int], length: int) -> int:
    """How many lines rows of these sizes take when they are packed."""
    return int(_first_fit(np.asarray(sizes, np.int64), length).line.max()) + 1


def from_packed(packed: Packed, *, pin: bool = False) -> Batch:
    """The same batch in tensors; `pin` puts it where a GPU fetches it without waiting.

    The epoch is 0: a packing numbers the texts of a run through, so that none has the number of another.
    """
    narrow = {"document_ids": torch.int32, "cu_seqlens": torch.int32, "special_mask": torch.bool}

    def tensor(name: str, values: NDArray[Any]) -> torch.Tensor:
        found = torch.from_numpy(values).to(narrow.get(name, torch.int64))
        return found.pin_memory() if pin else found

    fields: dict[str, Any] = {name: tensor(name, values) for name, values in packed.arrays.items()}
    return Batch(
        **fields,
        epoch=torch.tensor(0),
        max_seqlen=packed.max_seqlen,
        dense=packed.dense,
        labels={name: tensor(name, values) for name, values in packed.labels.items()},
    )


def cu_seqlens_of(document: NDArray[Any], *, sequences: int) -> NDArray[np.int32]:
    """Where texts and runs of padding begin in the flat places of `document` [B, L]; B*L to the end [sequences+1]."""
    begins = np.ones(document.shape, np.bool_)
    begins[:, 1:] = document[:, 1:] != document[:, :-1]
    return _filled(np.flatnonzero(begins), sequences + 1, document.size).astype(np.int32)


def _sizes(rows: Sequence[Row], length: int) -> Numbers:
    sizes = np.array([len(row) for row in rows], np.int64)
    if not len(sizes) or not sizes.min():
        raise BertsmithError("a batch needs at least one row, and every row at least one token")
    if sizes.max() > length:
        raise BertsmithError(f"row {sizes.argmax()} has {sizes.max()} tokens but lines only {length}: frame it shorter")
    return sizes


def _shape(
    asked: tuple[int, int] | tuple[int, int, int] | None, *, lines: int, texts: int, length: int
) -> tuple[int, int, int | None]:
    """Lines, texts, and places that are read: as many as there are where it is None."""
    if asked is None:
        return lines, texts, None
    if asked[0] < lines or asked[1] < texts:
        raise BertsmithError(f"these rows need {lines} lines and {texts} texts, more than the shape {asked} asked for")
    return asked[0], asked[1], asked[2] if len(asked) == 3 else asked[0] * length


def _reading(name: str, places: Sequence[Any], sizes: Numbers, begins: Numbers) -> Reading:
    if len(places) != len(sizes):
        raise BertsmithError(f"places of {name} for {len(places)} of {len(sizes)} rows: there must be some for each")
    counts = [len(row) for row in places]
    within = np.concatenate([np.asarray(row, np.int64) for row in places])
    outside = np.flatnonzero((within < 0) | (within >= np.repeat(sizes, counts)))
    if len(outside):
        row = int(np.repeat(np.arange(len(sizes)), counts)[outside[0]])
        raise BertsmithError(f"{name} reads place {within[outside[0]]} of row {row}, which has {sizes[row]} tokens")
    return Reading(name, np.repeat(begins, counts) + within, counts)


def _labels_of_places(name: str, values: Sequence[Any], reading: Reading, slots: int | None) -> torch.Tensor:
    found = [np.asarray(row, np.int64) for row in values]
    if [len(row) for row in found] != reading.counts:
        raise BertsmithError(f"labels of {name} are not as many as its places: there must be one for each")
    return torch.from_numpy(reading.fill(np.concatenate(found), slots, IGNORE_INDEX))


def _labels_of_texts(name: str, values: Sequence[Any], rows: int, texts: int) -> torch.Tensor:
    """Whole numbers stay so, with IGNORE_INDEX where there is no text; among fractions that is NaN."""
    if len(values) != rows:
        raise BertsmithError(f"{len(values)} {name} for {rows} rows: there must be one for each")
    found = np.asarray(values)
    whole = found.dtype.kind in "biu"
    filled = np.full((texts, *found.shape[1:]), IGNORE_INDEX if whole else np.nan, np.int64 if whole else np.float32)
    filled[:rows] = found
    return torch.from_numpy(filled)


def _one_each(rows: int) -> Seats:
    return Seats(np.arange(rows), np.zeros(rows, np.int64), np.ones(rows, np.int64))


def _first_fit(sizes: Numbers, length: int) -> Seats:
    """Each row into the first line that has room for it."""
    used: list[int] = []
    turns: list[int] = []
    seats = np.zeros((len(sizes), 3), np.int64)
    for row, size in enumerate(sizes.tolist()):
        line = next((line for line, taken in enumerate(used) if taken + size <= length), len(used))
        if line == len(used):
            used.append(0)
            turns.append(0)
        turns[line] += 1
        seats[row] = line, used[line], turns[line]
        used[line] += size
    return Seats(*seats.T)


def _of_rows(what: str, values: Sequence[int], rows: int) -> Numbers:
    if len(values) != rows:
        raise BertsmithError(f"{len(values)} {what} for {rows} rows: there must be one for each")
    return np.asarray(values, np.int64)


def _filled(values: Numbers, size: int, filler: int) -> Numbers:
    found = np.full(size, filler, np.int64)
    found[: len(values)] = values
    return found
