"""`finetune`: a model folder and a task become a run folder. The loop itself is `bertsmith.training.loop`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bertsmith import config
from bertsmith.encoders.encoder import Encoder
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_for, save_model
from bertsmith.objectives.objective import objectives_with, pipeline_of
from bertsmith.system.devices import cached_peak_flops, choose_device
from bertsmith.tasks.task import Example, Features, Task, truncated_examples
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.finetuning.answering import predict
from bertsmith.training.finetuning.batches import FinetuneLoader
from bertsmith.training.finetuning.splits import train_and_dev
from bertsmith.training.finetuning.tuning import FinetuneConfig
from bertsmith.training.flops import SHORT, WORTH_COMPILING, flops_per_token, seconds_of
from bertsmith.training.loop import Evaluation, Run, memory_advice, run_training, with_saved_precision
from bertsmith.training.passes import ComputeConfig
from bertsmith.training.stopper import StopSignal
from bertsmith.training.trainer import Trainer
from bertsmith.training.world import join_process_group

OBJECTIVES = "bertsmith.objectives"


@dataclass(frozen=True)
class TaskData:
    """A task's examples as rows for one tokenizer: what all runs of a sweep share."""

    task: Task
    length: int
    train: list[Features]
    examples: int  # of train
    dev: list[Example]
    cut: int  # training examples of which not everything could be read


def prepare(tuning: FinetuneConfig, task: Task, tokenizer: Tokenizer, *, positions: int) -> TaskData:
    """Reads the files and makes the rows."""
    length = tuning.max_length or min(task.max_length, positions)
    if length > positions:
        raise ConfigError(f"max_length={length} is more than the {positions} positions of {tuning.model}: make it less")
    examples, dev = train_and_dev(tuning, task)
    asked = task.rows(examples, tokenizer, max_length=length, training=True)
    if not asked:
        raise DataError(f"{tuning.name}: none of its {len(examples):,} training examples can be learned from")
    return TaskData(task, length, asked, len(examples), dev, len(truncated_examples(asked)))


def build_task(tuning: FinetuneConfig, labels: Sequence[str] = ()) -> Task:
    """The task over its files."""
    files = {split: Path(path) for split, path in tuning.files.items()}
    task: Task = tuning.task.build(files=files, labels=labels)
    kind = tuning.head.get("kind", task.objective)
    if pipeline_of(kind) != pipeline_of(task.objective):
        raise ConfigError(
            f"head.kind={kind} predicts for {pipeline_of(kind) or 'no pipeline'}; {tuning.name} needs an objective "
            f"for {pipeline_of(task.objective)}: {', '.join(objectives_with(pipeline_of(task.objective)))}"
        )
    task.objective = kind
    return task


def open_with_head(tuning: FinetuneConfig, task: Task) -> tuple[Model, Tokenizer, list[str]]:
    """The encoder of the folder under a new head for the task, and what a user should hear about it."""
    asked = {**task.head_config(), **tuning.head}
    head = config.from_dict(config.find_kind(OBJECTIVES, task.objective).Config, asked, "head")
    model, tokenizer, facts = open_for(tuning.model, [head], dropout=tuning.dropout, seed=tuning.seed)
    notes = list(facts.notes)
    if tuning.random_init:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(tuning.seed)
            model.encoder.layer_config.init_weights(model.encoder)
        notes.append("the encoder begins with random weights, as asked")
    return model, tokenizer, notes


def finetune(
    tuning: FinetuneConfig,
    output: str | Path,
    *,
    device: str = "auto",
    resume: str = "auto",
    quiet: bool = False,
    picture: bool = False,
    trackers: Sequence[str] = (),
    prepared: TaskData | None = None,
    stand_in: Encoder | None = None,
    lean: bool = False,
) -> dict[str, Any]:
    """Trains for the epochs asked for and returns the last scores; goes on where an earlier call was stopped.

    `lean`: what a finished run leaves behind is its log and best/; a checkpoint is written once in a minute at most.
    `stand_in`: takes the place of the folder's encoder while heads learn, such as one that repeats what that one said;
    the models that are written have the folder's own.
    """
    tuning = with_saved_precision(tuning, Path(output))
    task = prepared.task if prepared else build_task(tuning)
    model, tokenizer, notes = open_with_head(tuning, task)
    ready = prepared or prepare(tuning, task, tokenizer, positions=model.encoder.max_positions)
    with ExitStack() as stack:
        world = stack.enter_context(join_process_group(choose_device(device)))
        stopper = stack.enter_context(StopSignal())
        feeder = FinetuneLoader(
            ready.train,
            task.objective,
            length=ready.length,
            padding_id=tokenizer.padding_id,
            batch_size=tuning.batch_size,
            micro_batch_size=tuning.micro_batch_size,
            steps=tuning.steps(len(ready.train)),
            seed=tuning.seed,
            world=world,
            constant=stand_in is None,
        )
        trainer = Trainer(
            model if stand_in is None else model.with_encoder(stand_in),
            feeder,
            plan=tuning.plan(len(ready.train)),
            optimizer=tuning.optimizer,
            precision=tuning.precision,
            compute=_settled(tuning.compute, model, feeder, replays=stand_in is None),
            world=world,
            stopper=stopper,
            seed=tuning.seed,
        )
        work = _Work(tuning, ready, tokenizer, trainer, Path(output), notes, model.encoder)
        with memory_advice(tuning.micro_batch_size or tuning.batch_size // world.size, "examples"):
            run = work.run(feeder, lean=lean)
            found = run_training(run, resume=resume, quiet=quiet, picture=picture, trackers=trackers)
        return {"task": tuning.name, "main": task.main_metric, **found}


def _settled(compute: ComputeConfig, model: Model, feeder: FinetuneLoader, *, replays: bool) -> ComputeConfig:
    """The settings with the use of CUDA graphs and of a compiler chosen: by how long steps are, and all of them.

    Nothing is replayed unless a step `replays`: what stands in for an encoder may look things up on the host.
    """
    world = feeder.world
    if world.device.type != "cuda" or not replays:
        return replace(compute, cuda_graphs=False)
    if compute.cuda_graphs != config.AUTO and compute.compile is not None:
        return compute
    assert feeder.shape is not None
    places, peak = feeder.shape[0] * feeder.length, cached_peak_flops(world.device, torch.bfloat16)
    seconds = seconds_of(model, places=places, length=feeder.length, peak=peak)
    graphs = compute.cuda_graphs
    if graphs == config.AUTO:
        graphs = world.size == 1 and seconds < SHORT
    compiles = compute.compile
    if compiles is None and graphs and feeder.micro == feeder.rows:  # steps of several forwards are not replayed
        compiles = seconds * feeder.steps > WORTH_COMPILING
    return replace(compute, cuda_graphs=graphs, compile=compiles)


@dataclass
class _Work:
    """What the loop is given to score and to write."""

    tuning: FinetuneConfig
    ready: TaskData
    tokenizer: Tokenizer
    trainer: Trainer
    output: Path
    notes: list[str]
    encoder: Encoder  # of the models that are written
    learned: dict[str, Any] = field(default_factory=dict)  # settings of the head that the last evaluation told

    def run(self, feeder: FinetuneLoader, *, lean: bool) -> Run:
        return Run(
            folder=self.output,
            recipe=self.tuning,
            eval_every=self.tuning.eval_every(len(self.ready.train)),
            trainer=self.trainer,
            evaluate=self.evaluate,
            write_model=self.write_model,
            fingerprints={"tokenizer": self.tokenizer.fingerprint, "data": _digest(self.ready.train)},
            about=self.about(feeder),
            waited=feeder.wait_seconds,
            lean=lean,
        )

    @property
    def model(self) -> Model:
        assert isinstance(self.trainer.module, Model)
        return self.trainer.module

    def evaluate(self) -> Evaluation | None:
        """The task's own scores on the dev examples, as every rank computes them."""
        if not self.ready.dev:
            return None
        task, half = self.ready.task, self.trainer.forward_backward.bf16
        found = predict(self.model, task, self.ready.dev, self.tokenizer, length=self.ready.length, half=half)
        scores = task.score(found.examples, found.predictions)
        self.learned = task.fitted_head_config(found.examples, found.predictions)
        words = " · ".join(f"{name} {value:.4f}" for name, value in scores.items() if "/" not in name)
        numbers = {f"score/{name}": value for name, value in scores.items()}
        return Evaluation({"cost": -scores[task.main_metric], **numbers}, -scores[task.main_metric], f"dev {words}")

    def write_model(self, name: str, numbers: Mapping[str, float]) -> None:
        weights, model = self.trainer.full_weights(), self.model.with_encoder(self.encoder)
        if not self.trainer.world.is_main:
            return
        if self.trainer.sharded:
            model, _, _ = open_with_head(self.tuning, self.ready.task)
            model.load_state_dict(weights)
        if self.learned:
            head: Any = model.objectives[self.ready.task.objective]
            head.config = replace(head.config, **self.learned)
        facts: dict[str, object] = {"task": self.tuning.name, "steps": self.trainer.steps_done}
        scores = {key: value for key, value in numbers.items() if key.startswith("score/")}
        facts |= {f"dev {key.partition('/')[2]}": f"{value:.4f}" for key, value in scores.items()}
        save_model(model, self.tokenizer, self.output / name, facts=facts, replace=True)

    def about(self, feeder: FinetuneLoader) -> dict[str, Any]:
        """Facts for the log: what is learned from, what a token costs, what the device could do."""
        world, ready = self.trainer.world, self.ready
        mean = sum(len(row) for one in ready.train for row in one.rows) / sum(len(one.rows) for one in ready.train)
        dtype = torch.bfloat16 if self.trainer.forward_backward.bf16 else torch.float32
        return {
            "main": f"score/{ready.task.main_metric}",
            "notes": self.notes,
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "device": world.environment()["device"],
            "ranks": world.size,
            "threads": torch.get_num_threads(),
            "examples": ready.examples,
            "questions": len(ready.train),
            "cut": ready.cut,
            "dev_examples": len(ready.dev),
            "mean_length": mean,
            "found": dict(ready.task.detected),
            "flops_per_token": flops_per_token(self.model, length=int(mean), asked={}),
            "peak_flops": cached_peak_flops(world.device, dtype) * world.size,
        }


def _digest(asked: Sequence[Features]) -> str:
    """Sixteen hexadecimal digits of everything that is learned from."""
    found = hashlib.sha256()
    for one in asked:
        for row in one.rows:
            found.update(row.ids.tobytes())
        found.update(repr(one.target).encode())
    return found.hexdigest()[:16]
