"""The layers of a Transformer decoder: cross-attention, post-norm and pre-norm blocks, sinusoidal positions.

B rows, T = B * L flat target tokens in rows of L, S source tokens in a row, D width, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.nn.attention import Attention, AttentionContext, masked_attention
from bertsmith.nn.dropout import Dropout
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import FeedForward

PositionKind = Literal["interleaved", "concatenated", "learned"]


class SourceMemory(NamedTuple):
    """The keys and values that one layer's cross-attention reads, of S flat source tokens."""

    pairs: Tensor  # [S, 2, H, K]

    def to(self, dtype: torch.dtype) -> SourceMemory:
        return SourceMemory(self.pairs.to(dtype))

    def select(self, texts: Tensor, count: int) -> SourceMemory:
        """That of some of `count` texts, by their numbers."""
        return SourceMemory(self.pairs.view(count, -1, *self.pairs.shape[1:])[texts].flatten(0, 1))


Ranges = tuple[Tensor, Tensor]  # begin and end of the range of flat tokens of each token, int32


@dataclass(frozen=True)
class CrossAttentionContext:
    """Which source tokens each target token attends to: made once, shared by all layers.

    Either a mask, or ranges for our kernel (`kernels.cross_attention`).
    """

    batch_size: int
    mask: Tensor | None = None  # [B, 1, L, S] bool
    return_probabilities: bool = False
    key_ranges: Ranges | None = None  # [B * L] of the source tokens that a target token attends to
    query_ranges: Ranges | None = None  # [B * S] of the target tokens that attend to a source token


def make_cross_attention_context(
    target_ids_BL: Tensor, source_ids_BS: Tensor, *, return_probabilities: bool = False, ranges: bool = False
) -> CrossAttentionContext:
    """Target tokens attend to the source tokens of their row with the same document id.

    With a mask, padding attends to everything, so that no row of the attention matrix is empty; its outputs are never
    read. With `ranges`, it attends to padding.
    """
    if ranges:
        keys = _matching_ranges(target_ids_BL, source_ids_BS), _matching_ranges(source_ids_BS, target_ids_BL)
        return CrossAttentionContext(len(target_ids_BL), None, False, *keys)
    same_BLS = target_ids_BL[:, :, None] == source_ids_BS[:, None, :]
    mask = (same_BLS | (target_ids_BL == 0)[:, :, None])[:, None]
    return CrossAttentionContext(len(target_ids_BL), mask, return_probabilities)


def _matching_ranges(document_ids_BL: Tensor, other_ids_BS: Tensor) -> Ranges:
    """The range of tokens [B * L] of the other text with the same row and document id.

    Ids grow within a row, and padding, whose id is 0, is at its end.
    """
    last = document_ids_BL.shape[1] + other_ids_BS.shape[1]  # over all ids

    def keys(ids: Tensor) -> Tensor:
        row = torch.arange(len(ids), dtype=ids.dtype, device=ids.device)[:, None] * (last + 1)
        return (row + torch.where(ids == 0, last, ids)).flatten()

    others, wanted = keys(other_ids_BS), keys(document_ids_BL)
    begin, end = (torch.searchsorted(others, wanted, right=right, out_int32=True) for right in (False, True))
    return begin, end


class CrossAttention(nn.Module):
    """Multi-head attention from target tokens to the encoder's output (Vaswani et al. 2017, §3.2.3)."""

    stacks: ClassVar[Mapping[str, int]] = {"key_value.weight": 2}  # see `optimizers.weights_of`

    def __init__(self, *, width: int, heads: int, dropout: float, biases: bool = True) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width, bias=biases)
        self.key_value = nn.Linear(width, 2 * width, bias=biases)
        self.output = nn.Linear(width, width, bias=biases)

    def read(self, source_SD: Tensor) -> SourceMemory:
        """The keys and values of the source [S, D], which do not change while a target is decoded."""
        return SourceMemory(self.key_value(source_SD).view(len(source_SD), 2, self.heads, -1))

    def forward(
        self, x_TD: Tensor, source: Tensor | SourceMemory, context: CrossAttentionContext
    ) -> tuple[Tensor, Tensor | None]:
        """[T, D] -> [T, D], and on request the probabilities [B, H, L, S].

        `source`: the last layer of the source [B * S, D], or what `read` made of it.
        """
        memory = source if isinstance(source, SourceMemory) else self.read(source)
        q_THK = self.query(x_TD).view(len(x_TD), self.heads, -1).to(memory.pairs.dtype)
        dropout, probabilities_BHLS = self.dropout if self.training else 0.0, None
        if context.mask is None:
            out_THK = _ranged_attention(q_THK, memory, context, dropout)
        else:
            out_THK, probabilities_BHLS = _masked_attention(q_THK, memory, context, context.mask, dropout)
        return self.output(out_THK.flatten(1)), probabilities_BHLS


def _ranged_attention(q_THK: Tensor, memory: SourceMemory, context: CrossAttentionContext, dropout: float) -> Tensor:
    from bertsmith.nn.kernels.cross_attention import attend  # imports triton

    assert context.key_ranges is not None
    assert context.query_ranges is not None
    return attend(q_THK, memory.pairs, context.key_ranges, context.query_ranges, dropout=dropout)


def _masked_attention(
    q_THK: Tensor, memory: SourceMemory, context: CrossAttentionContext, mask: Tensor, dropout: float
) -> tuple[Tensor, Tensor | None]:
    """The outputs [T, H, K], and on request the probabilities [B, H, L, S]."""
    q_BHLK, k_BHSK, v_BHSK = (
        part.view(context.batch_size, -1, *part.shape[1:]).transpose(1, 2) for part in (q_THK, *memory.pairs.unbind(1))
    )
    probabilities_BHLS = None
    if context.return_probabilities:
        scores_BHLS = q_BHLK @ k_BHSK.transpose(-1, -2) * q_BHLK.shape[-1] ** -0.5
        probabilities_BHLS = scores_BHLS.masked_fill(~mask, -torch.inf).softmax(-1)
        out_BHLK = F.dropout(probabilities_BHLS, dropout) @ v_BHSK
    else:
        out_BHLK = masked_attention(q_BHLK, k_BHSK, v_BHSK, mask, dropout)
    return out_BHLK.transpose(1, 2).flatten(0, 1), probabilities_BHLS


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention and feed-forward, each with a residual connection and then a norm (post-norm)."""

    def __init__(
        self,
        attention: Attention,
        cross_attention: CrossAttention,
        feed_forward: FeedForward,
        *,
        width: int,
        layer_config: LayerConfig,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = layer_config.layer_norm(width)
        self.cross_attention = cross_attention
        self.cross_attention_norm = layer_config.layer_norm(width)
        self.feed_forward = feed_forward
        self.feed_forward_norm = layer_config.layer_norm(width)
        self.dropout = Dropout(layer_config.dropout)

    def forward(
        self,
        x_TD: Tensor,
        context: AttentionContext,
        source: Tensor | SourceMemory,
        cross_context: CrossAttentionContext,
    ) -> tuple[Tensor, Tensor | None]:
        """[T, D] -> [T, D], and the probabilities of the cross-attention where requested."""
        attended_TD, _ = self.attention(x_TD, context)
        x_TD = _add_and_norm(self.attention_norm, x_TD, self.dropout(attended_TD))
        read_TD, probabilities_BHLS = self.cross_attention(x_TD, source, cross_context)
        x_TD = _add_and_norm(self.cross_attention_norm, x_TD, self.dropout(read_TD))
        return _add_and_norm(self.feed_forward_norm, x_TD, self.dropout(self.feed_forward(x_TD))), probabilities_BHLS


class PreNormDecoderBlock(DecoderBlock):
    """The same with each norm before its sub-layer; `last`: with an output norm."""

    def __init__(
        self,
        attention: Attention,
        cross_attention: CrossAttention,
        feed_forward: FeedForward,
        *,
        width: int,
        layer_config: LayerConfig,
        last: bool,
    ) -> None:
        super().__init__(attention, cross_attention, feed_forward, width=width, layer_config=layer_config)
        self.output_norm = layer_config.layer_norm(width) if last else nn.Identity()

    def forward(
        self,
        x_TD: Tensor,
        context: AttentionContext,
        source: Tensor | SourceMemory,
        cross_context: CrossAttentionContext,
    ) -> tuple[Tensor, Tensor | None]:
        """See `DecoderBlock.forward`."""
        attended_TD, _ = self.attention(self.attention_norm(x_TD), context)
        x_TD = x_TD + self.dropout(attended_TD)
        read_TD, probabilities_BHLS = self.cross_attention(self.cross_attention_norm(x_TD), source, cross_context)
        x_TD = x_TD + self.dropout(read_TD)
        x_TD = x_TD + self.dropout(self.feed_forward(self.feed_forward_norm(x_TD)))
        return self.output_norm(x_TD), probabilities_BHLS


def _add_and_norm(norm: nn.Module, x_TD: Tensor, y_TD: Tensor) -> Tensor:
    normed_TD: Tensor = norm(x_TD + y_TD)
    return normed_TD.to(y_TD.dtype)


class SinusoidalPositions(nn.Module):
    """Sines and cosines of the position (Vaswani et al. 2017, §3.5), which are computed and not stored.

    interleaved: the paper's formula, sin and cos alternate and pair i has the frequency 10000^(-2i/D). concatenated:
    the code of the paper, all sines and then all cosines, with 10000^(-i/(D/2-1)) (t2t: common_attention.py).
    """

    table: Tensor  # [positions, D]

    def __init__(self, positions: int, width: int, *, interleaved: bool) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(positions, width, interleaved=interleaved), persistent=False)

    def forward(self, position_ids_T: Tensor) -> Tensor:
        """[T] -> [T, D]."""
        return self.table[position_ids_T]


def sinusoids(positions: int, width: int, *, interleaved: bool) -> Tensor:
    """The table [positions, width] in float32, computed in float64; see `SinusoidalPositions`."""
    half = width // 2
    steps = torch.arange(half, dtype=torch.float64) / (half if interleaved else max(half - 1, 1))
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * 10_000.0**-steps
    waves = torch.stack([angles.sin(), angles.cos()], -1 if interleaved else 1)
    return waves.view(positions, width).float()


class TranslationEmbeddings(nn.Module):
    """Token embeddings times √D, plus positions, then dropout (Vaswani et al. 2017, §3.4 and §5.4).

    `target_tokens` and `target_positions`: of target texts, where they have tables of their own.
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: nn.Module,
        *,
        target_tokens: nn.Embedding | None,
        target_positions: nn.Module | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = tokens, positions
        self.target_tokens, self.target_positions = target_tokens, target_positions
        self.scale = tokens.embedding_dim**0.5
        self.dropout = Dropout(dropout)

    def forward(self, input_ids_T: Tensor, position_ids_T: Tensor, *, target: bool = False) -> Tensor:
        """[T] -> [T, D]."""
        tokens = (self.target_tokens if target else None) or self.tokens
        positions = (self.target_positions if target else None) or self.positions
        embedded_TD: Tensor = self.dropout(tokens(input_ids_T) * self.scale + positions(position_ids_T))
        return embedded_TD
