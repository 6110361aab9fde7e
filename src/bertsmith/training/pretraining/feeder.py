"""The micro-batches of each step on one rank: rows of a packing, whatever was asked for before.

For a GPU they are made by other processes where there are cores for them: a thread of this one would hold up the one
that hands kernels to the device, and small models ask for a batch every few milliseconds.
"""

from __future__ import annotations

import os
import warnings

from bertsmith.data.collate import from_packed
from bertsmith.data.packing.packing import PackedBatch, Packing
from bertsmith.system.workers import FunctionWorkers, WorkerDied, default_workers
from bertsmith.training.ahead import Prefetcher
from bertsmith.training.recipe import Recipe
from bertsmith.training.world import World
from bertsmith.types import Batch

MOST_MAKERS = 4
PLACES = 2**22  # that may be ready for later steps, some 40 bytes each
CORES = 4  # of this machine and this rank, for each process that makes batches


class PretrainLoader(Prefetcher):
    """`feeder(step)`, counted from 0."""

    def __init__(self, recipe: Recipe, packing: Packing, world: World, *, source: object = "the shards") -> None:
        makers = _makers(world)
        places = recipe.batch_size * recipe.max_length // world.size
        super().__init__(self._make, source=source, steps=max(1, min(1 + makers, PLACES // places)))
        self._callers = FunctionWorkers(packing.batch, makers) if makers else None
        self.recipe, self.packing, self.world = recipe, packing, world
        self.rows = recipe.rank_rows(world.size) * world.size
        recipe.batch_sizes.micro_batches(0, self.rows)  # an error at once where they do not divide evenly

    def _make(self, step: int) -> list[Batch]:
        pin = self.world.device.type == "cuda"
        share = {"batch_size": self.rows, "rank": self.world.rank, "world_size": self.world.size}
        micros = self.recipe.batch_sizes.micro_batches(step, self.rows)
        return [from_packed(self._batch(micro, **share), pin=pin) for micro in micros]

    def _batch(self, micro: int, **share: int) -> PackedBatch:
        callers = self._callers
        if callers is not None:
            try:
                found: PackedBatch = callers(micro, **share)
                return found
            except WorkerDied:
                if self._callers is not None:
                    warnings.warn("a process that makes batches was killed: they are made here now", stacklevel=2)
                self.close()
        return self.packing.batch(micro, **share)

    def close(self) -> None:
        """Ends the processes that make batches; those that are asked for from here on are made here."""
        callers, self._callers = self._callers, None
        if callers is not None:
            callers.close()


def _makers(world: World) -> int:
    if world.device.type != "cuda":
        return 0
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # that share this machine
    return min(MOST_MAKERS, default_workers() // ranks // CORES)
