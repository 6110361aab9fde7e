"""`ablations`: the ablations of BERT's paper at the scale of minutes, by `bertsmith compare` and `bertsmith ablate`.

The commands are printed, and go on where they were stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.ten_minutes.contestants import SMALL, TUNING
from bench.ten_minutes.tasks import place_of
from bench.ten_minutes.whole import Words, in_a_process, repeated, run_parts
from bertsmith.errors import ConfigError
from bertsmith.training.compare import folder_name

# For all: what leaves the plateau within seconds (docs/plateau.md), and a slower start than `bert/quick` has, with
# which those who keep no hidden word as it is stayed at the frequencies of words (LOG.md).
SETTINGS = (
    *("encoder.kind=roformer", "encoder.dropout=0", "encoder.attention_dropout=0"),
    *("optimizer.kind=adamw", "optimizer.weight_decay=0.1", "schedule.kind=linear"),
    *("learning_rate=5e-4", "warmup=0.2"),
)
RARELY = 1_000_000  # steps between checkpoints: a run is saved when it stops or ends
POOLER, CAUSAL = "encoder.pooler=true", "encoder.causal=true"  # of the kind of encoder, so to be said after it
PRETRAINED = "pretrained"  # the folder of all runs
SHAPE = (8, 512, 8)  # layers, width, heads
SHAPES = {  # likewise, in `sizes`
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
    """One table of the paper: recipes by their names there, each with settings of its own, and tasks."""

    source: str
    recipes: Mapping[str, Sequence[str]]
    tasks: tuple[str, ...]
    more: tuple[str, ...] = ()  # models that need no pre-training of their own


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
    """How a study is done."""

    data: Path  # shards
    tasks: Path  # the folder that holds theirs
    output: Path
    steps: int
    chosen: tuple[str, ...] = ()  # tasks in place of the study's
    changes: tuple[str, ...] = ()  # of pre-training, for all
    tuning: tuple[str, ...] = ()  # [TASK:]SETTING=VALUE
    seeds: int = 3
    together: int = 1  # pre-trainings at a time
    jobs: int = 1  # fine-tunings at a time
    device: str = "auto"


def commands(names: Sequence[str], plan: Plan) -> list[Words]:
    """The words of a `compare` of all runs that these studies need, and of an `ablate` for each study.

    What several of them need is pre-trained once.
    """
    unknown = next((name for name in names if name not in STUDIES), None)
    if unknown is not None:
        raise ConfigError(f"{unknown} is not a study: {', '.join(STUDIES)}")
    runs = {name: _runs(name, plan.steps) for name in dict.fromkeys(names)}
    pretrained = plan.output / PRETRAINED
    compare = ["compare", *dict.fromkeys(word for found in runs.values() for word in found.values())]
    compare += [*SETTINGS, *_shape(SHAPE), f"steps={plan.steps}", f"eval_every={max(plan.steps // 8, 1)}"]
    compare += [f"save_every={RARELY}", *plan.changes]
    found: list[list[object]] = [[*compare, "-d", plan.data, "-o", pretrained, "--jobs", plan.together]]
    for name, words in runs.items():
        study = STUDIES[name]
        models = [f"{model}={pretrained / folder_name(word) / 'last'}" for model, word in words.items()]
        told = [*_tuned(plan.chosen or study.tasks, plan), "--seeds", plan.seeds, "--jobs", plan.jobs]
        found.append(["ablate", *models, *study.more, *told, "-o", plan.output / name])
    return [[str(word) for word in (*words, "--device", plan.device)] for words in found]


def _runs(name: str, steps: int) -> dict[str, str]:
    """By name of a model, the word that `compare` knows it by; one word for one run in all studies."""
    study = STUDIES[name]
    if name == "steps":
        counts = {steps // part: part for part in FRACTIONS}
        return {
            f"{model}_{count}": _word(model, own, count if part > 1 else 0)
            for model, own in study.recipes.items()
            for count, part in counts.items()
        }
    shapes = SHAPES if name == "sizes" else {}
    return {model: _word(model, own, shape=shapes.get(model)) for model, own in study.recipes.items()}


def _word(model: str, own: Sequence[str], steps: int = 0, shape: tuple[int, int, int] | None = None) -> str:
    """A recipe with settings of its own and a name, which is its folder's: that of a shape has its numbers in it."""
    called = "_".join(map(str, ("size", *shape) if shape else (model, *[steps] * bool(steps))))
    settings = (*own, *_shape(shape), *[f"steps={steps}"] * bool(steps))
    return ",".join((f"bert/{model}", *settings, f"name={called}"))


def _shape(shape: tuple[int, int, int] | None) -> list[str]:
    names = ("layers", "width", "heads")
    return [f"encoder.{name}={size}" for name, size in zip(names, shape, strict=True)] if shape else []


def _tuned(tasks: Sequence[str], plan: Plan) -> list[object]:
    """What `ablate` is told of tasks: folders, and how all contestants are fine-tuned."""
    sets = [*TUNING["english"], *(f"{task}:learning_rate={RATE:g}" for task in SMALL)]
    sets = [change for change in sets if change.partition(":")[0] in tasks]
    words: list[object] = []
    for task in tasks:
        words += ["-t", task, "--data", f"{task}={place_of(plan.tasks, task)}"]
    return [*words, *repeated("--set", (*sets, *plan.tuning))]


def run_studies(names: Sequence[str], plan: Plan, call: Callable[[Sequence[str]], int] | None = None) -> None:
    """All commands of these studies, until one fails."""
    run_parts(commands(names, plan), "bertsmith", call or _bertsmith)


def _bertsmith(words: Sequence[str]) -> int:
    return in_a_process(words, program="bertsmith")
