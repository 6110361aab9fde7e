"""Batches of a fine-tuning run, in a seeded order; short texts share rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.data.collate import collate, rows_needed
from bertsmith.errors import ConfigError
from bertsmith.objectives.objective import objective_class
from bertsmith.tasks.task import Features
from bertsmith.training.distributed import World
from bertsmith.training.plan import micro_batch_advice
from bertsmith.training.prefetch import Prefetcher
from bertsmith.types import Batch

BATCHES_PER_GROUP = 50  # at most; examples are sorted by length within a group of batches
MIN_GROUPS = 4  # in an epoch: with one group, the batches of a small task would be the same in all epochs


def make_batch(
    features: Sequence[Features],
    heads: str | Collection[str],
    *,
    length: int,
    padding_id: int,
    shape: tuple[int, int, int] | None = None,
    samples: Sequence[int] | None = None,
) -> Batch:
    """One batch of features with their labels for one or more heads, where known.

    Text n is row n of all rows in order.
    """
    rows = [row for one in features for row in one.rows]
    numbers = samples or range(len(features))
    sample_ids = [number for number, one in zip(numbers, features, strict=True) for _ in one.rows]
    shared: dict[str, Any] = {"length": length, "padding_id": padding_id, "pack": True}
    labels, indices = dict[str, Any](), dict[str, Any]()
    for name in [heads] if isinstance(heads, str) else heads:
        own = [part for one in features for part in ([one] if one.head in ("", name) else _unlabelled(one))]
        labels[name], selected = objective_class(name).collate_labels(own)
        indices |= {} if selected is None else {name: selected, **objective_class(name).collate_indices(name, own)}
    shared["shape"] = shape if indices or shape is None else shape[:2]
    return collate(rows, labels=labels, indices=indices, sample_ids=sample_ids, **shared)


def _unlabelled(features: Features) -> list[Features]:
    """The rows of an example without its label: it belongs to another head."""
    return [replace(features, rows=(row,), target=None, indices=None, sentence_starts=None) for row in features.rows]


@dataclass(frozen=True, eq=False)
class SampleOrder:
    """The endless order of training samples: each epoch is a permutation of its own.

    With `classes`, the class of each sample, an epoch of the same size has all classes equally often. With `sizes`, the
    tokens of each sample, the samples of a batch have similar sizes: samples are sorted by size within groups of up to
    `BATCHES_PER_GROUP` batches, and the batches are shuffled.
    """

    count: int
    seed: int
    batch_size: int = 1
    classes: NDArray[np.int64] | None = None
    sizes: NDArray[np.int64] | None = None

    def take(self, first: int, count: int) -> list[tuple[int, int]]:
        """(unique id, sample) of `count` positions of the order, from `first` on."""
        taken = []
        for position in range(first, first + count):
            epoch, index = divmod(position, self.count)
            sample = int(_samples_of(self, epoch)[index])
            taken.append((position if self.classes is not None else epoch * self.count + sample, sample))
        return taken

    def draw(self, epoch: int) -> NDArray[np.int64]:
        """The samples of an epoch."""
        generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
        drawn = self._draw(generator)
        return drawn if self.sizes is None else self._group(drawn, self.sizes, epoch, generator)

    def _group(
        self, drawn: NDArray[np.int64], sizes: NDArray[np.int64], epoch: int, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        # the first samples complete the last batch of the epoch before
        begun = min(-epoch * self.count % self.batch_size, self.count)
        whole = (self.count - begun) // self.batch_size * self.batch_size
        first, rest, last = np.split(drawn, [begun, begun + whole])
        batches = list[NDArray[np.int64]]()
        size = self.batch_size * max(min(BATCHES_PER_GROUP, whole // self.batch_size // MIN_GROUPS), 1)
        for begin in range(0, whole, size):
            some = rest[begin : begin + size]
            batches += np.split(some[np.argsort(sizes[some], kind="stable")], len(some) // self.batch_size)
        shuffled = [batches[number] for number in generator.permutation(len(batches))]
        return np.concatenate([first, *shuffled, last])

    def _draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        if self.classes is None:
            permutation: NDArray[np.int64] = generator.permutation(self.count)
            return permutation
        members = [np.flatnonzero(self.classes == one) for one in generator.permutation(np.unique(self.classes))]
        sizes = [len(part) for part in np.array_split(np.arange(self.count), len(members))]
        drawn = []
        for some, size in zip(members, sizes, strict=True):  # all samples of a class before one is repeated
            repeated = [generator.permutation(some) for _ in range(-(-size // len(some)))]
            drawn.append(np.concatenate([*repeated, some[:0]])[:size])
        return generator.permutation(np.concatenate(drawn))


@lru_cache(maxsize=4)
def _samples_of(order: SampleOrder, epoch: int) -> NDArray[np.int64]:
    return order.draw(epoch)


class FinetuneLoader(Prefetcher):
    """`loader(step)`, counted from 0: this rank's micro-batches, a function of the seed and the step."""

    def __init__(
        self,
        features: Sequence[Features],
        heads: Sequence[str],
        order: SampleOrder,
        *,
        length: int,
        padding_id: int,
        micro_batch_size: int,
        steps: int,
        world: World,
        static_shape: bool = True,
    ) -> None:
        """`static_shape`: on a GPU all batches have one shape, so that one compiled or captured graph serves them."""
        super().__init__(self._make, source="the task")
        self.features, self.heads, self.length, self.padding_id = features, heads, length, padding_id
        self.order, self.steps, self.world = order, steps, world
        self.batch_size = batch_size = order.batch_size
        self.micro_batch_size = micro_batch_size or max(batch_size // world.size, 1)
        if batch_size % (self.micro_batch_size * world.size):
            sizes = f"micro-batches of {self.micro_batch_size} on {world.size} ranks"
            advice = micro_batch_advice(batch_size, self.micro_batch_size, world.size)
            raise ConfigError(f"{sizes} do not divide steps of {batch_size} evenly{advice}")
        self.shape = self._static_shape(steps) if static_shape and world.device.type == "cuda" else None

    def _make(self, step: int) -> list[Batch]:
        share = self.batch_size // self.world.size
        begin = step * self.batch_size + self.world.rank * share
        return [
            self.batch(first, self.micro_batch_size) for first in range(begin, begin + share, self.micro_batch_size)
        ]

    def batch(self, first: int, count: int) -> Batch:
        """A batch of `count` examples from the `first` on, in the order of the run."""
        taken = self.order.take(first, count)
        if len(self.heads) > 1:  # heads that read both orders of a pair find them in texts 2n and 2n + 1
            taken.sort(key=lambda one: len(self.features[one[1]].rows) % 2)
        features = [self.features[number] for _, number in taken]
        samples = [sample_id for sample_id, _ in taken]
        sizes: dict[str, Any] = {"length": self.length, "padding_id": self.padding_id, "shape": self.shape}
        batch = make_batch(features, self.heads, samples=samples, **sizes)
        if self.shape:
            return batch.replace(dense=False).map(Tensor.pin_memory)  # for asynchronous copies
        return batch.replace(max_seqlen=max(len(row) for one in features for row in one.rows))

    def _static_shape(self, steps: int) -> tuple[int, int, int]:
        """Rows, texts and label slots that are enough for every micro-batch of the run."""
        rows = texts = slots = 1
        for first in range(0, steps * self.batch_size, self.micro_batch_size):  # of all ranks: they must agree
            some = [self.features[number] for _, number in self.order.take(first, self.micro_batch_size)]
            sizes = [len(row) for one in some for row in one.rows]
            rows, texts = max(rows, rows_needed(sizes, self.length)), max(texts, len(sizes))
            slots = max(slots, sum(0 if one.indices is None else len(one.indices) for one in some))
        return rows, texts, slots


def batches_by_length(
    features: Sequence[Features], objective: str, *, length: int, padding_id: int, max_tokens: int
) -> Iterator[tuple[list[int], Batch]]:
    """All features in batches of about `max_tokens` tokens, texts of similar length together, with their indices."""
    sizes = [sum(len(row) for row in one.rows) for one in features]
    order = sorted(range(len(features)), key=sizes.__getitem__)
    totals = list(accumulate(sizes[number] for number in order))
    cuts = [0]
    for position, total in enumerate(totals):
        if total - (totals[cuts[-1] - 1] if cuts[-1] else 0) > max_tokens and position > cuts[-1]:
            cuts.append(position)
    for begin, end in pairwise([*cuts, len(order)]):
        some = order[begin:end]
        width = max(length and min(length, max(len(row) for number in some for row in features[number].rows)), 1)
        yield some, make_batch([features[number] for number in some], objective, length=width, padding_id=padding_id)
