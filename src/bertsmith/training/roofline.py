"""FLOPs of a model, and what a device achieves in matrix products, copies and attention.

FLOPs are those of useful matrix products in forward and backward, counted alike for every implementation: each layer at
each token, attention over the whole row, heads only at labels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bertsmith.model_io.model import Model
from bertsmith.nn.attention import HAS_TRITON, Attention
from bertsmith.nn.decoder import CrossAttention
from bertsmith.objectives.objective import Objective
from bertsmith.system.devices import supports_fp8

WIDTH, HEADS, HEAD_WIDTH = 768, 12, 64  # of BERT base
SHAPES = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
LENGTHS = (128, 512)
KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "plain": SDPBackend.MATH,
}
RUNS, MIN_SECONDS = 15, 0.02
WARMUP_RUNS = 3  # before the capture: compilation
FLOPS_PER_WEIGHT = 6  # of a matrix, for each token: 2 forward, 4 backward
WORTH_COMPILING = 60.0  # seconds of steps: compilation takes most of a minute
SHORT_STEP = 0.15  # seconds: CUDA graphs gained 1.3 % of a step of 0.07 s on an H200, far more of shorter ones


def flops_per_token(model: Model, *, length: int, labels: Mapping[str, float]) -> float:
    """FLOPs of a token in rows of `length` tokens; `labels`: labels per token, by objective."""
    table, pooler = model.encoder.token_embeddings, getattr(model.encoder, "pooler", None)  # reads first tokens only
    weights: float = sum(_token_weights(part, length) for part in model.encoder.execution_order() if part is not pooler)
    objectives = [part for part in model.objectives.modules() if isinstance(part, Objective)]
    heads = list(model.objectives.children())
    weights *= not heads or any(head.reads_encoding for head in heads)
    weights /= 1 + model.encoder.has_decoder  # a token is in the source or in the target, about as many in either
    weights *= 1 + sum(objective.reads_copy for objective in objectives)
    for objective in objectives:
        per_token = objective.per_token_modules()
        inner = [part for part in objective.modules() if isinstance(part, Objective) and part is not objective]
        head = _matrix_weights(objective) - sum(map(_matrix_weights, [*per_token, *inner]))
        tied = table.numel() if objective.tied and table is not None else 0
        weights += sum(_token_weights(part, length) for part in per_token)
        weights += (head + tied) * labels.get(objective.name, 0.0)
    return FLOPS_PER_WEIGHT * weights


def step_seconds(model: Model, *, tokens: int, length: int, peak: float) -> float:
    """Estimated seconds of a step at half of the peak FLOP/s, without heads and embeddings."""
    return 2 * flops_per_token(model, length=length, labels={}) * tokens / peak


def _token_weights(part: nn.Module, length: int) -> int:
    """Weights that each token is multiplied with, the products of attention included."""
    widths = [module.output.in_features for module in part.modules() if isinstance(module, Attention | CrossAttention)]
    return _matrix_weights(part) + 2 * length * sum(widths)


def _matrix_weights(part: nn.Module) -> int:
    """Weights of all matrices, stacked ones included, but embedding tables."""
    embeddings = [module for module in part.modules() if isinstance(module, nn.Embedding)]
    tables = {id(weight) for module in embeddings for weight in module.parameters()}
    return sum(weight.numel() for weight in part.parameters() if weight.dim() in (2, 3) and id(weight) not in tables)


@dataclass(frozen=True)
class Ceiling:
    what: str
    precision: str
    value: float
    unit: str  # TFLOP/s, GB/s or ms


def measure(
    device: torch.device, *, size: int = 8192, tokens: int = 65_536, say: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Products of square matrices and of BERT's shapes, copies, attention forward and backward over `tokens` tokens.

    On a CPU in float32 only: most are slow in narrower types.
    """
    results = []
    for one in chain(_products(device, size, tokens), _copies(device, size), _attentions(device, tokens)):
        say(f"{one.what} {one.precision}: {one.value:,.1f} {one.unit}")
        results.append(asdict(one))
    return results


def _products(device: torch.device, size: int, tokens: int) -> Iterator[Ceiling]:
    for rows, inner, outer in [(size, size, size), *((tokens, inner, outer) for inner, outer in SHAPES)]:
        what, work = f"product {rows:,} × {inner:,} × {outer:,}", 2 * rows * inner * outer
        left, right = torch.randn(rows, inner, device=device), torch.randn(outer, inner, device=device)
        for precision in (torch.float32, torch.bfloat16) if device.type != "cpu" else (torch.float32,):
            seconds = median_seconds(partial(F.linear, left.to(precision), right.to(precision)), device)
            yield Ceiling(what, _name(precision), work / seconds / 1e12, "TFLOP/s")
        if device.type == "cuda" and supports_fp8(device):
            one, kind = torch.ones((), device=device), torch.float8_e4m3fn
            how: dict[str, Any] = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
            seconds = median_seconds(partial(torch._scaled_mm, left.to(kind), right.to(kind).t(), **how), device)
            yield Ceiling(what, _name(kind), work / seconds / 1e12, "TFLOP/s")


def _copies(device: torch.device, size: int) -> Iterator[Ceiling]:
    source, target = torch.zeros(size * size, device=device), torch.empty(size * size, device=device)
    moved = source.numel() * source.element_size()
    seconds = median_seconds(lambda: target.copy_(source), device)
    yield Ceiling("copy within the device, read and write", "float32", 2 * moved / seconds / 1e9, "GB/s")
    if device.type == "cuda":
        pinned = torch.zeros(source.shape, pin_memory=True)
        seconds = median_seconds(lambda: target.copy_(pinned, non_blocking=True), device)
        yield Ceiling("copy from pinned memory", "float32", moved / seconds / 1e9, "GB/s")


def _attentions(device: torch.device, tokens: int) -> Iterator[Ceiling]:
    from torch.nn.attention.varlen import varlen_attn  # imports torch's compiler: seconds

    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    for length in LENGTHS:
        rows = max(tokens // length, 1)
        qkv = torch.randn(rows * length, 3, HEADS, HEAD_WIDTH, device=device, dtype=precision, requires_grad=True)
        gradient = torch.randn(rows * length, HEADS, HEAD_WIDTH, device=device, dtype=precision)
        run = partial(_forward_backward, qkv=qkv, gradient=gradient)
        what = f"attention forward and backward, {rows * length:,} tokens in rows of {length}"
        for name, kernel in KERNELS.items():
            with sdpa_kernel(kernel):
                yield from _timed(f"{what}, {name}", partial(run, partial(_dense, rows=rows)), device, precision)
        if device.type == "cuda":
            cu_seqlens = torch.arange(0, (rows + 1) * length, length, device=device, dtype=torch.int32)
            variable = partial(varlen_attn, cu_seq_q=cu_seqlens, cu_seq_k=cu_seqlens, max_q=length, max_k=length)
            yield from _timed(f"{what}, variable", partial(run, variable), device, precision)
        if device.type == "cuda" and HAS_TRITON:
            yield from _timed(f"{what}, packed", partial(_packed, length, qkv, gradient), device, precision)


def _dense(q: Tensor, k: Tensor, v: Tensor, *, rows: int) -> Tensor:
    q, k, v = (part.view(rows, -1, HEADS, HEAD_WIDTH).transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1)


def _packed(length: int, qkv: Tensor, gradient: Tensor) -> None:
    from bertsmith.nn.kernels.attention import attend  # imports triton

    index = torch.arange(qkv.shape[0], device=qkv.device, dtype=torch.int32)
    begin = index - index % length
    qkv.grad = None
    attend(qkv, begin, begin + length, dropout=0.0, causal=False).backward(gradient)  # type: ignore[no-untyped-call]


def _forward_backward(attend: Callable[..., Any], *, qkv: Tensor, gradient: Tensor) -> None:
    qkv.grad = None
    attend(*qkv.unbind(1)).backward(gradient)


def _timed(what: str, run: Callable[[], Any], device: torch.device, precision: torch.dtype) -> Iterator[Ceiling]:
    """Empty where the device lacks the kernel."""
    try:
        seconds = median_seconds(run, device)
    except RuntimeError:
        return
    yield Ceiling(what, _name(precision), 1e3 * seconds, "ms")


def _name(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")


def median_seconds(run: Callable[[], Any], device: torch.device) -> float:
    """The median of several measurements, each of many runs where one is short."""
    run()
    once = max(_clocked(run, device, times=1), 1e-7)
    times = max(1, min(100, round(MIN_SECONDS / RUNS / once)))
    return statistics.median(_clocked(run, device, times=times) / times for _ in range(RUNS))


def device_seconds(run: Callable[[], Any], device: torch.device) -> float:
    """As `median_seconds`, without launch overhead: on CUDA a graph is replayed."""
    if device.type != "cuda":
        return median_seconds(run, device)
    for _ in range(WARMUP_RUNS):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return median_seconds(graph.replay, device)


def _clocked(run: Callable[[], Any], device: torch.device, *, times: int) -> float:
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(times):
            run()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    began = time.perf_counter()
    for _ in range(times):
        run()
    return time.perf_counter() - began
