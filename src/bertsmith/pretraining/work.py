"""`pretrain`: the loop, written out once. Logs, scores and saves; the trainer knows nothing of that."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertsmith import config
from bertsmith.batching import from_packed
from bertsmith.corpus.packing.packing import Packing
from bertsmith.corpus.shard_builder import differences
from bertsmith.corpus.shards import Shards
from bertsmith.devices import choose_device
from bertsmith.durable import Disk
from bertsmith.errors import BertsmithError, ConfigError, DataError, Stopped
from bertsmith.model import Model
from bertsmith.progress import clock
from bertsmith.recipe import Recipe, read_recipe
from bertsmith.text.tokenizer import Tokenizer, load
from bertsmith.train.checkpoints import Checkpoints
from bertsmith.train.log import NAME as EVENTS
from bertsmith.train.log import EventLog
from bertsmith.train.step import Scores, Step
from bertsmith.train.stopper import Stopper
from bertsmith.train.trainer import Trainer
from bertsmith.train.world import World, join
from bertsmith.types import Batch
from bertsmith.weights.folder_tokenizer import vocabulary_of
from bertsmith.weights.model_folder import save_model

RECIPE = "recipe.json"
TABLE_MULTIPLE = 64  # rows of the token table, so that matrices have sizes that GPUs like
SHOW_EVERY = 0.5  # seconds, on a terminal; ten elsewhere
BEHIND = 2  # steps that may still be under way on the device when an older one is logged


@dataclass
class Run:
    """One run under way on one rank: what the loop's parts share."""

    recipe: Recipe
    folder: Path
    world: World
    trainer: Trainer
    tokenizer: Tokenizer
    held_out: list[Batch]
    best: float = float("inf")


def pretrain(
    recipe: Recipe, data: str | Path, output: str | Path, *, device: str = "auto", quiet: bool = False
) -> dict[str, Any]:
    """Trains until the plan is fulfilled and returns the last scores; goes on where an earlier call was stopped."""
    data, output = Path(data), Path(output)
    shards = Shards.open(data)
    tokenizer = load(data / "tokenizer")
    if tokenizer.fingerprint != shards.fingerprint:
        raise DataError(f"{data / 'tokenizer'} is not the tokenizer that wrote {data}: run bertsmith verify {data}")
    size = -(-tokenizer.vocabulary_size // TABLE_MULTIPLE) * TABLE_MULTIPLE
    recipe = replace(recipe, encoder=replace(recipe.encoder, vocabulary_size=size))
    with ExitStack() as stack:
        world = stack.enter_context(join(choose_device(device)))
        stopper = stack.enter_context(Stopper())
        feeder = stack.enter_context(Feeder(recipe, _packing(recipe, shards, tokenizer), world))
        trainer = _trainer(recipe, tokenizer, feeder, world, stopper)
        run = Run(recipe, output, world, trainer, tokenizer, _held_out(recipe, data, tokenizer, world))
        facts = {"data": shards.index["seal"], "tokenizer": tokenizer.fingerprint}
        try:
            return _loop(run, stack, facts, quiet=quiet)
        except torch.OutOfMemoryError as error:
            rows = recipe.micro_rows or recipe.rows.full // world.size
            advice = f"micro_rows={max(rows // 2, 1)}" if rows > 1 else "passes.recompute=true, or a smaller encoder"
            raise BertsmithError(f"out of memory with {rows} rows in one forward: go on with {advice}") from error


def _loop(run: Run, stack: ExitStack, facts: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Steps, one after another; only the first rank writes."""
    checkpoints: Checkpoints | None = None
    log: EventLog | None = None
    state, skipped = None, tuple[str, ...]()
    if run.world.leads:
        files = {RECIPE: run.recipe.to_json()}
        checkpoints = stack.enter_context(Checkpoints(run.folder, keep=run.recipe.keep, files=files, facts=facts))
        _settle_recipe(run)
        resumed = checkpoints.resume()
        state, skipped = resumed.state, resumed.skipped
        if resumed.checkpoint is not None and resumed.checkpoint.facts != facts:
            raise ConfigError(f"{run.folder} was trained on other shards: choose another -o, or pass those")
        log = stack.enter_context(EventLog(run.folder / EVENTS))
    notes = [*skipped, *run.trainer.load(state)]
    show = Display(run, quiet=quiet or not run.world.leads)
    for note in notes:
        show.note(note)
    if log is not None:
        log.write("start", step=run.trainer.done, notes=notes)
    waiting: deque[Step] = deque()
    scores, scored_at = None, -1
    for step in run.trainer:
        waiting.append(step)
        if len(waiting) > BEHIND or run.world.device.type == "cpu":
            _record(waiting.popleft(), log, show)
        if run.recipe.evaluate_every and step.number % run.recipe.evaluate_every == 0:
            scores, scored_at = _evaluate(run, log, show), step.number
        if step.number % run.recipe.save_every == 0:
            _save(run, checkpoints, log)
    while waiting:
        _record(waiting.popleft(), log, show)
    _save(run, checkpoints, log)
    show.close()
    if run.trainer.stopped:
        raise Stopped(f"stopped after step {run.trainer.done:,}, which is saved: the same command goes on from there")
    if scored_at != run.trainer.done:
        scores = _evaluate(run, log, show)
    return _finish(run, scores)


def _record(step: Step, log: EventLog | None, show: Display) -> None:
    if log is not None:
        log.write("step", **step.facts())
    show.step(step)


def _evaluate(run: Run, log: EventLog | None, show: Display) -> Scores | None:
    """Scores on held-out rows; the best model so far is kept as a model folder."""
    if not run.held_out:
        return None
    scores = run.trainer.score(run.held_out)
    if log is not None:
        log.write("evaluation", step=run.trainer.done, loss=scores.loss, **_flat(scores))
        show.evaluation(scores)
    if run.world.leads and scores.loss < run.best:
        run.best = scores.loss
        _write_model(run, "best", scores)
    return scores


def _save(run: Run, checkpoints: Checkpoints | None, log: EventLog | None) -> None:
    state = run.trainer.state()
    if checkpoints is not None and log is not None:
        checkpoints.save(state)
        log.write("checkpoint", step=state.step)
        log.sync()


def _finish(run: Run, scores: Scores | None) -> dict[str, Any]:
    found: dict[str, Any] = {"run": str(run.folder), "steps": run.trainer.done, "tokens": run.trainer.tokens}
    found |= {"seconds": run.trainer.seconds}
    if run.world.leads:
        _write_model(run, "last", scores)
    if scores is not None:
        found |= {"loss": scores.loss, **_flat(scores)}
    return found


def _write_model(run: Run, name: str, scores: Scores | None) -> None:
    facts: dict[str, object] = {"recipe": run.recipe.name, "steps": run.trainer.done, "tokens": run.trainer.tokens}
    if scores is not None:
        facts |= {f"held-out {key.replace('/', ' of ')}": f"{value:.4f}" for key, value in _flat(scores).items()}
    model = run.trainer.module
    assert isinstance(model, Model)
    save_model(model, run.tokenizer, run.folder / name, facts=facts, replace=True)


def _flat(scores: Scores) -> dict[str, float]:
    losses = {f"loss/{name}": value for name, value in scores.losses.items()}
    return losses | {f"accuracy/{name}": value for name, value in scores.accuracies.items()}


# --- what a run is made of -------------------------------------------------------------------------------------------


def _settle_recipe(run: Run) -> None:
    """The recipe lies in the run folder; going on with another one is refused, naming what differs."""
    path = run.folder / RECIPE
    if not path.exists():
        Disk().write_file(path, [run.recipe.to_json()])
        return
    before, now = config.to_dict(read_recipe(path)), config.to_dict(run.recipe)
    if changes := list(differences(before, now)):
        raise ConfigError(f"{run.folder} holds a run of another recipe: {'; '.join(changes[:3])}: choose another -o")


def _packing(recipe: Recipe, shards: Shards, tokenizer: Tokenizer) -> Packing:
    found: Packing = recipe.packing.build(
        shards, frame=tokenizer.frame_parts, padding_id=tokenizer.padding_id, seed=recipe.seed
    )
    return found


def _trainer(recipe: Recipe, tokenizer: Tokenizer, feeder: Feeder, world: World, stopper: Stopper) -> Trainer:
    torch.manual_seed(recipe.seed)
    model = Model.build(
        recipe.encoder, recipe.objectives.values(), vocabulary=vocabulary_of(tokenizer), seed=recipe.seed
    )
    return Trainer(
        model,
        feeder,
        plan=recipe.plan,
        optimizer=recipe.optimizer,
        settings=recipe.passes,
        world=world,
        stopper=stopper,
        seed=recipe.seed,
    )


def _held_out(recipe: Recipe, data: Path, tokenizer: Tokenizer, world: World) -> list[Batch]:
    """This rank's share of the first held-out rows, in batches of a micro-batch's size."""
    shards = Shards.open(data, "held-out")
    if not shards.tokens or (shards.documents < 2 and "next_sentence" in recipe.objectives):
        return []
    packing = _packing(recipe, shards, tokenizer)
    rows = min(recipe.evaluate_rows, packing.rows_per_epoch)
    share = min(recipe.micro_rows or 32, max(rows // world.size, 1))  # so that every rank has some
    batches = [from_packed(packing.take(first, min(share, rows - first))) for first in range(0, rows, share)]
    return batches[world.rank :: world.size]


class Feeder:
    """The micro-batches of each step on this rank; the next step's are made while this one is computed."""

    def __init__(self, recipe: Recipe, packing: Packing, world: World) -> None:
        self.recipe, self.packing, self.world = recipe, packing, world
        self.rows = (recipe.micro_rows or recipe.rows.full // world.size) * world.size
        recipe.rows.micro_batches(0, self.rows)  # an error at once where they do not divide evenly
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: tuple[int, Future[list[Batch]]] | None = None

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __call__(self, step: int) -> Sequence[Batch]:
        waiting = self._next
        ready = waiting[1] if waiting is not None and waiting[0] == step else self._pool.submit(self._make, step)
        found = ready.result()
        self._next = (step + 1, self._pool.submit(self._make, step + 1))
        return found

    def _make(self, step: int) -> list[Batch]:
        pin = self.world.device.type == "cuda"
        share = {"rows": self.rows, "rank": self.world.rank, "world": self.world.size}
        micros = self.recipe.rows.micro_batches(step, self.rows)
        return [from_packed(self.packing.batch(micro, **share), pin=pin) for micro in micros]


class Display:
    """Progress on standard error from step 1: loss, tokens a second, time left, memory."""

    def __init__(self, run: Run, *, quiet: bool) -> None:
        self.run, self.quiet = run, quiet
        self.live = not quiet and sys.stderr.isatty()
        self.began, self.from_step, self.tokens = time.monotonic(), run.trainer.done, 0
        self.last = 0.0

    def step(self, step: Step) -> None:
        """Shows a step, if it is the first one or time to."""
        self.tokens += step.tokens
        now = time.monotonic()
        if self.quiet or (now - self.last < (SHOW_EVERY if self.live else 10.0) and step.number > self.from_step + 1):
            return
        self.last = now
        self._say(self.line(step, now - self.began))

    def line(self, step: Step, seconds: float) -> str:
        """One line for one step."""
        plan, trainer = self.run.recipe.plan, self.run.trainer
        gone = plan.progress(step.number, trainer.seconds)
        begun = plan.progress(self.from_step, 0.0) if not plan.minutes else 0.0
        left = seconds * (1 - gone) / (gone - begun) if gone > begun else 0.0
        losses = " ".join(f"{name} {loss:.3f}" for name, loss in step.scores.losses.items())
        parts = [
            f"step {step.number:,}",
            losses,
            f"rate {step.rate:.1e}",
            f"{self.tokens / max(seconds, 1e-9):,.0f} tok/s",
        ]
        if self.run.world.device.type == "cuda":
            parts.append(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
        return " · ".join([*parts, f"{clock(left)} left"])

    def evaluation(self, scores: Scores) -> None:
        """Shows held-out scores."""
        parts = [f"{name} {loss:.3f} ({scores.accuracies[name]:.1%})" for name, loss in scores.losses.items()]
        self.note(f"held out after step {self.run.trainer.done:,}: {' · '.join(parts)}")

    def note(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            print(f"{chr(13)}{chr(27)}[2K{text}" if self.live else text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Takes the live line away."""
        if self.live:
            self._say("")

    def _say(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[2K{text}" if self.live else f"{text}\n")
        sys.stderr.flush()
