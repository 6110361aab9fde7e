"""The division by √d_k (Vaswani et al. 2017, §3.2.1): entropy and gradient of attention against the width of a head.

Q queries, S keys of width K, independent and of variance 1.
"""

from __future__ import annotations

import argparse
from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

from bench.ten_minutes.drawing import draw

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
QUERIES, KEYS = 4096, 64


@dataclass(frozen=True)
class Softmax:
    """The softmax of some scores: means over queries, if not stated otherwise."""

    deviation: float  # of the scores
    entropy: float  # of the weights, in nats; log KEYS for equal ones
    largest: float  # of the weights
    gradient: float  # norm at the scores, for a gradient of variance 1 at each weight
    median_gradient: float  # half of the queries have a smaller one


def measure(width: int, *, scaled: bool, queries: int = QUERIES, keys: int = KEYS, seed: int = 0) -> Softmax:
    """The softmax of the dot products of random queries and keys of a width."""
    draw_from = torch.Generator().manual_seed(seed)
    q_QK, k_SK, upstream_QS = (
        torch.randn(size, generator=draw_from, dtype=torch.float64)
        for size in ((queries, width), (keys, width), (queries, keys))
    )
    scores_QS: Tensor = (q_QK @ k_SK.T * (width**-0.5 if scaled else 1.0)).requires_grad_()
    weights_QS = scores_QS.softmax(-1)
    (gradient_QS,) = torch.autograd.grad((weights_QS * upstream_QS).sum(), scores_QS)
    entropy_Q = torch.special.entr(weights_QS.detach()).sum(-1)
    return Softmax(
        scores_QS.std().item(),
        entropy_Q.mean().item(),
        weights_QS.amax(-1).mean().item(),
        gradient_QS.norm(dim=-1).mean().item(),
        gradient_QS.norm(dim=-1).median().item(),
    )


def add_options(command: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(options: argparse.Namespace) -> None:
    """Prints the table, and draws entropy and gradient against the width."""
    names = [one.name.replace("_", " ") for one in fields(Softmax)]
    print(f"| d_k | {' | '.join(f'{name}, scaled | not scaled' for name in names)} |")
    print("|---" * (1 + 2 * len(names)) + "|")
    found = {width: (measure(width, scaled=True), measure(width, scaled=False)) for width in WIDTHS}
    for width, pair in found.items():
        cells = [f"{value:.3g}" for both in zip(*map(astuple, pair), strict=True) for value in both]
        print(f"| {width} | {' | '.join(cells)} |")
    if options.output is None:
        return
    for name, up in {
        "entropy": "entropy in nats",
        "median_gradient": "median norm of the gradient at the scores",
    }.items():
        lines = {
            label: [(float(width), getattr(pair[side], name)) for width, pair in found.items()]
            for side, label in enumerate(("divided by √d_k", "not divided"))
        }
        picture = draw(lines, across="width of a head, d_k", up=up, log_across=True)
        (options.output / f"softmax_{name.removeprefix('median_')}.svg").write_text(picture, encoding="utf-8")
