"""Objectives that ask one thing of each text: a vector, dropout, one matrix. N texts, W width of what is read."""

from __future__ import annotations

from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.nn.style import Style
from bertsmith.objectives.objective import Objective
from bertsmith.objectives.readout import TextReadout
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


def check_dropout(dropout: float) -> None:
    """Raises a ConfigError where it is no share."""
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout={dropout} must be at least 0 and less than 1")
