"""The micro-batches of each step on one rank: rows of a packing, whatever was asked for before."""

from __future__ import annotations

from bertsmith.batching import from_packed
from bertsmith.corpus.packing.packing import Packing
from bertsmith.recipe import Recipe
from bertsmith.train.ahead import Ahead
from bertsmith.train.world import World
from bertsmith.types import Batch


class Feeder(Ahead):
    """`feeder(step)`, counted from 0."""

    def __init__(self, recipe: Recipe, packing: Packing, world: World, *, source: object = "the shards") -> None:
        super().__init__(self._make, source=source)
        self.recipe, self.packing, self.world = recipe, packing, world
        self.rows = (recipe.micro_rows or recipe.rows.full // world.size) * world.size
        recipe.rows.micro_batches(0, self.rows)  # an error at once where they do not divide evenly

    def _make(self, step: int) -> list[Batch]:
        pin = self.world.device.type == "cuda"
        share = {"rows": self.rows, "rank": self.world.rank, "world": self.world.size}
        micros = self.recipe.rows.micro_batches(step, self.rows)
        return [from_packed(self.packing.batch(micro, **share), pin=pin) for micro in micros]
