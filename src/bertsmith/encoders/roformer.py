"""RoFormer: BERT's blocks, whose queries and keys are turned by their positions (Su et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.encoders.transformer_encoder import TransformerConfig, TransformerEncoder
from bertsmith.nn.transformer import Pooler


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """BERT-base's shape by default."""

    # differs from the paper: where a text is asked something, its first vector goes through a matrix and the blocks'
    # activation first, as in transformers

    pooler: bool = False  # one vector for each text, which next_sentence reads; heads for texts bring theirs
    pooler_dropout: float = 0.0  # on a text's first vector before the pooler, as transformers' head for texts has it

    @property
    def rope_theta(self) -> float:
        """That of the paper (§3.2.2) and of all published models."""
        return 10_000.0

    def make_pooler(self) -> Pooler:
        """The first matrix of transformers' heads for texts."""
        return Pooler(self.width, activation=self.activation, dropout=self.pooler_dropout)

    def build(self) -> RoFormer:
        """The encoder with new weights."""
        return RoFormer(self)


class RoFormer(TransformerEncoder):
    """Tables of tokens and segments, blocks that share nothing, and no pooler until a text is asked something."""
