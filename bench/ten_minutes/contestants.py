"""Who takes part: a name, the recipe that it begins with, and what is changed in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertsmith import recipes
from bertsmith.errors import ConfigError
from bertsmith.recipe import Recipe, with_overrides

NEVER = 10**9  # steps


@dataclass(frozen=True)
class Contestant:
    """A recipe and settings in place of its own."""

    recipe: str
    changes: tuple[str, ...] = ()


TABLE = {
    # the paper's recipe with its shares of warm-up and decay on the clock instead of a million steps; rows of 128
    "paper-base": Contestant("bert/base"),
    "paper-medium": Contestant("bert/medium"),
    "quick": Contestant("bert/quick"),
}


def recipe_of(name: str, *, recipe: str, changes: Sequence[str], minutes: float, seed: int) -> Recipe:
    """What a contestant is trained by; a `recipe` that is given counts instead of the table's."""
    if not recipe and name not in TABLE:
        raise ConfigError(f"{name} is no contestant: {', '.join(TABLE)}; any other name needs --recipe")
    one = Contestant(recipe) if recipe else TABLE[name]
    # the judge is called by the clock, and a run is saved when it stops or ends
    ours = [f"plan.minutes={minutes}", f"seed={seed}", "evaluate_every=1", f"save_every={NEVER}"]
    return with_overrides(recipes.find(one.recipe), [*one.changes, *changes, *ours])
