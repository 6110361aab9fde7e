"""RoBERTa: BERT's blocks, other positions, one kind of text (Liu et al. 2019; fairseq: models/roberta)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bertsmith.encoders.transformer_encoder import TransformerConfig, TransformerEncoder
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import Pooler


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """RoBERTa-base by default."""

    vocab_size: int = 50_265  # rows of the token table; pre-training takes its tokenizer's, rounded up
    segment_types: int = 1  # kinds of text in a row: the two texts of a pair are told apart by their separators alone
    layer_norm_eps: float = 1e-5  # of the norms
    truncated_init: bool = False  # no new weight is over two deviations
    pooler: bool = False  # one vector for each text; pre-training reads none, heads for texts bring theirs
    pooler_dropout: float = 0.0  # on a text's first vector before the pooler, as RoBERTa's own head for texts has it
    padding_id: int = 1  # the token whose vector does not learn; positions are counted from the number behind it

    @property
    def first_position(self) -> int:
        """fairseq counts positions from the padding's number on: 514 rows for 512 places."""
        return self.padding_id + 1

    @property
    def head_layer_config(self) -> LayerConfig:
        """The head that guesses words has GELU whatever the blocks have."""
        return replace(self.layer_config, activation="gelu")

    def make_pooler(self) -> Pooler:
        """The first matrix of RoBERTa's head for texts: dropout, dense, tanh."""
        return Pooler(self.width, dropout=self.pooler_dropout)

    def build(self) -> RoBERTa:
        """The encoder with new weights."""
        return RoBERTa(self)


class RoBERTa(TransformerEncoder):
    """BERT's blocks; the first token of a text has the position behind the padding's number."""
