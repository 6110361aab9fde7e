"""Regression metrics: Pearson and Spearman correlation and mean squared error, over the last axis.

The correlation with a constant is undefined. Here it is 0, where scipy returns nan, so that one run with constant
predictions does not invalidate a mean over seeds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.errors import DataError

Floats = NDArray[np.float64]


def pearson(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Pearson correlation of two vectors [N]; 0 if one is constant."""
    return float(batched_pearson(*checked_pair(gold, predicted)))


def spearman(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Spearman correlation of two vectors [N] with average ranks for ties; 0 if one is constant."""
    return float(batched_spearman(*checked_pair(gold, predicted)))


def mean_squared_error(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Mean squared error of two vectors [N]."""
    return float(batched_mean_squared_error(*checked_pair(gold, predicted)))


def batched_pearson(gold: Floats, predicted: Floats) -> Floats:
    """Pearson correlation of vectors [..., N] as [...]."""
    product = (_standardized(gold) * _standardized(predicted)).sum(axis=-1)
    correlation: Floats = np.clip(product, -1.0, 1.0)
    return correlation


def batched_spearman(gold: Floats, predicted: Floats) -> Floats:
    """Spearman correlation of vectors [..., N] as [...]."""
    return batched_pearson(ranks(gold), ranks(predicted))


def batched_mean_squared_error(gold: Floats, predicted: Floats) -> Floats:
    """Mean squared error of vectors [..., N] as [...]."""
    error: Floats = np.mean((gold - predicted) ** 2, axis=-1)
    return error


def ranks(values: Floats) -> Floats:
    """The rank of each value in its vector [..., N], from 1; ties get their average rank."""
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    new = np.ones(values.shape, dtype=bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    last = np.ones(values.shape, dtype=bool)
    last[..., :-1] = new[..., 1:]
    positions = np.broadcast_to(np.arange(values.shape[-1]), values.shape)
    begin = np.maximum.accumulate(np.where(new, positions, 0), axis=-1)
    backward = np.where(last, positions, values.shape[-1])[..., ::-1]
    end = np.minimum.accumulate(backward, axis=-1)[..., ::-1]
    ranked = np.empty(values.shape, dtype=np.float64)
    np.put_along_axis(ranked, order, (begin + end) / 2.0 + 1.0, axis=-1)
    return ranked


def checked_pair(gold: ArrayLike, predicted: ArrayLike) -> tuple[Floats, Floats]:
    """Two vectors [N] as float64, checked: equal lengths, not empty, finite."""
    golds, predictions = _vector(gold, "gold"), _vector(predicted, "predicted")
    if len(golds) != len(predictions):
        raise DataError(f"{len(golds)} gold numbers but {len(predictions)} predicted ones: every example needs both")
    if not len(golds):
        raise DataError("the set is empty: there are no numbers to score")
    return golds, predictions


def _vector(values: ArrayLike, side: str) -> Floats:
    vector = np.asarray(values)
    if vector.ndim != 1 or vector.dtype.kind not in "biuf":
        if vector.size:
            raise DataError(
                f"{side} scores must be a vector of numbers, one per example, not {vector.dtype} {vector.shape}"
            )
        vector = vector.reshape(-1)
    invalid = np.flatnonzero(~np.isfinite(vector.astype(np.float64)))
    if len(invalid):
        raise DataError(f"{side} number {invalid[0] + 1} is {vector[invalid[0]]}: scores must be finite numbers")
    return vector.astype(np.float64)


def _standardized(values: Floats) -> Floats:
    """Vectors [..., N] minus their mean and scaled to length 1; zero for a constant vector."""
    constant = (values == values[..., :1]).all(axis=-1, keepdims=True)
    # Scaling by a power of two is exact and prevents overflow in sums and squares.
    _, exponent = np.frexp(np.abs(values).max(axis=-1, keepdims=True))
    scaled = np.ldexp(values, -exponent)
    centred = scaled - scaled.mean(axis=-1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=-1, keepdims=True))
    return np.where(constant | (length == 0), 0.0, centred / np.where(length == 0, 1.0, length))
