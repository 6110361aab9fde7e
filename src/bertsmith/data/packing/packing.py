"""What every packing is: a pure function from row numbers to batches of constant shape. Knows no kind of packing.

The rows of a run stand in one endless order, epoch after epoch. Step n takes the next rows of it, whoever makes them
and whatever was made before; ranks take contiguous shares. B rows, L places in a row, N texts, S sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.shards import Shards
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.types import IGNORE_INDEX, Frame

FOLDER = "bertsmith.data.packing"
LONGEST = 65_535  # places in a row: sizes of texts are kept in two bytes

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class PackedBatch:
    """The arrays of a `types.Batch`, in numpy; `batching.from_packed` makes tensors of them."""

    input_ids: NDArray[np.int32]  # [B, L]
    position_ids: NDArray[np.int32]  # [B, L] counted from 0 within each text
    segment_ids: NDArray[np.uint8]  # [B, L]
    document_ids: NDArray[np.int32]  # [B, L] 1, 2, ... for what sees each other in a row: its texts, or their documents
    special_mask: NDArray[np.bool_]  # [B, L] special tokens and padding
    sample_ids: Numbers  # [B, L] a number for each text of the run, never used twice; -1 = padding
    cu_seqlens: NDArray[np.int32]  # [S+1] begin of each such run, padding too, in the flat places; B*L to the end
    cls_positions: Numbers  # [N] flat place of each text's first token, N/B to a row; -1 where there is no text
    max_seqlen: int  # no text is longer
    dense: bool  # every row is one text without padding, in this batch as in all others
    tokens: int  # places that are not padding
    labels: dict[str, Numbers] = field(default_factory=dict)  # [N] by objective; IGNORE_INDEX where nothing is

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything but the labels, by the names that `types.Batch` uses."""
        names = (
            "input_ids",
            "position_ids",
            "segment_ids",
            "document_ids",
            "special_mask",
            "sample_ids",
            "cu_seqlens",
            "cls_positions",
        )
        return {name: getattr(self, name) for name in names}


class Packing:
    """Texts of a split in rows of `length` places."""

    max_length: int
    rows_per_epoch: int
    texts_per_row: int  # at most: the number of texts of a batch follows from it
    padding_fraction: float  # share of places that no text is meant to fill
    dense: bool = False  # every row is one text without padding

    def batch(self, step: int, *, rows: int, rank: int = 0, world: int = 1) -> PackedBatch:
        """The share of `rank` in step number `step` of a run with `rows` rows a step.

        The shares of all ranks, one behind the other, are the batch of one rank alone.
        """
        if rows < 1 or world < 1 or rows % world:
            raise BertsmithError(f"rows={rows} cannot be shared by {world} ranks: it must be a multiple of them")
        if not 0 <= rank < world or step < 0:
            raise BertsmithError(f"there is no step={step} for rank={rank} of world={world}: both count from 0")
        share = rows // world
        return self.rows(step * rows + rank * share, share)

    def rows(self, first: int, rows: int) -> PackedBatch:
        """That many rows of the endless order, from number `first` on: for runs whose batches grow."""
        raise NotImplementedError

    def epochs_and_rows(self, first: int, rows: int) -> tuple[Numbers, Numbers]:
        """The epoch of each of these rows, and its number within the epoch."""
        epoch, begin = divmod(first, self.rows_per_epoch)
        ahead, row = np.divmod(begin + np.arange(rows), self.rows_per_epoch)
        return epoch + ahead, row


class PackingConfig(Protocol):
    """A packing's `Config`."""

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int) -> Packing:
        """The packing of these shards; frame and padding are the tokenizer's, `seed` decides everything else."""


def check_length(max_length: int) -> None:
    """Raises for a length that no packing supports."""
    if not 2 <= max_length <= LONGEST:
        raise ConfigError(f"max_length={max_length} must be from 2 to {LONGEST:,}")


def check_share(name: str, share: float) -> None:
    """For `Config`: a share is no percentage."""
    if not 0 <= share <= 1:
        raise ConfigError(f"{name}={share} must be a share from 0 to 1")


def room_for(length: int, *, specials: int, least: int) -> int:
    """Places that a frame leaves for tokens; raises where that is less than `least`."""
    room = length - specials
    if room < least:
        raise ConfigError(
            f"max_length={length} has no room for {specials} special tokens and {least} of text: "
            f"make it at least {specials + least}"
        )
    return room


def check_split(shards: Shards) -> None:
    """Raises where there is nothing to pack."""
    if not shards.tokens:
        raise DataError(f"the {shards.split} split of {shards.folder} is empty: prepare it with more text")


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
