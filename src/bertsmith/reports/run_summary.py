"""What curves are called, in which unit they are, and with what they are to be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bertsmith.reports.run_history import TOTAL, History
from bertsmith.reports.text_charts import number
from bertsmith.system.progress import clock

LOSS, ACCURACY, SCORE = "loss/", "accuracy/", "score/"
GUESSES_WORDS = "_lm"  # ends the names of objectives whose loss is that of guessing one word: exp of it is a perplexity
EVEN_ODDS = ("next_sentence", "sentence_order")  # questions with two answers, about equally often right
TITLES = {
    TOTAL: ("Loss, all objectives together", "nats"),
    "learning_rate": ("Learning rate", ""),
    "gradient_norm": ("Gradient norm, before clipping", ""),
    "tokens_per_second": ("Speed", "tokens / s"),
    "data_seconds": ("Waiting for data", "seconds a step"),
}


@dataclass(frozen=True)
class Baseline:
    """A level that a curve should leave behind."""

    label: str
    value: float


def title(name: str) -> tuple[str, str]:
    """What a curve's chart is headed with, and its unit."""
    if name in TITLES:
        return TITLES[name]
    kind, _, part = name.partition("/")
    words = part.replace("_", " ")
    if name.startswith(LOSS):
        return f"Loss: {words}", "nats"
    if name.startswith(SCORE):
        return f"Score: {words}", ""
    if name.startswith(ACCURACY):
        return f"Accuracy: {words}", "%"
    return (f"{kind.replace('_', ' ')}: {words}" if part else kind.replace("_", " ").capitalize()), ""


def is_share(name: str) -> bool:
    """Whether a curve's numbers are shares, shown in percent."""
    return name.startswith(ACCURACY) or name == "accuracy"


def parts_of(run: History) -> list[str]:
    """The objectives of a run, as its log names them."""
    names = dict.fromkeys([*run.curves, *run.held_out])
    return [name.removeprefix(LOSS) for name in names if name.startswith(LOSS)]


def score_name(name: str) -> str:
    """What a number of `scores` is called: `accuracy/next_sentence` -> `accuracy of next sentence`."""
    return name.replace("_", " ").replace("/", " of ")


def perplexity(name: str, loss: float) -> float | None:
    """exp of the loss where that says something: where an objective guesses words."""
    if not (name.startswith(LOSS) and name.endswith(GUESSES_WORDS)) or not math.isfinite(loss):
        return None
    return math.exp(min(loss, 700.0))


def baselines(run: History, name: str) -> list[Baseline]:
    """Levels for one curve: guessing by frequency alone (`unigram` of the run's facts), and chance."""
    kind, _, part = name.partition("/")
    found = []
    unigram, chance = _of_part(run, "unigram", part), _of_part(run, "chance", part)
    if chance is None and part in EVEN_ODDS:
        chance = 0.5
    if kind == "loss" and unigram is not None:
        found.append(Baseline(f"unigram {unigram:.2f}", unigram))
    if chance is not None and 0 < chance < 1:
        if kind == "loss" and part in EVEN_ODDS:
            coin = -chance * math.log(chance) - (1 - chance) * math.log(1 - chance)
            found.append(Baseline(f"guessing {coin:.2f}", coin))
        elif kind == "accuracy":
            found.append(Baseline(f"chance {chance:.0%}", chance))
    return found


def _of_part(run: History, fact: str, part: str) -> float | None:
    table = run.facts.get(fact)
    value = table.get(part) if isinstance(table, Mapping) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def figures(run: History) -> dict[str, str]:
    """The figures at the head of a page or a card, in words."""
    found = {
        "steps": f"{run.steps:,}" + (f" of {run.planned:,}" if run.planned else ""),
        "tokens": number(float(f"{run.tokens:.3g}")) if run.tokens else "0",
        "training time": clock(run.seconds),
    }
    if math.isfinite(run.speed):
        found["tokens / s"] = f"{run.speed:,.0f}"
    share = peak_share(run)
    if share is not None:
        found["share of peak"] = f"{share:.1%}"
    if math.isfinite(run.result):
        found[f"held-out {run.main.removeprefix(SCORE).replace('_', ' ')}"] = f"{run.result:.3f}"
    if run.best:
        found["best"] = f"{run.best[1]:.3f} at step {run.best[0]:,}"
    for name, curve in run.held_out.items():
        value = perplexity(name, curve.last)
        if value is not None:
            found[f"perplexity, {name.removeprefix(LOSS).replace('_', ' ')}"] = f"{value:,.1f}"
        if is_share(name) and math.isfinite(curve.last):
            found[f"accuracy, {name.partition('/')[2].replace('_', ' ')}".removesuffix(", ")] = f"{curve.last:.1%}"
    parameters = run.facts.get("parameters")
    if isinstance(parameters, int):
        found["parameters"] = number(float(f"{parameters:.3g}"))
    if isinstance(run.facts.get("device"), str):
        found["device"] = run.facts["device"]
    return found


def peak_share(run: History) -> float | None:
    """Which share of the device's arithmetic the run used, where it says what is needed for that."""
    need, peak = run.facts.get("flops_per_token"), run.facts.get("peak_flops")
    if (
        not isinstance(need, int | float)
        or not isinstance(peak, int | float)
        or not peak
        or not math.isfinite(run.speed)
    ):
        return None
    return float(run.speed * need / peak)
