"""ELECTRA: BERT with embeddings that may be narrower than the blocks (P-ELECTRA §3.1; electra: model/modeling.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from bertsmith.encoders.transformer_encoder import TransformerConfig, TransformerEncoder
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import Pooler

# layers and width; tiny and mini are not published
SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (12, 256), "base": (12, 768), "large": (24, 1024)}
EMBEDDING_WIDTHS = {"tiny": 64, "mini": 128, "small": 128, "base": 768, "large": 1024}


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """ELECTRA-small by default."""

    # differs from the paper: the pooler is a linear layer with GELU, as in transformers; Google's code has none

    width: int = 256  # of the hidden states
    heads: int = 4  # attention heads of each block, which divide the width
    embedding_width: int = 128  # of token, position and segment embeddings, which are projected to the width
    pooler: bool = False  # one vector per text; pre-training needs none, fine-tuning adds it
    pooler_dropout: float = 0.0  # before the pooler, as in transformers' sequence classification

    sizes: ClassVar[Mapping[str, tuple[int, int]]] = SIZES
    projects_embeddings: ClassVar[bool] = True

    @classmethod
    def size(cls, name: str, *, vocab_size: int) -> Self:
        """A size by its name: tiny, mini, small, base or large."""
        return replace(super().size(name, vocab_size=vocab_size), embedding_width=EMBEDDING_WIDTHS[name])

    @property
    def head_layer_config(self) -> LayerConfig:
        """transformers' MLM head has GELU regardless of the blocks' activation."""
        return replace(self.layer_config, lm_head_activation="gelu")

    def make_pooler(self) -> Pooler:
        """Dropout, linear layer and GELU of transformers' sequence classification."""
        return Pooler(self.width, activation="gelu", dropout=self.pooler_dropout)

    def build(self) -> ELECTRA:
        return ELECTRA(self)


class ELECTRA(TransformerEncoder):
    """Narrow embeddings; no pooler in pre-training."""
