"""What the checks share: the run in question, what was found out about it, and how findings look."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bertsmith.data.packing.packing import Packing
from bertsmith.errors import BertsmithError
from bertsmith.training.pretraining.parts import PretrainData
from bertsmith.training.recipe import Recipe
from bertsmith.training.trainer import Trainer
from bertsmith.training.world import World


@dataclass(frozen=True)
class Finding:
    """What one check found: in words, and as plain facts."""

    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    state: Literal["ok", "note", "problem"] = "ok"  # note: it would run, but a user should know
    error: BertsmithError | None = None  # of a problem
    name: str = ""  # of the check

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON has it, which knows no number that is not finite."""
        facts = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in self.facts.items()
        }
        return {"check": self.name, "state": self.state, "text": self.text, **facts}


def problem(error: BertsmithError, facts: dict[str, Any] | None = None) -> Finding:
    """A finding that would stop the run, with the error that it would stop with."""
    return Finding(str(error), facts or {}, "problem", error)


OFTEN = 20  # readings of a text by which dropout was ahead (docs/minutes.md)


@dataclass
class PreflightContext:
    """One run that is being checked. What is declared without a value is set by the check that finds it out."""

    recipe: Recipe  # complete, with the table for its vocabulary, as soon as the tokenizer is known
    folder: Path  # of the shards
    output: Path | None
    world: World
    data: PretrainData = field(init=False)
    packing: Packing = field(init=False)
    trial: Recipe = field(init=False)  # the recipe with as few rows a step as a trial needs
    trainer: Trainer = field(init=False)  # of the trial
    row_bytes: int = 1  # of activations, for each row of a forward
    fixed_bytes: int = 0  # of weights, gradients and moments

    @property
    def micro_rows(self) -> int:
        """Rows of one forward."""
        return self.recipe.rank_rows(1)

    @property
    def whole_rows(self) -> int | None:
        """Rows of the whole run; None where the clock drives it."""
        return None if self.recipe.minutes else self.recipe.batch_sizes.before(self.recipe.steps)

    def worn(self, epochs: float) -> str:
        """What a user should know of a text that is read so often; nothing where there is nothing."""
        if epochs < OFTEN or getattr(self.recipe.encoder, "dropout", None) != 0:
            return ""
        return (
            "; a text that is read so often may be better learnt with encoder.dropout=0.1 encoder.attention_dropout=0.1"
        )


def megabytes(size: float) -> str:
    """A number of bytes as a person reads it."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
