"""What came of a step: asked of the device at once, waited for only when somebody reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError


class Diverged(BertsmithError):
    """Losses or gradients were not finite too many times in a row; the weights are as they were before."""


@dataclass(frozen=True)
class Scores:
    """Means by part of the loss, as plain numbers."""

    loss: float  # the total: every part by its weight
    losses: dict[str, float]
    accuracies: dict[str, float]  # of the parts that know right and wrong
    counts: dict[str, int]  # how many things were asked

    @classmethod
    def of(cls, numbers: Mapping[str, float], weights: Mapping[str, float]) -> Scores:
        """From sums, counts and right answers by `sum/part`, `count/part` and `correct/part`."""
        counts = {name: int(numbers[f"count/{name}"]) for name in weights}
        means = {name: numbers[f"sum/{name}"] / max(1, counts[name]) for name in weights}
        return cls(
            loss=sum(weights[name] * mean for name, mean in means.items()),
            losses=means,
            accuracies={
                name: numbers[f"correct/{name}"] / max(1, counts[name])
                for name in weights
                if f"correct/{name}" in numbers
            },
            counts=counts,
        )


def exact_dtype(device: torch.device) -> torch.dtype:
    """In which whole numbers and sums of losses stay exact; MPS knows no doubles."""
    return torch.float32 if device.type == "mps" else torch.float64


def stack_scalars(values: Mapping[str, Tensor]) -> Tensor:
    """Numbers [] as one tensor [names]."""
    return torch.stack([value.detach().to(exact_dtype(value.device)) for value in values.values()])


class DeviceValues:
    """Numbers on their way from the device."""

    def __init__(self, names: Sequence[str], values: Tensor, began: torch.cuda.Event | None = None) -> None:
        """`values` [names] may change as soon as this returns; `began` stands before what made them."""
        self._names = tuple(names)
        self._values = values
        self._began = began
        self._there: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            host = torch.empty(self._values.shape, dtype=self._values.dtype, pin_memory=True)
            self._values = host.copy_(self._values, non_blocking=True)
            self._there = torch.cuda.Event(enable_timing=began is not None)  # type: ignore[no-untyped-call]
            self._there.record()

    def values(self) -> dict[str, float]:
        """The numbers; waits for them if need be."""
        if self._there is not None:
            self._there.synchronize()
        return dict(zip(self._names, self._values.tolist(), strict=True))

    def seconds(self) -> float | None:
        """How long it took to make them, by the device's clock; None where that was not asked. Waits if need be."""
        if self._began is None or self._there is None:
            return None
        self._there.synchronize()
        return float(self._began.elapsed_time(self._there)) / 1e3


@dataclass(frozen=True)
class Step:
    """One optimiser step. Everything below its fields waits for the device when it is first read."""

    number: int  # counted from 1
    learning_rate: float  # of the top layer group
    rows: int  # on all ranks together
    host_seconds: float  # that this process spent on it, while a GPU may have been busy with an earlier one
    device_values: DeviceValues = field(repr=False)
    weights: Mapping[str, float] = field(repr=False)  # of the parts in the total

    @cached_property
    def numbers(self) -> dict[str, float]:
        """All that was read from the device."""
        return self.device_values.values()

    @cached_property
    def seconds(self) -> float:
        """From when a GPU was free for it until it was through; elsewhere what this process spent on it."""
        found = self.device_values.seconds()
        return self.host_seconds if found is None else found

    @cached_property
    def scores(self) -> Scores:
        """Losses, accuracies and counts over all micro-batches and ranks, before the update."""
        return Scores.of(self.numbers, self.weights)

    @property
    def loss(self) -> float:
        """The total loss, as it was: not finite where it was not."""
        return self.scores.loss

    @property
    def gradient_norm(self) -> float:
        """Of all gradients together, before clipping."""
        return self.numbers["norm"]

    @property
    def tokens(self) -> int:
        """Places that are no padding, on all ranks together."""
        return int(self.numbers["tokens"])

    @property
    def skipped(self) -> bool:
        """Whether there was no update, because the loss or a gradient was not finite."""
        return self.numbers["skip"] > 0

    def metrics(self) -> dict[str, float | int | bool]:
        """One flat table for a log; losses that are not finite stay so."""
        scores = self.scores
        parts = {f"loss/{name}": loss for name, loss in scores.losses.items()}
        parts |= {f"accuracy/{name}": accuracy for name, accuracy in scores.accuracies.items()}
        return {
            "step": self.number,
            "loss": scores.loss,
            **parts,
            **{f"count/{name}": count for name, count in scores.counts.items()},
            "gradient_norm": self.gradient_norm,
            "learning_rate": self.learning_rate,
            "rows": self.rows,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "skipped": self.skipped,
        }
