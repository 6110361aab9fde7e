"""Errors of the cross-entropy kernel, run on the CPU with triton's interpreter."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bertsmith.nn.kernels import cross_entropy
from bertsmith.types import IGNORE_INDEX

SHAPES = {
    "whole chunks": (6, 48),
    "partial last chunk": (7, 50),
    "less than a chunk": (3, 9),
    "without a bias": (7, 50),
    "with label smoothing": (7, 50),
}
WIDTH = 8


def errors(rows: int, tokens: int, *, biased: bool, smoothing: float) -> dict[str, float]:
    """Relative error of the loss, errors of gradients, number of wrong accuracies."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((rows, WIDTH), (tokens, WIDTH), *([(tokens,)] if biased else []))
    tensors = [torch.randn(size, generator=generator) * 3 for size in sizes]
    labels = torch.randint(0, tokens, (rows,), generator=generator)
    labels[0] = int(F.linear(*tensors)[0].argmax())  # a correct prediction
    labels[1] = IGNORE_INDEX
    actual, reference = ([each.clone().requires_grad_() for each in tensors] for _ in range(2))
    total, correct = cross_entropy.linear_cross_entropy(*actual, *([] if biased else [None]), labels, smoothing)
    (total * 0.5).backward()
    logits = F.linear(*(each.double() for each in reference))
    expected = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing)
    (expected * 0.5).backward()
    gradients = [(one.grad - other.grad).abs().max().item() for one, other in zip(actual, reference, strict=True)]
    wrong = (correct != ((logits.argmax(-1) == labels) & (labels != IGNORE_INDEX))).sum().item()
    return {
        "loss": abs(total.item() / expected.item() - 1),
        "gradient": max(gradients),
        "wrong": wrong,
        "correct": correct.sum().item(),
    }


def all_errors() -> dict[str, dict[str, float]]:
    cross_entropy.TILES.update(BLOCK_N=16)
    return {
        name: errors(*shape, biased=name != "without a bias", smoothing=0.1 * (name == "with label smoothing"))
        for name, shape in SHAPES.items()
    }
