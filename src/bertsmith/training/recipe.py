"""One frozen dataclass for one run: what is trained, on which rows, how, and how often it is looked at and saved."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from bertsmith import config
from bertsmith.config import Registry
from bertsmith.errors import ConfigError
from bertsmith.training.passes import Settings
from bertsmith.training.plan import Plan, Rows


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A pre-training run. Its JSON lies in the run folder and is accepted where a recipe's name is."""

    name: str  # what the run is called; `family/recipe` where it came from one
    encoder: Annotated[Any, Registry("bertsmith.encoders")]  # who reads
    objectives: dict[str, Annotated[Any, Registry("bertsmith.objectives")]]  # what it is asked, each by its own name
    packing: Annotated[Any, Registry("bertsmith.data.packing")]  # how documents become rows
    optimizer: Annotated[Any, Registry("bertsmith.training.optimizers")]  # how gradients become updates
    plan: Plan  # how long, and how fast it learns at each moment
    rows: Rows = field(default_factory=Rows)  # of one step
    micro_rows: int = 0  # rows of one forward on one rank; 0: a step's rows all at once
    passes: Settings = field(default_factory=Settings)  # how a step is computed
    seed: int = 0  # of new weights, order, masks and dropout
    evaluate_every: int = 1000  # steps; 0: only at the end
    evaluate_rows: int = 512  # held-out rows that are scored
    patience: int = 0  # evaluations in a row that are no better than the best, until the run ends; 0: all of the plan
    save_every: int = 1000  # steps between checkpoints
    keep: int = 2  # checkpoints that stay
    start: str = ""  # model folder whose weights the run begins with: a second stage, or text of another domain
    after: str = ""  # of a second stage: the recipe of the first, whose model it is meant to start from

    def __post_init__(self) -> None:
        if self.packing.length > self.encoder.max_positions:
            raise ConfigError(
                f"packing.length={self.packing.length} is over encoder.max_positions={self.encoder.max_positions}: "
                "make rows shorter or give the encoder more positions"
            )
        if self.save_every < 1 or self.evaluate_rows < 1:
            raise ConfigError("save_every and evaluate_rows must be at least 1")
        if self.evaluate_every < 0 or self.micro_rows < 0 or self.patience < 0:
            raise ConfigError("evaluate_every, micro_rows and patience must not be under 0")
        for name, settings in self.objectives.items():
            kind = type(settings).__module__.rsplit(".", 1)[-1]
            if name != kind:
                raise ConfigError(f"objectives.{name} has the settings of {kind}: an objective goes by its own name")

    def to_json(self) -> bytes:
        """The whole recipe, every setting written out; the same recipe gives the same bytes."""
        return (json.dumps(config.to_dict(self), indent=1, ensure_ascii=False) + "\n").encode()


def read_recipe(path: Path) -> Recipe:
    """A recipe from a JSON or TOML file."""
    return config.read_file(Recipe, path)


def with_overrides(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """The recipe with dotted settings put in, such as `encoder.layers=4`."""
    return config.override(recipe, changes)
