"""Texts in their frames become the arrays of a batch, by array operations alone. Knows sizes and ids, no corpus.

N texts in B rows of L places; a frame has K parts: special tokens and the slots of one or two texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing.packing import Numbers, PackedBatch
from bertsmith.types import IGNORE_INDEX, Frame

NO_FRAME = Frame(single=("a",), pair=("a", "b"))


class Forms:
    """A frame as arrays: form 0 for a single text, form 1 for a pair."""

    def __init__(self, frame: Frame) -> None:
        forms = (frame.single, frame.pair)
        shape = 2, max(map(len, forms))
        self.ids = np.zeros(shape, np.int32)  # [2, K] of special tokens
        self.special = np.zeros(shape, np.bool_)  # [2, K]
        self.segments = np.zeros(shape, np.uint8)  # [2, K]
        self._slots = np.zeros((2, *shape), np.int64)  # [slot a or b, 2, K] 1 where that slot is
        for form, parts in enumerate(forms):
            for place, part in enumerate(parts):
                if isinstance(part, int):
                    self.ids[form, place], self.special[form, place] = part, True
                else:
                    self._slots["ab".index(part), form, place] = 1
        self.segments[1, : len(frame.pair_segments)] = frame.pair_segments

    @property
    def specials(self) -> Numbers:
        """[2] special tokens round a single text, round a pair."""
        found: Numbers = self.special.sum(1)
        return found

    def sizes(self, form: Numbers, a: Numbers, b: Numbers) -> Numbers:
        """[N, K] places of each part, when the texts have `a` and `b` tokens [N]."""
        found: Numbers = self.special[form] + a[:, None] * self._slots[0, form] + b[:, None] * self._slots[1, form]
        return found


class Texts(NamedTuple):
    """What stands in a batch, text by text, row by row."""

    row: Numbers  # [N] ascending, every row at least once
    number: Numbers  # [N] unique in the run
    form: Numbers  # [N] 0 single, 1 pair
    sizes: Numbers  # [N, K] places of each part
    tokens: NDArray[np.integer[Any]]  # [T] of all slots, end to end
    closings: NDArray[np.bool_] | None = None  # [T] which of them are special tokens after all


class Sheet(NamedTuple):
    """The constants of a packing's batches."""

    length: int
    padding_id: int
    texts_per_row: int
    full: bool = False  # every row is one text
    documents_per_row: int = 0  # at most, where those of a text do not see each other; 0: they do


def closing_id(frame: Frame) -> int | None:
    """The special token that closes a text, or None where the frame has none."""
    last = frame.single[-1]
    return last if isinstance(last, int) else None


def lay_out(texts: Texts, forms: Forms, sheet: Sheet, labels: Mapping[str, Numbers] | None = None) -> PackedBatch:
    """The batch; `labels` [N] by objective."""
    rows, turn, padding = _seat(texts, sheet.length)
    places = rows * sheet.length
    runs = np.stack([texts.sizes.sum(1), padding], axis=1)  # [N, 2] each text, and the padding behind it
    begins = (np.cumsum(runs) - runs.ravel()).reshape(runs.shape)
    parts = np.concatenate([texts.sizes, padding[:, None]], axis=1)  # [N, K+1] they fill all places
    special = _spread(forms.special[texts.form], parts, True)
    ids = _spread(forms.ids[texts.form], parts, sheet.padding_id)
    holes = np.flatnonzero(~special)
    ids[holes] = texts.tokens
    if texts.closings is not None:
        special[holes] = texts.closings
    document, bounds = _spread(turn[:, None].astype(np.int32), runs, 0), begins[runs > 0]
    if sheet.documents_per_row and texts.closings is not None:
        document, bounds = _documents(document, bounds, holes, holes[texts.closings] + 1, rows)
    positions = np.arange(places, dtype=np.int32)
    positions -= np.repeat(begins.astype(np.int32).ravel(), runs.ravel())
    positions[document == 0] = 0  # within a text, whatever documents it holds
    seats = (texts.row * sheet.texts_per_row) + turn - 1
    shape = rows, sheet.length
    return PackedBatch(
        input_ids=ids.reshape(shape),
        position_ids=positions.reshape(shape),
        segment_ids=_spread(forms.segments[texts.form], parts, 0).reshape(shape),
        document_ids=document.reshape(shape),
        special_mask=special.reshape(shape),
        sample_ids=_spread(texts.number[:, None], runs, -1).reshape(shape),
        cu_seqlens=_bounds(bounds, sheet, places),
        cls_positions=_placed(begins[:, 0], seats, rows * sheet.texts_per_row, -1),
        max_seqlen=sheet.length,
        dense=sheet.full and not sheet.documents_per_row,
        tokens=places - int(padding.sum()),
        labels={
            name: _placed(values, seats, rows * sheet.texts_per_row, IGNORE_INDEX)
            for name, values in (labels or {}).items()
        },
    )


def _seat(texts: Texts, length: int) -> tuple[int, Numbers, Numbers]:
    """Rows; the turn of each text in its row, from 1; and the padding behind it, all of it behind a row's last."""
    heads = np.flatnonzero(np.diff(texts.row, prepend=-1))
    turn = np.arange(len(texts.row)) - np.repeat(heads, np.diff(heads, append=len(texts.row))) + 1
    padding = np.zeros(len(texts.row), np.int64)
    padding[np.append(heads[1:], len(texts.row)) - 1] = length - np.add.reduceat(texts.sizes.sum(1), heads)
    return len(heads), turn, padding


def _documents(
    texts: NDArray[np.int32], begins: Numbers, holes: Numbers, behind: Numbers, rows: int
) -> tuple[NDArray[np.int32], Numbers]:
    """The number of each place's document within its row [T], and where documents and padding begin.

    `texts` [T] numbers each row's texts; `behind` are the places behind closing tokens, where a document begins unless
    its text ends there.
    """
    marks = np.zeros(len(texts) + 1, np.bool_)
    marks[behind] = True
    marks[:-1] &= _among(holes, len(texts))
    marks[begins] = True
    bounds = np.flatnonzero(marks[:-1])
    numbers = np.cumsum((marks[:-1] & (texts > 0)).reshape(rows, -1), axis=1, dtype=np.int32).ravel()
    return np.where(texts > 0, numbers, 0).astype(np.int32), bounds


def _among(places: Numbers, size: int) -> NDArray[np.bool_]:
    found = np.zeros(size, np.bool_)
    found[places] = True
    return found


def _spread(values: NDArray[Any], runs: Numbers, behind: int) -> NDArray[Any]:
    """Each value [N, K] as often as its run is long; `behind` where the last run of each text, its padding, is."""
    padded = np.concatenate([values, np.full((len(values), 1), behind, values.dtype)], axis=1)
    return np.repeat(padded.ravel(), runs.ravel())


def _bounds(begins: Numbers, sheet: Sheet, places: int) -> NDArray[np.int32]:
    sequences = places // sheet.length * ((sheet.documents_per_row or sheet.texts_per_row) + (not sheet.full))
    bounds = np.full(sequences + 1, places, np.int32)
    bounds[: len(begins)] = begins
    return bounds


def _placed(values: Numbers, seats: Numbers, size: int, filler: int) -> Numbers:
    found = np.full(size, filler, np.int64)
    found[seats] = values
    return found
