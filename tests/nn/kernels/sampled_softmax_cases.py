"""Errors of the sampled softmax kernel, run on the CPU with triton's interpreter."""

from __future__ import annotations

import torch

from bertsmith.nn.kernels import sampled_softmax

SHAPES = {"whole blocks": (6, 32), "partial last block": (7, 21), "less than a block": (3, 5)}  # rows, sampled tokens
WIDTH = 8


def errors(rows: int, samples: int) -> dict[str, float]:
    """Of the loss and its gradients; wrong accuracies, and correct ones."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((rows, WIDTH), (rows,), (samples, WIDTH), (samples,))
    tensors = [torch.randn(shape, generator=draw) * 2 for shape in shapes]
    sampled = torch.randperm(samples * 2, generator=draw)[:samples]
    target = torch.randint(0, samples * 2, (rows,), generator=draw)
    target[0] = sampled[0]  # a label among the sampled tokens
    known = torch.ones(rows, dtype=torch.bool)
    known[1] = False
    tensors[1][2] = 99.0  # a correct prediction
    actual, reference = ([each.clone().requires_grad_() for each in tensors] for _ in range(2))
    loss, correct = sampled_softmax.sampled_softmax(*actual, sampled, target, known)
    (loss * 0.5).backward()
    x, own, table, bias = (each.double() for each in reference)
    logits = (x @ table.t() + bias).masked_fill(target[:, None] == sampled, -1e30)
    losses = torch.logaddexp(logits.logsumexp(-1), own) - own
    (losses[known].sum() * 0.5).backward()
    gradients = [(one.grad - other.grad).abs().max().item() for one, other in zip(actual, reference, strict=True)]
    expected = known & (own > logits.amax(-1))
    return {
        "loss": abs(loss.item() / losses[known].sum().item() - 1),
        "gradient": max(gradients),
        "wrong": (correct != expected).sum().item(),
        "correct": correct.sum().item(),
    }


def all_errors() -> dict[str, dict[str, float]]:
    sampled_softmax.TILES.update(BLOCK=16)
    return {name: errors(*shape) for name, shape in SHAPES.items()}
