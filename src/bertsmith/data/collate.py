"""Rows -> batches: one text per batch row with padding, or several texts per row that do not attend to each other.

By array operations; nothing here loops over tokens. Letters: B batch rows, L tokens in a batch row, N texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.data.packing.packing import Numbers, PackedBatch, ranges
from bertsmith.errors import BertsmithError
from bertsmith.tokenizers.spelling import PADDING, widened
from bertsmith.types import IGNORE_INDEX, Batch, Row


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
    """A batch of rows of `length` tokens; `pack` puts several texts into one batch row where they fit.

    Text n of the batch (in `cls_positions`, pooled vectors and `labels`) is `rows[n]`. `sample_ids` are the numbers of
    the texts in the corpus (default 0, 1, ...): with `epoch`, the key of their masks.

    `labels`, by objective: for each text an integer, a float or several integers. `indices`, by objective: for each
    text the tokens of it that the objective reads; the objective then has one label per token. `shape` is the number of
    batch rows, of texts and of read tokens that the batch is filled up to, so that shapes are constant; without the
    third, every token of the batch may be read.
    """
    sizes = _sizes(rows, length)
    row, offset, number = _first_fit(sizes, length) if pack else (np.arange(len(rows)), 0, np.ones(len(rows), np.int64))
    batch_rows, texts, reads = _shape(shape, rows=int(row.max()) + 1, texts=len(rows), length=length)
    begins = row * length + offset
    within = ranges(sizes)
    flat_indices = np.repeat(begins, sizes) + within
    indices = indices or {}
    read = {name: _token_indices(name, tokens, sizes, begins) for name, tokens in indices.items()}

    def scatter(values: NDArray[Any], filler: int, dtype: type[np.generic] = np.int64) -> torch.Tensor:
        flat = np.full(batch_rows * length, filler, dtype)
        flat[flat_indices] = values
        return torch.from_numpy(flat.reshape(batch_rows, length))

    document_ids = scatter(np.repeat(number, sizes), 0, np.int32)
    numbers = _per_row("sample_ids", range(len(rows)) if sample_ids is None else sample_ids, len(rows))
    return Batch(
        input_ids=scatter(np.concatenate([row.ids for row in rows]), padding_id),
        position_ids=scatter(within, 0),
        segment_ids=scatter(np.concatenate([row.segment_ids for row in rows]), 0),
        document_ids=document_ids,
        special_mask=scatter(np.concatenate([row.sequence_ids for row in rows]) < 0, 1, np.bool_),
        sample_ids=scatter(np.repeat(numbers, sizes), -1),
        epoch=torch.tensor(epoch),
        cu_seqlens=torch.from_numpy(cu_seqlens_of(document_ids.numpy(), sequences=batch_rows + texts)),
        cls_positions=torch.from_numpy(_pad(begins, texts, -1)),
        max_seqlen=length,
        dense=len(rows) == batch_rows and bool((sizes == length).all()),
        labels={
            name: _token_labels(name, values, indices[name], reads)
            if name in indices
            else _text_labels(name, values, len(rows), texts)
            for name, values in (labels or {}).items()
        },
        indices={name: _fill_reads(name, flat, reads, 0) for name, flat in read.items()},
        characters=_characters(rows, flat_indices, (batch_rows, length)),
    )


def collate_unpadded(
    rows: Sequence[Row], *, padding_id: int = 0, indices: Mapping[str, Sequence[Any]] | None = None
) -> Batch:
    """A batch of one row that concatenates all texts, without padding.

    Adjacent texts of equal length are attended to together, so sort the texts by length.
    """
    sizes = [len(row) for row in rows]
    batch = collate(rows, length=sum(sizes), padding_id=padding_id, pack=True, indices=indices)
    runs = tuple((len(list(some)), size) for size, some in groupby(sizes))
    return batch.replace(max_seqlen=max(sizes), equal_length_runs=runs)


def rows_needed(sizes: Sequence[int], length: int) -> int:
    """The number of batch rows of texts of these sizes when they are packed."""
    return int(_first_fit(np.asarray(sizes, np.int64), length)[0].max()) + 1


def from_packed(packed: PackedBatch, *, pin: bool = False) -> Batch:
    """The same batch in tensors; `pin` places them in pinned memory.

    The epoch is 0: the sample ids of a packing are unique in the run.
    """
    narrow = {"document_ids": torch.int32, "cu_seqlens": torch.int32, "special_mask": torch.bool}
    narrow["spellings"] = torch.int16

    def tensor(name: str, values: NDArray[Any]) -> torch.Tensor:
        result = torch.from_numpy(values).to(narrow.get(name, torch.int64))
        return result.pin_memory() if pin else result

    fields: dict[str, Any] = {name: tensor(name, values) for name, values in packed.arrays.items()}
    return Batch(
        **fields,
        epoch=torch.tensor(0),
        max_seqlen=packed.max_seqlen,
        dense=packed.dense,
        labels={name: tensor(name, values) for name, values in packed.labels.items()},
        target=None if packed.target is None else from_packed(packed.target, pin=pin),
    )


def cu_seqlens_of(document_ids: NDArray[Any], *, sequences: int) -> NDArray[np.int32]:
    """Flat indices of the starts of texts and runs of padding in `document_ids` [B, L], then B*L [sequences+1]."""
    starts = np.ones(document_ids.shape, np.bool_)
    starts[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return _pad(np.flatnonzero(starts), sequences + 1, document_ids.size).astype(np.int32)


def _sizes(rows: Sequence[Row], length: int) -> Numbers:
    sizes = np.array([len(row) for row in rows], np.int64)
    if not len(sizes) or not sizes.min():
        raise BertsmithError("a batch needs at least one row, and every row at least one token")
    if sizes.max() > length:
        raise BertsmithError(f"row {sizes.argmax()} has {sizes.max()} tokens, more than length={length}: truncate it")
    return sizes


def _characters(rows: Sequence[Row], flat_indices: Numbers, shape: tuple[int, int]) -> torch.Tensor | None:
    """[B, L, C] where the rows are spelled, as wide as the longest word."""
    spelled = [row.characters for row in rows if row.characters is not None]
    if len(spelled) < len(rows):
        return None
    width = max(each.shape[1] for each in spelled)
    flat = np.full((shape[0] * shape[1], width), PADDING, np.int16)
    flat[flat_indices] = np.concatenate([widened(each, width) for each in spelled])
    return torch.from_numpy(flat.reshape(*shape, width))


def _shape(
    shape: tuple[int, int] | tuple[int, int, int] | None, *, rows: int, texts: int, length: int
) -> tuple[int, int, int | None]:
    """Batch rows, texts and read tokens; None for as many tokens as are read."""
    if shape is None:
        return rows, texts, None
    if shape[0] < rows or shape[1] < texts:
        raise BertsmithError(f"{rows} batch rows and {texts} texts are more than the given shape {shape}")
    return shape[0], shape[1], shape[2] if len(shape) == 3 else shape[0] * length


def _token_indices(name: str, indices: Sequence[Any], sizes: Numbers, begins: Numbers) -> Numbers:
    """The flat indices [R] of the tokens that an objective reads, in the order of the texts."""
    if len(indices) != len(sizes):
        raise BertsmithError(f"indices of {name} for {len(indices)} of {len(sizes)} rows: each row needs some")
    counts = [len(row) for row in indices]
    within = np.concatenate([np.asarray(row, np.int64) for row in indices])
    outside = np.flatnonzero((within < 0) | (within >= np.repeat(sizes, counts)))
    if len(outside):
        row = int(np.repeat(np.arange(len(sizes)), counts)[outside[0]])
        raise BertsmithError(f"{name} reads token {within[outside[0]]} of row {row}, which has {sizes[row]} tokens")
    flat: Numbers = np.repeat(begins, counts) + within
    return flat


def _token_labels(name: str, values: Sequence[Any], indices: Sequence[Any], size: int | None) -> torch.Tensor:
    labels = [np.asarray(row, np.int64) for row in values]
    if [len(row) for row in labels] != [len(row) for row in indices]:
        raise BertsmithError(f"the labels of {name} do not match its indices: each index needs one label")
    return _fill_reads(name, np.concatenate(labels), size, IGNORE_INDEX)


def _fill_reads(name: str, values: Numbers, size: int | None, filler: int) -> torch.Tensor:
    """One value per read token, filled up to `size` if that is given."""
    if size is not None and len(values) > size:
        raise BertsmithError(f"{name} reads {len(values)} tokens, more than the {size} of the given shape")
    return torch.from_numpy(_pad(values, len(values) if size is None else size, filler))


def _text_labels(name: str, values: Sequence[Any], rows: int, texts: int) -> torch.Tensor:
    """Integers, filled up with IGNORE_INDEX, or floats, filled up with NaN."""
    labels = _per_row(name, values, rows)
    filler, dtype = (IGNORE_INDEX, np.int64) if labels.dtype.kind in "biu" else (np.nan, np.float32)
    result = np.full((texts, *labels.shape[1:]), filler, dtype)
    result[:rows] = labels
    return torch.from_numpy(result)


def _first_fit(sizes: Numbers, length: int) -> Numbers:
    """[3, N] batch row, first token and number (from 1) within it of each text: the first row with enough space."""
    used: list[int] = []
    texts: list[int] = []
    placed = np.zeros((len(sizes), 3), np.int64)
    for text, size in enumerate(sizes.tolist()):
        row = next((row for row, taken in enumerate(used) if taken + size <= length), len(used))
        if row == len(used):
            used.append(0)
            texts.append(0)
        texts[row] += 1
        placed[text] = row, used[row], texts[row]
        used[row] += size
    return placed.T


def _per_row(name: str, values: Sequence[Any], rows: int) -> NDArray[Any]:
    if len(values) != rows:
        raise BertsmithError(f"{len(values)} {name} for {rows} rows: each row needs one")
    return np.asarray(values)


def _pad(values: Numbers, size: int, filler: int) -> Numbers:
    return np.pad(values, (0, size - len(values)), constant_values=filler)
