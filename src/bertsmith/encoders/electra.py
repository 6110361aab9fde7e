"""ELECTRA: BERT's blocks over tables that may be narrower (P-ELECTRA §3.1; electra: model/modeling.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from bertsmith.encoders.transformer_encoder import TransformerConfig, TransformerEncoder
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import Pooler

# layers and width; tiny and mini are ours, for trying things out
SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (12, 256), "base": (12, 768), "large": (24, 1024)}
TABLE_WIDTHS = {"tiny": 64, "mini": 128, "small": 128, "base": 768, "large": 1024}


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """ELECTRA-small by default."""

    # differs from the paper: where a text is asked something, its first vector goes through a matrix and gelu first, as
    # in transformers; Google's code reads it as it is

    width: int = 256  # of the vector of each token
    heads: int = 4  # of attention in each block; they share the width
    embedding_width: int = 128  # of the tables of tokens, positions and segments; a matrix leads to the width
    pooler: bool = False  # one vector for each text; pre-training reads none, heads for texts bring theirs
    pooler_dropout: float = 0.0  # on a text's first vector before the pooler, as transformers' head for texts has it

    sizes: ClassVar[Mapping[str, tuple[int, int]]] = SIZES

    @classmethod
    def size(cls, name: str, *, vocab_size: int) -> Self:
        """A size by its name: tiny, mini, small, base or large."""
        return replace(super().size(name, vocab_size=vocab_size), embedding_width=TABLE_WIDTHS[name])

    @property
    def head_layer_config(self) -> LayerConfig:
        """transformers' head for words has gelu whatever the blocks have."""
        return replace(self.layer_config, lm_head_activation="gelu")

    def make_pooler(self) -> Pooler:
        """The first matrix of transformers' heads for texts: dropout, dense, gelu."""
        return Pooler(self.width, activation="gelu", dropout=self.pooler_dropout)

    def build(self) -> ELECTRA:
        """The encoder with new weights."""
        return ELECTRA(self)


class ELECTRA(TransformerEncoder):
    """Narrow tables, blocks that share nothing, and no pooler until a text is asked something."""
