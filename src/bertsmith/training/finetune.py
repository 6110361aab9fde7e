"""`finetune`: a model folder and a task become a run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith import config
from bertsmith.encoders.encoder import Encoder
from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_for, open_over, read_encoder, read_heads
from bertsmith.reports.run_summary import training_data
from bertsmith.system.devices import cached_peak_flops, choose_device
from bertsmith.tasks.task import Task
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.distributed import World, join_process_group
from bertsmith.training.finetune_data import (
    TaskData,
    build_task,
    label_weights,
    loss_weights,
    predict,
    prepare,
    sampled_classes,
)
from bertsmith.training.finetune_loader import FinetuneLoader, SampleOrder
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.loop import run_training
from bertsmith.training.memory import MemoryEstimate, activation_bytes, tensor_bytes
from bertsmith.training.recipe import FinetuneConfig
from bertsmith.training.recipe_toml import command_line_value
from bertsmith.training.roofline import SHORT_STEP, WORTH_COMPILING, flops_per_token, step_seconds
from bertsmith.training.run import Evaluation, Run, memory_advice, recipe_changes, replace_run, with_saved_precision
from bertsmith.training.signals import StopSignal
from bertsmith.training.start import finetuning_settings, text_head_settings
from bertsmith.training.trainer import Trainer

OBJECTIVES = "bertsmith.objectives"
MEASURED_SHARE = 16  # memory is measured on one of this many examples of a forward


def open_with_head(settings: FinetuneConfig, task: Task) -> tuple[Model, Tokenizer, list[str]]:
    """The encoder of the model folder with a new head for each task, and notes for the user."""
    causal, heads = is_causal(settings.model), dict[str, Any]()
    kind = settings.encoder_kind
    text_head = text_head_settings(settings.model, kind)
    for name, part in task.heads.items():
        head, own = config.find_kind(OBJECTIVES, part.objective).Config, settings.head_settings(name)
        orders = {"both_orders": True} if causal and part.symmetric and hasattr(head, "both_orders") else {}
        shared = text_head if hasattr(head, "hidden") else {"layers"} if hasattr(head, "layers") else set()
        usual = {setting: value for setting, value in text_head.items() if setting in shared}
        required = part.head_config()
        if not hasattr(head, "texts"):  # such as a head of an extension
            required.pop("texts", None)
        given = {**usual, **required, **orders, **own, **label_weights(settings, part, own)}
        heads[name] = config.from_dict(head, given, "head")
        part.use_head_config(heads[name])
    options: dict[str, Any] = {"tokenizer": settings.tokenizer, "dropout": settings.dropout, "seed": settings.seed}
    options["encoder"] = settings.encoder
    auxiliary = auxiliary_heads(settings)
    if kind:
        if auxiliary:
            raise ConfigError(f"auxiliary.{min(settings.auxiliary)}: an encoder of kind {kind} is new, without a head")
        model, tokenizer, facts = open_over(settings.model, heads, **options)
    else:
        model, tokenizer, facts = open_for(settings.model, heads, keep=auxiliary, **options)
    for name, weight in settings.auxiliary_weights.items():
        objective: Any = model.objectives[name]
        objective.weight, objective.reads_copy = weight, not objective.causal  # the task reads uncorrupted texts
    notes = list(facts.notes)
    if settings.random_init:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)
            model.encoder.init_weights()
        notes.append("the encoder starts with random weights (random_init=true)")
    return model, tokenizer, notes


def is_causal(model: str) -> bool:
    """Whether tokens of this model attend to earlier tokens only."""
    return bool(getattr(read_encoder(model), "causal", False))


def auxiliary_heads(settings: FinetuneConfig) -> list[Any]:
    """The language-model heads of the auxiliary losses, which must be those of the pre-trained model."""
    heads: list[Any] = []
    for name, weight in settings.auxiliary_weights.items():
        causal, stored = is_causal(settings.model), read_heads(settings.model)
        fitting = "causal_lm" if causal else "masked_lm"
        if name != fitting:
            kind = "causal" if causal else "bidirectional"
            raise ConfigError(
                f"auxiliary.{name}: {settings.model} has a {kind} encoder: write auxiliary.{fitting}={weight:g}"
            )
        layers = read_encoder(settings.model).head_layer_config
        if name not in stored and (layers.lm_head_transform or layers.lm_head_bias):
            has = ", ".join(stored) or "none"
            raise ConfigError(
                f"auxiliary.{name}: {settings.model} has no head {name} (heads: {has}): fine-tune a model that has "
                f"one, or leave out auxiliary.{name}"
            )
        heads.append(name if name in stored else config.find_kind(OBJECTIVES, name).Config())
    return heads


def finetune(
    settings: FinetuneConfig,
    output: str | Path,
    *,
    device: str = "auto",
    resume: str = "auto",
    quiet: bool = False,
    chart: bool = False,
    trackers: Sequence[str] = (),
    overwrite: bool = False,
    data: TaskData | None = None,
    replacement: Encoder | None = None,
    lean: bool = False,
) -> dict[str, Any]:
    """Trains for the given epochs and returns the metrics; resumes an earlier call, or replaces it with `overwrite`.

    `lean`: a finished run leaves only its log and best/, and checkpoints are at least a minute apart. `replacement`: an
    encoder used instead of the folder's while the head is trained, such as one with cached outputs; saved models have
    the folder's own.
    """
    settings = settings if overwrite else with_saved_precision(settings, Path(output))
    task = data.task if data else build_task(settings)
    model, tokenizer, notes = open_with_head(settings, task)
    if settings.main_metric in task.own_metrics:
        notes.append(f"best/ is the model with the highest {settings.main_metric}")
    data = data or prepare(settings, task, tokenizer, positions=model.encoder.max_positions)
    for name, weight in loss_weights(settings, data).items() if len(task.heads) > 1 else ():
        model.objectives[name].weight = weight  # type: ignore[assignment]
    with ExitStack() as stack:
        world = stack.enter_context(join_process_group(choose_device(device)))
        stop_signal = stack.enter_context(StopSignal())
        # other models read from the host, or take time for padding: recurrent layers go through every position
        capturable = replacement is None and model.compiles
        loader = _make_loader(settings, data, tokenizer, world, static_shape=capturable)
        trainer = Trainer(
            model if replacement is None else model.with_encoder(replacement),
            loader,
            plan=settings.plan(len(data.train)),
            optimizer=settings.optimizer,
            precision=settings.precision,
            compute=resolve_compute(settings.compute, model, loader, capturable=capturable),
            world=world,
            stop_signal=stop_signal,
            seed=settings.seed,
        )
        if replacement is None:
            refuse_without_memory(settings, trainer, loader)
        if overwrite:
            replace_run(Path(output), settings, world, resume=resume)
        with memory_advice(loader.micro_batch_size, "examples"):
            run = FinetuneRun(
                config=settings,
                folder=Path(output),
                tokenizer=tokenizer,
                trainer=trainer,
                loader=loader,
                eval_every=settings.eval_every(len(data.train)),
                lean=lean,
                data=data,
                notes=notes,
                encoder=model.encoder,
            )
            result = run_training(run, resume=resume, quiet=quiet, chart=chart, trackers=trackers)
        return {"task": settings.name, "main": task.main_metric, **data.facts(), **result}


def preview(settings: FinetuneConfig, output: str | Path, *, overwrite: bool = False) -> dict[str, Any]:
    """What `finetune` would train, on what, for how many steps; reads data and model, and writes nothing."""
    task = build_task(settings)
    model, tokenizer, notes = open_with_head(settings, task)
    data = prepare(settings, task, tokenizer, positions=model.encoder.max_positions)
    changes = [] if overwrite else recipe_changes(Path(output), settings)
    notes += [*changes, *paper_note(settings), *data.truncation_note(), *no_dev_note(data, Path(output))]
    facts = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "steps": settings.steps(len(data.train)),
    }
    return {"task": settings.name, "main": task.main_metric, **data.facts(), **facts, "notes": notes}


def paper_note(settings: FinetuneConfig) -> list[str]:
    """The settings that are the encoder's own defaults: those of its paper, as far as that has them."""
    paper = finetuning_settings(settings.model, settings.encoder_kind, random_init=settings.random_init)
    same = {name: value for name, value in paper.items() if _has(settings, name, value)}
    tables = {name: value if isinstance(value, dict) else {"": value} for name, value in same.items()}
    listed = [
        f"{name}.{key}".rstrip(".") + f"={command_line_value(one)}"
        for name, table in tables.items()
        for key, one in table.items()
    ]
    return [f"defaults of this encoder: {' '.join(listed)}"] if listed else []


def _has(settings: FinetuneConfig, name: str, value: Any) -> bool:
    """Whether a setting has that value; not where the value contradicts the other settings."""
    with suppress(ConfigError):
        return config.update(settings, {name: value}) == settings
    return False


def refuse_without_memory(settings: FinetuneConfig, trainer: Trainer, loader: FinetuneLoader) -> None:
    """Raises if the run clearly does not fit into the memory of a CPU, by a forward of some of its first examples."""
    compute, count = settings.compute, loader.micro_batch_size
    if loader.world.device.type != "cpu" or compute.fsdp or settings.unfreeze or trainer.forward_backward.compiles:
        return
    whole, part = loader.batch(0, count), loader.batch(0, -(-count // MEASURED_SHARE))
    cells = whole.input_ids.numel() / part.input_ids.numel()
    tokens = float((whole.document_ids != 0).sum() / (part.document_ids != 0).sum())
    each = int(activation_bytes(trainer, part) * min(cells, tokens) / count)
    weights = tensor_bytes(trainer.module.state_dict())
    estimate = MemoryEstimate(weights=weights, rows=count, row_activations=each, unit="examples")
    batch_size = settings.batch_size // loader.world.size
    estimate.refuse(batch_size=batch_size, checkpointing=compute.activation_checkpointing)


def no_dev_note(data: TaskData, folder: Path) -> list[str]:
    """That there will be no best/ model, and what to pass for one; empty where there are dev examples."""
    without = f"no dev examples, so no best/ model: the model is in {folder / 'last'}"
    return [] if data.dev else [f"{without}; pass --dev FILE or dev_fraction=0.1"]


def _make_loader(
    settings: FinetuneConfig, data: TaskData, tokenizer: Tokenizer, world: World, *, static_shape: bool
) -> FinetuneLoader:
    sizes = None
    if settings.group_by_length:
        sizes = np.array([sum(map(len, one.rows)) for one in data.train], np.int64)
    order = SampleOrder(
        len(data.train),
        settings.seed,
        settings.batch_size,
        classes=sampled_classes(settings, data),
        sizes=sizes,
    )
    return FinetuneLoader(
        data.train,
        list(data.task.heads),
        order,
        length=data.max_length,
        padding_id=tokenizer.padding_id,
        micro_batch_size=settings.micro_batch_size,
        steps=settings.steps(len(data.train)),
        world=world,
        static_shape=static_shape,
    )


def resolve_compute(compute: ComputeConfig, model: Model, loader: FinetuneLoader, *, capturable: bool) -> ComputeConfig:
    """Decides on CUDA graphs and compilation by the estimated time of a step and of the run.

    CUDA graphs need a `capturable` step: without a replacement encoder, which may read from the host, and compilable.
    """
    world = loader.world
    if world.device.type != "cuda" or not capturable:
        return replace(compute, cuda_graphs=False)
    if compute.cuda_graphs != config.AUTO and compute.compile is not None:
        return compute
    assert loader.shape is not None
    tokens, peak = loader.shape[0] * loader.length, cached_peak_flops(world.device, torch.bfloat16)
    seconds = step_seconds(model, tokens=tokens, length=loader.length, peak=peak)
    graphs = compute.cuda_graphs
    if graphs == config.AUTO:
        graphs = world.size == 1 and seconds < SHORT_STEP
    compiles = compute.compile
    if compiles is None and graphs and loader.micro_batch_size == loader.batch_size:  # one forward a step is captured
        compiles = seconds * loader.steps > WORTH_COMPILING
    return replace(compute, cuda_graphs=graphs, compile=compiles)


@dataclass(kw_only=True)
class FinetuneRun(Run):
    """A fine-tuning run, evaluated on the task's dev examples."""

    config: FinetuneConfig
    loader: FinetuneLoader
    data: TaskData
    notes: list[str]
    encoder: Encoder  # of saved models
    fitted: dict[str, Any] = field(default_factory=dict)  # settings of the head that the last evaluation fitted

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"tokenizer": self.tokenizer.fingerprint, "data": self.data.digest}

    def new_model(self) -> Model:
        return open_with_head(self.config, self.data.task)[0]

    def trained_model(self) -> Model:
        """With the folder's own encoder."""
        return self.model.with_encoder(self.encoder)

    def opening_lines(self) -> list[str]:
        facts = training_data(self.data.facts()).items()
        return [*(f"{name}: {text}" for name, text in facts), *paper_note(self.config)]

    def closing_notes(self) -> list[str]:
        return [*self.data.truncation_note(), *no_dev_note(self.data, self.folder)]

    def model_to_save(self, model: Model) -> Model:
        """Encoder and task heads, without auxiliary heads; with fitted settings of the head, such as a threshold."""
        heads: list[Any] = [model.objectives[name] for name in self.data.task.heads]
        if self.fitted:
            heads[0].config = replace(heads[0].config, **self.fitted)
        return Model(model.encoder, heads)

    def evaluate(self) -> Evaluation | None:
        """The task's metrics on the dev examples, computed on every rank."""
        if not self.data.dev:
            return None
        task, bf16 = self.data.task, self.trainer.forward_backward.bf16
        dev, length = self.data.dev, self.data.max_length
        predictions = predict(self.model, task, dev, self.tokenizer, length=length, bf16=bf16)
        self.fitted = task.fitted_head_config(dev, predictions)
        scores = task.scores(dev, task.refitted(predictions, self.fitted))
        summary = " · ".join(f"{name} {value:.4f}" for name, value in scores.items() if "/" not in name)
        metrics = {"cost": -scores[task.main_metric], **{f"score/{name}": value for name, value in scores.items()}}
        metrics |= {f"mix/{name}": value for name, value in self.model.layer_weights().items()}
        return Evaluation(metrics, metrics["cost"], f"dev {summary}")

    def card_facts(self, metrics: Mapping[str, float]) -> dict[str, object]:
        scores = {key.removeprefix("score/"): value for key, value in metrics.items() if key.startswith("score/")}
        facts = {f"dev {name}": f"{value:.4f}" for name, value in scores.items()}
        return {"task": self.config.name, "steps": self.trainer.steps_done, **facts}

    def _label_rates(self) -> dict[str, float]:
        """Labels per token of the auxiliary losses."""
        heads: dict[str, Any] = {name: self.model.objectives[name] for name in self.config.auxiliary_weights}
        return {name: 1.0 if head.causal else head.config.mask_probability for name, head in heads.items()}

    def collect_facts(self) -> dict[str, Any]:
        """With sizes of the data, FLOPs of a token and peak FLOP/s."""
        world, data = self.trainer.world, self.data
        mean = sum(len(row) for one in data.train for row in one.rows) / sum(len(one.rows) for one in data.train)
        return {
            "main": f"score/{data.task.main_metric}",
            "notes": self.notes,
            **super().collect_facts(),
            **data.facts(),
            "features": len(data.train),
            "mean_length": mean,
            "flops_per_token": flops_per_token(self.model, length=int(mean), labels=self._label_rates()),
            "peak_flops": cached_peak_flops(world.device, self.dtype) * world.size,
        }
