"""Which device the work runs on."""

from __future__ import annotations

import torch

from bertsmith.errors import BertsmithError


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
