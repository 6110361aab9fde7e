"""Objectives that ask one thing of each text: a vector, dropout, one matrix. N texts, W width of what is read."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from bertsmith.objectives.between import BetweenSettings, check_dropout
from bertsmith.objectives.objective import BuildContext, Objective
from bertsmith.objectives.readout import Layers, Readout, TextReadout, check
from bertsmith.types import Batch, Encoding


@dataclass(frozen=True, kw_only=True)
class TextSettings(BetweenSettings):
    """What such objectives have in common."""

    dropout: float = 0.1  # on the vector of each text
    readout: Readout = "first"  # how one vector is made of a text; first: the encoder's pooler
    layers: Layers = "top"  # of the encoder, that are read
    weight: float = 1.0  # of its mean loss in the total

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dropout(self.dropout)
        check(self.readout, self.layers, self.between)

    def reading(self, *, width: int, layers: int) -> TextReadout:
        """How an encoder of that width, with so many layers, is read."""
        return TextReadout(self.readout, self.layers, width=width, count=layers, between=self)


class TextHead(Objective):
    """The vector of each text through dropout and a linear layer (bert: run_classifier.py)."""

    def __init__(self, config: TextSettings, context: BuildContext, *, outputs: int) -> None:
        super().__init__(weight=config.weight)
        self.readout = readout = config.reading(width=context.width, layers=context.layers)
        self.reads_pooled, self.reads_all_tokens, self.reads_all_layers = readout.pools, readout.whole, readout.deep
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(readout.width, outputs)
        context.layer_config.init_weights(self)

    def indices(self, batch: Batch) -> Tensor:
        """One for each text [N]."""
        return self.readout.places(batch)

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor) -> Tensor:
        """What the head says of each text [N, outputs]."""
        logits: Tensor = self.head(self.dropout(self.readout(encoding, batch, self.name)))
        return logits
