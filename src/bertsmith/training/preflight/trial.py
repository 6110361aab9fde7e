"""Checks that take a few real steps: parameters, memory, the first loss, tokens a second."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import torch

from bertsmith.errors import BertsmithError, DataError
from bertsmith.model_io.facts import parameters_by_room
from bertsmith.model_io.model import Model
from bertsmith.objectives.objective import Objective
from bertsmith.system.progress import format_duration
from bertsmith.training.preflight.case import Finding, PreflightContext, megabytes, problem
from bertsmith.training.preflight.sizes import available_bytes, kept_for_backward, parameters, tensor_bytes
from bertsmith.training.pretraining.feeder import PretrainLoader
from bertsmith.training.pretraining.parts import load_start
from bertsmith.training.pretraining.work import make_trainer
from bertsmith.training.recipe import Recipe
from bertsmith.training.step import Step
from bertsmith.training.stopper import StopSignal

CPU_FLOP, CPU_TOKENS = 1e11, 4096  # of a trial step at most: one to a few seconds
MOST_FORWARDS = 4  # of a trial step on an accelerator
MOST_STEPS, MOST_SECONDS = 20, 3.0  # that the speed is measured on
FAR = 1.0  # nats between the first loss and that of blind guessing that a user should know of


def model(case: PreflightContext) -> Finding:
    """The model with its first weights, and how many of them there are."""
    count = parameters(case.recipe)
    case.trial = trial_recipe(case.recipe, count, case.world.device.type)
    feeder = PretrainLoader(case.trial, case.packing, case.world, source=case.folder)
    case.trainer = make_trainer(case.trial, case.data, feeder, case.world, StopSignal())
    rooms = parameters_by_room(_model(case))
    notes = load_start(case.recipe, _model(case), case.data.tokenizer)
    text = "; ".join([f"{count:,} parameters ({_listed(rooms)})", *notes])
    alone = case.recipe.after and not case.recipe.start
    facts = {"parameters": count, "parameters_by_room": rooms, "notes": notes}
    return Finding(text, facts, "note" if alone else "ok")


def trial_recipe(recipe: Recipe, count: int, device: str) -> Recipe:
    """The recipe with as few rows a step as a trial needs: on an accelerator in forwards of their own shape."""
    micro = recipe.rank_rows(1)
    if device == "cpu":
        tokens = min(CPU_TOKENS, CPU_FLOP / (6 * count))
        micro = min(micro, max(1, int(tokens / recipe.max_length)))
        return replace(recipe, batch_size=micro, batch_size_warmup=None, micro_batch_size=micro)
    forwards = min(MOST_FORWARDS, recipe.batch_size // micro)
    return replace(recipe, batch_size=micro * forwards, batch_size_warmup=None, micro_batch_size=micro)


def memory(case: PreflightContext) -> Finding:
    """An estimate: weights, gradients, two moments, and what one forward keeps for the way back."""
    weights = tensor_bytes(_model(case).state_dict())
    one, two = (kept_for_backward(case.trainer, case.packing.rows(0, rows)) for rows in (1, 2))
    case.row_bytes, case.fixed_bytes = max(two - one, 1), 4 * weights + max(2 * one - two, 0)
    activations = case.row_bytes * case.micro_rows
    needed, there = case.fixed_bytes + activations, available_bytes(case.world.device)
    facts = {"weights_bytes": weights, "gradients_bytes": weights, "moments_bytes": 2 * weights}
    facts |= {"activations_bytes": activations, "estimated_bytes": needed, "available_bytes": there}
    text = f"needs about {megabytes(needed)}: {megabytes(4 * weights)} for weights, gradients and moments, "
    text += f"{megabytes(activations)} for {case.micro_rows:,} rows of one forward; {megabytes(there)} are there"
    if needed <= there:
        return Finding(text, facts)
    advice = f"{text}: {advise(case)}"
    if case.world.device.type == "cpu":  # the trial takes fewer rows there, so this is all that is known
        return problem(BertsmithError(advice), facts)
    return Finding(advice, facts, "note")


def advise(case: PreflightContext) -> str:
    """Which setting to change when memory is short, and to what."""
    room = int((available_bytes(case.world.device) - case.fixed_bytes) / case.row_bytes)
    whole = case.recipe.batch_sizes.increment
    fitting = [rows for rows in range(1, min(case.micro_rows // 2, room) + 1) if whole % rows == 0]
    if fitting:
        return f"set micro_batch_size={fitting[-1]}"
    recompute = "" if case.recipe.compute.activation_checkpointing else "set compute.activation_checkpointing=true, or "
    return f"{recompute}take a smaller encoder or max_length"


def out_of_memory(case: PreflightContext) -> BertsmithError:
    """What a run would end with."""
    return BertsmithError(f"out of memory with {case.micro_rows:,} rows in one forward: {advise(case)}")


def step(case: PreflightContext) -> Finding:
    """One step there and back with its update: are loss and gradient what a new model's should be?"""
    if case.world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    first = next(case.trainer)
    facts = _numbers(first) | {"seconds": time.monotonic() - began}
    expected = {} if case.recipe.start else blind_losses(_model(case))
    facts |= {f"expected/{name}": value for name, value in expected.items()}
    text = f"{_rows(case)}: loss {', '.join(_beside(first, name, expected) for name in first.scores.losses)}; "
    text += f"gradient norm {first.gradient_norm:.3g}"
    if case.world.device.type == "cuda":
        facts["peak_bytes"] = torch.cuda.max_memory_allocated()
        text += f"; {megabytes(facts['peak_bytes'])} at most"
    if first.skipped:
        return problem(DataError(f"loss or gradient of the first step is not finite ({text})"), facts)
    far = [name for name in expected if abs(first.scores.losses[name] - expected[name]) > FAR]
    asked = [name for name in far if first.scores.counts[name]]
    if asked:
        text += f"; {asked[0]} is far from chance: check encoder.initializer_range and the objective's weight"
    return Finding(text, facts, "note" if asked else "ok")


def blind_losses(model: Model) -> dict[str, float]:
    """What guessing all answers alike costs, by objective, where the number of answers is known."""
    objectives = [module for module in model.objectives.modules() if isinstance(module, Objective)]
    return {objective.name: math.log(objective.classes) for objective in objectives if objective.classes}


def speed(case: PreflightContext) -> Finding:
    """Tokens a second over some more steps, and what that makes of the whole run."""
    began, taken = time.monotonic(), list[Step]()
    for one in case.trainer:
        taken.append(one)
        if len(taken) >= MOST_STEPS or time.monotonic() - began > MOST_SECONDS:
            break
    if not taken:
        return Finding("the plan has only one step, which was taken above", {"steps": 0}, "note")
    tokens = sum(one.tokens for one in taken)  # waits for the device
    seconds = time.monotonic() - began
    rows = sum(one.rows for one in taken) / seconds
    facts: dict[str, Any] = {"steps": len(taken), "tokens_per_second": tokens / seconds, "rows_per_second": rows}
    text = (
        f"{facts['tokens_per_second']:,.0f} tokens/s over {len(taken)} step{'s' * (len(taken) > 1)} of {_rows(case)}; "
    )
    if case.whole_rows is None:
        facts["epochs"] = rows * 60 * case.recipe.minutes / case.packing.rows_per_epoch
        text += f"{case.recipe.minutes:g} minutes are {facts['epochs']:,.1f} epochs"
    else:
        facts["run_seconds"] = case.whole_rows / rows
        text += f"the run takes about {_long(facts['run_seconds'])}, without scoring and saving"
    worn = case.worn(facts.get("epochs", 0))
    return Finding(text + worn, facts, "note" if worn else "ok")


def _numbers(first: Step) -> dict[str, Any]:
    found = first.metrics()
    return {name: value for name, value in found.items() if name not in ("step", "seconds")}


def _beside(first: Step, name: str, expected: dict[str, float]) -> str:
    blind = f" (blind guessing {expected[name]:.3f})" if name in expected else ""
    asked = "" if first.scores.counts[name] else " (nothing asked in these rows)"
    return f"{name} {first.scores.losses[name]:.3f}{asked or blind}"


def _rows(case: PreflightContext) -> str:
    """How many rows a trial step has, and whether that is what the run will have."""
    rows, full = case.trial.batch_size, case.recipe.batch_size
    forwards = rows // case.trial.micro_batch_size
    kind = f"{rows:,} row{'s' * (rows > 1)}" if forwards == 1 else f"{forwards} × {case.trial.micro_batch_size:,} rows"
    return kind if rows == full else f"{kind} (of the recipe's {full:,})"


def _long(seconds: float) -> str:
    return format_duration(seconds) if seconds < 2 * 86_400 else f"{seconds / 86_400:,.1f} days"


def _model(case: PreflightContext) -> Model:
    assert isinstance(case.trainer.module, Model)
    return case.trainer.module


def _listed(rooms: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in rooms.items())
