"""Preflight checks that take a few real steps: parameters, memory, the first loss, throughput."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from bertsmith.data.packing.packing import Packing
from bertsmith.errors import BertsmithError, DataError
from bertsmith.model_io.model import Model
from bertsmith.model_io.summary import parameters_by_module
from bertsmith.objectives.objective import Objective
from bertsmith.system.progress import format_duration
from bertsmith.training.distributed import World
from bertsmith.training.memory import MemoryEstimate, available_bytes, format_bytes
from bertsmith.training.pretrain import estimate_memory, make_trainer
from bertsmith.training.pretrain_data import PretrainData, PretrainLoader, load_start, meta_model
from bertsmith.training.recipe import Recipe
from bertsmith.training.signals import StopSignal
from bertsmith.training.step import Step
from bertsmith.training.trainer import Trainer

CPU_FLOP, CPU_TOKENS = 1e11, 4096  # of a trial step at most: one to a few seconds
MAX_FORWARDS = 4  # of a trial step on an accelerator
MAX_STEPS, MAX_SECONDS = 20, 3.0  # of the throughput measurement
FAR_FROM_CHANCE = 1.0  # nats
MANY_EPOCHS = 20  # from where on dropout helped (docs/minutes.md)
TOO_MANY_EPOCHS, TOO_MANY_DAYS = 200, 14  # from where on a run is probably a mistake
DAY = 86_400  # seconds


FindingState = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of one check: in words, and as plain facts."""

    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    # note: the run would work, but the user should know; warning: it would work, but hardly as it is meant
    state: FindingState = "ok"
    error: BertsmithError | None = None  # of a problem
    name: str = ""  # of the check

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, with None for numbers that are not finite."""
        infinite = {name for name, value in self.facts.items() if isinstance(value, float) and not math.isfinite(value)}
        facts = self.facts | dict.fromkeys(infinite)
        return {"check": self.name, "state": self.state, "text": self.text, **facts}


def problem(error: BertsmithError, facts: dict[str, Any] | None = None) -> Finding:
    """A finding that would stop the run with this error."""
    return Finding(str(error), facts or {}, "problem", error)


@dataclass
class PreflightContext:
    """The run to check. Fields without a value are set by the check that determines them."""

    recipe: Recipe  # with the vocabulary size of the tokenizer, once that is known
    folder: Path  # of the shards
    output: Path | None
    world: World
    data: PretrainData = field(init=False)
    packing: Packing = field(init=False)
    trial: Recipe = field(init=False)  # the recipe with a smaller batch size
    trainer: Trainer = field(init=False)  # of the trial
    memory: MemoryEstimate = field(init=False)

    def __post_init__(self) -> None:
        self.memory = MemoryEstimate(weights=0, rows=self.forward_rows)  # until it is estimated

    @property
    def forward_rows(self) -> int:
        return self.recipe.rank_rows(1)

    @property
    def total_rows(self) -> int | None:
        """Rows of the whole run; None where the clock drives it."""
        return None if self.recipe.minutes else self.recipe.batch_sizes.before(self.recipe.steps)

    @property
    def model(self) -> Model:
        assert isinstance(self.trainer.module, Model)
        return self.trainer.module

    def epochs_advice(self, epochs: float) -> tuple[str, FindingState]:
        """Advice for a run of many epochs, and the state of its finding."""
        if epochs > TOO_MANY_EPOCHS:
            name, value = ("minutes", self.recipe.minutes) if self.recipe.minutes else ("steps", self.recipe.steps)
            fewer = max(1, int(value * TOO_MANY_EPOCHS / epochs))
            return (
                f"; more than {TOO_MANY_EPOCHS} repeat the data too often: set {name}={fewer}, or add text",
                "warning",
            )
        if epochs < MANY_EPOCHS or getattr(self.recipe.encoder, "dropout", None) != 0:
            return "", "ok"
        return "; with so many epochs, dropout may help: encoder.dropout=0.1 encoder.attention_dropout=0.1", "note"


def count_parameters(recipe: Recipe) -> int:
    """Of the encoder and all heads; allocates no weights."""
    return sum(weight.numel() for weight in meta_model(recipe).parameters())


def recipe_facts(recipe: Recipe) -> dict[str, int]:
    sizes = {"max_length": recipe.max_length, "batch_size": recipe.batch_size, "steps": recipe.steps}
    return {"parameters": count_parameters(recipe), **sizes}


def check_model(context: PreflightContext) -> Finding:
    """The model with its initial weights, and the number of its parameters."""
    count = count_parameters(context.recipe)
    context.trial = trial_recipe(context.recipe, count, context.world.device.type)
    loader = PretrainLoader(context.trial, context.packing, context.world, source=context.folder)
    context.trainer = make_trainer(context.trial, context.data, loader, context.world, StopSignal())
    by_module = parameters_by_module(context.model)
    notes = load_start(context.recipe, context.model, context.data.tokenizer)
    listed = ", ".join(f"{name} {number:,}" for name, number in by_module.items())
    text = "; ".join([f"{count:,} parameters ({listed})", *notes])
    missing_start = context.recipe.after and not context.recipe.start
    facts = {"parameters": count, "parameters_by_module": by_module, "notes": notes}
    return Finding(text, facts, "note" if missing_start else "ok")


def trial_recipe(recipe: Recipe, parameters: int, device: str) -> Recipe:
    """The recipe with a small batch size; on an accelerator the shape of a forward stays."""
    rows = recipe.rank_rows(1)
    forwards = 1 if device == "cpu" else min(MAX_FORWARDS, recipe.batch_size // rows)
    if device == "cpu":
        tokens = min(CPU_TOKENS, CPU_FLOP / (6 * parameters))
        rows = min(rows, max(1, int(tokens / recipe.max_length)))
    return replace(recipe, batch_size=rows * forwards, batch_size_warmup=None, micro_batch_size=rows)


def check_memory(context: PreflightContext) -> Finding:
    """An estimate: weights, gradients, two optimizer moments, and the activations of one forward."""
    estimate = context.memory = estimate_memory(context.trainer, context.packing, rows=context.forward_rows)
    available, weights = available_bytes(context.world.device), estimate.weights
    facts = {"weights_bytes": weights, "gradients_bytes": weights, "moments_bytes": 2 * weights}
    facts |= {"activations_bytes": estimate.activations, "estimated_bytes": estimate.total}
    facts |= {"available_bytes": available}
    text = estimate.describe(available)
    if estimate.total <= available:
        return Finding(text, facts)
    advice = f"{text}: {memory_advice(context)}"
    if context.world.device.type == "cpu":  # the trial has fewer rows there, so it cannot tell
        return problem(BertsmithError(advice), facts)
    return Finding(advice, facts, "note")


def memory_advice(context: PreflightContext) -> str:
    """The setting to change when memory is short."""
    recipe, available = context.recipe, available_bytes(context.world.device)
    checkpointing = recipe.compute.activation_checkpointing
    return context.memory.advice(available, batch_size=recipe.batch_sizes.increment, checkpointing=checkpointing)


def check_step(context: PreflightContext) -> Finding:
    """One forward, backward and update: are loss and gradient those of an untrained model?"""
    if context.world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    first = next(context.trainer)
    metrics = {name: value for name, value in first.metrics().items() if name not in ("step", "seconds")}
    facts: dict[str, Any] = metrics | {"seconds": time.monotonic() - began}
    heads = [module for module in context.model.objectives.modules() if isinstance(module, Objective)]
    # of uniform predictions, by objective with a fixed number of classes
    chance = {} if context.recipe.start else {head.name: math.log(head.classes) for head in heads if head.classes}
    facts |= {f"expected/{name}": value for name, value in chance.items()}
    losses = ", ".join(_loss_and_chance(first, name, chance) for name in first.scores.losses)
    text = f"{_trial_rows(context)}: loss {losses}; gradient norm {first.gradient_norm:.3g}"
    if context.world.device.type == "cuda":
        facts["peak_bytes"] = torch.cuda.max_memory_allocated()
        text += f"; {format_bytes(facts['peak_bytes'])} peak memory"
    if first.skipped:
        return problem(DataError(f"loss or gradient of the first step is not finite ({text})"), facts)
    labelled = [name for name in chance if first.scores.counts[name]]
    far = [name for name in labelled if abs(first.scores.losses[name] - chance[name]) > FAR_FROM_CHANCE]
    if far:
        text += f"; {far[0]} is far from chance: check encoder.initializer_range and the objective's weight"
    return Finding(text, facts, "note" if far else "ok")


def check_speed(context: PreflightContext) -> Finding:
    """Tokens per second over some more steps, and the duration of the whole run."""
    began, steps = time.monotonic(), list[Step]()
    for step in context.trainer:
        steps.append(step)
        if len(steps) >= MAX_STEPS or time.monotonic() - began > MAX_SECONDS:
            break
    if not steps:
        return Finding("the run has only the one step above", {"steps": 0}, "note")
    tokens = sum(step.tokens for step in steps)  # waits for the device
    seconds = time.monotonic() - began
    rows, minutes = sum(step.rows for step in steps) / seconds, context.recipe.minutes
    facts: dict[str, Any] = {"steps": len(steps), "tokens_per_second": tokens / seconds, "rows_per_second": rows}
    many = "s" * (len(steps) > 1)
    text = f"{tokens / seconds:,.0f} tokens/s over {len(steps)} step{many} of {_trial_rows(context)}; "
    if context.total_rows is None:
        facts["epochs"] = rows * 60 * minutes / context.packing.rows_per_epoch
        text += f"{minutes:g} minutes are {facts['epochs']:,.1f} epochs"
    else:
        facts["run_seconds"] = left = context.total_rows / rows
        duration = format_duration(left) if left < 2 * DAY else f"{left / DAY:,.1f} days"
        text += f"the run takes about {duration}, without evaluation and checkpoints"
        if left > TOO_MANY_DAYS * DAY:
            fewer = max(1, int(context.recipe.steps * TOO_MANY_DAYS * DAY / left))
            return Finding(f"{text}: set steps={fewer} for {TOO_MANY_DAYS} days, or minutes=60", facts, "warning")
    advice, state = context.epochs_advice(facts.get("epochs", 0))
    return Finding(text + advice, facts, state)


def _loss_and_chance(first: Step, name: str, chance: dict[str, float]) -> str:
    expected = f" (chance {chance[name]:.3f})" if name in chance else ""
    empty = "" if first.scores.counts[name] else " (no labels in these rows)"
    return f"{name} {first.scores.losses[name]:.3f}{empty or expected}"


def _trial_rows(context: PreflightContext) -> str:
    """The rows of a trial step, and those of the recipe where they differ."""
    rows, full = context.trial.batch_size, context.recipe.batch_size
    micro = context.trial.micro_batch_size
    shown = f"{rows:,} row{'s' * (rows > 1)}" if rows == micro else f"{rows // micro} × {micro:,} rows"
    return shown if rows == full else f"{shown} (of the recipe's {full:,})"
