"""ALBERT: factorised embeddings and layers that share weights (Lan et al. 2020; albert: modeling.py).

E width of the embeddings, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, cast

from torch import Tensor, nn

from bertsmith.encoders.transformer_encoder import SIZES, TransformerConfig, TransformerEncoder
from bertsmith.errors import ConfigError
from bertsmith.nn.attention import AttentionContext
from bertsmith.nn.fp8 import LazyNorm
from bertsmith.nn.transformer import Block

Content = Literal["both", "attention", "feed_forward"]
Owner = tuple[Content, str, int]  # of a block: its sub-layers, "group" or "layer", and the index of the group or layer


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """ALBERT-base of version 2 by default: without dropout."""

    layers: int = 12  # Transformer layers, whether or not they share weights
    vocab_size: int = 30_000  # rows of the token table; pre-training takes its tokenizer's, rounded up
    embedding_width: int = 128  # of token, position and segment embeddings, which are projected to the width
    dropout: float = 0.0  # on embeddings and on the output of each attention and feed-forward layer
    attention_dropout: float = 0.0  # on attention probabilities
    activation: str = "gelu_new"  # of the feed-forward: gelu, gelu_new, relu, silu or tanh
    pooler: bool = True  # one vector per text, which sentence_order reads
    # sub-layers that layers share, with their norms
    sharing: Literal["all", "attention", "feed_forward", "none"] = "all"
    groups: int = 1  # of consecutive layers; layers share within a group
    inner_layers: int = 1  # consecutive blocks in a layer, each with weights of its own

    always_projects: ClassVar[bool] = True
    sizes: ClassVar[Mapping[str, tuple[int, int]]] = {**SIZES, "xlarge": (24, 2048), "xxlarge": (12, 4096)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sharing not in ("all", "attention", "feed_forward", "none"):
            raise ConfigError(f"sharing={self.sharing} must be one of all, attention, feed_forward, none")
        if not 1 <= self.groups <= self.layers:
            raise ConfigError(f"groups={self.groups} must be from 1 to layers={self.layers}")
        if self.sharing == "none" and self.groups > 1:
            raise ConfigError(f"groups={self.groups} has no effect with sharing=none: remove one of the two settings")
        if self.inner_layers < 1:
            raise ConfigError(f"inner_layers={self.inner_layers} must be at least 1")

    @classmethod
    def size(cls, name: str, *, vocab_size: int) -> Self:
        """A published size, or one of BERT's smaller ones (P-ALBERT Table 1; Turc et al. 2019)."""
        config = super().size(name, vocab_size=vocab_size)
        return replace(config, heads=16) if name == "xlarge" else config  # head width 128

    def group_of(self, layer: int) -> int:
        """The group of a layer, both counted from 0 (albert: modeling.py)."""
        return int(layer / (self.layers / self.groups))

    def owners(self) -> Iterator[tuple[Owner, ...]]:
        """Per layer, the owners of its blocks: the group for shared weights, else the layer."""
        for layer in range(self.layers):
            own, shared = ("layer", layer), ("group", self.group_of(layer))
            if self.sharing in ("all", "none"):
                yield (("both", *(shared if self.sharing == "all" else own)),)
            else:
                attention, feed_forward = (shared, own) if self.sharing == "attention" else (own, shared)
                yield ("attention", *attention), ("feed_forward", *feed_forward)

    def make_block_with(self, content: Content) -> Block:
        """A block with both sub-layers, or with one of them."""
        attention = None if content == "feed_forward" else self.make_attention()
        feed_forward = None if content == "attention" else self.make_feed_forward()
        return Block(attention, feed_forward, width=self.width, layer_config=self.layer_config)

    def build(self) -> ALBERT:
        return ALBERT(self)


class ALBERT(TransformerEncoder):
    """Blocks that run several times. With sharing=all:

    embeddings (E) ─ norm ─ project (E → D) ─ block ─ block ─ … ─ the same block ─ pooler

    A shared block is one of `layer_groups()`, at the depth of the lowest layer that runs it: it has the learning rate
    of that layer and is unfrozen with it.
    """

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layers = config.layers * config.inner_layers

    def make_blocks(self) -> nn.ModuleList:
        """The distinct blocks, by owner and inner layer; owners in the order of execution."""
        config, numbers = self.config, dict[Owner, int]()
        layers = [[numbers.setdefault(owner, len(numbers)) for owner in owners] for owners in config.owners()]
        inner_layers = range(config.inner_layers)
        self.block_indices = [[(number, inner) for number in layer] for layer in layers for inner in inner_layers]
        return nn.ModuleList(
            nn.ModuleList(config.make_block_with(content) for _ in inner_layers) for content, *_ in numbers
        )

    def run_layer(
        self, layer: int, x: Tensor | LazyNorm, context: AttentionContext, indices: Tensor | None
    ) -> tuple[Tensor | LazyNorm, Tensor | None]:
        """See `TransformerEncoder.run_layer`; of two blocks, the first has selected the tokens."""
        first, *rest = self._blocks_of(layer)
        x, probabilities_BHLL = first(x, context, indices)
        for block in rest:
            x, _ = block(x, context)
        return x, probabilities_BHLL

    def layer_groups(self) -> list[nn.Module]:
        """Embeddings, each distinct block, pooler."""
        blocks = [block for owner in self.blocks for block in cast(nn.ModuleList, owner)]
        return [self.embeddings, *blocks, *([] if self.pooler is None else [self.pooler])]

    def execution_order(self) -> list[nn.Module]:
        """Embeddings, the blocks of each layer, pooler."""
        blocks = [block for layer in range(self.layers) for block in self._blocks_of(layer)]
        return [self.embeddings, *blocks, *([] if self.pooler is None else [self.pooler])]

    def _blocks_of(self, layer: int) -> list[nn.Module]:
        """The block of a layer, or one block for each of its sub-layers."""
        return [cast(nn.ModuleList, self.blocks[number])[inner] for number, inner in self.block_indices[layer]]
