"""The settings and the forward pass that BERT and its family share.

An encoder of the family overrides what differs: the width of its embeddings, the first position, the blocks. This file
is not an encoder itself. T flat tokens, R selected tokens, N texts, E width of the embeddings, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from bertsmith.config import did_you_mean
from bertsmith.encoders.encoder import Encoder, select_tokens
from bertsmith.errors import ConfigError
from bertsmith.nn.attention import Attention, AttentionContext, AttentionShape, KVCache, make_attention_context
from bertsmith.nn.fp8 import LazyNorm, materialize
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import Block, Embeddings, FeedForward, Pooler
from bertsmith.types import Batch, Encoding

HEAD_WIDTH = 64  # of every published size
ROPE_THETA = 10_000.0  # of RoFormer's paper and published models
SIZES = {  # layers and width (P-BERT §3; Turc et al. 2019)
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """BERT-base by default."""

    layers: int = 12  # Transformer blocks
    width: int = 768  # of the hidden states
    heads: int = 12  # attention heads of each block, which divide the width
    feed_forward: int | None = None  # width of the feed-forward layers; by default four times the width
    vocab_size: int = 30_522  # rows of the token table; pre-training takes its tokenizer's, rounded up
    max_positions: int = 512  # maximum length of a text in tokens
    positions: Literal["learned", "rotary"] = "learned"  # a table of embeddings, or rotary position embeddings
    segment_types: int = 2  # segments of a text: 2 for first and second text
    dropout: float = 0.1  # on embeddings and on the output of each attention and feed-forward layer
    attention_dropout: float = 0.1  # on attention probabilities
    activation: str = "gelu"  # of the feed-forward: gelu, gelu_new, relu, silu or tanh
    layer_norm_eps: float = 1e-12  # added to the variance in layer normalisation
    initializer_range: float = 0.02  # standard deviation of new weights
    truncated_init: bool = True  # redraw new weights beyond two standard deviations
    causal: bool = False  # tokens attend only to earlier tokens: the left-to-right model of P-BERT §5.1
    pooler: bool = True  # one vector per text, which next_sentence reads
    padding_id: int = 0  # the token whose embedding is not trained

    sizes: ClassVar[Mapping[str, tuple[int, int]]] = SIZES
    min_segment_types: ClassVar[int] = 1
    projects_embeddings: ClassVar[bool] = False  # an encoder of another width can share its embeddings
    always_projects: ClassVar[bool] = False  # embeddings, even where their width equals the model's
    normalizes_embeddings: ClassVar[bool] = True
    finetuning: ClassVar[Mapping[str, Any]] = {}  # settings of its paper's fine-tuning that differ from P-BERT's
    trains_padding: ClassVar[bool] = False  # the embedding of `padding_id`

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "vocab_size", "max_positions", "inner", "embedding_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('inner', 'feed_forward')}={getattr(self, name)} must be at least 1")
        if self.segment_types < self.min_segment_types:
            raise ConfigError(f"segment_types={self.segment_types} must be at least {self.min_segment_types}")
        if self.width % self.heads:
            raise ConfigError(f"width={self.width} must be a multiple of heads={self.heads}")
        if self.positions not in ("learned", "rotary"):
            raise ConfigError(f"positions={self.positions} must be one of learned, rotary")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 0 and less than 1")
        if self.rope_theta is not None and self.width // self.heads % 2:
            raise ConfigError(
                f"rotary embeddings need an even head width: width={self.width} / heads={self.heads} is odd"
            )
        if not 0 <= self.padding_id < self.vocab_size:
            raise ConfigError(f"padding_id={self.padding_id} is outside a vocabulary of {self.vocab_size} tokens")
        _ = self.layer_config  # checks its settings

    @classmethod
    def size(cls, name: str, *, vocab_size: int) -> Self:
        """A published size by its name, one of `sizes`."""
        if name not in cls.sizes:
            kind, known = cls.__module__.rpartition(".")[2], ", ".join(cls.sizes)
            hint = did_you_mean(name, cls.sizes)
            raise ConfigError(f"{name!r} is not a size of {kind}: expected one of {known}{hint}")
        layers, width = cls.sizes[name]
        return cls(layers=layers, width=width, heads=width // HEAD_WIDTH, vocab_size=vocab_size)

    @property
    def inner(self) -> int:
        """The width of the feed-forward layers."""
        return 4 * self.width if self.feed_forward is None else self.feed_forward

    @property
    def layer_config(self) -> LayerConfig:
        return LayerConfig(
            activation=self.activation,
            layer_norm_eps=self.layer_norm_eps,
            initializer_range=self.initializer_range,
            truncated_init=self.truncated_init,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
        )

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings, which are projected to the width where the two differ."""
        return self.width

    @property
    def head_layer_config(self) -> LayerConfig:
        """The settings of heads over this encoder."""
        return self.layer_config

    @property
    def first_position(self) -> int:
        """The row of the position table of a text's first token; earlier rows are unused."""
        return 0

    @property
    def rope_theta(self) -> float | None:
        """The base of rotary position embeddings (Su et al. 2021, §3.2.2); None: positions are learned embeddings."""
        return ROPE_THETA if self.positions == "rotary" else None

    def make_pooler(self) -> Pooler:
        return Pooler(self.width)

    def make_attention(self) -> Attention:
        dropout, biases = self.attention_dropout, self.layer_config.biases
        return Attention(width=self.width, heads=self.heads, dropout=dropout, biases=biases)

    def make_feed_forward(self) -> FeedForward:
        return FeedForward(width=self.width, inner=self.inner, layer_config=self.layer_config)

    def make_layer(self, layer: int) -> nn.Module:
        """The block of a layer, counted from 0."""
        attention, feed_forward = self.make_attention(), self.make_feed_forward()
        return Block(attention, feed_forward, width=self.width, layer_config=self.layer_config)

    def build(self) -> TransformerEncoder:
        """The encoder with new weights."""
        raise NotImplementedError


class TransformerEncoder(Encoder):
    """Embeddings, blocks, and a pooler over each text's first token."""

    blocks: nn.ModuleList

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.width, self.layers = config.width, config.layers
        self.max_positions, self.segment_types = config.max_positions, config.segment_types
        self.has_pooler, self.layer_config = config.pooler, config.head_layer_config
        self.rope_theta = config.rope_theta
        self.direction = "forward" if config.causal else "both"
        self.attention_shape = AttentionShape(
            config.heads, config.width // config.heads, config.attention_dropout, config.causal
        )
        width = config.embedding_width
        self.embeddings = Embeddings(
            nn.Embedding(config.vocab_size, width, padding_idx=None if config.trains_padding else config.padding_id),
            nn.Embedding(config.first_position + config.max_positions, width) if config.rope_theta is None else None,
            nn.Embedding(config.segment_types, width) if config.segment_types else None,
            norm=config.layer_config.layer_norm(width) if config.normalizes_embeddings else None,
            dropout=config.dropout,
            first_position=config.first_position,
            project=nn.Linear(width, self.width) if config.always_projects or width != self.width else None,
        )
        self.blocks = self.make_blocks()
        self.pooler = config.make_pooler() if config.pooler else None
        self.layer_config.init_weights(self)

    def make_blocks(self) -> nn.ModuleList:
        """One block per layer."""
        return nn.ModuleList(self.config.make_layer(layer) for layer in range(self.layers))

    def run_layer(
        self, layer: int, x: Tensor | LazyNorm, context: AttentionContext, indices: Tensor | None
    ) -> tuple[Tensor | LazyNorm, Tensor | None]:
        """Layer `layer`, counted from 0; see `Block.forward`."""
        output: tuple[Tensor | LazyNorm, Tensor | None] = self.blocks[layer](x, context, indices)
        return output

    def embed(self, batch: Batch) -> Tensor:
        segments_T = batch.segment_ids.flatten()
        if self.segment_types == 1:  # the tokenizer may count two
            segments_T = torch.zeros_like(segments_T)
        embedded_TE: Tensor = self.embeddings(batch.input_ids.flatten(), batch.position_ids.flatten(), segments_T)
        return embedded_TE

    def forward(
        self,
        batch: Batch,
        state: KVCache | None = None,
        *,
        indices: Mapping[str, Tensor] | None = None,
        pool: bool = True,
        return_layers: bool = False,
        return_attentions: bool = False,
    ) -> Encoding:
        """See `Encoder.forward`; `state` is the cache of a causal encoder, which the batch is written to."""
        self.check(batch)
        selection = select_tokens(batch, None if return_layers else indices, pool=pool and self.has_pooler)
        context = self._attention_context(batch, state, return_attentions=return_attentions)
        embedded_TD = self.embeddings.project(self.embed(batch))
        x: Tensor | LazyNorm = embedded_TD
        layers: list[Tensor] = [embedded_TD]
        attentions: list[Tensor] = []
        for layer in range(self.layers):
            last = layer == self.layers - 1
            if state is not None:
                context = replace(context, cache=state.layer(layer, batch))
            x, probabilities_BHLL = self.run_layer(layer, x, context, selection.indices if last else None)
            if return_layers:
                layers.append(materialize(x).to(self.token_embeddings.dtype))
            attentions += [] if probabilities_BHLL is None else [probabilities_BHLL]
        x_TD = materialize(x).to(self.token_embeddings.dtype)
        pooled_ND = None
        if self.pooler is not None and selection.cls is not None:
            pooled_ND = self.pooler(x_TD[selection.cls])
        return Encoding(
            last_hidden=x_TD,
            selections=selection.by_objective,
            pooled=pooled_ND,
            layers=tuple(layers) if return_layers else (),
            attentions=tuple(attentions),
        )

    def make_cache(self, *, batch_size: int, length: int, dtype: torch.dtype) -> KVCache:
        """An empty cache for so many sequences of up to `length` tokens."""
        size: dict[str, Any] = {"layers": self.layers, "batch_size": batch_size, "length": length}
        return KVCache.empty(self.attention_shape, **size, device=self.token_embeddings.device, dtype=dtype)

    def layer_groups(self) -> list[nn.Module]:
        """Embeddings, blocks, pooler."""
        return [self.embeddings, *self.blocks, *([] if self.pooler is None else [self.pooler])]

    @property
    def token_embeddings(self) -> Tensor:
        """The token table [V, E]."""
        return self.embeddings.tokens.weight

    def _attention_context(
        self, batch: Batch, cache: KVCache | None = None, *, return_attentions: bool
    ) -> AttentionContext:
        shape, dtype, theta = self.attention_shape, self.token_embeddings.dtype, self.rope_theta
        how: dict[str, Any] = {"training": self.training, "return_attentions": return_attentions, "rope_theta": theta}
        return make_attention_context(batch, shape, dtype=dtype, cache=cache, **how)
