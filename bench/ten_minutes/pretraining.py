"""`pretrain`: one contestant of ours, for so many minutes of learning; what a judge thinks of it as they go by.

Minutes are those in which steps are taken. Not counted, but told: compiling (until the first step of each call is
done), judging, saving. A call that is stopped goes on with the next one, minutes included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.ten_minutes import results
from bench.ten_minutes.clock import Stopwatch, Turn
from bench.ten_minutes.judging import OBJECTIVE, Judge
from bertsmith import config
from bertsmith.errors import ConfigError
from bertsmith.reports.run_history import CHECKPOINTS
from bertsmith.system.devices import choose_device
from bertsmith.system.durable import Disk
from bertsmith.training.distributed import World, join_process_group
from bertsmith.training.log import NAME as EVENTS
from bertsmith.training.log import last_of_each_step, read_events
from bertsmith.training.loop import run_training
from bertsmith.training.pretrain import PretrainRun, make_trainer, resolve_auto
from bertsmith.training.pretrain_data import PretrainData, PretrainLoader
from bertsmith.training.recipe import Recipe
from bertsmith.training.run import Evaluation, memory_advice
from bertsmith.training.signals import StopSignal
from bertsmith.training.step import Step
from bertsmith.training.trainer import Trainer

JUDGED = "judged/"  # begins the names of the judge's numbers in the log of a run
NEXT_SENTENCE = "next_sentence"
CALLS = "calls.json"
POINTS = 20  # of a curve
FREQUENCIES = "unigram"  # the loss of who guesses words by how frequent they are
LEFT = 1.5  # nats below the words' frequencies, where the second plateau is left
STEADY = 20  # steps over which losses are averaged to tell when a plateau is left
SPENT = ("minutes", "seconds", "steps", "tokens", "compile_seconds", "calls")  # what stages add up


@dataclass(frozen=True, kw_only=True)
class Judging:
    """What contestants are judged by, and how often."""

    every: float = 30.0  # seconds of learning
    rows: int = 2048
    length: int = 128
    seed: int = 0
    data: str = ""  # shards whose held-out documents are taken; a contestant's own where empty

    def judge(self, data: PretrainData) -> Judge:
        """The judge for these data: the same for all who are trained on them."""
        judging = PretrainData.open(Path(self.data)) if self.data else data
        if judging.shards.fingerprint != data.shards.fingerprint:
            raise ConfigError(f"{self.data} and {data.folder} were prepared by different tokenizers")
        return Judge.of(judging, length=self.length, rows=self.rows, seed=self.seed)


class TimedTrainer(Trainer):
    """A trainer that tells how long it compiled and how much of its minutes is gone."""

    compile_seconds: float | None = None  # of the first step of this call
    turn = Turn()

    def __next__(self) -> Step:
        if self._warm:
            return super().__next__()
        if not self.forward_backward.compiles:
            self._take_turn()
            return super().__next__()
        began = self._clock()
        step = super().__next__()
        self.compile_seconds = self._began - began  # to the moment at which its minutes begin: none counts as both
        self._take_turn()
        return step

    def _take_turn(self) -> None:
        assert isinstance(self._clock, Stopwatch)
        with self._clock.paused():
            self.turn.take(lambda: self.stop_signal.requested)

    @property
    def elapsed(self) -> float:
        """Seconds of its minutes that are gone, those of earlier calls included."""
        return self._elapsed()


@dataclass(kw_only=True)
class Contest(PretrainRun):
    """A run that is judged by the clock."""

    judge: Judge | None = None
    watch: Stopwatch | None = None
    every: float = 30.0
    due: float = 0.0  # seconds at which the judge is asked again

    def evaluate(self) -> Evaluation | None:
        """Called after every step; nothing where it is not yet time."""
        assert isinstance(self.trainer, TimedTrainer)
        assert self.watch is not None
        if not self.due:  # the first step of this call
            with self.watch.paused():
                self._note_call(self.trainer.compile_seconds)
            self.due = self.trainer.seconds // self.every * self.every + self.every
        if self.trainer.elapsed < self.due:
            return None
        self.watch.wait()
        seconds = self.trainer.elapsed
        self.due = seconds // self.every * self.every + self.every
        with self.watch.paused():
            numbers = self.numbers(seconds)
        said = " · ".join(f"{name.removeprefix(JUDGED)} {value:.4g}" for name, value in numbers.items())
        return Evaluation({f"{JUDGED}{name}": value for name, value in numbers.items()}, 0.0, said)

    def _note_call(self, seconds: float | None) -> None:
        """A call that was killed before it could save is forgotten with the steps that it took."""
        first = self.trainer.steps_done
        kept = [call for call in calls(self.folder) if call["step"] < first]
        results.write(self.folder / CALLS, {"calls": [*kept, {"step": first, "compile_seconds": seconds}]})

    def numbers(self, seconds: float) -> dict[str, float]:
        """One point of the curve."""
        assert self.judge is not None
        found = {"seconds": seconds, "step": self.trainer.steps_done, "tokens": self.trainer.tokens}
        verdict = self.judge.hear_model(self.model, self.trainer.world.device)
        found |= asdict(verdict) if verdict else {}
        if NEXT_SENTENCE in self.config.objectives and self.held_out:
            found[NEXT_SENTENCE] = self.trainer.evaluate(self.held_out).accuracies[NEXT_SENTENCE]
        return found

    def write_model(self, name: str, numbers: Mapping[str, float]) -> None:
        """Only the last model counts; writing others would cost time."""
        if name == results.MODEL:
            super().write_model(name, {})


def pretrain(
    name: str,
    recipe: Recipe,
    data: Path,
    output: Path,
    *,
    judging: Judging,
    device: str = "auto",
    quiet: bool = False,
    turn: Turn | None = None,
    after: str = "",
) -> dict[str, Any]:
    """Trains a contestant in OUTPUT/NAME until its minutes are over; the result, also in result.json there.

    `after`: the contestant with whose last model it begins, as a second stage on longer rows does; what that one has
    spent and seen counts for both.
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
        world = stack.enter_context(join_process_group(choose_device(device)))
        stopper = stack.enter_context(StopSignal())
        recipe, measured = resolve_auto(recipe, folder, world)
        feeder = PretrainLoader(recipe, opened.packing(recipe), world, source=opened.folder)
        stack.callback(feeder.close)
        watch = Stopwatch(world.device)
        run = Contest(
            config=recipe,
            folder=folder,
            tokenizer=opened.tokenizer,
            trainer=_trainer(recipe, opened, feeder, world, stopper, watch),
            loader=feeder,
            eval_every=recipe.eval_every,
            data=opened,
            held_out=opened.held_out(recipe, world),
            measured=measured,
            judge=judging.judge(opened),
            watch=watch,
            every=judging.every,
        )
        if turn is not None:
            run.trainer.turn = turn
            stack.callback(turn.close)
        with memory_advice(recipe.micro_batch_size or recipe.batch_size, "rows"):
            run_training(run, quiet=quiet)
            last = run.numbers(run.trainer.seconds)
        about = dict(run.facts)
        if turn is not None:  # measured while others computed; this run is alone now
            about["peak_flops"] = max(about["peak_flops"], run.peak_flops())
        result = _told(name, run, about, last, judging)
        results.write(folder / results.RESULT, result if earlier is None else joined(earlier, result))
        Disk().remove_folder(folder / CHECKPOINTS)
        return results.read(folder / results.RESULT) or result


def _trainer(
    recipe: Recipe, data: PretrainData, feeder: PretrainLoader, world: World, stopper: StopSignal, watch: Stopwatch
) -> TimedTrainer:
    made = make_trainer(recipe, data, feeder, world, stopper, make=partial(TimedTrainer, clock=watch))
    assert isinstance(made, TimedTrainer)
    return made


def _told(
    name: str, run: Contest, about: Mapping[str, Any], last: Mapping[str, Any], judging: Judging
) -> dict[str, Any]:
    assert run.judge is not None
    trainer, events = run.trainer, read_events(run.folder / EVENTS)
    made = calls(run.folder)
    compiled = [call["compile_seconds"] for call in made if call["compile_seconds"] is not None]
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
        "calls": len(made),
        "off_plateau": off_plateau(events, {call["step"] for call in made}, about),
        **speed(trainer.tokens, trainer.seconds, trainer.steps_done, len(compiled), about),
        **{fact: about[fact] for fact in ("parameters", "device", "flops_per_token", "peak_flops")},
        "final": dict(last),
        "curve": ended(curve(events), last),
        "judge": {"fingerprint": run.judge.fingerprint, "pieces": run.judge.pieces, **asdict(judging)},
        "fingerprints": run.data.fingerprints,
        "settings": config.to_dict(run.config),
    }


def off_plateau(events: list[dict[str, Any]], unclocked: Container[int], about: Mapping[str, Any]) -> float | None:
    """Seconds of learning until words are guessed `LEFT` nats better than by their frequencies; None: they never are.

    Runs stand still twice: at the words' frequencies, and for long about a nat below, where a text's words are known
    but not their order. `unclocked`: the first step of each call, which compiles.
    """
    frequencies, recent, seconds = about.get(FREQUENCIES, {}).get(OBJECTIVE), deque[float](maxlen=STEADY), 0.0
    if frequencies is None:
        return None
    for event in last_of_each_step(events, "step"):
        seconds += 0.0 if event["step"] in unclocked else event["seconds"]
        recent.append(float(event[f"loss/{OBJECTIVE}"]))  # what is not finite is written as a word
        if len(recent) == STEADY and sum(recent) / STEADY < frequencies - LEFT:
            return seconds
    return None


def joined(earlier: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a stage with all that came before it; of the device's measured peaks the highest counts."""
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


def speed(tokens: int, seconds: float, steps: int, unclocked: int, about: Mapping[str, Any]) -> dict[str, float]:
    """Tokens a second and the share of the peak that they make, without the steps that the clock did not see."""
    rate = tokens * (steps - unclocked) / max(steps, 1) / max(seconds, 1e-9)
    return {"tokens_per_second": rate, "share_of_peak": rate * about["flops_per_token"] / about["peak_flops"]}


def calls(folder: Path) -> list[dict[str, Any]]:
    """The first step of each call so far, and what compiling took in it; None where it did not compile."""
    found: list[dict[str, Any]] = (results.read(folder / CALLS) or {"calls": []})["calls"]
    return found


def ended(points: list[dict[str, Any]], last: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A curve with its end, which the judge may have seen already."""
    return [*(point for point in points if point["step"] < last["step"]), dict(last)]


def curve(events: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The judge's numbers in the log of a run; a call that goes on from an earlier step makes later ones void."""
    found: list[dict[str, float]] = []
    for event in events:
        if event["kind"] == "start":
            found = [point for point in found if point["step"] <= event["step"]]
        if event["kind"] == "evaluation":
            named = ((key, value) for key, value in event.items() if key.startswith(JUDGED))
            found.append({key.removeprefix(JUDGED): value for key, value in named})
    return found


def with_defaults(judging: Judging, minutes: float) -> Judging:
    """As many points of a curve as usual where nobody says how often."""
    return judging if judging.every else replace(judging, every=60 * minutes / POINTS)
