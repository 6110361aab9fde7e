"""Errors of the kernels of the Transformer for translation, run on the CPU with triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch
from model_fixtures import random_rows
from torch import Tensor

from bertsmith.data.collate import collate
from bertsmith.encoders import seq2seq
from bertsmith.nn import attention
from bertsmith.nn.decoder import make_cross_attention_context
from bertsmith.nn.hypothesis_cache import HypothesisCache
from bertsmith.nn.kernels import cached_attention, cross_attention, linear_relu

Case = tuple[list[list[int]], list[list[int]], float]  # document ids of targets and of sources, dropout
HEADS, WIDTH = 2, 16
CASES: dict[str, Case] = {
    "one pair per row": ([[1] * 7, [1] * 7], [[1] * 9, [1] * 9], 0.0),
    "padding on both sides": ([[1] * 5 + [0] * 3, [1] * 8], [[1] * 20 + [0], [1] * 2 + [0] * 19], 0.0),
    "several pairs per row": ([[1] * 23 + [2] * 9 + [3] * 40], [[1] * 17 + [2] * 30 + [3] * 3 + [0] * 6], 0.0),
    "padding of the target alone": ([[1] * 4 + [0] * 28], [[1] * 33], 0.0),
    "with dropout": ([[1] * 23 + [2] * 9, [1] * 32], [[1] * 7 + [2] * 33, [1] * 36 + [0] * 4], 0.3),
}


def kept(queries: int, keys: int, dropout: float) -> Tensor:
    """Which query-key pairs of each head dropout keeps [H, T, S]."""
    torch.manual_seed(5)
    of_queries, of_keys = (each.long() % 2**32 for each in cross_attention.draw((queries, keys), torch.device("cpu")))
    results = []
    for head in range(HEADS):
        number = (head * 0x9E3779B9 + 0x5BF03635) % 2**32
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            number = (number ^ (number >> shift)) * factor % 2**32
        of_head = (number ^ (number >> 16)) | 1
        product = (of_head * of_queries % 2**32)[:, None] * of_keys  # wraps at 2**64, a multiple of 2**32
        results.append(product % 2**32 >= round(dropout * 2**32))
    return torch.stack(results)


def errors(targets: list[list[int]], sources: list[list[int]], dropout: float) -> dict[str, float]:
    """Of outputs and gradients of target tokens that are not padding."""
    target_ids, source_ids = (torch.tensor(ids, dtype=torch.int32) for ids in (targets, sources))
    context = make_cross_attention_context(target_ids, source_ids, ranges=True)
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(target_ids.numel(), HEADS, WIDTH, generator=draw).requires_grad_()
    kv = torch.randn(source_ids.numel(), 2, HEADS, WIDTH, generator=draw).requires_grad_()
    valid = (target_ids != 0).flatten()
    gradient = torch.randn(q.shape, generator=draw) * valid[:, None, None]
    torch.manual_seed(5)
    out = cross_attention.attend(q, kv, context.key_ranges, context.query_ranges, dropout=dropout)
    actual = torch.autograd.grad(out, (q, kv), gradient)
    row = [torch.arange(len(ids))[:, None].expand_as(ids).flatten() for ids in (target_ids, source_ids)]
    visible = (row[0][:, None] == row[1]) & (target_ids.flatten()[:, None] == source_ids.flatten())
    scores = torch.einsum("thk,shk->hts", q.double(), kv[:, 0].double()) * WIDTH**-0.5
    probabilities = scores.masked_fill(~visible, -1e30).softmax(-1)
    if dropout:
        probabilities = probabilities * kept(len(q), len(kv), dropout) / (1 - dropout)
    expected = torch.einsum("hts,shk->thk", probabilities, kv[:, 1].double())
    reference = torch.autograd.grad(expected, (q, kv), gradient.double())
    return {
        "output": (out - expected)[valid].abs().max().item(),
        "finite": float(out.isfinite().all()),
        "gradient": max((one - other).abs().max().item() for one, other in zip(actual, reference, strict=True)),
    }


def cached_errors() -> dict[str, float]:
    """Of attention to the tokens of reordered hypotheses, relative to a cache that is reordered itself."""
    draw, count, length = torch.Generator().manual_seed(0), 6, 37
    shape = attention.AttentionShape(HEADS, WIDTH, 0.0, causal=True)
    size: dict[str, Any] = {"layers": 1, "hypotheses": count, "length": length}
    cache = HypothesisCache.empty(shape, **size, device=torch.device("cpu"), dtype=torch.float32)
    memory, largest = torch.zeros(count, 0, 2, HEADS, WIDTH), 0.0
    steps = {0, 1, 14, 15, 16, 17, 31, 32, length - 1}  # where tiles of 16 tokens begin and end
    for step in range(length):
        q, pairs = (torch.randn(count, *more, HEADS, WIDTH, generator=draw) for more in ((), (2,)))
        cache.begin()
        layer = cache.layer(0)
        layer.write(pairs)
        memory = torch.cat([memory, pairs[:, None]], 1)
        scores = torch.einsum("mhk,mlhk->mhl", q, memory[:, :, 0]) * WIDTH**-0.5
        expected = torch.einsum("mhl,mlhk->mhk", scores.softmax(-1), memory[:, :, 1])
        if step in steps:
            by_kernel = cached_attention.attend(q, layer.memory, layer.rows, layer.step)
            for actual in (by_kernel, layer.attend(q, None)):
                largest = max(largest, (actual - expected).abs().max().item())
        cache.step.add_(1)
        order = torch.randint(0, count, (count,), generator=draw)
        cache.reorder(order)
        memory = memory[order]
    return {"output": largest}


def model_errors() -> dict[str, float]:
    """Of a translation model's hidden states and gradients, relative to attention with masks."""
    config = seq2seq.Config(layers=2, width=32, heads=2, vocab_size=120, dropout=0.0)
    torch.manual_seed(0)
    model = config.build()
    sources, targets = (
        random_rows(lengths, seed=seed, pairs=False) for seed, lengths in enumerate(([9, 21, 5], [14, 3, 8]))
    )
    batch = collate(sources, length=40, pack=True).replace(target=collate(targets, length=30, pack=True))
    valid = batch.target.document_ids.flatten() != 0
    results = []
    for ranges in (False, True):
        seq2seq.runs_triton = lambda *_, ranges=ranges: ranges
        model.zero_grad()
        hidden = model(batch).target.last_hidden[valid]
        hidden.square().sum().backward()
        results.append((hidden, torch.cat([each.grad.flatten() for each in model.parameters()])))
    differences = [(one - other).norm() / one.norm() for one, other in zip(*results, strict=True)]
    return dict(zip(("output", "gradient"), (value.item() for value in differences), strict=True))


def linear_relu_errors() -> dict[str, float]:
    """Of the outputs and gradients of a linear layer with ReLU, and of its parameters."""
    draw = torch.Generator().manual_seed(0)
    x, weight, bias, gradient = (torch.randn(size, generator=draw) for size in ((37, 6), (20, 6), (20,), (37, 20)))
    results = []
    for function in (linear_relu.linear_relu, lambda *given: torch.relu(torch.nn.functional.linear(*given))):
        given = [each.clone().requires_grad_() for each in (x, weight, bias)]
        out = function(*given)
        results.append([out, *torch.autograd.grad(out, given, gradient)])
    return {"output": max((one - other).abs().max().item() for one, other in zip(*results, strict=True))}


def all_errors() -> dict[str, dict[str, float]]:
    cross_attention.FORWARD_TILES.update(BLOCK_M=16, BLOCK_N=16)
    cross_attention.BACKWARD_TILES.update(BLOCK_M=16, BLOCK_N=32)
    cross_attention.FEW_QUERIES = 16
    cached_attention.TILES.update(BLOCK_N=16)
    linear_relu.BACKWARD_TILES.update(BLOCK_M=4, BLOCK_N=16, REPEATS=3)
    results = {name: errors(*case) for name, case in CASES.items()}
    results["linear layer with ReLU"] = linear_relu_errors()
    return {**results, "reordered hypotheses": cached_errors(), "translation model": model_errors()}
