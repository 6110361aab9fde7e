"""`ablations`: the ablations of BERT's paper at the scale of minutes, by `bertsmith compare` and `bertsmith ablate`.

The commands are printed; stopped commands are resumed by the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.ten_minutes.contestants import SMALL_TASKS, TUNING
from bench.ten_minutes.pipeline import Arguments, repeated, run_parts, run_subprocess
from bench.ten_minutes.tasks import task_folder
from bertsmith.errors import ConfigError
from bertsmith.training.compare import folder_name

# Settings of all runs: they leave the plateau within seconds (docs/plateau.md). The warm-up is longer than in
# `bert/quick`, with which runs that keep no masked word unchanged stayed at the unigram loss (LOG.md).
SETTINGS = (
    *("encoder.kind=roformer", "encoder.dropout=0", "encoder.attention_dropout=0"),
    *("optimizer.kind=adamw", "optimizer.weight_decay=0.1", "schedule.kind=linear"),
    *("learning_rate=5e-4", "warmup=0.2"),
)
RARELY = 1_000_000  # steps between checkpoints: a run is saved when it stops or ends
POOLER, CAUSAL = "encoder.pooler=true", "encoder.causal=true"  # settings of the encoder kind, so they follow it
PRETRAINED = "pretrained"  # the folder of all runs
SHAPE = (8, 512, 8)  # layers, width, heads
SHAPES = {  # layers, width, heads in `sizes`
    "size_3_768_12": (3, 768, 12),
    "size_6_768_3": (6, 768, 3),
    "size_6_768_12": (6, 768, 12),
    "base": (12, 768, 12),
    "size_12_1024_16": (12, 1024, 16),
}
MASKS = ("mask_100_0_0", "mask_80_0_20", "mask_80_20_0", "mask_0_20_80", "mask_0_0_100")
RATE = 1e-4  # of small tasks


@dataclass(frozen=True)
class Study:
    """One table of the paper: its recipes by name, each with overrides, and its tasks."""

    source: str
    recipes: Mapping[str, Sequence[str]]
    tasks: tuple[str, ...]
    more: tuple[str, ...] = ()  # models that reuse another model's pre-training


STUDIES = {
    "objectives": Study(
        "Table 5",
        {"base": [POOLER], "no_nsp": [], "ltr": [CAUSAL]},
        ("glue/mrpc", "glue/sst-2", "squad/1.1"),
        more=("ltr+bilstm",),
    ),
    "sizes": Study("Table 6", {name: [POOLER] for name in SHAPES}, ("glue/mrpc", "glue/sst-2")),
    "masks": Study("Table 8", {name: [POOLER] for name in ("base", *MASKS)}, ("conll/conll2003",)),
    "steps": Study("Figure 5", {"base": [POOLER], "ltr": [CAUSAL]}, ("glue/mrpc", "glue/sst-2")),
}
FRACTIONS = (8, 4, 2, 1)  # of the steps, in `steps`


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of a study."""

    data: Path  # shards
    tasks: Path  # folder with the task folders
    output: Path
    steps: int
    chosen: tuple[str, ...] = ()  # tasks in place of the study's
    changes: tuple[str, ...] = ()  # of pre-training, for all
    tuning: tuple[str, ...] = ()  # [TASK:]SETTING=VALUE
    seeds: int = 3
    together: int = 1  # concurrent pre-training runs
    jobs: int = 1  # concurrent fine-tuning runs
    device: str = "auto"


def commands(names: Sequence[str], plan: Plan) -> list[Arguments]:
    """Arguments of one `compare` over all runs that these studies need, and of one `ablate` per study.

    Runs shared by several studies are pre-trained once.
    """
    unknown = next((name for name in names if name not in STUDIES), None)
    if unknown is not None:
        raise ConfigError(f"{unknown} is not a study: {', '.join(STUDIES)}")
    runs = {name: _runs(name, plan.steps) for name in dict.fromkeys(names)}
    pretrained = plan.output / PRETRAINED
    compare = ["compare", *dict.fromkeys(argument for calls in runs.values() for argument in calls.values())]
    compare += [*SETTINGS, *_shape(SHAPE), f"steps={plan.steps}", f"eval_every={max(plan.steps // 8, 1)}"]
    compare += [f"save_every={RARELY}", *plan.changes]
    calls: list[list[object]] = [[*compare, "-d", plan.data, "-o", pretrained, "--jobs", plan.together]]
    for name, arguments in runs.items():
        study = STUDIES[name]
        models = [f"{model}={pretrained / folder_name(argument) / 'last'}" for model, argument in arguments.items()]
        options = [*_tuned(plan.chosen or study.tasks, plan), "--seeds", plan.seeds, "--jobs", plan.jobs]
        calls.append(["ablate", *models, *study.more, *options, "-o", plan.output / name])
    return [[str(argument) for argument in (*arguments, "--device", plan.device)] for arguments in calls]


def _runs(name: str, steps: int) -> dict[str, str]:
    """Model name to its `compare` argument; a run has the same argument in all studies."""
    study = STUDIES[name]
    if name == "steps":
        counts = {steps // part: part for part in FRACTIONS}
        return {
            f"{model}_{count}": _run_argument(model, own, count if part > 1 else 0)
            for model, own in study.recipes.items()
            for count, part in counts.items()
        }
    shapes = SHAPES if name == "sizes" else {}
    return {model: _run_argument(model, own, shape=shapes.get(model)) for model, own in study.recipes.items()}


def _run_argument(model: str, own: Sequence[str], steps: int = 0, shape: tuple[int, int, int] | None = None) -> str:
    """A `compare` argument: recipe, overrides and run name; the name of a shape contains its sizes."""
    run_name = "_".join(map(str, ("size", *shape) if shape else (model, *[steps] * bool(steps))))
    settings = (*own, *_shape(shape), *[f"steps={steps}"] * bool(steps))
    return ",".join((f"bert/{model}", *settings, f"name={run_name}"))


def _shape(shape: tuple[int, int, int] | None) -> list[str]:
    names = ("layers", "width", "heads")
    return [f"encoder.{name}={size}" for name, size in zip(names, shape, strict=True)] if shape else []


def _tuned(tasks: Sequence[str], plan: Plan) -> list[object]:
    """Task arguments of `ablate`: folders and fine-tuning settings."""
    sets = [*TUNING["english"], *(f"{task}:learning_rate={RATE:g}" for task in SMALL_TASKS)]
    sets = [change for change in sets if change.partition(":")[0] in tasks]
    arguments: list[object] = []
    for task in tasks:
        arguments += ["-t", task, "--data", f"{task}={task_folder(plan.tasks, task)}"]
    return [*arguments, *repeated("--set", (*sets, *plan.tuning))]


def run_studies(names: Sequence[str], plan: Plan, call: Callable[[Sequence[str]], int] | None = None) -> None:
    """Runs all commands of these studies until one fails."""
    run_parts(commands(names, plan), "bertsmith", call or _bertsmith)


def _bertsmith(arguments: Sequence[str]) -> int:
    return run_subprocess(arguments, program="bertsmith")
