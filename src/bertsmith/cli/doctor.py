"""The command doctor: versions, device, memory, disk, and a numeric check of the device."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import shutil
import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertsmith.cli.options import Device, Json, option, print_result
from bertsmith.errors import BertsmithError

if TYPE_CHECKING:
    from torch import Tensor

app = typer.Typer()
PACKAGES = ("bertsmith", "torch", "numpy", "tokenizers", "safetensors", "pyarrow", "typer", "rich")
MIN_FREE_DISK = 1 << 30  # bytes
# Largest error of outputs and gradients against float64 on the CPU, relative to the largest value.
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}


@app.command()
def doctor(
    device: Device = "auto",
    gpu: Annotated[
        bool, option("--gpu", "Also measure the peak rates of the GPU: matrix products, copies, attention.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine. Shows versions, device, memory and disk, and tests the device's arithmetic."""
    from bertsmith.reports import terminal

    facts = examine("cuda" if gpu else device, ceilings=gpu)
    print_result(facts, as_json, lambda: terminal.doctor_card(facts))
    if not facts["ok"]:
        raise BertsmithError("; ".join(facts["problems"]))


def examine(requested: str = "auto", *, ceilings: bool = False) -> dict[str, Any]:
    """The facts that `doctor` prints. `ceilings` adds the measured peak rates of the device, which takes a while."""
    import torch

    from bertsmith.system.devices import choose_device
    from bertsmith.training.roofline import measure

    device = choose_device(requested)
    checks = [_numeric_check(device, precision) for precision in TOLERANCE]
    disk = shutil.disk_usage(os.getcwd())
    wrong = [check for check in checks if not check["ok"]]
    problems = [f"{one['precision']} on {device} has a relative error of {one['error']:.1e}" for one in wrong]
    if disk.free < MIN_FREE_DISK:
        problems.append(f"only {disk.free:,} bytes free in {os.getcwd()}")
    return {
        "ok": not problems,
        "problems": problems,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in PACKAGES},
        "device": device,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "device_memory_bytes": torch.cuda.mem_get_info()[1] if device == "cuda" else None,
        "disk_free_bytes": disk.free,
        "numeric": checks,
        **({"ceilings": measure(torch.device(device))} if ceilings else {}),
    }


def _numeric_check(device: str, precision: str) -> dict[str, Any]:
    """Outputs and gradients of a small encoder block on the device, compared with float64 on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about kernels that a CPU lacks
        expected, actual = _block("cpu", "float64"), _block(device, precision)
    errors = (float((a - b.double().cpu()).abs().max() / a.abs().max()) for a, b in zip(expected, actual, strict=True))
    error = max(errors)
    return {"precision": precision, "error": error, "ok": math.isfinite(error) and error <= TOLERANCE[precision]}


def _block(device: str, precision: str) -> list[Tensor]:
    import torch
    from torch.nn import functional

    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 96, 64), (64, 64), (64,))
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    inputs, weight, scale = (value.to(device, getattr(torch, precision)).requires_grad_() for value in drawn)
    heads = (inputs @ weight / 8).view(4, 96, 4, 16).transpose(1, 2)
    attended = functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)
    output = functional.gelu(functional.layer_norm(inputs + attended, (64,), scale))
    gradients = torch.autograd.grad(output.square().mean(), (inputs, weight, scale))
    return [output.detach(), *gradients]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
