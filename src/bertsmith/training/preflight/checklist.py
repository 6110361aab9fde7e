"""The checks in their order, each with those that it builds on. A problem keeps only those from being made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bertsmith.errors import BertsmithError
from bertsmith.system.devices import choose_device
from bertsmith.training.preflight import rows, run_folder, trial
from bertsmith.training.preflight.case import Finding, PreflightContext, problem
from bertsmith.training.recipe import Recipe
from bertsmith.training.world import World


class Check(NamedTuple):
    """One line of the list."""

    name: str
    look: Callable[[PreflightContext], Finding | None]  # None where there is nothing to look at
    needs: tuple[str, ...] = ()


CHECKS = (
    Check("recipe", rows.recipe),
    Check("micro-batches", rows.micro_batches),
    Check("shards", rows.shards),
    Check("tokenizer", rows.tokenizer, ("shards",)),
    Check("rows", rows.rows, ("tokenizer",)),
    Check("held out", rows.held_out, ("rows",)),
    Check("run folder", run_folder.run_folder, ("tokenizer",)),
    Check("model", trial.model, ("rows", "micro-batches")),
    Check("memory", trial.memory, ("model",)),
    Check("step", trial.step, ("model",)),
    Check("speed", trial.speed, ("step",)),
    Check("disk", run_folder.disk, ("step",)),
)


def check(
    recipe: Recipe, data: str | Path, *, output: str | Path | None = None, device: str = "auto"
) -> Iterator[Finding]:
    """Findings, one after another as they are made. Writes nothing; `output` is the run folder that would be used."""
    world = World(device=torch.device(choose_device(device)))
    case = PreflightContext(recipe, Path(data), None if output is None else Path(output), world)
    failed: set[str] = set()
    for one in CHECKS:
        if failed.intersection(one.needs):
            failed.add(one.name)
            continue
        try:
            found = one.look(case)
        except BertsmithError as error:
            found = problem(error)
        except torch.OutOfMemoryError:
            found = problem(trial.out_of_memory(case))
        if found is not None:
            if found.error is not None:
                failed.add(one.name)
            yield replace(found, name=one.name)


def summary(findings: Sequence[Finding]) -> dict[str, Any]:
    """All findings as plain values."""
    problems = [found.text for found in findings if found.error is not None]
    return {"ok": not problems, "problems": problems, "checks": [found.to_dict() for found in findings]}
