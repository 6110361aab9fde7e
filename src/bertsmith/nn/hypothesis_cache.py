"""Keys and values of the hypotheses of a beam search, which are not moved when hypotheses are reordered.

N source texts of S tokens, M hypotheses of L tokens, H heads, K head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.nn.attention import HAS_TRITON, TRITON_HEAD_WIDTHS, AttentionContext, AttentionShape, masked_attention
from bertsmith.nn.decoder import CrossAttentionContext, SourceMemory, make_cross_attention_context


@dataclass(frozen=True)
class HypothesisCache:
    """Of all layers. Hypotheses that continue the same one share its tokens."""

    memory: Tensor  # [layers, M, L, 2, H, K] keys and values
    rows: Tensor  # [M, L] int64 the row of `memory` with each token of a hypothesis
    step: Tensor  # [1] int64 tokens of each hypothesis so far

    @staticmethod
    def empty(
        shape: AttentionShape, *, layers: int, hypotheses: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> HypothesisCache:
        """For hypotheses of up to `length` tokens. It has zeros, since masked values must be finite."""
        padded = -(-length // 8) * 8  # as the fused kernels require of a mask
        size = (layers, hypotheses, padded, 2, shape.heads, shape.head_width)
        rows = torch.zeros(hypotheses, padded, dtype=torch.int64, device=device)
        return HypothesisCache(torch.zeros(size, dtype=dtype, device=device), rows, rows.new_zeros(1))

    def begin(self) -> None:
        """Called before the layers of a step, whose new token of hypothesis m is written to row m."""
        every_M = torch.arange(len(self.rows), device=self.rows.device)
        self.rows.index_copy_(1, self.step, every_M[:, None])

    def select(self, hypotheses: Tensor) -> HypothesisCache:
        """The cache of some hypotheses [M'], by their numbers."""
        return replace(self, rows=self.rows[hypotheses])

    def reorder(self, hypotheses: Tensor) -> None:
        """Becomes the cache of other hypotheses [M], by their numbers."""
        self.rows.copy_(self.rows[hypotheses])

    def layer(self, layer: int) -> HypothesisLayerCache:
        return HypothesisLayerCache(self.memory[layer], self.rows, self.step)


@dataclass(frozen=True)
class HypothesisLayerCache:
    """The part of one layer; see `attention.TokenCache`."""

    memory: Tensor  # [M, L, 2, H, K]; M at the start of the search
    rows: Tensor  # [M, L]
    step: Tensor  # [1]

    def write(self, pairs_M2HK: Tensor) -> None:
        memory = self.memory[: len(pairs_M2HK)]
        memory.index_copy_(1, self.step, pairs_M2HK[:, None].to(memory.dtype))

    def attend(self, q_MHK: Tensor, context: AttentionContext) -> Tensor:
        q_MHK = q_MHK.to(self.memory.dtype)
        if q_MHK.is_cuda and HAS_TRITON and q_MHK.shape[2] in TRITON_HEAD_WIDTHS:
            from bertsmith.nn.kernels.cached_attention import attend  # imports triton

            return attend(q_MHK, self.memory, self.rows, self.step)
        # reading the step would synchronise a GPU
        length = self.rows.shape[1] if q_MHK.is_cuda else int(self.step) + 1
        tokens_L = torch.arange(length, device=q_MHK.device)
        k_MHLK, v_MHLK = self.memory[self.rows[:, :length], tokens_L].permute(2, 0, 3, 1, 4)
        q_MHLK = q_MHK[:, :, None]
        if q_MHK.is_cuda:
            return masked_attention(q_MHLK, k_MHLK, v_MHLK, (tokens_L <= self.step)[None, None, None], 0.0)[:, :, 0]
        return F.scaled_dot_product_attention(q_MHLK, k_MHLK, v_MHLK)[:, :, 0]


@dataclass(frozen=True)
class Seq2SeqState:
    """Keys and values of N source texts, and of their K hypotheses so far."""

    cache: HypothesisCache  # of M = N * K hypotheses; changed in place
    memories: tuple[SourceMemory, ...]  # of each layer, of N * S tokens
    source_ids: Tensor  # [N, S] document ids
    cross_context: CrossAttentionContext  # of one token of each hypothesis

    def select(self, hypotheses: Tensor, texts: Tensor | None = None) -> Seq2SeqState:
        """See `encoders.encoder.DecoderState`."""
        selected = replace(self, cache=self.cache.select(hypotheses))
        if texts is None:
            return selected
        memories = tuple(memory.select(texts, len(self.source_ids)) for memory in self.memories)
        ids, ranges = self.source_ids[texts], self.cross_context.mask is None
        context = decoding_context(ids, len(hypotheses) // len(texts), ranges=ranges)
        return replace(selected, memories=memories, source_ids=ids, cross_context=context)

    def reorder(self, hypotheses: Tensor) -> None:
        """See `encoders.encoder.CapturedState`."""
        self.cache.reorder(hypotheses)


def decoding_context(source_ids_NS: Tensor, hypotheses: int, *, ranges: bool) -> CrossAttentionContext:
    """All hypotheses of a text read its whole source."""
    targets = torch.ones(len(source_ids_NS), hypotheses, dtype=source_ids_NS.dtype, device=source_ids_NS.device)
    return make_cross_attention_context(targets, source_ids_NS, ranges=ranges)
