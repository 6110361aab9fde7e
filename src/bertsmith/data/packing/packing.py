"""The contract of a packing: a pure function from row numbers to batches of constant shape.

The rows of a run form one endless sequence, epoch after epoch. Step n reads the next rows of it, whatever was read
before; each rank reads a contiguous share. Letters: B rows, L tokens in a row, N texts, S sequences; the frame of a
text has K parts, special tokens and one or two text slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.types import IGNORE_INDEX, Frame

if TYPE_CHECKING:
    from bertsmith.data.shards import Shards

FOLDER = "bertsmith.data.packing"
LONGEST = 65_535  # tokens of a row: lengths of samples are stored in two bytes
NO_FRAME = Frame(single=("a",), pair=("a", "b"))

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class PackedBatch:
    """The arrays of a `types.Batch`, in numpy; `collate.from_packed` converts them to tensors."""

    input_ids: NDArray[np.int32]  # [B, L]
    position_ids: NDArray[np.int32]  # [B, L] counted from 0 within each text
    segment_ids: NDArray[np.uint8]  # [B, L]
    document_ids: NDArray[np.int32]  # [B, L] 1, 2, ... for tokens of a row that attend to each other; 0 = padding
    special_mask: NDArray[np.bool_]  # [B, L] special tokens and padding
    sample_ids: Numbers  # [B, L] number of each text, unique in the run; -1 = padding
    cu_seqlens: NDArray[np.int32]  # [S+1] flat index of the start of each sequence, padding included; then B*L
    cls_positions: Numbers  # [N] flat index of each text's first token, N/B per row; -1 for an unused slot
    max_seqlen: int  # upper bound of the length of a text
    dense: bool  # every row is one text without padding, in all batches of the packing
    tokens: int  # that are not padding
    labels: dict[str, Numbers] = field(default_factory=dict)  # [N] by objective; IGNORE_INDEX for no label
    spellings: NDArray[np.int16] | None = None  # [W, C] characters of the distinct words: see `types.Batch`
    spelling_ids: Numbers | None = None  # [B, L] the word of each token among them
    next_ids: Numbers | None = None  # [B] the token that is read after each row, where rows continue each other
    target: PackedBatch | None = None  # the second texts, which a decoder reads: see `types.Batch.target`

    @property
    def size(self) -> int:
        """The number of tokens, padding and those of `target` included."""
        return self.input_ids.size + (0 if self.target is None else self.target.size)

    @property
    def all_tokens(self) -> int:
        """The number of tokens that are not padding, those of `target` included."""
        return self.tokens + (0 if self.target is None else self.target.all_tokens)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays except the labels, by their names in `types.Batch`."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}


class Packing:
    """The texts of a split in rows of `max_length` tokens."""

    max_length: int
    rows_per_epoch: int
    texts_per_row: int  # at most; fixes the number of text slots of a batch
    padding_fraction: float  # of all tokens of an epoch
    dense: bool = False  # every row is one text without padding

    def batch(self, step: int, *, batch_size: int, rank: int = 0, world_size: int = 1) -> PackedBatch:
        """The rows of one rank in a step; the rows of all ranks, concatenated, are the batch of a single process."""
        if batch_size < 1 or world_size < 1 or batch_size % world_size:
            raise BertsmithError(f"batch_size={batch_size} is not a multiple of the {world_size} ranks")
        if not 0 <= rank < world_size or step < 0:
            raise BertsmithError(f"step={step} of rank={rank} with world_size={world_size}: both count from 0")
        share = batch_size // world_size
        return self.rows(step * batch_size + rank * share, share)

    def rows(self, first: int, count: int) -> PackedBatch:
        """`count` rows of the endless sequence from number `first` on: for runs whose batch size changes."""
        raise NotImplementedError

    def epochs_and_rows(self, first: int, count: int) -> tuple[Numbers, Numbers]:
        """The epoch of each of these rows, and its number within the epoch."""
        epoch, begin = divmod(first, self.rows_per_epoch)
        later, row = np.divmod(begin + np.arange(count), self.rows_per_epoch)
        return epoch + later, row

    def learning_rate_factor(self, step: int) -> float:
        """What the learning rate of a step is multiplied by, where the length of the rows varies."""
        return 1.0


class PackingConfig(Protocol):
    """A packing's `Config`."""

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int) -> Packing:
        """The packing of these shards; `frame` and `padding_id` are the tokenizer's.

        With `by_column = True` the rows of a step continue those of the step before, and `build` also takes `columns`,
        the rows of a step, and `backward`, whether the encoder reads texts from their ends.
        """


def check_fraction(name: str, value: float) -> None:
    """Raises unless the setting of a `Config` is a fraction."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name}={value} must be a fraction from 0 to 1")


class FrameArrays:
    """A frame as arrays; index 0 frames a single text, index 1 a pair."""

    def __init__(self, frame: Frame) -> None:
        forms = (frame.single, frame.pair)
        shape = 2, max(map(len, forms))
        self.ids = np.zeros(shape, np.int32)  # [2, K] of special tokens
        self.special = np.zeros(shape, np.bool_)  # [2, K]
        self.segments = np.zeros(shape, np.uint8)  # [2, K]
        self._slots = np.zeros((2, *shape), np.int64)  # [slot a or b, 2, K] 1 at the slot
        for form, parts in enumerate(forms):
            for index, part in enumerate(parts):
                if isinstance(part, int):
                    self.ids[form, index], self.special[form, index] = part, True
                else:
                    self._slots["ab".index(part), form, index] = 1
        self.segments[1, : len(frame.pair_segments)] = frame.pair_segments
        self.special_counts: Numbers = self.special.sum(1)  # [2] special tokens of a single text and of a pair

    def part_lengths(self, form: Numbers, lengths: Numbers) -> Numbers:
        """[N, K] tokens of each part, for texts whose slots hold `lengths` [N, 2] tokens."""
        result: Numbers = self.special[form] + (lengths.T[:, :, None] * self._slots[:, form]).sum(0)
        return result


class Texts(NamedTuple):
    """The texts of a batch, row by row; those with an empty second slot are single texts."""

    row: Numbers  # [N] ascending, every row at least once
    sample_id: Numbers  # [N] unique in the run
    lengths: Numbers  # [N, 2] tokens of each slot
    tokens: NDArray[np.integer[Any]]  # [T] of all slots, concatenated
    is_end: NDArray[np.bool_] | None = None  # [T] which of these are document-end tokens


@dataclass(frozen=True)
class RowLayout:
    """The constants of a packing's batches."""

    frame: FrameArrays
    max_length: int
    padding_id: int
    texts_per_row: int = 1
    full_rows: bool = False  # every row is one text without padding
    documents_per_row: int = 0  # at most, if the documents of a text do not attend to each other; 0: they do

    def text_length(self, form: int, *, minimum: int) -> int:
        """Tokens that remain for the text of a row, single (form 0) or a pair (1); raises if fewer than `minimum`."""
        special_tokens = int(self.frame.special_counts[form])
        length = self.max_length - special_tokens
        if length < minimum:
            raise ConfigError(
                f"max_length={self.max_length} is too short for {special_tokens} special tokens and {minimum} of text: "
                f"make it at least {special_tokens + minimum}"
            )
        return length

    def make_batch(self, texts: Texts, labels: Mapping[str, Numbers] | None = None) -> PackedBatch:
        """The arrays of a batch, by array operations only; `labels` [N] by objective."""
        frame, form = self.frame, (texts.lengths[:, 1] > 0).astype(np.int64)
        parts = frame.part_lengths(form, texts.lengths)
        rows, number, padding = _fill_rows(texts.row, parts.sum(1), self.max_length)
        size = rows * self.max_length
        runs = np.stack([parts.sum(1), padding], axis=1)  # [N, 2] each text, and the padding after it
        begins = (np.cumsum(runs) - runs.ravel()).reshape(runs.shape)
        parts = np.concatenate([parts, padding[:, None]], axis=1)  # [N, K+1] lengths that sum to B*L
        special = _repeat(frame.special[form], parts, True)
        ids = _repeat(frame.ids[form], parts, self.padding_id)
        slots = np.flatnonzero(~special)
        ids[slots] = texts.tokens
        if texts.is_end is not None:
            special[slots] = texts.is_end
        document_ids, starts = _repeat(number[:, None].astype(np.int32), runs, 0), begins[runs > 0]
        if self.documents_per_row and texts.is_end is not None:
            document_ids, starts = _split_documents(document_ids, starts, slots, slots[texts.is_end] + 1, rows)
        positions = np.arange(size, dtype=np.int32)
        positions -= np.repeat(begins.astype(np.int32).ravel(), runs.ravel())
        positions[document_ids == 0] = 0
        text_slots, slot_count = texts.row * self.texts_per_row + number - 1, rows * self.texts_per_row
        sequences = rows * ((self.documents_per_row or self.texts_per_row) + (not self.full_rows))
        shape = rows, self.max_length
        return PackedBatch(
            input_ids=ids.reshape(shape),
            position_ids=positions.reshape(shape),
            segment_ids=_repeat(frame.segments[form], parts, 0).reshape(shape),
            document_ids=document_ids.reshape(shape),
            special_mask=special.reshape(shape),
            sample_ids=_repeat(texts.sample_id[:, None], runs, -1).reshape(shape),
            cu_seqlens=np.pad(starts, (0, sequences + 1 - len(starts)), constant_values=size).astype(np.int32),
            cls_positions=_scatter(begins[:, 0], text_slots, slot_count, -1),
            max_seqlen=self.max_length,
            dense=self.full_rows and not self.documents_per_row,
            tokens=size - int(padding.sum()),
            labels={
                name: _scatter(each, text_slots, slot_count, IGNORE_INDEX) for name, each in (labels or {}).items()
            },
        )


def row_layout(shards: Shards, frame: Frame, *, max_length: int, padding_id: int) -> RowLayout:
    """The layout of one text per row; raises for a length that no packing supports, and for an empty split."""
    if not 2 <= max_length <= LONGEST:
        raise ConfigError(f"max_length={max_length} must be from 2 to {LONGEST:,}")
    if not shards.tokens:
        raise DataError(f"the {shards.split} split of {shards.folder} is empty: prepare it with more text")
    return RowLayout(FrameArrays(frame), max_length, padding_id)


def ranges(counts: Numbers) -> Numbers:
    """0, 1, ... count-1 for each count, concatenated."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _fill_rows(row: Numbers, lengths: Numbers, max_length: int) -> tuple[int, Numbers, Numbers]:
    """The number of rows; each text's number in its row, from 1; and the padding after it, if it is a row's last."""
    firsts = np.flatnonzero(np.diff(row, prepend=-1))
    number = 1 + ranges(np.diff(firsts, append=len(row)))
    padding = np.zeros(len(row), np.int64)
    padding[np.append(firsts[1:], len(row)) - 1] = max_length - np.add.reduceat(lengths, firsts)
    return len(firsts), number, padding


def _split_documents(
    text_numbers: NDArray[np.int32], starts: Numbers, slots: Numbers, after_end: Numbers, rows: int
) -> tuple[NDArray[np.int32], Numbers]:
    """The document of each token within its row [B*L], and the flat indices where documents and padding start.

    `text_numbers` [B*L] is each token's text in its row; `after_end` are the indices after document-end tokens, where
    another document starts unless the text ends there.
    """
    marks = np.zeros(len(text_numbers) + 1, np.bool_)
    marks[after_end] = True
    in_slot = np.zeros(len(text_numbers), np.bool_)
    in_slot[slots] = True
    marks[:-1] &= in_slot
    marks[starts] = True
    numbers = np.cumsum((marks[:-1] & (text_numbers > 0)).reshape(rows, -1), axis=1, dtype=np.int32).ravel()
    return np.where(text_numbers > 0, numbers, 0).astype(np.int32), np.flatnonzero(marks[:-1])


def _repeat(values: NDArray[Any], lengths: Numbers, filler: int) -> NDArray[Any]:
    """Each value [N, K] repeated for the length of its run; `filler` for the last run of each text, its padding."""
    filled = np.concatenate([values, np.full((len(values), 1), filler, values.dtype)], axis=1)
    return np.repeat(filled.ravel(), lengths.ravel())


def _scatter(values: Numbers, indices: Numbers, size: int, filler: int) -> Numbers:
    result = np.full(size, filler, np.int64)
    result[indices] = values
    return result
