"""Do the two texts stand in their order, or were they swapped? (P-ALBERT §3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.nn.layer_config import LayerConfig
from bertsmith.objectives.pair_head import PairHead
from bertsmith.types import Vocabulary

IN_ORDER, SWAPPED = 0, 1  # the labels, as in albert: create_pretraining_data.py


@dataclass(frozen=True, kw_only=True)
class Config:
    """Labels come with the batch: whoever makes the pairs knows which are swapped."""

    weight: float = 1.0  # of this loss in the total

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
    ) -> SentenceOrder:
        """See `objective.Settings`; only width and layer_config matter."""
        return SentenceOrder(width=width, layer_config=layer_config, weight=self.weight)


class SentenceOrder(PairHead):
    """The logits of IN_ORDER and SWAPPED."""
