"""Is this machine fit? Versions, device, memory, disk, and a numeric check of the device against the CPU."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.system.devices import choose_device
from bertsmith.training.roofline import measure

PACKAGES = ("bertsmith", "torch", "numpy", "tokenizers", "safetensors", "pyarrow", "typer", "rich")
LEAST_FREE = 1 << 30  # bytes of disk under which nothing useful can be written
# Largest allowed difference from the CPU in float64, relative to the largest value, forward and backward.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def examine(asked: str = "auto", *, ceilings: bool = False) -> dict[str, Any]:
    """All findings as plain values; `ok` says whether bertsmith can work here, `problems` why not.

    `ceilings`: also what the device can do at most, which takes a while to measure.
    """
    device = choose_device(asked)
    checks = [_numeric_check(device, dtype) for dtype in TOLERANCE]
    disk = shutil.disk_usage(os.getcwd())
    problems = [
        f"{check['precision']} on {device} is wrong by {check['error']:.1e}" for check in checks if not check["ok"]
    ]
    if disk.free < LEAST_FREE:
        problems.append(f"only {disk.free:,} bytes are free in {os.getcwd()}")
    return {
        "ok": not problems,
        "problems": problems,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in PACKAGES},
        "device": device,
        "device_name": _device_name(device),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "device_memory_bytes": torch.cuda.mem_get_info()[1] if device == "cuda" else None,
        "disk_free_bytes": disk.free,
        "numeric": checks,
        **({"ceilings": measure(torch.device(device))} if ceilings else {}),
    }


def _numeric_check(device: str, dtype: torch.dtype) -> dict[str, Any]:
    """A small encoder block forward and backward on the device, against the CPU in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells at length which of its kernels a CPU lacks; the figures tell more
        expected, found = _block("cpu", torch.float64), _block(device, dtype)
    error = max(float((a - b.double().cpu()).abs().max() / a.abs().max()) for a, b in zip(expected, found, strict=True))
    finite = error == error
    return {"precision": str(dtype).split(".")[-1], "error": error, "ok": finite and error <= TOLERANCE[dtype]}


def _block(device: str, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((4, 96, 64), (64, 64), (64,))]
    inputs, weight, scale = (value.to(device, dtype).requires_grad_() for value in drawn)
    heads = (inputs @ weight / 8).view(4, 96, 4, 16).transpose(1, 2)
    attended = nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)
    output = nn.functional.gelu(nn.functional.layer_norm(inputs + attended, (64,), scale))
    gradients = torch.autograd.grad(output.square().mean(), (inputs, weight, scale))
    return [output.detach(), *gradients]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
