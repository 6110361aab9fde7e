"""Contestants: a name, the recipe it starts from, and the settings changed in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertsmith import recipes
from bertsmith.errors import ConfigError
from bertsmith.training.recipe import Recipe, with_overrides
from bertsmith.training.timed import BY_THE_CLOCK


@dataclass(frozen=True)
class Contestant:
    """A recipe with overrides; `after` names the contestant whose model a later stage starts from."""

    recipe: str
    changes: tuple[str, ...] = ()
    after: str = ""
    share: float = 1.0  # of the minutes, in `pipeline`


TABLE = {
    # the paper's recipe with warm-up and decay over the minutes instead of a million steps; sequences of 128
    "paper-base": Contestant("bert/base"),
    "paper-medium": Contestant("bert/medium"),
    "quick": Contestant("bert/quick", share=0.9),
    "quick-pairs": Contestant("bert/quick_pairs", after="quick", share=0.1),
    "gpt-quick": Contestant("gpt/quick", share=0.9),
    "gpt-quick-long": Contestant("gpt/quick_long", after="gpt-quick", share=0.1),
    "electra-quick": Contestant("electra/quick", share=0.9),
    "electra-quick-pairs": Contestant("electra/quick_pairs", after="electra-quick", share=0.1),
    "albert-quick": Contestant("albert/quick", share=0.9),
    "albert-quick-pairs": Contestant("albert/quick_pairs", after="albert-quick", share=0.1),
    "roberta-quick": Contestant("roberta/quick"),
}
# Contestants of `pipeline`; the first one is also fine-tuned without pre-training.
DEFAULT_CONTESTANTS = ("quick-pairs", "paper-base", "paper-medium")
# Fine-tuning settings of all contestants, [TASK:]SETTING=VALUE, where they differ from BERT's paper.
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
# Small tasks use the better of these learning rates: of five, these were the best for `quick` without pairs.
SMALL_TASKS = ("glue/cola", "glue/mrpc", "glue/sts-b", "glue/rte", "korean/korsts")
SMALL_TASK_RATES = "1e-4,2e-4"


def stages(name: str) -> list[str]:
    """The training stages of a contestant of the table, in order, itself included."""
    after = TABLE[name].after
    return [*(stages(after) if after else ()), name]


def before(name: str, *, recipe: str, after: str) -> str:
    """The contestant whose model this one starts from: `after`, else the table's unless a `recipe` is given."""
    return after or ("" if recipe or name not in TABLE else TABLE[name].after)


def recipe_of(name: str, *, recipe: str, changes: Sequence[str], minutes: float, seed: int) -> Recipe:
    """The recipe of a contestant; `recipe` takes precedence over the table's."""
    if not recipe and name not in TABLE:
        raise ConfigError(f"{name} is not a contestant: {', '.join(TABLE)}; any other name needs --recipe")
    contestant = Contestant(recipe) if recipe else TABLE[name]
    fixed = [f"minutes={minutes}", f"seed={seed}", *BY_THE_CLOCK]
    return with_overrides(recipes.find(contestant.recipe), [*contestant.changes, *changes, *fixed])
