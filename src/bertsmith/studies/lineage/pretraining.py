"""One stage of pre-training: a run of some minutes of training steps, evaluated on its own objective as it trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertsmith import config
from bertsmith.errors import ConfigError
from bertsmith.model_io.checksums import read_checksums
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model_folder import save_model
from bertsmith.reports.run_history import LAST
from bertsmith.studies.lineage.models import STAGES, Size, Stage, recipe_of
from bertsmith.studies.lineage.settings import PRETRAIN, TEXT, LineageConfig, is_part_finished, read_part, write_part
from bertsmith.studies.lineage.text import SHARDS
from bertsmith.training.log import NAME as EVENTS
from bertsmith.training.log import read_events
from bertsmith.training.pretrain_data import PretrainData, build_model
from bertsmith.training.recipe import Recipe
from bertsmith.training.run import Evaluation
from bertsmith.training.timed import (
    BY_THE_CLOCK,
    TimedRun,
    compile_times,
    remove_checkpoints,
    timed_run,
    train_timed,
)

POINTS = 12  # of a curve
EVAL_ROWS: Mapping[Size, int] = {"tiny": 32, "quick": 512}
POINT = "point/"  # of metrics in the log


def model_of(study: LineageConfig, stage: str) -> Path:
    """The model folder of a stage."""
    return study.folder(PRETRAIN, stage) / LAST


def pretrain_stage(study: LineageConfig, name: str, *, quiet: bool) -> dict[str, Any]:
    """Trains a stage for its share of the minutes, unless it is finished; returns its facts and its curve."""
    stage, folder = STAGES[study.size][name], study.folder(PRETRAIN, name)
    shards = study.folder(TEXT, stage.tokenizer) / SHARDS
    _check_parts(study, stage)
    data = PretrainData.open(shards)
    start = str(model_of(study, stage.after)) if stage.after else ""
    more = () if not stage.share else (*BY_THE_CLOCK, f"eval_rows={EVAL_ROWS[study.size]}", "patience=0")
    recipe = recipe_of(stage, minutes=study.minutes, seed=study.seed, start=start, more=more)
    recipe = data.with_vocabulary(recipe)
    key = {"settings": config.to_dict(recipe), "fingerprints": data.fingerprints}
    known = read_part(folder, _without_folder(key))
    if known is not None:
        return known
    if stage.after:
        check_weights(study, stage.after)
    train = _train if stage.share else _initialize
    facts = train(study, stage, recipe, data, folder, quiet=quiet)
    facts |= {"model": weights_fingerprint(folder / LAST), **_without_folder(key)}
    write_part(folder, _without_folder(key), facts)
    remove_checkpoints(folder)
    return facts


def weights_fingerprint(folder: Path) -> str:
    """Sixteen hexadecimal digits of the weights of a model folder."""
    files = read_checksums(folder) or {}
    return next((file.sha256[:16] for name, file in files.items() if name.endswith(".safetensors")), "")


def check_weights(study: LineageConfig, stage: str) -> None:
    """Raises where files of the model of a finished stage have been removed."""
    folder = model_of(study, stage)
    files = read_checksums(folder)
    if files is None or not all((folder / name).is_file() for name in files):
        part = study.folder(PRETRAIN, stage)
        raise ConfigError(f"{part} has no weights any more: remove that folder to train it again")


def _without_folder(key: dict[str, Any]) -> dict[str, Any]:
    """The study may be moved: the folder of the stage before is not a setting."""
    return {**key, "settings": {name: value for name, value in key["settings"].items() if name != "start"}}


def _check_parts(study: LineageConfig, stage: Stage) -> None:
    text = f"{TEXT}/{stage.tokenizer}"
    if not is_part_finished(study.output / text):
        raise ConfigError(f"{study.output / text} is not finished: run the same command with --only {text} first")
    if stage.after and not model_of(study, stage.after).is_dir():
        part = f"{PRETRAIN}/{stage.after}"
        raise ConfigError(f"{study.output / part} is not finished: run the same command with --only {part} first")


@dataclass(kw_only=True)
class LineageRun(TimedRun):
    """A stage, evaluated on held-out rows with its own objectives."""

    def measure(self, seconds: float) -> Evaluation:
        """One point of the curve."""
        scores = self.trainer.evaluate(self.held_out) if self.held_out else None
        loss = sum(scores.losses.values()) if scores else float("nan")  # without the weights of objectives
        point = {f"{POINT}seconds": seconds, f"{POINT}tokens": self.trainer.tokens, f"{POINT}loss": loss}
        terms = " · ".join(f"{name} {value:.3f}" for name, value in scores.losses.items()) if scores else ""
        return Evaluation(point, 0.0, f"held out {terms}")


def _train(
    study: LineageConfig, stage: Stage, recipe: Recipe, data: PretrainData, folder: Path, *, quiet: bool
) -> dict[str, Any]:
    torch.compiler.reset()  # graphs of the model before are not needed any more
    with ExitStack() as stack:
        every = 60 * recipe.minutes / POINTS
        run = timed_run(LineageRun, stack, recipe, data, folder, device=study.device, every=every)
        train_timed(run, quiet=quiet)
        trainer = run.trainer
        last = run.measure(trainer.seconds).metrics
        return {
            "recipe": recipe.name,
            "after": stage.after,
            "minutes": recipe.minutes,
            "seconds": trainer.seconds,
            "steps": trainer.steps_done,
            "tokens": trainer.tokens,
            "compile_seconds": sum(compile_times(folder)),
            "parameters": run.facts["parameters"],
            "device": run.facts["device"],
            "flop": run.facts["flops_per_token"] * trainer.tokens,
            "curve": _curve(folder, last={"step": trainer.steps_done, **last}),
        }


def _curve(folder: Path, *, last: dict[str, Any]) -> list[dict[str, float]]:
    """The points of the log, those that were trained again once, and the last one."""
    events = [event for event in read_events(folder / EVENTS) if event["kind"] == "evaluation"]
    points = {event["step"]: event for event in (*events, last)}
    return [
        {name.removeprefix(POINT): float(value) for name, value in points[step].items() if name.startswith(POINT)}
        for step in sorted(points)
        if math.isfinite(float(points[step][f"{POINT}loss"]))
    ]


def _initialize(
    study: LineageConfig, stage: Stage, recipe: Recipe, data: PretrainData, folder: Path, *, quiet: bool
) -> dict[str, Any]:
    """The model with new weights, as the start of a run without pre-training."""
    model = build_model(recipe, data.tokenizer)
    save_model(model, data.tokenizer, folder / LAST, replace=True)
    nothing = dict.fromkeys(("minutes", "seconds", "steps", "tokens", "compile_seconds", "flop"), 0)
    about = {"recipe": recipe.name, "after": "", "device": "", "curve": []}
    return {**about, "parameters": parameter_count(model), **nothing}
