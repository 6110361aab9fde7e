"""Which device the work runs on, and what it can do at most."""

from __future__ import annotations

import time
from functools import cache

import torch

from bertsmith.errors import BertsmithError

LONG = 0.01  # seconds of a product that need not be longer to be timed
LOOKING = 0.25  # seconds for the fastest product
EIGHT_BITS = (8, 9)  # capability of the first CUDA devices with products in eight bits


def choose_device(asked: str) -> str:
    """`auto` takes CUDA, else MPS, else the CPU; a device asked for by name must be there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if asked == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if there[name])
    if asked not in there:
        raise BertsmithError(f"--device {asked} is not known: auto, cpu, cuda or mps")
    if not there[asked]:
        found = ", ".join(name for name in there if there[name])
        raise BertsmithError(f"--device {asked} was asked for, but torch {torch.__version__} finds only {found} here")
    return asked


def supports_fp8(device: torch.device) -> bool:
    """Whether a CUDA device multiplies matrices in eight bits."""
    return torch.cuda.get_device_capability(device) >= EIGHT_BITS


def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of one large product of random matrices, the best of several: what this device can do at most. 0.3 s."""
    size = 8192 if device.type == "cuda" else 128
    left = _random(size, device, dtype)
    _product_seconds(left)  # the first one also starts libraries
    while device.type != "cuda" and size < 1024 and _shorter_of_two(left) < LONG:  # bfloat16 may be very slow there
        size *= 2
        left = _random(size, device, dtype)
    until, best = time.monotonic() + LOOKING, _product_seconds(left)
    while time.monotonic() < until:
        best = min(best, _product_seconds(left))
    return 2 * size**3 / best


@cache
def cached_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """The same, measured once in a process: for the many short runs of a sweep, which may share the device."""
    return measure_peak_flops(device, dtype)


def _random(size: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Numbers such as occur: a product of ones takes less power, and less time."""
    draw = torch.Generator(device).manual_seed(0)  # nobody else's draws change by it
    return torch.randn(size, size, device=device, generator=draw).to(dtype)


def _shorter_of_two(left: torch.Tensor) -> float:
    """Seconds of a product; one that was kept waiting by something else does not count."""
    return min(_product_seconds(left), _product_seconds(left))


def _product_seconds(left: torch.Tensor) -> float:
    waits = left.device.type == "cuda"
    if waits:
        torch.cuda.synchronize()
    began = time.perf_counter()
    left @ left
    if waits:
        torch.cuda.synchronize()
    return time.perf_counter() - began
