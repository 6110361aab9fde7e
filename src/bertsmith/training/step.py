"""The result of a step. Values are copied from the device asynchronously; reading them waits for the copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError


class Diverged(BertsmithError):
    """Too many consecutive steps had a non-finite loss or gradient; the weights are intact."""


@dataclass(frozen=True)
class Scores:
    """Mean losses and accuracies by loss term."""

    loss: float  # weighted sum of the terms
    losses: dict[str, float]
    accuracies: dict[str, float]  # of the terms that have one
    counts: dict[str, float]  # labels, or the sums of their class weights

    @classmethod
    def of(cls, numbers: Mapping[str, float], weights: Mapping[str, float]) -> Scores:
        """From `sum/TERM`, `count/TERM` and `correct/TERM`."""
        counts = {name: _integral(numbers[f"count/{name}"]) for name in weights}
        losses = {name: numbers[f"sum/{name}"] / (counts[name] or 1) for name in weights}
        known = [name for name in weights if f"correct/{name}" in numbers]
        accuracies = {name: numbers[f"correct/{name}"] / (counts[name] or 1) for name in known}
        return cls(sum(weights[name] * mean for name, mean in losses.items()), losses, accuracies, counts)

    def metrics(self) -> dict[str, float]:
        """Loss, losses and accuracies as a flat dict; non-finite losses stay as they are."""
        losses = {f"loss/{name}": value for name, value in self.losses.items()}
        accuracies = {f"accuracy/{name}": value for name, value in self.accuracies.items()}
        return {"loss": self.loss, **losses, **accuracies}


def _integral(number: float) -> float:
    return int(number) if number == int(number) else number


def exact_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which counts and sums of losses stay exact; MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def stack_scalars(values: Mapping[str, Tensor]) -> Tensor:
    """Scalars [] as one tensor [names]."""
    return torch.stack([value.detach().to(exact_dtype(value.device)) for value in values.values()])


class DeviceValues:
    """Scalars that are being copied from the device."""

    def __init__(self, names: Sequence[str], values: Tensor, began: torch.cuda.Event | None = None) -> None:
        """`values` [names] may be overwritten once this returns; `began` was recorded before their computation."""
        self._names, self._values, self._began = tuple(names), values, began
        self._copied: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            host = torch.empty(self._values.shape, dtype=self._values.dtype, pin_memory=True)
            self._values = host.copy_(self._values, non_blocking=True)
            self._copied = torch.cuda.Event(enable_timing=began is not None)  # type: ignore[no-untyped-call]
            self._copied.record()

    def values(self) -> dict[str, float]:
        """The values by name; waits for the copy."""
        if self._copied is not None:
            self._copied.synchronize()
        return dict(zip(self._names, self._values.tolist(), strict=True))

    def seconds(self) -> float | None:
        """Seconds of their computation on the device; None where `began` was not given. Waits for the copy."""
        if self._began is None or self._copied is None:
            return None
        self._copied.synchronize()
        return float(self._began.elapsed_time(self._copied)) / 1e3


@dataclass(frozen=True)
class Step:
    """One optimizer step. Properties wait for the device when they are first read."""

    number: int  # counted from 1
    learning_rate: float  # of the top layer group
    rows: int  # on all ranks together
    host_seconds: float  # of this process; a GPU may have computed an earlier step meanwhile
    device_values: DeviceValues = field(repr=False)
    weights: Mapping[str, float] = field(repr=False)  # of the loss terms

    @cached_property
    def numbers(self) -> dict[str, float]:
        """All values from the device."""
        return self.device_values.values()

    @cached_property
    def seconds(self) -> float:
        """On a GPU the time between its start and its end there; elsewhere `host_seconds`."""
        seconds = self.device_values.seconds()
        return self.host_seconds if seconds is None else seconds

    @cached_property
    def scores(self) -> Scores:
        """Losses, accuracies and counts over all micro-batches and ranks, before the update."""
        return Scores.of(self.numbers, self.weights)

    @property
    def loss(self) -> float:
        """The total loss, also where it is not finite."""
        return self.scores.loss

    @property
    def gradient_norm(self) -> float:
        """The global norm before clipping."""
        return self.numbers["norm"]

    @property
    def tokens(self) -> int:
        """Tokens without padding, on all ranks together."""
        return int(self.numbers["tokens"])

    @property
    def skipped(self) -> bool:
        """Whether the update was skipped because the loss or a gradient was not finite."""
        return self.numbers["skip"] > 0

    def metrics(self) -> dict[str, float | int | bool]:
        """A flat dict for the log."""
        return {
            "step": self.number,
            **self.scores.metrics(),
            **{f"count/{name}": count for name, count in self.scores.counts.items()},
            "gradient_norm": self.gradient_norm,
            "learning_rate": self.learning_rate,
            "rows": self.rows,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "skipped": self.skipped,
        }
