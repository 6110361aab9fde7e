"""`pretrain`: a bertsmith contestant, trained for a number of minutes and evaluated on held-out text as it trains.

Minutes are minutes of training steps. Reported but not counted: compilation (up to the end of the first step of each
call), evaluation, saving. A stopped call is resumed by the next one, minutes included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.ten_minutes import results
from bench.ten_minutes.held_out import CAUSAL, OBJECTIVE, HeldOutEvaluator
from bertsmith import config
from bertsmith.errors import ConfigError, DataError
from bertsmith.training.clock import TrainingLock
from bertsmith.training.log import NAME as EVENTS
from bertsmith.training.log import last_of_each_step, read_events
from bertsmith.training.pretrain_data import PretrainData
from bertsmith.training.recipe import Recipe
from bertsmith.training.run import Evaluation
from bertsmith.training.timed import (
    TimedRun,
    TimedTrainer,
    calls,
    compile_times,
    remove_checkpoints,
    timed_run,
    train_timed,
)

EVAL_PREFIX = "held_out/"  # of held-out metrics in the log of a run
GENERATOR = "generator_"  # prefix of the held-out metrics of ELECTRA's generator
NEXT_SENTENCE, REPLACED_TOKEN, BASE_RATE = "next_sentence", "replaced_token", "base_rate"
OWN_LOSS = "own_loss"  # held-out nats of the objectives of a recipe that predicts neither masked nor next tokens
POINTS = 20  # of a curve
FREQUENCIES = "unigram"  # loss of predicting words by their frequency
LEFT = 1.5  # nats below the unigram loss at which the second plateau is left
STEADY = 20  # steps of the running mean that detects the end of a plateau
SPENT = ("minutes", "seconds", "steps", "tokens", "compile_seconds", "calls")  # summed over stages


@dataclass(frozen=True, kw_only=True)
class EvaluatorConfig:
    """Held-out rows and how often they are evaluated."""

    every: float = 30.0  # seconds of training
    rows: int = 2048
    length: int = 128
    seed: int = 0
    data: str = ""  # shards with the held-out documents; empty: the contestant's own

    def build(self, data: PretrainData, objective: str = OBJECTIVE) -> HeldOutEvaluator:
        """The evaluator for these data, the same for all contestants with that objective."""
        held_out = PretrainData.open(Path(self.data)) if self.data else data
        if held_out.shards.fingerprint != data.shards.fingerprint:
            raise ConfigError(f"{self.data} and {data.folder} were prepared by different tokenizers")
        return HeldOutEvaluator.of(held_out, length=self.length, rows=self.rows, seed=self.seed, objective=objective)


@dataclass(kw_only=True)
class Contest(TimedRun):
    """A run evaluated on the rows of all contestants."""

    evaluator: HeldOutEvaluator | None  # None: the loss of the recipe's own objectives counts

    def measure(self, seconds: float) -> Evaluation:
        """One point of the curve."""
        numbers = self.numbers(seconds)
        summary = " · ".join(f"{name.removeprefix(EVAL_PREFIX)} {value:.4g}" for name, value in numbers.items())
        return Evaluation({f"{EVAL_PREFIX}{name}": value for name, value in numbers.items()}, 0.0, summary)

    def numbers(self, seconds: float) -> dict[str, float]:
        """The numbers of a point of the curve."""
        result = {"seconds": seconds, "step": self.trainer.steps_done, "tokens": self.trainer.tokens}
        result |= self._own_loss() if self.evaluator is None else self._scores(self.evaluator)
        if self.held_out and not {NEXT_SENTENCE, REPLACED_TOKEN}.isdisjoint(self.config.objectives):
            accuracies = self.trainer.evaluate(self.held_out).accuracies
            names = (NEXT_SENTENCE, REPLACED_TOKEN, BASE_RATE)
            result |= {name: accuracies[name] for name in names if name in accuracies}
        return result

    def _scores(self, evaluator: HeldOutEvaluator) -> dict[str, float]:
        """Held-out scores of the model, or of the masked LM that is trained beside the encoder, if there is one."""
        device = self.trainer.world.device
        if scores := evaluator.evaluate_model(self.model, device):
            return asdict(scores)
        generator = self.model.auxiliary_models().get("generator")
        scores = generator and evaluator.evaluate_model(generator, device)
        return {f"{GENERATOR}{name}": value for name, value in asdict(scores).items()} if scores else {}

    def _own_loss(self) -> dict[str, float]:
        if not self.held_out:
            raise DataError(f"{self.data.folder} has no held-out text: prepare it with a larger --held-out")
        return {OWN_LOSS: sum(self.trainer.evaluate(self.held_out).losses.values())}


def pretrain(
    name: str,
    recipe: Recipe,
    data: Path,
    output: Path,
    *,
    evaluator_config: EvaluatorConfig,
    device: str = "auto",
    quiet: bool = False,
    lock: TrainingLock | None = None,
    after: str = "",
) -> dict[str, Any]:
    """Trains a contestant in OUTPUT/NAME for its minutes; returns the result, also written to result.json there.

    `after`: the contestant whose last model initialises this one (a second stage); its minutes and tokens are added.
    """
    opened = PretrainData.open(data)
    recipe, folder = opened.with_vocabulary(recipe), output / name
    earlier = results.read(output / after / results.RESULT) if after else None
    if after and earlier is None:
        raise ConfigError(f"{after} is not finished: it has no {results.RESULT} in {output / after}")
    known = results.finished(folder, config.to_dict(recipe), opened.fingerprints)
    if known is not None:
        return known
    with ExitStack() as stack:
        predicted = held_out_objective(recipe)
        evaluator = evaluator_config.build(opened, predicted) if predicted else None
        fields = {"evaluator": evaluator, "every": evaluator_config.every}
        run = timed_run(Contest, stack, recipe, opened, folder, device=device, **fields)
        if lock is not None:
            assert isinstance(run.trainer, TimedTrainer)
            run.trainer.lock = lock
            stack.callback(lock.close)
        train_timed(run, quiet=quiet)
        last = run.numbers(run.trainer.seconds)
        about = dict(run.facts)
        if lock is not None:  # first measured while other runs used the device; now this run is alone
            about["peak_flops"] = max(about["peak_flops"], run.peak_flops())
        result = _result(name, run, about, last, evaluator_config)
        results.write(folder / results.RESULT, result if earlier is None else joined(earlier, result))
        remove_checkpoints(folder)
        return results.read(folder / results.RESULT) or result


def held_out_objective(recipe: Recipe) -> str | None:
    """The objective by which held-out text is predicted; None where the recipe trains neither of the two."""
    if CAUSAL in recipe.objectives:
        return CAUSAL
    return None if {OBJECTIVE, REPLACED_TOKEN}.isdisjoint(recipe.objectives) else OBJECTIVE


def _result(
    name: str, run: Contest, about: Mapping[str, Any], last: Mapping[str, Any], evaluator_config: EvaluatorConfig
) -> dict[str, Any]:
    trainer, events = run.trainer, read_events(run.folder / EVENTS)
    recorded, compiled = calls(run.folder), compile_times(run.folder)
    judge, left = dict[str, Any](), None
    if run.evaluator is not None:
        judge = {"fingerprint": run.evaluator.fingerprint, "pieces": run.evaluator.pieces, **asdict(evaluator_config)}
        left = off_plateau(events, {call["step"] for call in recorded}, about, run.evaluator.objective)
    return {
        "name": name,
        "code": "bertsmith",
        "recipe": run.config.name,
        "minutes": run.config.minutes,
        "seed": run.config.seed,
        "seconds": trainer.seconds,
        "steps": trainer.steps_done,
        "tokens": trainer.tokens,
        "text_tokens": run.data.shards.tokens,
        "compile_seconds": compiled,
        "calls": len(recorded),
        "off_plateau": left,
        **speed(trainer.tokens, trainer.seconds, trainer.steps_done, len(compiled), about),
        **{fact: about[fact] for fact in ("parameters", "device", "flops_per_token", "peak_flops")},
        "final": dict(last),
        "curve": ended(curve(events), last),
        "judge": judge,
        "fingerprints": run.data.fingerprints,
        "settings": config.to_dict(run.config),
    }


def off_plateau(
    events: list[dict[str, Any]], untimed: Container[int], about: Mapping[str, Any], objective: str = OBJECTIVE
) -> float | None:
    """Seconds of training until the loss is `LEFT` nats below the unigram loss; None: never.

    Runs have two plateaus: at the unigram loss, and a long one about a nat below, where the words of a text are known
    but not their order. `untimed`: the first step of each call, which compiles.
    """
    frequencies, recent, seconds = about.get(FREQUENCIES, {}).get(objective), deque[float](maxlen=STEADY), 0.0
    if frequencies is None:
        return None
    for event in last_of_each_step(events, "step"):
        seconds += 0.0 if event["step"] in untimed else event["seconds"]
        recent.append(float(event[f"loss/{objective}"]))  # non-finite losses are logged as strings
        if len(recent) == STEADY and sum(recent) / STEADY < frequencies - LEFT:
            return seconds
    return None


def joined(earlier: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a stage with the earlier stages added; the highest measured peak counts."""
    sums = {key: earlier[key] + result[key] for key in SPENT}
    before = {"seconds": earlier["seconds"], "step": earlier["steps"], "tokens": earlier["tokens"]}
    points = (*result["curve"], result["final"])
    shifted = [{**point, **{key: point[key] + before[key] for key in before}} for point in points]
    stages, peak = (earlier, result), max(earlier["peak_flops"], result["peak_flops"])
    computed = sum(one["share_of_peak"] * one["peak_flops"] * one["seconds"] for one in stages)
    rates = {
        "tokens_per_second": sum(one["tokens_per_second"] * one["seconds"] for one in stages) / sums["seconds"],
        "share_of_peak": computed / (peak * sums["seconds"]),
        "peak_flops": peak,
    }
    curves = {"curve": [*earlier["curve"], *shifted[:-1]], "final": shifted[-1]}
    left, later = earlier["off_plateau"], result["off_plateau"]
    if left is None and later is not None:
        left = later + earlier["seconds"]
    return {**result, **sums, **rates, **curves, "off_plateau": left, "after": earlier["name"]}


def speed(tokens: int, seconds: float, steps: int, untimed: int, about: Mapping[str, Any]) -> dict[str, float]:
    """Tokens per second and MFU, without the steps that were not timed."""
    rate = tokens * (steps - untimed) / max(steps, 1) / max(seconds, 1e-9)
    return {"tokens_per_second": rate, "share_of_peak": rate * about["flops_per_token"] / about["peak_flops"]}


def ended(points: list[dict[str, Any]], last: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A curve with its last point, which may have been evaluated already."""
    return [*(point for point in points if point["step"] < last["step"]), dict(last)]


def curve(events: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Held-out metrics in the log of a run; resuming from an earlier step discards later points."""
    result: list[dict[str, float]] = []
    for event in events:
        if event["kind"] == "start":
            result = [point for point in result if point["step"] <= event["step"]]
        if event["kind"] == "evaluation":
            named = ((key, value) for key, value in event.items() if key.startswith(EVAL_PREFIX))
            result.append({key.removeprefix(EVAL_PREFIX): value for key, value in named})
    return result


def with_defaults(evaluator_config: EvaluatorConfig, minutes: float) -> EvaluatorConfig:
    """The config with the default number of curve points where `every` is not set."""
    return evaluator_config if evaluator_config.every else replace(evaluator_config, every=60 * minutes / POINTS)
