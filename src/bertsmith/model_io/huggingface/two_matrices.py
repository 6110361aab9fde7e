"""Families whose heads for texts bring a matrix of their own in transformers, which is the encoder's pooler here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from bertsmith.encoders import electra, roberta, roformer
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.model_io.huggingface.family import Family
from bertsmith.model_io.untrusted_files import ConfigReader

OF_TEXTS = ("classify", "regress")
SUMMARY = {"summary_type": "first", "summary_use_proj": True}  # how choices are read


class TwoMatrices(Family):
    """The head that gives a text's labels or its number has two matrices there: the first one is the pooler here."""

    def pooler(self, heads: Collection[str]) -> str:
        """The first matrix of that head, where there is one."""
        return "classifier.dense" if any(head in OF_TEXTS for head in heads) else super().pooler(heads)

    def with_pooler(self, config: TransformerConfig, *, readers: Collection[str], there: bool) -> TransformerConfig:
        """With dropout before it where it is part of that head."""
        found = super().with_pooler(config, readers=readers, there=there)
        assert isinstance(found, electra.Config | roberta.Config | roformer.Config)
        return replace(found, pooler_dropout=found.dropout if any(name in OF_TEXTS for name in readers) else 0.0)


class Summed(TwoMatrices):
    """The one that reads choices has a second matrix too."""

    def pooler(self, heads: Collection[str]) -> str:
        """The first matrix of the head that reads one vector for each text."""
        return super().pooler(heads) if any(head in OF_TEXTS for head in heads) else "sequence_summary.summary"

    def summary_activation(self, said: ConfigReader) -> str:
        """What stands behind that matrix where choices are read."""
        return "gelu"

    def read_head(self, name: str, said: ConfigReader) -> dict[str, Any]:
        """Nothing: choices are read one way only."""
        if name == "choose":
            for key, usual in (*SUMMARY.items(), ("summary_activation", self.summary_activation(said))):
                said.usual(key, usual)
        return {}

    def dropout_key(self, name: str) -> str:
        """Choices have a key of their own."""
        return "summary_last_dropout" if name == "choose" else "classifier_dropout"

    def contents(self, config: TransformerConfig) -> dict[str, Any]:
        """BERT's, and how choices are read."""
        return super().contents(config) | SUMMARY
