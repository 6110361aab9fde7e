"""Multi-head self-attention over flat tokens, by the fastest kernel that device, precision and batch allow.

B rows, L tokens in a row, T = B*L flat tokens, R selected tokens, S sequences, D width, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bertsmith.types import Batch

# triton: our kernel (`kernels.attention`); varlen: torch's flash attention over cu_seqlens; dense: SDPA without a mask;
# equal_lengths: SDPA for each run of texts of equal length; masked: SDPA with a mask; eager: returns probabilities;
# cached: one new token of each sequence attends to the keys and values in a `KVCache`
Kernel = Literal["triton", "varlen", "dense", "equal_lengths", "masked", "eager", "cached"]
HALF_PRECISION = (torch.bfloat16, torch.float16)
TRITON_HEAD_WIDTHS = (16, 32, 64, 128)
HAS_TRITON = find_spec("triton") is not None  # comes with torch for CUDA
NOT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
DISABLED_KERNELS: set[Kernel] = set()  # in this process; filled by `autotune`


@dataclass(frozen=True)
class RotaryEmbedding:
    """Rotary position embeddings (Su et al. 2021, §3.2) of a batch: made once, shared by all layers.

    Components k and k + K/2 of a head form a point in a plane, rotated by position · theta^(-2k/K). The dot product of
    a rotated query and a rotated key then depends only on the distance between their positions.
    """

    cos: Tensor  # [T, 1, K/2] float32
    sin: Tensor  # [T, 1, K/2] float32

    def rotate(self, x_THK: Tensor) -> Tensor:
        """Queries or keys [T, H, K], rotated; computed in float32, returned in their own type."""
        first, second = x_THK.chunk(2, -1)
        halves = first * self.cos - second * self.sin, second * self.cos + first * self.sin
        return torch.cat(halves, -1).to(x_THK.dtype)


def rotary_embedding(position_ids_T: Tensor, *, head_width: int, theta: float) -> RotaryEmbedding:
    """The rotations of tokens at these positions [T], counted within each text."""
    exponents = torch.arange(0, head_width, 2, dtype=torch.float32, device=position_ids_T.device)
    frequencies = 1.0 / theta ** (exponents / head_width)  # [K/2]
    angles_T1K = (position_ids_T.float()[:, None] * frequencies)[:, None]
    return RotaryEmbedding(angles_T1K.cos(), angles_T1K.sin())


@dataclass(frozen=True)
class AttentionShape:
    """The settings of a model's attention that determine its kernel and its speed."""

    heads: int
    head_width: int
    dropout: float  # in training
    causal: bool


@dataclass(frozen=True)
class KVCache:
    """Keys and values of all layers for the tokens so far of B sequences, for generation with a causal model.

    A forward pass over the prompts fills it; each later one takes the next token of every sequence, in order.
    """

    memory: Tensor  # [layers, 2, B, H, L, K]

    @staticmethod
    def empty(
        shape: AttentionShape, *, layers: int, batch_size: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> KVCache:
        """For sequences of up to `length` tokens. It has zeros, since masked values must be finite."""
        padded = -(-length // 8) * 8  # as the fused kernels require of a mask
        size = (layers, 2, batch_size, shape.heads, padded, shape.head_width)
        return KVCache(torch.zeros(size, dtype=dtype, device=device))

    def select(self, sequences: Tensor) -> KVCache:
        """The cache of other sequences [B'], by their numbers."""
        return KVCache(self.memory.index_select(2, sequences))

    def layer(self, layer: int, batch: Batch) -> LayerCache:
        """The part of a layer; `Batch.sample_ids` number the sequences."""
        return self.at(layer, batch.sample_ids.flatten(), batch.position_ids.flatten())

    def at(self, layer: int, sequence_ids: Tensor, position_ids: Tensor) -> LayerCache:
        """The part of a layer, for tokens of these sequences [T] at these positions [T]."""
        keys, values = self.memory[layer]
        return LayerCache(keys, values, sequence_ids, position_ids)


@dataclass(frozen=True)
class LayerCache:
    """The cache of one layer, and where the keys and values of a batch belong."""

    keys: Tensor  # [B, H, L, K]
    values: Tensor  # [B, H, L, K]
    sequence_ids: Tensor  # [T] int64
    position_ids: Tensor  # [T] int64

    def write(self, pairs_T2HK: Tensor) -> None:
        """Adds the keys and values of a batch."""
        for cached, new_THK in zip((self.keys, self.values), pairs_T2HK.unbind(1), strict=True):
            cached[self.sequence_ids, :, self.position_ids] = new_THK.to(cached.dtype)

    def attend(self, q_BHK: Tensor, context: AttentionContext) -> Tensor:
        """The outputs [B, H, K] of the newest token of each sequence."""
        q_BHLK = q_BHK[:, :, None].to(self.keys.dtype)
        return _sdpa_attention(q_BHLK, self.keys, self.values, context, 0.0)[:, :, 0]


class TokenCache(Protocol):
    """A part of a cache of keys and values, of one layer."""

    def write(self, pairs_T2HK: Tensor) -> None:
        """Adds the keys and values of the new tokens."""

    def attend(self, q_BHK: Tensor, context: AttentionContext) -> Tensor:
        """The outputs [B, H, K] of the newest token of each sequence, which attends to all its tokens so far."""


@dataclass(frozen=True)
class AttentionContext:
    """Which tokens of a batch attend to each other, and by which kernel: made once, shared by all layers.

    Tokens of a row attend to each other where their document ids are equal. A run of padding attends to itself, so that
    no row of the attention matrix is empty; its outputs are never read.
    """

    kernel: Kernel
    batch_size: int
    causal: bool
    cu_seqlens: Tensor  # [S+1] int32
    max_seqlen: int
    mask: Tensor | None  # [B, 1, L, L] bool, for "masked" and "eager"; [B, 1, 1, L] for "cached"
    equal_length_runs: tuple[tuple[int, int], ...] = ()  # see `Batch`
    rotary: RotaryEmbedding | None = None
    sequence_bounds: tuple[Tensor, Tensor] | None = None  # for "triton": begin and end [T] int32 of each token's text
    cache: TokenCache | None = None  # that keys and values are written to, in generation


def runs_triton(device: str, dtype: torch.dtype, head_width: int) -> bool:
    """Whether our attention kernels support these inputs."""
    return HAS_TRITON and device == "cuda" and dtype in HALF_PRECISION and head_width in TRITON_HEAD_WIDTHS


def compute_dtype(device: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of matrix products with weights of that dtype."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else dtype


def choose_kernel(
    *,
    device: str,
    dtype: torch.dtype,
    dense: bool,
    head_width: int,
    dropout: float,
    return_attentions: bool,
    equal_length_runs: bool = False,
    requires_grad: bool = False,
) -> Kernel:
    """The fastest kernel that computes exact attention for these inputs."""
    if return_attentions:
        return "eager"
    half = device == "cuda" and dtype in HALF_PRECISION
    if requires_grad and runs_triton(device, dtype, head_width) and "triton" not in DISABLED_KERNELS:
        return "triton"
    if dense:
        return "dense"
    if half and dropout == 0 and head_width % 8 == 0 and head_width <= 256:  # it has no dropout on probabilities
        return "varlen"
    return "equal_lengths" if equal_length_runs else "masked"


def context_for_kernel(
    document_ids: Tensor,
    cu_seqlens: Tensor,
    *,
    kernel: Kernel,
    max_seqlen: int,
    causal: bool,
    equal_length_runs: tuple[tuple[int, int], ...] = (),
) -> AttentionContext:
    """The context of a batch with these `document_ids` [B, L], for a given kernel."""
    mask = sequence_bounds = None
    if kernel in ("masked", "eager"):
        same_BLL = document_ids[:, :, None] == document_ids[:, None, :]
        mask = (same_BLL.tril() if causal else same_BLL).unsqueeze(1)
    if kernel == "triton":
        index_T = torch.arange(document_ids.numel(), dtype=cu_seqlens.dtype, device=cu_seqlens.device)
        sequence_T = torch.searchsorted(cu_seqlens, index_T, right=True)
        sequence_bounds = cu_seqlens[sequence_T - 1], cu_seqlens[sequence_T]
    return AttentionContext(
        kernel, document_ids.shape[0], causal, cu_seqlens, max_seqlen, mask, equal_length_runs, None, sequence_bounds
    )


def make_attention_context(
    batch: Batch,
    shape: AttentionShape,
    *,
    dtype: torch.dtype,
    training: bool,
    return_attentions: bool = False,
    rope_theta: float | None = None,
    cache: KVCache | None = None,
) -> AttentionContext:
    """The context of a batch, for the fastest kernel with weights of that type; see `choose_kernel`."""
    if cache is not None and batch.max_seqlen == 1:
        return _cached_context(batch, cache, head_width=shape.head_width, rope_theta=rope_theta)
    device, runs = batch.document_ids.device.type, batch.equal_length_runs
    kernel = choose_kernel(
        device=device,
        dtype=compute_dtype(device, dtype),
        dense=batch.dense,
        head_width=shape.head_width,
        dropout=shape.dropout if training else 0.0,
        return_attentions=return_attentions,
        equal_length_runs=bool(runs),
        requires_grad=torch.is_grad_enabled(),
    )
    options: dict[str, Any] = {"max_seqlen": batch.max_seqlen, "causal": shape.causal, "equal_length_runs": runs}
    context = context_for_kernel(batch.document_ids, batch.cu_seqlens, kernel=kernel, **options)
    if rope_theta is None:
        return context
    rotary = rotary_embedding(batch.position_ids.flatten(), head_width=shape.head_width, theta=rope_theta)
    return replace(context, rotary=rotary)


def _cached_context(batch: Batch, cache: KVCache, *, head_width: int, rope_theta: float | None) -> AttentionContext:
    """One token per sequence, which attends to the earlier ones and itself."""
    position_B = batch.position_ids.flatten()
    mask_BL = torch.arange(cache.memory.shape[4], device=position_B.device) <= position_B[:, None]
    rotary = None if rope_theta is None else rotary_embedding(position_B, head_width=head_width, theta=rope_theta)
    return AttentionContext("cached", len(position_B), True, batch.cu_seqlens, 1, mask_BL[:, None, None], rotary=rotary)


class Attention(nn.Module):
    """Multi-head self-attention with one linear layer for queries, keys and values (Vaswani et al. 2017, §3.2)."""

    stacks: ClassVar[Mapping[str, int]] = {"qkv.weight": 3}  # see `optimizers.weights_of`

    def __init__(self, *, width: int, heads: int, dropout: float, biases: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=biases)
        self.output = nn.Linear(width, width, bias=biases)

    def forward(
        self, x_TD: Tensor, context: AttentionContext, indices: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[T, D] -> [T, D], or [R, D] at `indices`; and the probabilities [B, H, L, L] of the eager kernel."""
        if context.kernel == "triton" and self.training and hasattr(self.qkv, "attend"):
            return self._fp8_attention(x_TD, context, indices), None
        qkv_T3HK = self.qkv(x_TD).view(x_TD.shape[0], 3, self.heads, -1)
        q_THK, k_THK, v_THK = qkv_T3HK.unbind(1)
        if context.rotary is not None and context.kernel != "triton":
            q_THK, k_THK = context.rotary.rotate(q_THK), context.rotary.rotate(k_THK)
        if context.cache is not None:
            pairs_T2HK = qkv_T3HK[:, 1:] if context.rotary is None else torch.stack((k_THK, v_THK), 1)
            context.cache.write(pairs_T2HK)
        dropout = self.dropout if self.training else 0.0
        probabilities_BHLL = None
        if context.kernel == "triton":
            out_THK = _triton_attention(qkv_T3HK, context, dropout)
        elif context.kernel == "varlen":
            out_THK = _varlen_attention(q_THK, k_THK, v_THK, context)
        elif context.kernel == "equal_lengths":
            out_THK = _equal_length_attention(q_THK, k_THK, v_THK, context, dropout)
        elif context.kernel == "cached":
            assert context.cache is not None
            out_THK = context.cache.attend(q_THK, context)
        else:
            q_BHLK, k_BHLK, v_BHLK = (_to_batch(x_THK, context.batch_size) for x_THK in (q_THK, k_THK, v_THK))
            if context.kernel == "eager":
                out_BHLK, probabilities_BHLL = _eager_attention(q_BHLK, k_BHLK, v_BHLK, context, dropout)
            else:
                out_BHLK = _sdpa_attention(q_BHLK, k_BHLK, v_BHLK, context, dropout)
            out_THK = out_BHLK.transpose(1, 2).flatten(0, 1)
        out_TD = out_THK.flatten(1)
        if indices is not None:
            out_TD = out_TD.index_select(0, indices)
        return self.output(out_TD), probabilities_BHLL

    def _fp8_attention(self, x_TD: Tensor, context: AttentionContext, indices: Tensor | None) -> Tensor:
        """[T, D] -> [T or R, D] by FP8 layers: see `fp8.layers`."""
        settings: dict[str, Any] = {"heads": self.heads, "dropout": self.dropout, "causal": context.causal}
        out_TD, out8_TD = self.qkv.attend(x_TD, context.sequence_bounds, rotary=context.rotary, **settings)  # type: ignore[operator]
        projected_TD: Tensor
        if indices is None:
            projected_TD = self.output.project(out_TD, out8_TD)  # type: ignore[operator]
        else:
            projected_TD = self.output(out_TD.index_select(0, indices))
        return projected_TD


def _to_batch(x_THK: Tensor, batch_size: int) -> Tensor:
    """[B*L, H, K] -> [B, H, L, K]."""
    return x_THK.view(batch_size, -1, *x_THK.shape[1:]).transpose(1, 2)


def _triton_attention(qkv_T3HK: Tensor, context: AttentionContext, dropout: float) -> Tensor:
    from bertsmith.nn.kernels.attention import attend  # imports triton

    assert context.sequence_bounds is not None
    rotary = None if context.rotary is None else (context.rotary.cos, context.rotary.sin)
    return attend(qkv_T3HK, *context.sequence_bounds, dropout=dropout, causal=context.causal, rotary=rotary)


def _varlen_attention(q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, context: AttentionContext) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # imports torch's compiler, which takes seconds

    window = (-1, 0 if context.causal else -1)  # tokens to the left and to the right; -1: all
    cu_seqlens, max_seqlen = context.cu_seqlens, context.max_seqlen
    out_THK = varlen_attn(q_THK, k_THK, v_THK, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, window_size=window)
    assert isinstance(out_THK, Tensor)  # a tuple only with return_aux
    return out_THK


def _equal_length_attention(
    q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, context: AttentionContext, dropout: float
) -> Tensor:
    """Texts of equal length as one batch each, so that neither padding nor a mask is needed."""
    sizes = [texts * length for texts, length in context.equal_length_runs]
    parts = (torch.split(x_THK, sizes) for x_THK in (q_THK, k_THK, v_THK))
    outputs = []
    for (texts, _), *qkv_THK in zip(context.equal_length_runs, *parts, strict=True):
        q_BHLK, k_BHLK, v_BHLK = (_to_batch(x_THK, texts) for x_THK in qkv_THK)
        out_BHLK = F.scaled_dot_product_attention(q_BHLK, k_BHLK, v_BHLK, None, dropout, context.causal)
        outputs.append(out_BHLK.transpose(1, 2).flatten(0, 1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _sdpa_attention(
    q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, context: AttentionContext, dropout: float
) -> Tensor:
    if context.mask is None:
        return F.scaled_dot_product_attention(q_BHLK, k_BHLK, v_BHLK, None, dropout, context.causal)
    return masked_attention(q_BHLK, k_BHLK, v_BHLK, context.mask, dropout)


def masked_attention(q_BHLK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """Attention of queries to S keys where `mask` [B, 1, L, S] is True; no row of it may be empty."""
    # cuDNN, torch's first choice on an H200, gives NaN gradients where rows of a mask end inside a tile (torch 2.11)
    with sdpa_kernel(NOT_CUDNN) if q_BHLK.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(q_BHLK, k_BHSK, v_BHSK, mask, dropout)


def _eager_attention(
    q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, context: AttentionContext, dropout: float
) -> tuple[Tensor, Tensor]:
    assert context.mask is not None
    scores_BHLL = q_BHLK @ k_BHLK.transpose(-1, -2) * q_BHLK.shape[-1] ** -0.5
    probabilities_BHLL = scores_BHLL.masked_fill(~context.mask, -torch.inf).softmax(-1)
    return F.dropout(probabilities_BHLL, dropout) @ v_BHLK, probabilities_BHLL
