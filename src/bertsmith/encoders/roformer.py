"""RoFormer: BERT with rotary position embeddings (Su et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertsmith.encoders.transformer_encoder import TransformerConfig, TransformerEncoder
from bertsmith.errors import ConfigError
from bertsmith.nn.transformer import Pooler


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """BERT-base's shape by default."""

    # differs from the paper: the pooler has the blocks' activation, as in transformers

    positions: Literal["learned", "rotary"] = "rotary"  # learned ones are BERT's
    pooler: bool = False  # one vector per text, which next_sentence reads; fine-tuning adds it
    pooler_dropout: float = 0.0  # before the pooler, as in transformers' sequence classification

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions != "rotary":
            raise ConfigError(f"roformer has rotary positions: for positions={self.positions} set encoder.kind=bert")

    def make_pooler(self) -> Pooler:
        """Dropout, linear layer and activation of transformers' sequence classification."""
        return Pooler(self.width, activation=self.activation, dropout=self.pooler_dropout)

    def build(self) -> RoFormer:
        return RoFormer(self)


class RoFormer(TransformerEncoder):
    """Token and segment embeddings; no pooler unless an objective needs one."""
