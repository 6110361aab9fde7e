"""What came after BERT, each with a switch of its own; with all of them ModernBERT (Warner et al. 2024, §2.1.1).

T flat places, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import nn

from bertsmith.encoders.transformer_encoder import SIZES, TransformerConfig, TransformerEncoder
from bertsmith.errors import ConfigError
from bertsmith.nn.attention import Attention
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import Block, FeedForward, GatedFeedForward, PreNormBlock

MULTIPLE = 64  # of which a gated feed-forward's inner width is one where it is not given
INNER = {"base": 1152, "large": 2624}  # of the published sizes


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """ModernBERT's choices in BERT-base's shape by default."""

    # differs from the paper: attention is global in every layer

    norm: Literal["before", "after"] = "before"  # where each half of a block has its norm; after: as BERT
    gated: bool = True  # one half of the feed-forward's inner vector opens and shuts the other half; false: as BERT
    feed_forward: int | None = None  # inner width; where absent 4 times the width, if gated 2/3 of that
    rotary: bool = True  # positions turn queries and keys; false: they are rows of a table, as in BERT
    rotary_base: float = 10_000.0  # the larger, the slower the slowest turns: for longer texts
    biases: bool = False  # of norms, of the matrices of blocks and of that in the head for words; true: as BERT
    depth_scaled: bool = False  # what each half of a block adds begins smaller, by the root of twice the layers
    segment_types: int = 0  # kinds of text in a row; 0: none are told apart; next_sentence wants 2
    dropout: float = 0.0  # on embeddings and on what each half of a block adds
    attention_dropout: float = 0.0  # on probabilities
    layer_norm_eps: float = 1e-5  # of the norms
    pooler: bool = False  # one vector for each text, which next_sentence reads

    sizes: ClassVar[Mapping[str, tuple[int, int]]] = {**SIZES, "base": (22, 768), "large": (28, 1024)}
    min_segment_types: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in ("before", "after"):
            raise ConfigError(f"norm={self.norm} must be one of before, after")
        if not self.rotary_base > 1:
            raise ConfigError(f"rotary_base={self.rotary_base} must be over 1")

    @classmethod
    def size(cls, name: str, *, vocab_size: int) -> Self:
        """ModernBERT-base or -large (P-ModernBERT §2.1.3), or one of BERT's smaller sizes (Turc et al. 2019)."""
        return replace(super().size(name, vocab_size=vocab_size), feed_forward=INNER.get(name))

    @property
    def inner(self) -> int:
        """As given, or what has about as many weights as BERT's four times the width."""
        if self.feed_forward is not None or not self.gated:
            return super().inner
        return math.ceil(8 * self.width / (3 * MULTIPLE)) * MULTIPLE

    @property
    def layer_config(self) -> LayerConfig:
        return replace(super().layer_config, biases=self.biases)

    @property
    def head_layer_config(self) -> LayerConfig:
        """The head that guesses words has GELU whatever the blocks have."""
        return replace(self.layer_config, lm_head_activation="gelu")

    @property
    def rope_theta(self) -> float | None:
        return self.rotary_base if self.rotary else None

    def make_layer(self, layer: int) -> Block | PreNormBlock:
        """The block of a layer, counted from 0; that of the first one finds its input normed by the embeddings."""
        layer_config, width = self.layer_config, self.width
        attention = Attention(width=width, heads=self.heads, dropout=self.attention_dropout, biases=self.biases)
        feed_forward = (GatedFeedForward if self.gated else FeedForward)(
            width=width, inner=self.inner, layer_config=layer_config
        )
        if self.norm == "after":
            return Block(
                attention=attention,
                feed_forward=feed_forward,
                width=width,
                layer_config=layer_config,
                dropout=self.dropout,
            )
        return PreNormBlock(
            attention=attention,
            feed_forward=feed_forward,
            width=width,
            layer_config=layer_config,
            first=layer == 0,
            last=layer == self.layers - 1,
        )

    def build(self) -> Modern:
        """The encoder with new weights."""
        return Modern(self)


class Modern(TransformerEncoder):
    """tables ─ norm ─ block ─ block ─ … ─ block with a norm behind it; the tables are one, or up to three."""

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.depth_scaled:
            for name, weight in self.blocks.named_parameters():
                if name.endswith(("attention.output.weight", "feed_forward.contract.weight")):
                    with torch.no_grad():
                        weight.div_(math.sqrt(2 * config.layers))

    def make_blocks(self) -> nn.ModuleList:
        """One for each layer."""
        return nn.ModuleList(self.config.make_layer(layer) for layer in range(self.layers))
