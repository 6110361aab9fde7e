"""ALBERT: narrow tables, and layers that share their weights (Lan et al. 2020; albert: modeling.py).

T flat places, R places that are read, E width of the tables, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, cast

from torch import Tensor, nn

from bertsmith.encoders.transformer_encoder import SIZES, TransformerConfig, TransformerEncoder
from bertsmith.errors import ConfigError
from bertsmith.nn.attention import Attention, AttentionContext
from bertsmith.nn.fp8 import LazyNorm
from bertsmith.nn.transformer import Block, FeedForward

Half = Literal["both", "attention", "feed_forward"]
Owner = tuple[Half, str, int]  # of blocks: what they hold; whether a group's or a layer's, and which one's


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """ALBERT-base of version 2 by default: without dropout."""

    layers: int = 12  # Transformer layers that a token goes through, whether or not they share their weights
    vocab_size: int = 30_000  # rows of the token table; pre-training takes its tokenizer's, rounded up
    embedding_width: int = 128  # of the token, position and segment tables; a map leads from there to the width
    dropout: float = 0.0  # on embeddings and on what each half of a block adds
    attention_dropout: float = 0.0  # on probabilities
    activation: str = "gelu_new"  # of the feed-forward: gelu, gelu_new, relu, silu or tanh
    pooler: bool = True  # one vector for each text, which sentence_order reads
    sharing: Literal["all", "attention", "feed_forward", "none"] = "all"  # what layers have in common; norms go along
    groups: int = 1  # of layers one behind the other; only those of one group share
    inner_layers: int = 1  # blocks that a layer is made of, one behind the other, each with weights of its own

    sizes: ClassVar[Mapping[str, tuple[int, int]]] = {**SIZES, "xlarge": (24, 2048), "xxlarge": (12, 4096)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sharing not in ("all", "attention", "feed_forward", "none"):
            raise ConfigError(f"sharing={self.sharing} must be one of all, attention, feed_forward, none")
        if not 1 <= self.groups <= self.layers:
            raise ConfigError(f"groups={self.groups} must be from 1 to layers={self.layers}")
        if self.sharing == "none" and self.groups > 1:
            raise ConfigError(f"groups={self.groups} share nothing with sharing=none: leave one of the two out")
        if self.inner_layers < 1:
            raise ConfigError(f"inner_layers={self.inner_layers} must be at least 1")

    @classmethod
    def size(cls, name: str, *, vocab_size: int) -> Self:
        """A published size, or one of BERT's smaller ones (P-ALBERT Table 1; Turc et al. 2019)."""
        made = super().size(name, vocab_size=vocab_size)
        return replace(made, heads=16) if name == "xlarge" else made  # of width 128

    @property
    def projects(self) -> bool:
        """There is a map from the tables to the width even where both are equal."""
        return True

    def group_of(self, layer: int) -> int:
        """The group of a layer, both counted from 0 (albert: modeling.py)."""
        return int(layer / (self.layers / self.groups))

    def owners(self) -> Iterator[tuple[Owner, ...]]:
        """Whose weights a token meets in each layer: the layer's own where they are not the group's."""
        for layer in range(self.layers):
            own, shared = ("layer", layer), ("group", self.group_of(layer))
            if self.sharing in ("all", "none"):
                yield (("both", *(shared if self.sharing == "all" else own)),)
            else:
                first, second = (shared, own) if self.sharing == "attention" else (own, shared)
                yield ("attention", *first), ("feed_forward", *second)

    def make_half(self, half: Half) -> Block:
        """A block, or the half of one with its norm."""
        if half == "both":
            return self.make_block()
        width, dropout, lower = self.width, self.attention_dropout, half == "attention"
        return Block(
            attention=Attention(width=width, heads=self.heads, dropout=dropout) if lower else None,
            feed_forward=None if lower else FeedForward(width=width, inner=self.inner, layer_config=self.layer_config),
            width=width,
            layer_config=self.layer_config,
            dropout=self.dropout,
        )

    def build(self) -> ALBERT:
        """The encoder with new weights."""
        return ALBERT(self)


class ALBERT(TransformerEncoder):
    """Blocks that are walked several times. With sharing=all:

    tables (E) ─ norm ─ project (E → D) ─ block ─ block ─ … ─ the same block ─ pooler

    A shared block is one part of `depths()`, at the depth of the lowest layer that walks it: it learns at the rate of
    that layer, and thaws with it.
    """

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layers = config.layers * config.inner_layers

    def make_blocks(self) -> nn.ModuleList:
        """The blocks that have weights, by owner and inner layer, owners in the order in which a token meets them."""
        config, numbers = self.config, dict[Owner, int]()
        layers = [[numbers.setdefault(owner, len(numbers)) for owner in owners] for owners in config.owners()]
        self.walk = [[(number, inner) for number in layer] for layer in layers for inner in range(config.inner_layers)]
        return nn.ModuleList(
            nn.ModuleList(config.make_half(half) for _ in range(config.inner_layers)) for half, *_ in numbers
        )

    def step(
        self, layer: int, x: Tensor | LazyNorm, context: AttentionContext, indices: Tensor | None
    ) -> tuple[Tensor | LazyNorm, Tensor | None]:
        """See `TransformerEncoder.step`; where attention stands alone, only it is told the places."""
        first, *rest = self._walked(layer)
        x, probabilities_BHLL = first(x, context, indices)
        for block in rest:
            x, _ = block(x, context)
        return x, probabilities_BHLL

    def layer_groups(self) -> list[nn.Module]:
        """Embeddings, each block that has weights, pooler."""
        blocks = [block for owner in self.blocks for block in cast(nn.ModuleList, owner)]
        return [self.embeddings, *blocks, *([] if self.pooler is None else [self.pooler])]

    def execution_order(self) -> list[nn.Module]:
        """Embeddings, the blocks of each layer, pooler."""
        blocks = [block for layer in range(self.layers) for block in self._walked(layer)]
        return [self.embeddings, *blocks, *([] if self.pooler is None else [self.pooler])]

    def _walked(self, layer: int) -> list[nn.Module]:
        """The block of a layer, or its two halves."""
        return [cast(nn.ModuleList, self.blocks[number])[inner] for number, inner in self.walk[layer]]
