"""`pretrain`: shards and a recipe become a run folder. The loop itself is `bertsmith.training.loop`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bertsmith.model_io.companions import companions
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.nn.autotune import tune_attention
from bertsmith.objectives.objective import Objective
from bertsmith.system.devices import choose_device, measure_peak_flops
from bertsmith.training.flops import flops_per_token
from bertsmith.training.loop import Evaluation, Run, memory_advice, run_training
from bertsmith.training.pretraining.choices import resolve_auto
from bertsmith.training.pretraining.feeder import PretrainLoader
from bertsmith.training.pretraining.parts import PretrainData, build_model, load_start
from bertsmith.training.recipe import Recipe
from bertsmith.training.roofline import device_seconds
from bertsmith.training.state import TrainingState
from bertsmith.training.step import Scores
from bertsmith.training.stopper import StopSignal
from bertsmith.training.trainer import Trainer
from bertsmith.training.world import World, join_process_group
from bertsmith.types import IGNORE_INDEX, Batch


def pretrain(
    recipe: Recipe,
    data: str | Path,
    output: str | Path,
    *,
    device: str = "auto",
    resume: str = "auto",
    quiet: bool = False,
    picture: bool = False,
    trackers: Sequence[str] = (),
    made: Callable[..., Trainer] = Trainer,
) -> dict[str, Any]:
    """Trains until the plan is fulfilled and returns the last scores; goes on where an earlier call was stopped.

    `resume`: `auto`, `never`, or the path of a checkpoint. `picture`: curves while it runs, on a terminal. `trackers`:
    tensorboard, wandb or mlflow, which hear every event that is logged. `made`: what makes the trainer.
    """
    opened = PretrainData.open(data)
    recipe = opened.with_vocabulary(recipe)
    with ExitStack() as stack:
        world = stack.enter_context(join_process_group(choose_device(device)))
        recipe, measured = resolve_auto(recipe, Path(output), world)
        stopper = stack.enter_context(StopSignal())
        feeder = PretrainLoader(recipe, opened.packing(recipe), world, source=opened.folder)
        stack.callback(feeder.close)
        trainer = make_trainer(recipe, opened, feeder, world, stopper, made)
        with memory_advice(recipe.rank_rows(world.size), "rows"):
            work = Work(recipe, opened, trainer, opened.held_out(recipe, world), Path(output), measured)
            return run_training(work.run(feeder), resume=resume, quiet=quiet, picture=picture, trackers=trackers)


def make_trainer(
    recipe: Recipe,
    data: PretrainData,
    feeder: PretrainLoader,
    world: World,
    stopper: StopSignal,
    made: Callable[..., Trainer] = Trainer,
) -> Trainer:
    """The trainer of a recipe's model, with new weights or those that it starts from."""
    model = build_model(recipe, data.tokenizer)
    return made(
        model,
        feeder,
        plan=recipe.plan,
        optimizer=recipe.optimizer,
        precision=recipe.precision,
        compute=recipe.compute,
        world=world,
        stopper=stopper,
        seed=recipe.seed,
    )


@dataclass
class Work:
    """What the loop is given to score and to write."""

    recipe: Recipe
    data: PretrainData
    trainer: Trainer
    held_out: list[Batch]
    output: Path
    measured: dict[str, Any] = field(default_factory=dict)  # before it began, for the log

    def run(self, feeder: PretrainLoader) -> Run:
        return Run(
            folder=self.output,
            recipe=self.recipe,
            eval_every=self.recipe.eval_every,
            trainer=self.trainer,
            evaluate=self.evaluate,
            write_model=self.write_model,
            begin=self.begin,
            fingerprints=self.data.fingerprints,
            about=self.about(feeder),
            waited=feeder.wait_seconds,
        )

    def begin(self) -> tuple[TrainingState, list[str]] | None:
        """What a new run begins with, and what a user should hear about it."""
        if not (self.recipe.start or self.recipe.after):
            return None
        model = build_model(self.recipe, self.data.tokenizer)
        notes = load_start(self.recipe, model, self.data.tokenizer)
        return TrainingState(model.state_dict(), {}, {"step": 0, "seconds": 0.0, "tokens": 0}), notes

    @property
    def model(self) -> Model:
        assert isinstance(self.trainer.module, Model)
        return self.trainer.module

    def evaluate(self) -> Evaluation | None:
        if not self.held_out:
            return None
        scores = self.trainer.evaluate(self.held_out)
        parts = [f"{name} {loss:.3f} ({scores.accuracies[name]:.1%})" for name, loss in scores.losses.items()]
        return Evaluation({"loss": scores.loss, **_flat(scores)}, scores.loss, f"held out {' · '.join(parts)}")

    def write_model(self, name: str, numbers: Mapping[str, float]) -> None:
        weights, model = self.trainer.full_weights(), self.model
        if not self.trainer.world.is_main:
            return
        if self.trainer.sharded:
            model = build_model(self.recipe, self.data.tokenizer)
            model.load_state_dict(weights)
        facts: dict[str, object] = {"recipe": self.recipe.name, "steps": self.trainer.steps_done}
        facts |= {"tokens": self.trainer.tokens}
        scores = {key: value for key, value in numbers.items() if "/" in key}
        facts |= {f"held-out {key.replace('/', ' of ')}": f"{value:.4f}" for key, value in scores.items()}
        save_model(model, self.data.tokenizer, self.output / name, facts=facts, replace=True)
        for kind, other in companions(model).items():
            save_model(other, self.data.tokenizer, self.output / kind / name, facts=facts, replace=True)

    def _given(self) -> set[str]:
        """Objectives whose labels come with the rows."""
        return set(self.held_out[0].labels) & set(self.recipe.objectives) if self.held_out else set()

    def about(self, feeder: PretrainLoader) -> dict[str, Any]:
        """Facts for the log: what a token costs, what the device could do, what guessing by frequency would lose."""
        world, recipe = self.trainer.world, self.recipe
        hidden, counts, tokens = self.trainer.forward_backward.corrupt(feeder(self.trainer.steps_done)[0])
        asked = {name: float(count / tokens) for name, count in counts.items()}
        unigram = self.data.unigram_loss() if world.is_main else None
        objectives = [part for part in self.model.objectives.values() if isinstance(part, Objective)]
        words = [term for objective in objectives for term in objective.perplexity_terms]
        chances = {objective.name: objective.chance_accuracy(asked) for objective in objectives}
        chances |= {name: _commonest([batch.labels[name] for batch in self.held_out]) for name in self._given()}
        return {
            **self.measured,
            **self._settle_attention(hidden),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "device": world.environment()["device"],
            "ranks": world.size,
            "threads": torch.get_num_threads(),
            "padding": 1 - float(tokens) / hidden.input_ids.numel(),
            "rows_per_epoch": feeder.packing.rows_per_epoch,
            "chance": {name: chance for name, chance in chances.items() if chance is not None},
            "unigram": dict.fromkeys(words, unigram) if unigram is not None else {},
            "flops_per_token": flops_per_token(self.model, length=recipe.max_length, asked=asked),
            "peak_flops": self.peak(),
        }

    def peak(self) -> float:
        """FLOP/s that all devices of the run could do at most, measured now."""
        world = self.trainer.world
        return measure_peak_flops(world.device, self._dtype) * world.size

    @property
    def _dtype(self) -> torch.dtype:
        """Of products that are not in eight bits."""
        return torch.bfloat16 if self.trainer.forward_backward.bf16 else torch.float32

    def _settle_attention(self, batch: Batch) -> dict[str, Any]:
        """Chooses the fastest kernel; where runs must be the same bit for bit, there is no choice."""
        shape = getattr(self.model.encoder, "attention_shape", None)
        if shape is None or batch.input_ids.device.type != "cuda" or self.recipe.compute.deterministic:
            return {}
        times = tune_attention(batch, shape, self._dtype, clock=partial(device_seconds, device=batch.input_ids.device))
        return {"attention_seconds": times} if times else {}


def _commonest(labels: Sequence[torch.Tensor]) -> float:
    """The share of the commonest label: what one is right in by always saying the same; 0 where nothing is asked."""
    together = torch.cat(list(labels))
    counts = together[together != IGNORE_INDEX].bincount()
    return float(counts.max() / counts.sum()) if len(counts) else 0.0


def _flat(scores: Scores) -> dict[str, float]:
    losses = {f"loss/{name}": value for name, value in scores.losses.items()}
    return losses | {f"accuracy/{name}": value for name, value in scores.accuracies.items()}
