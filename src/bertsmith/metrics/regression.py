"""Scores of numbers: Pearson, Spearman, mean squared error, over the last axis: one row [N] or many [..., N].

A correlation with something constant is not defined. Here it is 0, where scipy gives nan: a model that always says the
same has learnt nothing, and one such run must not void a mean over seeds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.errors import DataError

Floats = NDArray[np.float64]


def pearson(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Pearson's correlation of two rows [N]; 0 where one is constant."""
    return float(batched_pearson(*checked_pair(gold, predicted)))


def spearman(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Spearman's correlation of two rows [N], ties with their average rank; 0 where one is constant."""
    return float(batched_spearman(*checked_pair(gold, predicted)))


def mean_squared_error(gold: ArrayLike, predicted: ArrayLike) -> float:
    """The mean of the squared differences of two rows [N]."""
    return float(batched_mean_squared_error(*checked_pair(gold, predicted)))


def batched_pearson(gold: Floats, predicted: Floats) -> Floats:
    """Pearson's correlation of rows [..., N] as [...]."""
    product = (_directions(gold) * _directions(predicted)).sum(axis=-1)
    found: Floats = np.clip(product, -1.0, 1.0)
    return found


def batched_spearman(gold: Floats, predicted: Floats) -> Floats:
    """Spearman's correlation of rows [..., N] as [...]."""
    return batched_pearson(ranks(gold), ranks(predicted))


def batched_mean_squared_error(gold: Floats, predicted: Floats) -> Floats:
    """The mean squared error of rows [..., N] as [...]."""
    found: Floats = np.mean((gold - predicted) ** 2, axis=-1)
    return found


def ranks(values: Floats) -> Floats:
    """The rank of each number in its row [..., N], counted from 1; equal numbers share the average of their ranks."""
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    new = np.ones(values.shape, dtype=bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    last = np.ones(values.shape, dtype=bool)
    last[..., :-1] = new[..., 1:]
    places = np.broadcast_to(np.arange(values.shape[-1]), values.shape)
    begin = np.maximum.accumulate(np.where(new, places, 0), axis=-1)
    backward = np.where(last, places, values.shape[-1])[..., ::-1]
    end = np.minimum.accumulate(backward, axis=-1)[..., ::-1]
    ranked = np.empty(values.shape, dtype=np.float64)
    np.put_along_axis(ranked, order, (begin + end) / 2.0 + 1.0, axis=-1)
    return ranked


def checked_pair(gold: ArrayLike, predicted: ArrayLike) -> tuple[Floats, Floats]:
    """Two rows [N] as float64, checked: of one length, not empty, all finite."""
    ours, theirs = _row(gold, "gold"), _row(predicted, "predicted")
    if len(ours) != len(theirs):
        raise DataError(f"{len(ours)} gold numbers but {len(theirs)} predicted ones: every example needs one of each")
    if not len(ours):
        raise DataError("there are no numbers to score: the set is empty")
    return ours, theirs


def _row(values: ArrayLike, side: str) -> Floats:
    row = np.asarray(values)
    if row.ndim != 1 or row.dtype.kind not in "biuf":
        if row.size:
            raise DataError(f"{side} scores are a row of numbers, one for each example, not {row.dtype} {row.shape}")
        row = row.reshape(-1)
    wrong = np.flatnonzero(~np.isfinite(row.astype(np.float64)))
    if len(wrong):
        raise DataError(f"{side} number {wrong[0] + 1} is {row[wrong[0]]}: a score needs finite numbers")
    return row.astype(np.float64)


def _directions(values: Floats) -> Floats:
    """Rows [..., N] less their mean and of length 1; all zero where a row is constant."""
    constant = (values == values[..., :1]).all(axis=-1, keepdims=True)
    # A power of two loses nothing, and no sum or square of what is left can overflow.
    _, exponent = np.frexp(np.abs(values).max(axis=-1, keepdims=True))
    scaled = np.ldexp(values, -exponent)
    centred = scaled - scaled.mean(axis=-1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=-1, keepdims=True))
    return np.where(constant | (length == 0), 0.0, centred / np.where(length == 0, 1.0, length))
