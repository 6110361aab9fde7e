"""`pretrain`: shards and a recipe become a run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bertsmith import config
from bertsmith.data.collate import from_packed
from bertsmith.data.packing.packing import Packing
from bertsmith.model_io.model import Model
from bertsmith.nn import autotune
from bertsmith.nn.autotune import tune_attention
from bertsmith.objectives.objective import Objective
from bertsmith.system.devices import choose_device, measure_peak_flops, supports_fp8
from bertsmith.training.checkpoints import TrainingState
from bertsmith.training.distributed import World, join_process_group
from bertsmith.training.loop import run_training
from bertsmith.training.memory import MemoryEstimate, activation_bytes, tensor_bytes
from bertsmith.training.pretrain_data import PretrainData, PretrainLoader, build_model, load_start, meta_model
from bertsmith.training.recipe import Recipe
from bertsmith.training.roofline import SHORT_STEP, device_seconds, flops_per_token, step_seconds
from bertsmith.training.run import Evaluation, Run, memory_advice, replace_run, with_saved_precision
from bertsmith.training.signals import StopSignal
from bertsmith.training.trainer import Trainer
from bertsmith.types import IGNORE_INDEX, Batch


def pretrain(
    recipe: Recipe,
    data: str | Path,
    output: str | Path,
    *,
    device: str = "auto",
    resume: str = "auto",
    quiet: bool = False,
    chart: bool = False,
    trackers: Sequence[str] = (),
    overwrite: bool = False,
    make: Callable[..., Trainer] = Trainer,
) -> dict[str, Any]:
    """Trains until the recipe's steps or minutes are over and returns the metrics; resumes an earlier call.

    `resume`: `auto`, `never`, or the path of a checkpoint. `overwrite`: replaces the run in the folder. `chart`: live
    curves, on a terminal. `trackers`: tensorboard, wandb or mlflow, which get every logged event. `make`: the class of
    the trainer.
    """
    opened = PretrainData.open(data)
    recipe = opened.with_vocabulary(recipe)
    with ExitStack() as stack:
        world = stack.enter_context(join_process_group(choose_device(device)))
        recipe, measured = resolve_auto(recipe, None if overwrite else Path(output), world)
        stop_signal = stack.enter_context(StopSignal())
        loader = PretrainLoader(recipe, opened.packing(recipe), world, source=opened.folder)
        stack.callback(loader.close)
        refuse_without_memory(recipe, world)
        trainer = make_trainer(recipe, opened, loader, world, stop_signal, make)
        refuse_without_memory(recipe, world, trainer, loader.packing)
        if overwrite:
            replace_run(Path(output), recipe, world, resume=resume)
        with memory_advice(recipe.rank_rows(world.size), "rows"):
            run = PretrainRun(
                config=recipe,
                folder=Path(output),
                tokenizer=opened.tokenizer,
                trainer=trainer,
                loader=loader,
                eval_every=recipe.eval_every,
                data=opened,
                held_out=opened.held_out(recipe, world),
                measured=measured,
            )
            return run_training(run, resume=resume, quiet=quiet, chart=chart, trackers=trackers)


def make_trainer(
    recipe: Recipe,
    data: PretrainData,
    loader: PretrainLoader,
    world: World,
    stop_signal: StopSignal,
    make: Callable[..., Trainer] = Trainer,
) -> Trainer:
    """The trainer of a recipe's model, with new weights."""
    return make(
        build_model(recipe, data.tokenizer, data.shards),
        loader,
        plan=recipe.plan,
        optimizer=recipe.optimizer,
        precision=recipe.precision,
        compute=recipe.compute,
        world=world,
        stop_signal=stop_signal,
        seed=recipe.seed,
        columns=loader.packing if recipe.by_column else None,
    )


@dataclass(kw_only=True)
class PretrainRun(Run):
    """A pre-training run, evaluated on held-out rows."""

    config: Recipe
    loader: PretrainLoader
    data: PretrainData
    held_out: list[Batch]
    measured: dict[str, Any] = field(default_factory=dict)  # timings behind precision=auto, for the log

    @property
    def fingerprints(self) -> dict[str, str]:
        return self.data.fingerprints

    def initial_state(self) -> tuple[TrainingState, list[str]] | None:
        """The weights of `start`, or the word vectors of `vectors`."""
        if not (self.config.start or self.config.after or self.config.vectors):
            return None
        model = self.new_model()
        notes = load_start(self.config, model, self.data.tokenizer)
        return TrainingState(model.state_dict(), {}, {"step": 0, "seconds": 0.0, "tokens": 0}), notes

    def new_model(self) -> Model:
        return build_model(self.config, self.data.tokenizer, self.data.shards)

    def evaluate(self) -> Evaluation | None:
        if not self.held_out:
            return None
        scores = self.trainer.evaluate(self.held_out)
        shares = {name: f" ({accuracy:.1%})" for name, accuracy in scores.accuracies.items()}
        terms = [f"{name} {loss:.3f}{shares.get(name, '')}" for name, loss in scores.losses.items()]
        return Evaluation(scores.metrics(), scores.loss, f"held out {' · '.join(terms)}")

    def closing_notes(self) -> list[str]:
        model = self.folder / "last"
        without = f"no held-out rows, so no best/ model: the model is in {model}; prepare with a larger --held-out"
        return [] if self.held_out else [without]

    def card_facts(self, metrics: Mapping[str, float]) -> dict[str, object]:
        steps, tokens = self.trainer.steps_done, self.trainer.tokens
        terms = {key.replace("/", " of "): value for key, value in metrics.items() if "/" in key}
        scores = {f"held-out {name}": f"{value:.4f}" for name, value in terms.items()}
        return {"recipe": self.config.name, "steps": steps, "tokens": tokens, **scores}

    def collect_facts(self) -> dict[str, Any]:
        """With chance and unigram baselines, FLOPs of a token and peak FLOP/s."""
        corrupted, counts, tokens = self.trainer.forward_backward.corrupt(self.loader(self.trainer.steps_done)[0])
        per_token = {name: float(count / tokens) for name, count in counts.items()}
        unigram = self.data.unigram_loss() if self.trainer.world.is_main else None
        objectives = [part for part in self.model.objectives.values() if isinstance(part, Objective)]
        terms = [term for objective in objectives for term in objective.perplexity_terms]
        given = set(self.held_out[0].labels) & set(self.config.objectives) if self.held_out else set()
        chances = {one.name: chance for one in objectives if (chance := one.chance_accuracy(per_token)) is not None}
        chances |= {name: _majority_share([batch.labels[name] for batch in self.held_out]) for name in given}
        losses = {one.name: one.chance_loss(chances[one.name]) for one in objectives if one.name in chances}
        return {
            **self.measured,
            **self._tune_attention(corrupted),
            **super().collect_facts(),
            "padding": 1 - float(tokens) / corrupted.size,
            "rows_per_epoch": self.loader.packing.rows_per_epoch,
            "chance": chances,
            "chance_loss": {name: loss for name, loss in losses.items() if loss is not None},
            "unigram": dict.fromkeys(terms, unigram) if unigram is not None else {},
            "flops_per_token": flops_per_token(self.model, length=self.config.max_length, labels=per_token),
            "peak_flops": self.peak_flops(),
        }

    def peak_flops(self) -> float:
        """Peak FLOP/s of all devices of the run, measured now."""
        world = self.trainer.world
        return measure_peak_flops(world.device, self.dtype) * world.size

    def _tune_attention(self, batch: Batch) -> dict[str, Any]:
        """Chooses the fastest attention kernel, unless the run must be deterministic."""
        shape = getattr(self.model.encoder, "attention_shape", None)
        if shape is None or batch.input_ids.device.type != "cuda" or self.config.compute.deterministic:
            return {}
        times = tune_attention(batch, shape, self.dtype, clock=partial(device_seconds, device=batch.input_ids.device))
        return {"attention_seconds": times} if times else {}


def refuse_without_memory(
    recipe: Recipe, world: World, trainer: Trainer | None = None, packing: Packing | None = None
) -> None:
    """Raises if the run clearly does not fit into the memory of a CPU; without a trainer, by its weights alone."""
    if world.device.type != "cpu" or recipe.compute.fsdp or recipe.unfreeze:  # these need less than the estimate
        return
    rows = recipe.rank_rows(world.size)
    if trainer is not None and packing is not None and not trainer.forward_backward.compiles:
        estimate = estimate_memory(trainer, packing, rows=rows)
    else:
        estimate = MemoryEstimate(weights=4 * sum(one.numel() for one in meta_model(recipe).parameters()), rows=rows)
    checkpointing = recipe.compute.activation_checkpointing
    estimate.refuse(batch_size=recipe.batch_sizes.increment // world.size, checkpointing=checkpointing)


def estimate_memory(trainer: Trainer, packing: Packing, *, rows: int) -> MemoryEstimate:
    """Of a run with `rows` in one forward, from forwards of one and of two rows."""
    one, two = (activation_bytes(trainer, from_packed(packing.rows(0, count))) for count in (1, 2))
    weights, each, fixed = tensor_bytes(trainer.module.state_dict()), max(two - one, 1), max(2 * one - two, 0)
    return MemoryEstimate(weights=weights, rows=rows, row_activations=each, fixed_activations=fixed)


def resolve_auto(recipe: Recipe, folder: Path | None, world: World) -> tuple[Recipe, dict[str, Any]]:
    """The recipe with `auto` settings resolved, and timings for the log. A resumed run keeps its precision."""
    recipe = recipe if folder is None else with_saved_precision(recipe, folder)
    recipe, measured = _resolve_precision(recipe, world)
    if recipe.compute.cuda_graphs == config.AUTO and world.device.type == "cuda":
        graphs = recipe.compute.compile is not False and world.size == 1 and _has_short_steps(recipe, world)
        recipe = replace(recipe, compute=replace(recipe.compute, cuda_graphs=graphs))
    return recipe, measured


def _has_short_steps(recipe: Recipe, world: World) -> bool:
    peak, length = measure_peak_flops(world.device, torch.bfloat16), recipe.max_length
    tokens = recipe.rank_rows(world.size) * length
    return step_seconds(meta_model(recipe), tokens=tokens, length=length, peak=peak) < SHORT_STEP


def _resolve_precision(recipe: Recipe, world: World) -> tuple[Recipe, dict[str, Any]]:
    """On CUDA fp8 where rank 0 measures that it is faster, else bf16."""
    if recipe.precision != config.AUTO or world.device.type != "cuda":
        return recipe, {}
    times = _time_precisions(recipe, world) if world.is_main else {}
    faster = world.all_reduce({"fp8": world.scalar(bool(times) and autotune.fp8_is_faster(times))})
    recipe = replace(recipe, precision="fp8" if faster["fp8"] > 0 else "bf16")
    return recipe, {"precision_seconds": times} if times else {}


def _time_precisions(recipe: Recipe, world: World) -> autotune.Times:
    """Seconds by precision; empty for deterministic, uncompiled and sharded runs, which always use bf16."""
    compute = recipe.compute
    if compute.deterministic or compute.fsdp or compute.compile is False or not supports_fp8(world.device):
        return {}
    block = autotune.find_fp8_block(meta_model(recipe))
    if block is None:
        return {}
    clock = partial(device_seconds, device=world.device)
    return autotune.time_fp8(block, recipe.rank_rows(world.size), recipe.max_length, world.device, clock=clock)


def _majority_share(labels: Sequence[torch.Tensor]) -> float:
    """The accuracy of always predicting the most frequent label; 0 without labels."""
    joined = torch.cat(list(labels))
    counts = joined[joined != IGNORE_INDEX].bincount()
    return float(counts.max() / counts.sum()) if len(counts) else 0.0
