"""What a task asks, as batches: the steps of a run in an order that is a function of the seed, and answers in order.

Short texts share lines without seeing each other, so next to nothing is spent on padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.data.collate import collate, rows_needed
from bertsmith.errors import ConfigError
from bertsmith.objectives.objective import objective_class
from bertsmith.tasks.task import Features
from bertsmith.training.ahead import Prefetcher
from bertsmith.training.world import World
from bertsmith.types import Batch


def make_batch(
    asked: Sequence[Features],
    objective: str,
    *,
    length: int,
    padding_id: int,
    shape: tuple[int, int, int] | None = None,
    samples: Sequence[int] | None = None,
    epoch: int = 0,
) -> Batch:
    """One batch of questions with their answers, where they are known; text n is row n of all rows in order."""
    rows = [row for one in asked for row in one.rows]
    numbers = [number for number, one in zip(samples or range(len(asked)), asked, strict=True) for _ in one.rows]
    shared: dict[str, Any] = {"length": length, "padding_id": padding_id, "pack": True, "epoch": epoch}
    labels, indices = objective_class(objective).collate_labels(asked)
    if indices is None:
        return collate(rows, labels={objective: labels}, shape=shape and shape[:2], sample_ids=numbers, **shared)
    return collate(
        rows, labels={objective: labels}, indices={objective: indices}, shape=shape, sample_ids=numbers, **shared
    )


@dataclass(frozen=True)
class SampleOrder:
    """The endless order in which questions are learned from: each epoch all of them, in an order of its own."""

    count: int
    seed: int

    def take(self, first: int, count: int) -> list[tuple[int, int]]:
        """(epoch, question) of that many places, from number `first` on."""
        turns = [divmod(place, self.count) for place in range(first, first + count)]
        return [(epoch, int(_shuffled(self.count, self.seed, epoch)[turn])) for epoch, turn in turns]


@lru_cache(maxsize=4)
def _shuffled(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    drawn: NDArray[np.int64] = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)
    return drawn


class FinetuneLoader(Prefetcher):
    """`feeder(step)`, counted from 0, gives this rank's micro-batches: the same whatever was asked before."""

    def __init__(
        self,
        asked: Sequence[Features],
        objective: str,
        *,
        length: int,
        padding_id: int,
        batch_size: int,
        micro_batch_size: int,
        steps: int,
        seed: int,
        world: World,
        constant: bool = True,
    ) -> None:
        """`constant`: on a GPU all batches have one shape, so that what reads them is compiled or recorded once."""
        super().__init__(self._make, source="the task")
        self.asked, self.objective, self.length, self.padding_id = asked, objective, length, padding_id
        self.rows, self.micro, self.world = batch_size, micro_batch_size or max(batch_size // world.size, 1), world
        self.order, self.steps = SampleOrder(len(asked), seed), steps
        if batch_size % (self.micro * world.size):
            raise ConfigError(
                f"micro-batches of {self.micro} on {world.size} ranks do not divide steps of {batch_size} evenly"
            )
        self.shape = self._shape(steps) if constant and world.device.type == "cuda" else None

    def _make(self, step: int) -> list[Batch]:
        return [self._batch(first) for first in self._firsts(step)]

    def _firsts(self, step: int) -> range:
        share = self.rows // self.world.size
        begin = step * self.rows + self.world.rank * share
        return range(begin, begin + share, self.micro)

    def _batch(self, first: int) -> Batch:
        taken = self.order.take(first, self.micro)
        count = self.order.count
        asked = [self.asked[number] for _, number in taken]
        found = make_batch(
            asked,
            self.objective,
            length=self.length,
            padding_id=self.padding_id,
            shape=self.shape,
            samples=[epoch * count + number for epoch, number in taken],
        )
        if self.shape:
            return _pinned(found.replace(dense=False))
        return found.replace(max_seqlen=max(len(row) for one in asked for row in one.rows))

    def _shape(self, steps: int) -> tuple[int, int, int]:
        """Lines, texts and read places that are enough for every micro-batch of the run: one compiled graph serves."""
        lines = texts = slots = 1
        for first in range(0, steps * self.rows, self.micro):  # of all ranks: they must agree
            some = [self.asked[number] for _, number in self.order.take(first, self.micro)]
            sizes = [len(row) for one in some for row in one.rows]
            lines, texts = max(lines, rows_needed(sizes, self.length)), max(texts, len(sizes))
            slots = max(slots, sum(0 if one.indices is None else len(one.indices) for one in some))
        return lines, texts, slots


def _pinned(batch: Batch) -> Batch:
    """The batch where a GPU fetches it without waiting."""

    def pinned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: pinned(item) for name, item in value.items()}
        return value.pin_memory() if isinstance(value, torch.Tensor) else value

    return batch.replace(**{name: pinned(value) for name, value in vars(batch).items()})


def batches_in_order(
    asked: Sequence[Features], objective: str, *, length: int, padding_id: int, places: int
) -> Iterator[tuple[list[int], Batch]]:
    """All questions in batches of about so many places, texts of like length together, with the questions' numbers."""
    sizes = [sum(len(row) for row in one.rows) for one in asked]
    order = sorted(range(len(asked)), key=sizes.__getitem__)
    totals = list(accumulate(sizes[number] for number in order))
    cuts = [0]
    for place, total in enumerate(totals):
        if total - (totals[cuts[-1] - 1] if cuts[-1] else 0) > places and place > cuts[-1]:
            cuts.append(place)
    for begin, end in pairwise([*cuts, len(order)]):
        some = order[begin:end]
        line = max(length and min(length, max(len(row) for number in some for row in asked[number].rows)), 1)
        yield some, make_batch([asked[number] for number in some], objective, length=line, padding_id=padding_id)
