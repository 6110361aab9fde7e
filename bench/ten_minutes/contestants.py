"""Who takes part: a name, the recipe that it begins with, and what is changed in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertsmith import recipes
from bertsmith.errors import ConfigError
from bertsmith.training.recipe import Recipe, with_overrides

NEVER = 10**9  # steps


@dataclass(frozen=True)
class Contestant:
    """A recipe and settings in place of its own; a later stage says after whom it comes."""

    recipe: str
    changes: tuple[str, ...] = ()
    after: str = ""
    share: float = 1.0  # of the minutes, in a contest of all


TABLE = {
    # the paper's recipe with its shares of warm-up and decay on the clock instead of a million steps; rows of 128
    "paper-base": Contestant("bert/base"),
    "paper-medium": Contestant("bert/medium"),
    "quick": Contestant("bert/quick", share=0.9),
    "quick-pairs": Contestant("bert/quick_pairs", after="quick", share=0.1),
}
# Who take part where nobody says who; the first one is tried fresh too.
OURS = ("quick-pairs", "paper-base", "paper-medium")
# How everybody is fine-tuned: [TASK:]SETTING=VALUE, where it is not as in BERT's paper.
TUNING = {
    "english": (
        *("glue/sst-2:batch_size=64", "glue/sst-2:epochs=2", "glue/sst-2:learning_rate=1e-4"),
        *(f"glue/{name}:epochs=5" for name in ("cola", "mrpc", "sts-b", "rte")),
        *("conll/conll2003:epochs=5", "conll/conll2003:learning_rate=2e-4"),
        *("squad/1.1:batch_size=64", "squad/1.1:epochs=2", "squad/1.1:learning_rate=2e-4"),
        *("codah:batch_size=16", "codah:epochs=5", "codah:learning_rate=1e-4"),
    ),
    "korean": (
        *("korean/nsmc:batch_size=64", "korean/nsmc:epochs=2", "korean/nsmc:learning_rate=1e-4"),
        "korean/korsts:epochs=5",
    ),
}
# Small tasks, of which everybody's best of these rates counts: of five these were the best for `quick` without pairs.
SMALL = ("glue/cola", "glue/mrpc", "glue/sts-b", "glue/rte", "korean/korsts")
RATES = "1e-4,2e-4"


def stages(name: str) -> list[str]:
    """Who is trained for a contestant of the table, in order: those before it, and itself."""
    after = TABLE[name].after
    return [*(stages(after) if after else ()), name]


def before(name: str, *, recipe: str, after: str) -> str:
    """Whom a contestant begins with: whoever is named, or who the table says unless a `recipe` is given."""
    return after or ("" if recipe or name not in TABLE else TABLE[name].after)


def recipe_of(name: str, *, recipe: str, changes: Sequence[str], minutes: float, seed: int) -> Recipe:
    """What a contestant is trained by; a `recipe` that is given counts instead of the table's."""
    if not recipe and name not in TABLE:
        raise ConfigError(f"{name} is not a contestant: {', '.join(TABLE)}; any other name needs --recipe")
    one = Contestant(recipe) if recipe else TABLE[name]
    # the judge is called by the clock, and a run is saved when it stops or ends
    ours = [f"minutes={minutes}", f"seed={seed}", "eval_every=1", f"save_every={NEVER}"]
    return with_overrides(recipes.find(one.recipe), [*one.changes, *changes, *ours])
