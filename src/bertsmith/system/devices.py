"""Choice of a device, and its peak throughput."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from bertsmith.errors import BertsmithError

MIN_SECONDS = 0.01  # of a matrix product, so that it can be timed
SEARCH_SECONDS = 0.25  # for the fastest of several products
PROC_CGROUP, CGROUPS, MEMINFO = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"), Path("/proc/meminfo")
FP8_CAPABILITY = (8, 9)  # of the first CUDA devices with FP8 matrix products


def choose_device(name: str) -> str:
    """`auto` takes CUDA, else MPS, else the CPU; a named device must be available."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if available[device])
    if name.startswith("cuda:"):
        number = name.removeprefix("cuda:")
        raise BertsmithError(f"--device {name}: set CUDA_VISIBLE_DEVICES={number} and pass --device cuda")
    if name not in available:
        near = "; did you mean cuda?" if name.lower() in ("gpu", "nvidia") else ""
        raise BertsmithError(f"--device {name} is unknown: choose auto, cpu, cuda or mps{near}")
    if not available[name]:
        known = ", ".join(device for device in available if available[device])
        raise BertsmithError(
            f"--device {name} is not available: torch {torch.__version__} finds only {known}: pass --device auto"
        )
    return name


def cpu_memory_bytes() -> int:
    """The memory of this machine, or the limit of this process's control group where that is lower."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, ValueError):
        for line in PROC_CGROUP.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            base, name = (CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (CGROUPS, "memory.max")
            group = base / path.strip("/")  # a container may see its group as the root
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # "max": no limit
                    limits.append(int((folder / name).read_text(encoding="utf-8")))
    return min(limit for limit in limits if limit > 0)


def swap_bytes() -> int | None:
    """The swap space of this machine; None where it has no fixed size."""
    with suppress(OSError, ValueError, IndexError):
        lines = MEMINFO.read_text(encoding="utf-8").splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("SwapTotal:")), None)
    return None


def supports_fp8(device: torch.device) -> bool:
    """Whether a CUDA device has FP8 matrix products."""
    return torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large product of random matrices, the best of several; takes 0.3 s."""
    size = 8192 if device.type == "cuda" else 128
    matrix = _random_matrix(size, device, dtype)
    _product_seconds(matrix)  # the first product also loads libraries
    while device.type != "cuda" and size < 1024:  # bfloat16 may be very slow
        if min(_product_seconds(matrix), _product_seconds(matrix)) >= MIN_SECONDS:  # another process may delay one
            break
        size *= 2
        matrix = _random_matrix(size, device, dtype)
    until, best = time.monotonic() + SEARCH_SECONDS, _product_seconds(matrix)
    while time.monotonic() < until:
        best = min(best, _product_seconds(matrix))
    return 2 * size**3 / best


@cache
def cached_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """`measure_peak_flops` once per process: for sweeps of short runs, which may share the device."""
    return measure_peak_flops(device, dtype)


def _random_matrix(size: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers: a product of ones takes less power and less time."""
    generator = torch.Generator(device).manual_seed(0)  # leaves the global generator unchanged
    return torch.randn(size, size, device=device, generator=generator).to(dtype)


def _product_seconds(matrix: torch.Tensor) -> float:
    is_cuda = matrix.device.type == "cuda"
    if is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    matrix @ matrix
    if is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
