"""What every packing is: a pure function from row numbers to batches of constant shape. Knows no kind of packing.

The rows of a run stand in one endless order, epoch after epoch. Step n takes the next rows of it, whoever makes them
and whatever was made before; ranks take contiguous shares. B rows, L places in a row, N texts, S sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.shards import Shards
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.types import Frame

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

    length: int
    rows_per_epoch: int
    texts_per_row: int  # at most: the number of texts of a batch follows from it
    padding: float  # share of places that no text is meant to fill
    full: bool = False  # every row is one text without padding

    def batch(self, step: int, *, rows: int, rank: int = 0, world: int = 1) -> PackedBatch:
        """The share of `rank` in step number `step` of a run with `rows` rows a step.

        The shares of all ranks, one behind the other, are the batch of one rank alone.
        """
        if rows < 1 or world < 1 or rows % world:
            raise BertsmithError(f"rows={rows} cannot be shared by {world} ranks: it must be a multiple of them")
        if not 0 <= rank < world or step < 0:
            raise BertsmithError(f"there is no step={step} for rank={rank} of world={world}: both count from 0")
        share = rows // world
        return self.take(step * rows + rank * share, share)

    def take(self, first: int, rows: int) -> PackedBatch:
        """That many rows of the endless order, from number `first` on: for runs whose batches grow."""
        raise NotImplementedError

    def turns(self, first: int, rows: int) -> tuple[Numbers, Numbers]:
        """The epoch of each of these rows, and its number within the epoch."""
        epoch, begin = divmod(first, self.rows_per_epoch)
        ahead, row = np.divmod(begin + np.arange(rows), self.rows_per_epoch)
        return epoch + ahead, row


class PackingConfig(Protocol):
    """A packing's `Config`."""

    @property
    def length(self) -> int:
        """Places in a row."""

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int) -> Packing:
        """The packing of these shards; frame and padding are the tokenizer's, `seed` decides everything else."""


def check_length(length: int) -> None:
    """For `Config`: what no packing can do."""
    if not 2 <= length <= LONGEST:
        raise ConfigError(f"length={length} must be from 2 to {LONGEST:,}")


def check_share(name: str, share: float) -> None:
    """For `Config`: a share is no percentage."""
    if not 0 <= share <= 1:
        raise ConfigError(f"{name}={share} must be a share from 0 to 1")


def room_for(length: int, *, specials: int, least: int) -> int:
    """Places that a frame leaves for tokens; raises where that is less than `least`."""
    room = length - specials
    if room < least:
        raise ConfigError(
            f"length={length} has no room for {specials} special tokens and {least} of text: "
            f"make it at least {specials + least}"
        )
    return room


def check_split(shards: Shards) -> None:
    """Raises where there is nothing to pack."""
    if not shards.tokens:
        raise DataError(f"the {shards.split} split of {shards.folder} is empty: prepare it with more text")
