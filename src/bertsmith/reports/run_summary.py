"""How the metrics of a run are titled, which units and baselines they have, and a run's summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.reports.run_history import LOSS, RunHistory
from bertsmith.reports.text_charts import number
from bertsmith.system.progress import format_duration

LOSS_PREFIX, ACCURACY_PREFIX, SCORE_PREFIX = "loss/", "accuracy/", "score/"
LM_SUFFIX = "_lm"  # objectives that predict tokens: exp(loss) is a perplexity
MAX_CLASSES = 10  # that are listed
NOT_CHARTED = ("count/", "rows", "tokens", "seconds", "cost", "mix/")
TRAINING_METRICS = ("learning_rate", "gradient_norm", "tokens_per_second", "data_seconds")  # charted last
TITLES = {
    LOSS: ("Loss, all objectives", "nats"),
    "learning_rate": ("Learning rate", ""),
    "gradient_norm": ("Gradient norm before clipping", ""),
    "tokens_per_second": ("Throughput", "tokens/s"),
    "data_seconds": ("Waiting for data", "seconds per step"),
}
KINDS = {"loss": ("Loss", "nats"), "score": ("Score", ""), "accuracy": ("Accuracy", "%")}  # by prefix: title, unit
BASELINES = {"loss": ("unigram", "chance_loss"), "accuracy": ("chance",)}  # facts of a run, each by objective
SCORE_NAMES = {"seconds": "training time", "tokens_per_second": "tokens/s"}


def title(name: str) -> tuple[str, str]:
    """Chart title and unit of a metric."""
    if name in TITLES:
        return TITLES[name]
    kind, slash, rest = name.replace("_", " ").partition("/")
    heading, unit = KINDS.get(kind, (kind, "")) if slash else (kind.capitalize(), "")
    return (f"{heading}: {rest}" if slash else heading), unit


def score_name(name: str) -> str:
    """A key of `scores` in words: `accuracy/next_sentence` -> `accuracy of next sentence`."""
    return SCORE_NAMES.get(name, name.replace("_", " ").replace("/", " of "))


def is_fraction(name: str) -> bool:
    """Whether a metric is a fraction, which is shown in percent."""
    return name.startswith(ACCURACY_PREFIX) or name == "accuracy"


def objectives_of(run: RunHistory) -> list[str]:
    """The objectives that a run logs."""
    names = dict.fromkeys([*run.curves, *run.held_out])
    return [name.removeprefix(LOSS_PREFIX) for name in names if name.startswith(LOSS_PREFIX)]


def chart_names(runs: Sequence[RunHistory]) -> list[str]:
    """Metrics that get a chart: losses, accuracies, other scores, then learning rate, gradient norm and throughput."""
    names = list(dict.fromkeys(name for run in runs for name in [*run.curves, *run.held_out]))
    names = [name for name in names if not name.startswith(NOT_CHARTED) or name in TRAINING_METRICS]
    if all(len(objectives_of(run)) == 1 for run in runs):
        names = [name for name in names if name != LOSS]
    losses = [name for name in names if name == LOSS or name.startswith(LOSS_PREFIX)]
    accuracies = [name for name in names if name.startswith(ACCURACY_PREFIX)]
    training = [name for name in TRAINING_METRICS if name in names]
    rest = [name for name in names if name not in {*losses, *accuracies, *training}]
    return [*losses, *accuracies, *rest, *training]


def perplexity(name: str, loss: float) -> float | None:
    """exp(loss) for objectives that predict tokens, else None."""
    if not (name.startswith(LOSS_PREFIX) and name.endswith(LM_SUFFIX)) or not math.isfinite(loss):
        return None
    return math.exp(min(loss, 700.0))


def baselines(run: RunHistory, name: str) -> dict[str, float]:
    """Values of one metric of trivial predictors, by label, from the run's facts: unigram frequencies and chance."""
    kind, _, objective = name.partition("/")
    found = {}
    for fact in BASELINES.get(kind, ()):
        values, form = run.facts.get(fact), ".0%" if kind == "accuracy" else ".2f"
        value = values.get(objective) if isinstance(values, Mapping) else None
        if isinstance(value, int | float) and math.isfinite(value) and (kind == "loss" or 0 < value < 1):
            found[f"{fact.removesuffix('_loss')} {value:{form}}"] = float(value)
    return found


def headline(run: RunHistory) -> dict[str, str]:
    """The figures at the head of a page or a card, formatted."""
    figures = {
        "steps": f"{run.steps:,}" + (f" of {run.planned_steps:,}" if run.planned_steps else ""),
        "tokens": number(float(f"{run.tokens:.3g}")) if run.tokens else "0",
        "training time": format_duration(run.seconds),
    }
    if math.isfinite(run.tokens_per_second):
        figures["tokens/s"] = f"{run.tokens_per_second:,.0f}"
    if (utilization := mfu(run)) is not None:
        figures["MFU"] = f"{utilization:.1%}"
    metric = run.main_metric.removeprefix(SCORE_PREFIX).replace("_", " ")
    for which, result in (("best", run.best), ("last", run.last_if_other)):
        if result and math.isfinite(result[1]):
            figures[f"{which} {metric}"] = f"{result[1]:.3f} at step {result[0]:,}"
    for name, metric_value in run.best_held_out.items():
        if (value := perplexity(name, metric_value)) is not None:
            figures[f"perplexity, {name.removeprefix(LOSS_PREFIX).replace('_', ' ')}"] = f"{value:,.1f}"
        if is_fraction(name) and math.isfinite(metric_value):
            figures[f"accuracy, {name.partition('/')[2].replace('_', ' ')}".removesuffix(", ")] = f"{metric_value:.1%}"
    if isinstance(parameters := run.facts.get("parameters"), int):
        figures["parameters"] = number(float(f"{parameters:.3g}"))
    if isinstance(run.facts.get("device"), str):
        figures["device"] = run.facts["device"]
    return figures


def training_data(facts: Mapping[str, Any]) -> dict[str, str]:
    """The training data of a fine-tuning run in words: numbers of examples, columns, and examples by class."""
    dev = f"{facts['dev_examples']:,} dev" if facts["dev_examples"] else "no dev"
    texts = {"examples": f"{facts['examples']:,} training, {dev}"}
    if facts["columns"]:
        texts["columns"] = ", ".join(f"{role} = {column}" for role, column in facts["columns"].items())
    if classes := facts["classes"]:
        shown = ", ".join(f"{label} {count:,}" for label, count in list(classes.items())[:MAX_CLASSES])
        more = len(classes) - MAX_CLASSES
        texts["classes"] = shown + (f" and {more:,} more" if more > 0 else "")
    return texts


def mfu(run: RunHistory) -> float | None:
    """Model FLOPs utilization, where the run logs FLOPs per token and the peak of its device."""
    flops, peak = run.facts.get("flops_per_token"), run.facts.get("peak_flops")
    if not isinstance(flops, int | float) or not isinstance(peak, int | float) or not peak:
        return None
    return finite(run.tokens_per_second * flops / peak)


def summary(run: RunHistory) -> dict[str, Any]:
    """A run as plain JSON, without its curves."""
    return {
        "run": run.name,
        "folder": str(run.folder),
        "recipe": run.recipe_name,
        "state": run.state,
        "steps": run.steps,
        "planned_steps": run.planned_steps,
        "tokens": run.tokens,
        "seconds": run.seconds,
        "tokens_per_second": finite(run.tokens_per_second),
        "training": {name: finite(curve.last) for name, curve in run.curves.items()},
        "held_out": {name: finite(value) for name, value in run.best_held_out.items()},
        "best": run.best[1] if run.best else None,
        "best_step": run.best[0] if run.best else None,
        "last": finite(run.last[1]) if run.last else None,
        "last_step": run.last[0] if run.last else None,
        "checkpoint": run.checkpoint,
        "started": run.started,
        "updated": run.updated,
        "notes": list(run.notes),
        "facts": run.facts,
    }


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
