"""RoBERTa: BERT without segments, with other position ids (Liu et al. 2019; fairseq: models/roberta)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bertsmith.encoders.transformer_encoder import TransformerConfig, TransformerEncoder
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import Pooler


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """RoBERTa-base by default."""

    vocab_size: int = 50_265  # rows of the token table; pre-training takes its tokenizer's, rounded up
    segment_types: int = 1  # only separators mark the two texts of a pair
    layer_norm_eps: float = 1e-5  # added to the variance in layer normalisation
    truncated_init: bool = False  # redraw new weights beyond two standard deviations
    pooler: bool = False  # one vector per text; pre-training needs none, fine-tuning adds it
    pooler_dropout: float = 0.0  # before the pooler, as in RoBERTa's classification head
    padding_id: int = 1  # the token whose embedding is not trained; positions are counted from the next number

    @property
    def first_position(self) -> int:
        """fairseq counts positions from padding_id + 1: 514 rows for 512 positions."""
        return self.padding_id + 1

    @property
    def head_layer_config(self) -> LayerConfig:
        """The MLM head has GELU regardless of the blocks' activation."""
        return replace(self.layer_config, activation="gelu")

    def make_pooler(self) -> Pooler:
        """Dropout, linear layer and tanh of RoBERTa's classification head."""
        return Pooler(self.width, dropout=self.pooler_dropout)

    def build(self) -> RoBERTa:
        return RoBERTa(self)


class RoBERTa(TransformerEncoder):
    """BERT's blocks; positions start at padding_id + 1."""
