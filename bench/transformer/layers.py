"""Time and memory of one layer by the length of the text (Vaswani et al. 2017, §4, table 1).

B = 1 text, L tokens, D width, H heads.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.ten_minutes.drawing import draw

LENGTHS = (64, 128, 256, 512, 1024, 2048)
WIDTH, HEADS, KERNEL = 256, 4, 3


class SelfAttention(nn.Module):
    """Multi-head attention with its four projections; `fused` never stores the weights [H, L, L]."""

    def __init__(self, width: int, *, fused: bool) -> None:
        super().__init__()
        self.qkv, self.output, self.fused = nn.Linear(width, 3 * width), nn.Linear(width, width), fused

    def forward(self, x_BLD: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x_BLD).chunk(3, -1)
        )  # [B, H, L, D / H]
        if self.fused:
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            out = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v
        attended: Tensor = self.output(out.transpose(1, 2).flatten(2))
        return attended


class Recurrent(nn.Module):
    """An LSTM: every step waits for the step before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x_BLD: Tensor) -> Tensor:
        out_BLD: Tensor = self.lstm(x_BLD)[0]
        return out_BLD


class Convolution(nn.Module):
    """A convolution over `KERNEL` tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2)

    def forward(self, x_BLD: Tensor) -> Tensor:
        out_BLD: Tensor = self.convolution(x_BLD.transpose(1, 2)).transpose(1, 2)
        return out_BLD


class Cost(NamedTuple):
    """Of a forward and a backward pass."""

    seconds: float
    mebibytes: float  # that the forward pass keeps for the backward pass


def layers_of(width: int) -> dict[str, nn.Module]:
    """The layers by name."""
    return {
        "self-attention": SelfAttention(width, fused=False),
        "self-attention, fused": SelfAttention(width, fused=True),
        "recurrent (LSTM)": Recurrent(width),
        f"convolution over {KERNEL}": Convolution(width),
    }


def kept_bytes(layer: nn.Module, x_BLD: Tensor) -> int:
    """The bytes of the tensors that the forward pass keeps for the backward pass, weights excluded."""
    weights = {one.untyped_storage().data_ptr() for one in layer.parameters()}
    kept: list[Tensor] = []  # alive until the end, so that no two have the same address

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x_BLD)
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    return sum(size for address, size in storages.items() if address not in weights)


def measure(layer: nn.Module, length: int, *, width: int, device: str, repeats: int) -> Cost:
    """The cost of a layer; the time is the least of some passes after one that is not counted, on a CPU CPU seconds."""
    x_BLD = torch.randn(1, length, width, device=device, requires_grad=True)
    seconds, clock = [], time.perf_counter if device == "cuda" else time.process_time
    for _ in range(repeats + 1):
        began = clock()
        layer(x_BLD).sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - began)
    return Cost(min(seconds[1:]), kept_bytes(layer, x_BLD) / 2**20)


def exponent(costs: Sequence[float], lengths: Sequence[int]) -> float:
    """The growth from the last length but one to the last, as a power of the length."""
    return math.log(costs[-1] / costs[-2]) / math.log(lengths[-1] / lengths[-2])


def add_options(command: argparse.ArgumentParser) -> None:
    """Device, width, lengths, repetitions."""
    command.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    command.add_argument("--width", type=int, default=WIDTH)
    command.add_argument("--lengths", type=lambda text: tuple(map(int, text.split(","))), default=LENGTHS)
    command.add_argument("--repeats", type=int, default=5)


def run(options: argparse.Namespace) -> None:
    """Prints the table, and draws time and memory against the length; on one thread of a CPU."""
    torch.set_num_threads(1)
    lengths, found = options.lengths, dict[str, list[Cost]]()
    torch.manual_seed(0)
    for name, layer in layers_of(options.width).items():
        layer.to(options.device)
        how = {"width": options.width, "device": options.device, "repeats": options.repeats}
        found[name] = [measure(layer, length, **how) for length in lengths]
    for field, unit, factor in (("seconds", "ms", 1000.0), ("mebibytes", "MiB", 1.0)):
        print(f"| {unit} | {' | '.join(map(str, lengths))} | grows with |\n|---{'|---' * (len(lengths) + 1)}|")
        for name, costs in found.items():
            values = [getattr(cost, field) for cost in costs]
            cells = [f"{value * factor:.3g}" for value in values]
            print(f"| {name} | {' | '.join(cells)} | L^{exponent(values, lengths):.2f} |")
        print()
        if options.output is not None:
            lines = {
                name: [
                    (float(length), factor * getattr(cost, field)) for length, cost in zip(lengths, costs, strict=True)
                ]
                for name, costs in found.items()
            }
            picture = draw(lines, across="tokens of the text", up=unit, log_across=True, log_up=True)
            (options.output / f"layer_{field}.svg").write_text(picture, encoding="utf-8")
