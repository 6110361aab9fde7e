"""BERT: a bidirectional Transformer encoder (Devlin et al. 2019; bert: modeling.py)."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.encoders.transformer_encoder import TransformerConfig, TransformerEncoder


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """BERT-base by default."""

    def build(self) -> BERT:
        return BERT(self)


class BERT(TransformerEncoder):
    """Embeddings as wide as the blocks, and a pooler with tanh."""
