"""Precision, recall and F1 from counts: what was correct, what was found, what is gold. A share of nothing is 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Counts:
    """How many were found, how many there are, and how many of both; shares are fractions of 1."""

    correct: int
    found: int
    gold: int

    @property
    def precision(self) -> float:
        """The share of what was found that is correct."""
        return float(share(self.correct, self.found))

    @property
    def recall(self) -> float:
        """The share of what there is that was found."""
        return float(share(self.correct, self.gold))

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return float(f1_of(np.array([self.correct, self.found, self.gold])))


def share(part: ArrayLike, whole: ArrayLike) -> NDArray[np.float64]:
    """part / whole, element by element, and 0 where the whole is 0."""
    whole = np.asarray(whole, dtype=np.float64)
    divided = np.asarray(part, dtype=np.float64) / np.where(whole == 0, 1.0, whole)
    return np.where(whole == 0, 0.0, divided)


def f1_of(counts: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """F1 of counts [..., 3] in the order correct, found, gold, as [...]."""
    return share(2.0 * counts[..., 0], counts[..., 1] + counts[..., 2])
