"""The Transformer: an encoder–decoder for translation (Vaswani et al. 2017).

T flat source tokens, M hypotheses in decoding, D width, V rows of the token tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from bertsmith.config import did_you_mean
from bertsmith.encoders.encoder import EncoderDecoder, select_tokens
from bertsmith.errors import ConfigError
from bertsmith.nn.attention import (
    Attention,
    AttentionContext,
    AttentionShape,
    compute_dtype,
    make_attention_context,
    runs_triton,
)
from bertsmith.nn.decoder import (
    CrossAttention,
    DecoderBlock,
    PositionKind,
    PreNormDecoderBlock,
    SinusoidalPositions,
    TranslationEmbeddings,
    make_cross_attention_context,
)
from bertsmith.nn.fp8 import LazyNorm, materialize
from bertsmith.nn.hypothesis_cache import HypothesisCache, Seq2SeqState, decoding_context
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import Block, FeedForward, PreNormBlock
from bertsmith.types import Batch, Encoding

# layers, width, heads, feed-forward width; base and big: Vaswani et al. 2017, table 3
SIZES = {"tiny": (2, 128, 4, 512), "small": (4, 256, 4, 1024), "base": (6, 512, 8, 2048), "big": (6, 1024, 16, 4096)}


@dataclass(frozen=True, kw_only=True)
class Config:
    """The base model of the paper by default."""

    layers: int = 6  # blocks of the encoder
    decoder_layers: int | None = None  # blocks of the decoder; by default as many as the encoder has
    width: int = 512  # of the hidden states
    heads: int = 8  # attention heads of each block, which divide the width
    feed_forward: int | None = None  # width of the feed-forward layers; by default four times the width
    vocab_size: int = 37_000  # rows of the token table; pre-training takes its tokenizer's, rounded up
    target_vocab_size: int = 0  # rows of the target's token table, where it has a vocabulary of its own; 0: vocab_size
    max_positions: int = 1024  # maximum length of a text in tokens
    positions: PositionKind = "interleaved"  # sinusoids of the paper's formula, of its code (concatenated), or learned
    pre_norm: bool = False  # layer norms before each sub-layer and at the end, instead of after each residual sum
    share_embeddings: bool = True  # one token table for source and target, which is the output layer too
    dropout: float = 0.1  # on embeddings and on the output of each attention and feed-forward layer
    attention_dropout: float = 0.0  # on attention probabilities
    activation: str = "relu"  # of the feed-forward: gelu, gelu_new, relu, silu or tanh
    layer_norm_eps: float = 1e-6  # added to the variance in layer normalisation

    sizes: ClassVar[Mapping[str, tuple[int, int, int, int]]] = SIZES
    segment_types: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "vocab_size", "max_positions", "inner", "target_layers"):
            if getattr(self, name) < 1:
                shown = name.replace("inner", "feed_forward").replace("target_layers", "decoder_layers")
                raise ConfigError(f"{shown}={getattr(self, name)} must be at least 1")
        if self.target_vocab_size < 0:
            raise ConfigError(f"target_vocab_size={self.target_vocab_size} must be at least 0")
        if self.target_vocab_size and self.share_embeddings:
            raise ConfigError("source and target have a vocabulary each: set share_embeddings=false")
        if self.width % self.heads:
            raise ConfigError(f"width={self.width} must be a multiple of heads={self.heads}")
        if self.positions != "learned" and self.width % 2:
            raise ConfigError(f"width={self.width} must be even for sinusoidal positions")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 0 and less than 1")
        _ = self.layer_config  # checks its settings

    @classmethod
    def size(cls, name: str, *, vocab_size: int) -> Self:
        """A size by its name, one of `sizes`."""
        if name not in cls.sizes:
            hint = did_you_mean(name, cls.sizes)
            raise ConfigError(f"{name!r} is not a size of seq2seq: expected one of {', '.join(cls.sizes)}{hint}")
        layers, width, heads, inner = cls.sizes[name]
        return cls(layers=layers, width=width, heads=heads, feed_forward=inner, vocab_size=vocab_size)

    @property
    def inner(self) -> int:
        """The width of the feed-forward layers."""
        return 4 * self.width if self.feed_forward is None else self.feed_forward

    @property
    def target_layers(self) -> int:
        """The blocks of the decoder."""
        return self.layers if self.decoder_layers is None else self.decoder_layers

    @property
    def layer_config(self) -> LayerConfig:
        """The softmax is the transposed token table alone."""
        return LayerConfig(
            activation=self.activation,
            layer_norm_eps=self.layer_norm_eps,
            initializer_range=self.width**-0.5,
            truncated_init=False,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            lm_head_transform=False,
            lm_head_bias=False,
        )

    def make_attention(self) -> Attention:
        return Attention(width=self.width, heads=self.heads, dropout=self.attention_dropout)

    def make_feed_forward(self) -> FeedForward:
        return FeedForward(width=self.width, inner=self.inner, layer_config=self.layer_config)

    def make_layer(self, layer: int) -> nn.Module:
        """The block of a layer of the encoder, counted from 0."""
        parts, last = (self.make_attention(), self.make_feed_forward()), layer == self.layers - 1
        if not self.pre_norm:
            return Block(*parts, width=self.width, layer_config=self.layer_config)
        return PreNormBlock(*parts, width=self.width, layer_config=self.layer_config, first=False, last=last)

    def make_decoder_layer(self, layer: int) -> DecoderBlock:
        """The block of a layer of the decoder, counted from 0."""
        cross_attention = CrossAttention(width=self.width, heads=self.heads, dropout=self.attention_dropout)
        parts = self.make_attention(), cross_attention, self.make_feed_forward()
        if not self.pre_norm:
            return DecoderBlock(*parts, width=self.width, layer_config=self.layer_config)
        last = layer == self.target_layers - 1
        return PreNormDecoderBlock(*parts, width=self.width, layer_config=self.layer_config, last=last)

    def make_embeddings(self) -> TranslationEmbeddings:
        learned, share = self.positions == "learned", self.share_embeddings
        return TranslationEmbeddings(
            nn.Embedding(self.vocab_size, self.width),
            self._make_positions(),
            target_tokens=None if share else nn.Embedding(self.target_vocab_size or self.vocab_size, self.width),
            target_positions=self._make_positions() if learned else None,
            dropout=self.dropout,
        )

    def _make_positions(self) -> nn.Module:
        if self.positions == "learned":
            return nn.Embedding(self.max_positions, self.width)
        return SinusoidalPositions(self.max_positions, self.width, interleaved=self.positions == "interleaved")

    def build(self) -> Seq2Seq:
        return Seq2Seq(self)


class Seq2Seq(EncoderDecoder):
    """Embeddings, blocks of the encoder, and blocks of the decoder, which attend to the encoder's output."""

    captures = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width, self.layers, self.max_positions = config.width, config.layers, config.max_positions
        self.segment_types, self.has_pooler, self.layer_config = config.segment_types, False, config.layer_config
        head_width = config.width // config.heads
        self.attention_shape = AttentionShape(config.heads, head_width, config.attention_dropout, causal=False)
        self.target_shape = replace(self.attention_shape, causal=True)
        self.embeddings = config.make_embeddings()
        self.blocks = nn.ModuleList(config.make_layer(layer) for layer in range(config.layers))
        self.decoder_blocks = nn.ModuleList(config.make_decoder_layer(layer) for layer in range(config.target_layers))
        self._init_weights()

    def _init_weights(self) -> None:
        """Embeddings from N(0, 1/D), matrices uniform with the variance 2/(inputs + outputs).

        As the paper's code does (t2t: `uniform_unit_scaling`). Stacked matrices are drawn one by one, as if they were
        separate layers.
        """
        self.layer_config.init_weights(self)
        for module in self.modules():
            stacks = getattr(module, "stacks", {})
            for name, layer in module.named_children():
                if isinstance(layer, nn.Linear):
                    for part in layer.weight.data.chunk(stacks.get(f"{name}.weight", 1)):
                        nn.init.xavier_uniform_(part)

    def embed(self, batch: Batch) -> Tensor:
        embedded_TD: Tensor = self.embeddings(batch.input_ids.flatten(), batch.position_ids.flatten())
        return embedded_TD

    def forward(
        self,
        batch: Batch,
        state: Any = None,
        *,
        indices: Mapping[str, Tensor] | None = None,
        pool: bool = True,
        return_layers: bool = False,
        return_attentions: bool = False,
    ) -> Encoding:
        """See `Encoder.forward`. `Encoding.attentions` of a target are those of its cross-attention [B, H, L, S]."""
        self.check(batch)
        source_TD, layers, attentions = self._encode(batch, return_layers, return_attentions)
        x_TD = source_TD.to(self.token_embeddings.dtype)
        selection = select_tokens(batch, None if return_layers else indices or None, pool=False)
        target = None
        if batch.target is not None:
            self.check(batch.target, target=True)
            target = self._decode(batch, batch.target, source_TD, return_layers, return_attentions)
        return Encoding(
            last_hidden=x_TD if selection.indices is None else x_TD.index_select(0, selection.indices),
            selections=selection.by_objective,
            layers=layers if return_layers else (),
            attentions=attentions,
            target=target,
        )

    def _encode(
        self, batch: Batch, return_layers: bool = False, return_attentions: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The last layer [T, D] in the type that it is computed in, all layers, and attention probabilities."""
        context = self._context(batch, self.attention_shape, return_attentions=return_attentions)
        embedded_TD = self.embed(batch)
        x: Tensor | LazyNorm = embedded_TD
        layers, attentions = [embedded_TD], []
        for block in self.blocks:
            x, probabilities_BHLL = block(x, context)
            if return_layers:
                layers.append(materialize(x).to(self.token_embeddings.dtype))
            attentions += [] if probabilities_BHLL is None else [probabilities_BHLL]
        return materialize(x), tuple(layers), tuple(attentions)

    def _decode(
        self, batch: Batch, target: Batch, source_TD: Tensor, return_layers: bool, return_attentions: bool
    ) -> Encoding:
        """The target at all its tokens; `source_TD` is the last layer of the source at all of its tokens."""
        context = self._context(target, self.target_shape)
        dtype = self.token_embeddings.dtype
        cross_context = make_cross_attention_context(
            target.document_ids,
            batch.document_ids,
            return_probabilities=return_attentions,
            ranges=not return_attentions and self._supports_ranges(batch, dtype),
        )
        x_TD = self.embeddings(target.input_ids.flatten(), target.position_ids.flatten(), target=True)
        layers, attentions, blocks = [x_TD], [], cast(list[DecoderBlock], list(self.decoder_blocks))
        for block in blocks:
            x_TD, probabilities_BHLS = block(x_TD, context, source_TD, cross_context)
            layers += [x_TD.to(dtype)] if return_layers else []
            attentions += [] if probabilities_BHLS is None else [probabilities_BHLS]
        kept = tuple(layers) if return_layers else ()
        return Encoding(x_TD.to(dtype), dict(target.indices), layers=kept, attentions=tuple(attentions))

    def _context(self, batch: Batch, shape: AttentionShape, *, return_attentions: bool = False) -> AttentionContext:
        how: dict[str, Any] = {"training": self.training, "return_attentions": return_attentions}
        return make_attention_context(batch, shape, dtype=self.token_embeddings.dtype, **how)

    def start(self, batch: Batch, *, hypotheses: int, length: int, dtype: torch.dtype) -> Seq2SeqState:
        """See `EncoderDecoder.start`."""
        self.check(batch)
        texts, device = len(batch.input_ids), batch.input_ids.device
        source_TD, _, _ = self._encode(batch)
        blocks = cast(list[DecoderBlock], list(self.decoder_blocks))
        memories = [block.cross_attention.read(source_TD).to(dtype) for block in blocks]
        size: dict[str, Any] = {"layers": len(blocks), "hypotheses": texts * hypotheses, "length": length}
        cache = HypothesisCache.empty(self.target_shape, **size, device=device, dtype=dtype)
        ranges = self._supports_ranges(batch, dtype)
        context = decoding_context(batch.document_ids, hypotheses, ranges=ranges)
        return Seq2SeqState(cache, tuple(memories), batch.document_ids, context)

    def step(self, ids_M: Tensor, state: Seq2SeqState) -> Tensor:
        """See `EncoderDecoder.step`."""
        cache = state.cache
        cache.begin()
        context = AttentionContext("cached", len(ids_M), True, cache.rows, 1, None)
        x_MD: Tensor = self.embeddings(ids_M, cache.step.expand(len(ids_M)), target=True)
        for layer, block in enumerate(self.decoder_blocks):
            x_MD, _ = block(
                x_MD, replace(context, cache=cache.layer(layer)), state.memories[layer], state.cross_context
            )
        cache.step.add_(1)
        return x_MD.to(self.token_embeddings.dtype)

    def _supports_ranges(self, batch: Batch, dtype: torch.dtype) -> bool:
        """Whether our kernel of cross-attention runs, which is faster than torch's even without a mask."""
        device = batch.document_ids.device.type
        return runs_triton(device, compute_dtype(device, dtype), self.attention_shape.head_width)

    def layer_groups(self) -> list[nn.Module]:
        """Embeddings, blocks of the encoder, blocks of the decoder."""
        return [self.embeddings, *self.blocks, *self.decoder_blocks]

    @property
    def token_embeddings(self) -> Tensor:
        """The token table [V, D] of source texts."""
        return self.embeddings.tokens.weight

    @property
    def target_embeddings(self) -> Tensor:
        """The token table [V, D] of target texts."""
        own = self.embeddings.target_tokens
        return self.token_embeddings if own is None else own.weight
