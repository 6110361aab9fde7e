"""BERT: a bidirectional Transformer encoder (Devlin et al. 2019; bert: modeling.py).

T flat places, R places that are read, N texts, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from bertsmith.config import did_you_mean
from bertsmith.encoders.encoder import Encoder, plan_reading
from bertsmith.errors import ConfigError
from bertsmith.nn.attention import Attention, Sight, choose_kernel, see
from bertsmith.nn.embeddings import Embeddings
from bertsmith.nn.style import Style
from bertsmith.nn.transformer import Block, FeedForward
from bertsmith.types import Batch, Encoding

HEAD_WIDTH = 64  # of every published size
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """BERT-base by default."""

    layers: int = 12  # Transformer blocks
    width: int = 768  # of the vector of each token
    heads: int = 12  # of attention in each block; they share the width
    feed_forward: int | None = None  # inner width; four times the width where absent
    vocabulary_size: int = 30_522  # rows of the token table; pre-training takes its tokenizer's, rounded up
    positions: int = 512  # the longest text that can be read, in tokens
    segments: int = 2  # kinds of text in a row: first and second
    dropout: float = 0.1  # on embeddings and on what each half of a block adds
    attention_dropout: float = 0.1  # on probabilities; 0 lets training use the variable-length kernel
    activation: str = "gelu"  # of the feed-forward: gelu, gelu_new, relu, silu or tanh
    epsilon: float = 1e-12  # of the norms
    initial_range: float = 0.02  # standard deviation of new weights
    truncate_initial: bool = True  # no new weight is over two deviations
    causal: bool = False  # the left-to-right model of P-BERT §5.1
    pooler: bool = True  # one vector for each text, which next_sentence reads
    padding_id: int = 0  # the token whose vector does not learn

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "vocabulary_size", "positions", "segments", "inner"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('inner', 'feed_forward')}={getattr(self, name)} must be at least 1")
        if self.width % self.heads:
            raise ConfigError(
                f"width={self.width} cannot be split among heads={self.heads}: it must be a multiple of it"
            )
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 0 and less than 1")
        if not 0 <= self.padding_id < self.vocabulary_size:
            raise ConfigError(f"padding_id={self.padding_id} is outside a vocabulary of {self.vocabulary_size}")
        _ = self.style

    @classmethod
    def size(cls, name: str, *, vocabulary_size: int) -> Self:
        """A published size: tiny, mini, small, medium, base or large (P-BERT §3; Turc et al. 2019)."""
        if name not in SIZES:
            raise ConfigError(f"{name!r} is no size of bert: {', '.join(SIZES)}{did_you_mean(name, SIZES)}")
        layers, width = SIZES[name]
        return cls(layers=layers, width=width, heads=width // HEAD_WIDTH, vocabulary_size=vocabulary_size)

    @property
    def inner(self) -> int:
        return 4 * self.width if self.feed_forward is None else self.feed_forward

    @property
    def style(self) -> Style:
        return Style(self.activation, self.epsilon, self.initial_range, self.truncate_initial)

    def build(self) -> BERT:
        """The encoder with new weights."""
        return BERT(self)


class BERT(Encoder):
    """Embeddings, blocks, and a pooler over each text's first token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width, self.layers = config.width, config.layers
        self.positions, self.segments = config.positions, config.segments
        self.causal, self.pools, self.style = config.causal, config.pooler, config.style
        self.embeddings = Embeddings(
            nn.Embedding(config.vocabulary_size, self.width, padding_idx=config.padding_id),
            nn.Embedding(config.positions, self.width),
            nn.Embedding(config.segments, self.width),
            norm=self.style.norm(self.width),
            dropout=config.dropout,
        )
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.pooler = nn.Linear(self.width, self.width) if config.pooler else None
        self.style.initialise(self)

    def forward(
        self,
        batch: Batch,
        *,
        places: Mapping[str, Tensor] | None = None,
        pool: bool = True,
        keep_layers: bool = False,
        keep_attentions: bool = False,
    ) -> Encoding:
        """See `Encoder.forward`."""
        self.check(batch)
        reading = plan_reading(batch, None if keep_layers else places, pool=pool and self.pools)
        sight = self._sight(batch, explicit=keep_attentions)
        x_TD = self.embeddings(batch.ids.flatten(), batch.positions.flatten(), batch.segments.flatten())
        layers, attentions = [x_TD], []
        for number, block in enumerate(self.blocks, start=1):
            x_TD, probabilities_BHLL = block(x_TD, sight, reading.places if number == len(self.blocks) else None)
            layers.append(x_TD)
            attentions.append(probabilities_BHLL)
        pooled_ND = None
        if self.pooler is not None and reading.firsts is not None:
            pooled_ND = torch.tanh(self.pooler(x_TD[reading.firsts]))
        return Encoding(
            top=x_TD,
            reads=reading.reads,
            pooled=pooled_ND,
            layers=tuple(layers) if keep_layers else (),
            attentions=tuple(attentions) if keep_attentions else (),
        )

    def depths(self) -> list[nn.Module]:
        """Embeddings, each block, pooler."""
        return [self.embeddings, *self.blocks, *([] if self.pooler is None else [self.pooler])]

    @property
    def table(self) -> Tensor:
        """The token table [V, D]."""
        return self.embeddings.tokens.weight

    def _sight(self, batch: Batch, *, explicit: bool) -> Sight:
        device = batch.ids.device.type
        kernel = choose_kernel(
            device=device,
            dtype=torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.table.dtype,
            full=batch.full,
            head_width=self.width // self.config.heads,
            dropout=self.config.attention_dropout if self.training else 0.0,
            explicit=explicit,
        )
        return see(batch.document, batch.bounds, kernel=kernel, longest=batch.longest, causal=self.causal)


def _block(config: Config) -> Block:
    return Block(
        attention=Attention(width=config.width, heads=config.heads, dropout=config.attention_dropout),
        feed_forward=FeedForward(width=config.width, inner=config.inner, style=config.style),
        width=config.width,
        style=config.style,
        dropout=config.dropout,
    )
