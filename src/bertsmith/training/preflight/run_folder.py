"""Checks of the folder that a run would be written to: whose it is, and whether there is room."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bertsmith.errors import BertsmithError, ConfigError, StorageError
from bertsmith.system.durable import Disk
from bertsmith.training.checkpoints import Checkpoints
from bertsmith.training.loop import recipe_changes
from bertsmith.training.preflight.case import Finding, PreflightContext, megabytes, problem
from bertsmith.training.preflight.sizes import tensor_bytes

MODELS = 3  # best, last, and one that is written before it takes the place of another


def run_folder(case: PreflightContext) -> Finding | None:
    """Whether a run could begin or go on there."""
    folder = case.output
    if folder is None:
        return None
    there = _nearest(folder)
    if not there.is_dir():
        raise BertsmithError(f"{there} is a file: choose another -o")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(f"{there} cannot be written to: choose another -o")
    if not folder.exists():
        return Finding(f"{folder} is not there yet: the run begins there", {"resumes_at": None})
    with Disk().lock(folder):  # an error where another process is working there
        changes = recipe_changes(folder, case.recipe)
        found = Checkpoints(folder, keep=case.recipe.keep_checkpoints).resume()
    if found.checkpoint is None or found.state is None:
        return Finding(f"{folder} holds no checkpoint: the run begins there", {"resumes_at": None, "changes": changes})
    if found.checkpoint.facts != case.data.fingerprints:
        raise ConfigError(f"{folder} was trained on other shards: choose another -o, or pass those")
    notes = [*found.skipped, *changes]
    text = f"{folder} goes on after step {found.state.step:,} of {case.recipe.steps:,}"
    if not case.recipe.minutes and found.state.step >= case.recipe.steps:
        notes.append("this run is finished")
    facts = {"resumes_at": found.state.step, "changes": changes, "passed_over": list(found.skipped)}
    return Finding("; ".join([text, *notes]), facts, "note" if notes else "ok")


def disk(case: PreflightContext) -> Finding:
    """Checkpoints and model folders against what is free."""
    state = case.trainer.state()
    weights = tensor_bytes(state.weights)
    checkpoint = weights + tensor_bytes(state.optimizer)
    keep = Checkpoints(case.output or ".", keep=case.recipe.keep_checkpoints).keep  # too few to keep is an error
    needed = (keep + 1) * checkpoint + MODELS * weights
    facts = {"checkpoint_bytes": checkpoint, "model_bytes": weights, "needed_bytes": needed}
    text = f"{megabytes(needed)} for {keep} + 1 checkpoints of {megabytes(checkpoint)} and {MODELS} models"
    if case.output is None:
        return Finding(f"{text}; -o compares that with what is free", facts)
    free, used = shutil.disk_usage(_nearest(case.output)).free, _used(case.output)
    facts |= {"free_bytes": free, "used_bytes": used}
    text += f"; {megabytes(free)} are free" + (f", {megabytes(used)} already used there" if used else "")
    if needed > free + used:
        return problem(StorageError(f"{text}: choose another -o, or a smaller keep"), facts)
    return Finding(text, facts)


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest above it that is there."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def _used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
