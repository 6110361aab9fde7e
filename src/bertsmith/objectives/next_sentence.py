"""Does the second text follow the first? (P-BERT §3.1, task 2)."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.nn.layer_config import LayerConfig
from bertsmith.objectives.pair_head import PairHead
from bertsmith.types import Vocabulary

FOLLOWS, RANDOM = 0, 1  # the labels, as in bert: create_pretraining_data.py


@dataclass(frozen=True, kw_only=True)
class Config:
    """Labels come with the batch: whoever makes the pairs knows which follow."""

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
    ) -> NextSentence:
        """See `objective.Settings`; only width and layer_config matter."""
        return NextSentence(width=width, layer_config=layer_config, weight=self.weight)


class NextSentence(PairHead):
    """The logits of FOLLOWS and RANDOM."""
