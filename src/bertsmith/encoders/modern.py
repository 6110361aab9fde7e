"""BERT with the changes of later encoders, each a setting: pre-norm, gated feed-forward, rotary embeddings, no biases.

All of them together are ModernBERT (Warner et al. 2024, §2.1.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch

from bertsmith.encoders.transformer_encoder import SIZES, TransformerConfig, TransformerEncoder
from bertsmith.errors import ConfigError
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import Block, FeedForward, GatedFeedForward, PreNormBlock

MULTIPLE = 64  # of the default width of a gated feed-forward
FEED_FORWARD = {"base": 1152, "large": 2624}  # of the published sizes


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """ModernBERT's settings at BERT-base's size by default."""

    # differs from the paper: attention is global in every layer

    norm: Literal["before", "after"] = "before"  # pre-norm or post-norm; after: as BERT
    gated: bool = True  # gated linear units in the feed-forward; false: as BERT
    feed_forward: int | None = None  # width of the feed-forward layers; by default 4 times the width, if gated 8/3
    positions: Literal["learned", "rotary"] = "rotary"  # rotary position embeddings; learned: as BERT
    rotary_base: float = 10_000.0  # base of the rotary angles (rope_theta); larger for longer texts
    biases: bool = False  # of layer norms, of the linear layers of blocks and of the MLM head; true: as BERT
    depth_scaled: bool = False  # divide the initial weights of each sub-layer's last matrix by √(2 · layers)
    segment_types: int = 0  # segments of a text; 0: no segment embeddings; next_sentence needs 2
    dropout: float = 0.0  # on embeddings and on the output of each attention and feed-forward layer
    attention_dropout: float = 0.0  # on attention probabilities
    layer_norm_eps: float = 1e-5  # added to the variance in layer normalisation
    pooler: bool = False  # one vector per text, which next_sentence reads

    sizes: ClassVar[Mapping[str, tuple[int, int]]] = {**SIZES, "base": (22, 768), "large": (28, 1024)}
    min_segment_types: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in ("before", "after"):
            raise ConfigError(f"norm={self.norm} must be one of before, after")
        if not self.rotary_base > 1:
            raise ConfigError(f"rotary_base={self.rotary_base} must be above 1")

    @classmethod
    def size(cls, name: str, *, vocab_size: int) -> Self:
        """ModernBERT-base or -large (P-ModernBERT §2.1.3), or one of BERT's smaller sizes (Turc et al. 2019)."""
        return replace(super().size(name, vocab_size=vocab_size), feed_forward=FEED_FORWARD.get(name))

    @property
    def inner(self) -> int:
        """As set, or with about as many weights as a feed-forward of four times the width without gates."""
        if self.feed_forward is not None or not self.gated:
            return super().inner
        return math.ceil(8 * self.width / (3 * MULTIPLE)) * MULTIPLE

    @property
    def layer_config(self) -> LayerConfig:
        return replace(super().layer_config, biases=self.biases)

    @property
    def head_layer_config(self) -> LayerConfig:
        """The MLM head has GELU regardless of the blocks' activation."""
        return replace(self.layer_config, lm_head_activation="gelu")

    @property
    def rope_theta(self) -> float | None:
        return self.rotary_base if self.positions == "rotary" else None

    def make_feed_forward(self) -> FeedForward:
        kind = GatedFeedForward if self.gated else FeedForward
        return kind(width=self.width, inner=self.inner, layer_config=self.layer_config)

    def make_layer(self, layer: int) -> Block | PreNormBlock:
        """The block of a layer, counted from 0; the first has no attention norm: its input is normalised."""
        attention, feed_forward = self.make_attention(), self.make_feed_forward()
        shape: dict[str, Any] = {"width": self.width, "layer_config": self.layer_config}
        if self.norm == "after":
            return Block(attention, feed_forward, **shape)
        return PreNormBlock(attention, feed_forward, **shape, first=layer == 0, last=layer == self.layers - 1)

    def build(self) -> Modern:
        return Modern(self)


class Modern(TransformerEncoder):
    """Embeddings ─ norm ─ block ─ … ─ block ─ norm; position and segment embeddings are optional."""

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.depth_scaled:
            for name, weight in self.blocks.named_parameters():
                if name.endswith(("attention.output.weight", "feed_forward.contract.weight")):
                    with torch.no_grad():
                        weight.div_(math.sqrt(2 * config.layers))
