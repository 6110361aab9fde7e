"""What number belongs to a text? As the likeness of two sentences in STS-B (P-BERT §4.1). N texts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError
from bertsmith.nn.style import Style
from bertsmith.objectives.between import Between, check_between
from bertsmith.objectives.objective import exact
from bertsmith.objectives.readout import Layers, Readout, check
from bertsmith.objectives.text_head import TextHead, check_dropout, readout_of
from bertsmith.types import Batch, Encoding, Loss, Vocabulary


@dataclass(frozen=True, kw_only=True)
class Config:
    """labels["regress"] [N] float: the number of each text, NaN where nothing is asked."""

    dropout: float = 0.1  # on the vector of each text
    readout: Readout = "first"  # how one vector is made of a text; first: the encoder's pooler
    layers: Layers = "top"  # of the encoder, that are read
    between: Between = "none"  # what stands between encoder and readout
    between_layers: int = 2  # of the bilstm
    between_width: int = 768  # of the bilstm, in each direction
    weight: float = 1.0  # of its mean loss in the total

    def __post_init__(self) -> None:
        check_dropout(self.dropout)
        check_between(self.between, layers=self.between_layers, width=self.between_width)
        check(self.readout, self.layers, self.between)

    def build(
        self,
        *,
        width: int,
        vocabulary_size: int,
        table_width: int | None = None,
        vocabulary: Vocabulary | None = None,
        style: Style = Style(),
        layers: int = 0,
        seed: int = 0,
    ) -> Regress:
        """See `objective.Settings`; nothing is hidden."""
        return Regress(self, width=width, style=style, layers=layers)


class Regress(TextHead):
    """The squared distance from the number; there is no right and wrong. `answer` gives the numbers [N, 1]."""

    def __init__(self, config: Config, *, width: int, style: Style, layers: int) -> None:
        readout = readout_of(config, width=width, count=layers)
        super().__init__(readout, outputs=1, dropout=config.dropout, style=style, weight=config.weight)
        self.config = config

    def labels(self, batch: Batch) -> Tensor:
        """The number of each text [N] float, NaN where it has none."""
        found = super().labels(batch)
        if not found.is_floating_point():
            raise BertsmithError(
                "labels of regress are whole numbers: bring fractions, with NaN where nothing is asked"
            )
        return found

    def asked(self, batch: Batch) -> Tensor:
        """Texts that have a number [N] bool."""
        return ~self.labels(batch).isnan()

    def score(self, encoding: Encoding, batch: Batch, table: Tensor) -> Loss:
        """The sum of squared distances."""
        said_N = exact(self.answer(encoding, batch, table)[:, 0])
        away_N = torch.where(self.asked(batch), said_N - self.labels(batch), 0.0)
        return self.loss(batch, away_N.square().sum(), None)
