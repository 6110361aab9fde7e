"""What number belongs to a text? As the likeness of two sentences in STS-B (P-BERT §4.1). N texts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError
from bertsmith.objectives.objective import BuildContext, exact
from bertsmith.objectives.text_head import TextHead, TextSettings
from bertsmith.types import Batch, Encoding, Loss


@dataclass(frozen=True, kw_only=True)
class Config(TextSettings):
    """labels["regress"] [N] float: the number of each text, NaN where nothing is asked."""

    def build(self, context: BuildContext) -> Regress:
        """The objective with new weights."""
        return Regress(self, context)


class Regress(TextHead):
    """The squared distance from the number; there is no right and wrong. `answer` gives the numbers [N, 1]."""

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(config, context, outputs=1)
        self.config = config

    def labels(self, batch: Batch) -> Tensor:
        """The number of each text [N] float, NaN where it has none."""
        found = super().labels(batch)
        if not found.is_floating_point():
            raise BertsmithError(
                "labels of regress are whole numbers: bring fractions, with NaN where nothing is asked"
            )
        return found

    def label_mask(self, batch: Batch) -> Tensor:
        """Texts that have a number [N] bool."""
        return ~self.labels(batch).isnan()

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor) -> Loss:
        """The sum of squared distances."""
        said_N = exact(self.predict(encoding, batch, table)[:, 0])
        away_N = torch.where(self.label_mask(batch), said_N - self.labels(batch), 0.0)
        return self.make_loss(batch, away_N.square().sum(), None)
