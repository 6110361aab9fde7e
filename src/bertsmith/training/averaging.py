"""The average of a run's last checkpoints as a model folder (Vaswani et al. 2017, §6.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors
from torch import Tensor

from bertsmith.errors import BertsmithError, DataError
from bertsmith.model_io.model_folder import check_target, open_model, save_model
from bertsmith.model_io.run_folder import MODELS, RECIPE
from bertsmith.training.checkpoints import WEIGHTS, Checkpoint, Checkpoints


def average_checkpoints(
    run: str | Path, output: str | Path, *, last: int = 5, overwrite: bool = False
) -> dict[str, Any]:
    """Writes the mean of the weights of the `last` checkpoints, with the run's tokenizer; returns their steps."""
    run, output = Path(run), Path(output)
    check_target(output, replace=overwrite)
    checkpoints = _last_checkpoints(run, last)
    template = next((run / name for name in reversed(MODELS) if (run / name).is_dir()), None)
    if template is None:
        raise DataError(f"{run} has no model yet: resume the run, which writes one when it ends")
    model, tokenizer, _ = open_model(template)
    mean, state = average_weights(checkpoints), model.state_dict()
    if missing := [name for name, value in state.items() if name not in mean or mean[name].shape != value.shape]:
        raise DataError(f"{template} has {missing[0]}, which the checkpoints of {run} lack: they are of another model")
    model.load_state_dict({name: mean[name] for name in state})
    steps = [int(checkpoint.folder.name.removeprefix("step-")) for checkpoint in checkpoints]
    facts = {"average of checkpoints": ", ".join(f"step {step:,}" for step in steps)}
    save_model(model, tokenizer, output, facts=facts, replace=overwrite)
    return {"model": str(output), "run": str(run), "steps": steps}


def _last_checkpoints(run: Path, last: int) -> list[Checkpoint]:
    paths = Checkpoints(run).all()
    if not paths:
        found = "has no checkpoints" if (run / RECIPE).is_file() else "is not a run folder"
        raise DataError(f"{run} {found}: pass the -o of a training command")
    if len(paths) < last:
        raise BertsmithError(
            f"--last {last} checkpoints, but {run} has {len(paths)}: pass --last {len(paths)}, or train with "
            f"keep_checkpoints={last} and a smaller save_every"
        )
    return [Checkpoint(path) for path in paths[-last:]]


def average_weights(checkpoints: list[Checkpoint]) -> dict[str, Tensor]:
    """The mean of each weight, summed in float64; of integers the last value. Two checkpoints are in memory at most."""
    sums: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        weights = safetensors.load(checkpoint.read(WEIGHTS))
        if sums and sums.keys() != weights.keys():
            raise DataError(f"{checkpoint.folder} is of another model than the checkpoints before it")
        for name, value in weights.items():
            wide = value.to(torch.float64) if value.is_floating_point() else value
            sums[name] = sums[name] + wide if name in sums and value.is_floating_point() else wide
    means = {name: total / len(checkpoints) for name, total in sums.items() if total.is_floating_point()}
    return {name: means[name].to(value.dtype) if name in means else value for name, value in weights.items()}
