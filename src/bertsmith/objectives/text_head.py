"""Objectives that ask one thing of each text: a vector, dropout, one matrix. N texts, W width of what is read."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.nn.style import Style
from bertsmith.objectives.between import Between
from bertsmith.objectives.objective import Objective
from bertsmith.objectives.readout import Layers, Readout, TextReadout
from bertsmith.types import Batch, Encoding


class TextHead(Objective):
    """The vector of each text through dropout and a linear layer (bert: run_classifier.py)."""

    def __init__(self, readout: TextReadout, *, outputs: int, dropout: float, style: Style, weight: float) -> None:
        super().__init__(weight=weight)
        self.readout = readout
        self.pools, self.whole, self.deep = readout.pools, readout.whole, readout.deep
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(readout.width, outputs)
        style.initialise(self)

    def places(self, batch: Batch) -> Tensor:
        """One for each text [N]."""
        return self.readout.places(batch)

    def answer(self, encoding: Encoding, batch: Batch, table: Tensor) -> Tensor:
        """What the head says of each text [N, outputs]."""
        logits: Tensor = self.head(self.dropout(self.readout(encoding, batch, self.name)))
        return logits


class TextSettings(Protocol):
    """What is read of a text, by settings that all these objectives have."""

    @property
    def readout(self) -> Readout: ...
    @property
    def layers(self) -> Layers: ...
    @property
    def between(self) -> Between: ...
    @property
    def between_layers(self) -> int: ...
    @property
    def between_width(self) -> int: ...


def readout_of(settings: TextSettings, *, width: int, count: int) -> TextReadout:
    """How such settings read an encoder of `count` layers."""
    return TextReadout(
        settings.readout,
        settings.layers,
        width=width,
        count=count,
        between=settings.between,
        between_layers=settings.between_layers,
        between_width=settings.between_width,
    )


def check_dropout(dropout: float) -> None:
    """Raises a ConfigError where it is no share."""
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout={dropout} must be at least 0 and less than 1")
