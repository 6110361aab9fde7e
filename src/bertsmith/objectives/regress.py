"""What number belongs to a text? As the likeness of two sentences in STS-B (P-BERT §4.1). N texts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.objectives.objective import exact
from bertsmith.objectives.text_head import TextHead, TextSettings
from bertsmith.types import Batch, Encoding, Loss, Vocabulary


@dataclass(frozen=True, kw_only=True)
class Config(TextSettings):
    """labels["regress"] [N] float: the number of each text, NaN where nothing is asked."""

    def build(
        self,
        *,
        width: int,
        vocab_size: int,
        embedding_width: int | None = None,
        vocabulary: Vocabulary | None = None,
        layer_config: LayerConfig = LayerConfig(),
        layers: int = 0,
        seed: int = 0,
    ) -> Regress:
        """See `objective.Settings`; nothing is hidden."""
        return Regress(self, width=width, layer_config=layer_config, layers=layers)


class Regress(TextHead):
    """The squared distance from the number; there is no right and wrong. `answer` gives the numbers [N, 1]."""

    def __init__(self, config: Config, *, width: int, layer_config: LayerConfig, layers: int) -> None:
        super().__init__(config, width=width, layers=layers, outputs=1, layer_config=layer_config)
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
