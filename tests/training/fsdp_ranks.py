"""Rank program of test_fsdp.py, like ranks.py for test_distributed.py; results in FOLDER/RANK.json."""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from encoders.test_albert import config as albert_config
from model_fixtures import VOCABULARY, randomize_weights, small_bert_config
from torch import nn
from torch.distributed.tensor import DTensor
from training.ranks import UNFREEZE, shared_feed
from training.test_trainer import Poisoned, bert_feed
from training.training_fixtures import WIDTH, Toy, toy_batch, trainer

from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.objectives import masked_lm
from bertsmith.training.checkpoints import Checkpoints
from bertsmith.training.distributed import World, join_process_group
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adamw, bert_adam, lamb, muon
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.trainer import Trainer

CLIP = 0.3  # well below the gradient norms of the toy model


class Narrow(Toy):
    """A toy model with a matrix of one row, of which the second rank has no shard."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.middle = nn.Sequential(*self.middle, nn.Linear(WIDTH, 1), nn.Linear(1, WIDTH))


def finish_run(rank_trainer: Trainer, steps: int = 99) -> dict[str, Any]:
    """Runs to the end: losses and norms, then all weights, which only rank 0 has with FSDP."""
    reports = [
        (step.loss.hex(), step.gradient_norm, step.tokens, step.rows, step.skipped)
        for step in islice(rank_trainer, steps)
    ]
    weights = {name: value.flatten().tolist() for name, value in rank_trainer.full_weights().items()}
    split = [name for name, weight in rank_trainer.parallel.parameters.items() if isinstance(weight, DTensor)]
    return {"steps": reports, "weights": weights, "done": rank_trainer.steps_done, "split": split}


def compute(shard: bool, **options: Any) -> ComputeConfig:
    return ComputeConfig(fsdp=shard, max_grad_norm=CLIP, **options)


def toy(world: World, shard: bool, *, seed: int = 0, **options: Any) -> Trainer:
    """Two micro-batches on each of two ranks, or four on one."""
    chosen = options.pop("compute", None) or compute(shard)
    model, plan = (
        Narrow(dropout=options.pop("dropout", 0.0), seed=seed),
        TrainingPlan(steps=12, learning_rate=0.01, warmup=0.25),
    )
    kwargs = {"model": model, "plan": plan, "optimiser": bert_adam.Config(), **options}
    return trainer(feed=shared_feed(world), world=world, compute=chosen, **kwargs)


def real(world: World, shard: bool, *, encoder: Any = None, **options: Any) -> Trainer:
    """BERT or another encoder with an unused pooler."""
    encoder = encoder or small_bert_config(layers=2, dropout=0.0, attention_dropout=0.0)
    model = randomize_weights(Model.build(encoder, [masked_lm.Config()], vocabulary=VOCABULARY))
    complete = bert_feed(2, rows=8)

    def share(step: int) -> Any:
        return complete(step)[world.rank :: world.size]

    plan, optimizer = (
        TrainingPlan(steps=4, learning_rate=1e-3, warmup=0.25),
        adamw.Config(epsilon=options.pop("epsilon", 1e-8)),
    )
    return Trainer(model, share, plan=plan, optimizer=optimizer, world=world, compute=compute(shard, **options))


def shared(world: World, shard: bool) -> Trainer:
    """ALBERT with blocks used twice, and an epsilon that does not amplify tiny gradients."""
    return real(world, shard, encoder=albert_config(sharing="attention", groups=2), epsilon=1e-3)


def save(rank_trainer: Trainer, run: Path) -> None:
    state = rank_trainer.state()
    if rank_trainer.world.is_main:
        with Checkpoints(run) as checkpoints:
            checkpoints.save(state)


def resume_run(world: World, shard: bool, run: Path, **options: Any) -> dict[str, Any]:
    rank_trainer, state = toy(world, shard, dropout=0.3, **options), None
    if world.is_main:
        with Checkpoints(run) as checkpoints:
            state = checkpoints.resume().state
    notes = rank_trainer.load(state)
    return {"begun": rank_trainer.steps_done, "notes": notes, **finish_run(rank_trainer)}


def interrupted(world: World, folder: Path) -> dict[str, Any]:
    """Runs saved after five steps with and without FSDP, resumed with and without it."""
    results = {
        "uninterrupted": finish_run(toy(world, True, dropout=0.3)),
        "uninterrupted_whole": finish_run(toy(world, False, dropout=0.3)),
    }
    for shard, name in ((True, "split"), (False, "whole")):
        rank_trainer = toy(world, shard, dropout=0.3)
        list(islice(rank_trainer, 5))
        save(rank_trainer, folder / name)
    results["split_split"] = resume_run(world, True, folder / "split")
    results["split_whole"] = resume_run(world, False, folder / "split")
    results["whole_split"] = resume_run(world, True, folder / "whole")
    return results


def bytes_held(world: World, shard: bool) -> int:
    """Bytes of weights, gradients and moments on this rank after a step."""
    rank_trainer = real(world, shard)
    next(rank_trainer)
    gradients = [
        parameter.grad for parameter in rank_trainer.parallel.parameters.values() if parameter.grad is not None
    ]
    tensors = [*rank_trainer.parallel.parameters.values(), *gradients, *rank_trainer.optimizer.state().values()]
    local_bytes = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local_bytes)


def refused(world: World) -> list[str]:
    errors = []
    for optimiser in (lamb.Config(), muon.Config()):
        try:
            toy(world, True, optimiser=optimiser)
        except ConfigError as error:
            errors.append(str(error))
    return errors


def one_rank_has_nan(world: World) -> dict[str, Any]:
    model = Poisoned(where="gradient", value=math.nan, passes=[2] if world.rank == 1 else [])
    return finish_run(toy(world, True, model=model, plan=TrainingPlan(steps=4, learning_rate=0.05)))


def scored(world: World, shard: bool) -> dict[str, Any]:
    """Evaluation in the middle of a run, which must not affect the rest."""
    rank_trainer = toy(world, shard)
    before = finish_run(rank_trainer, 3)
    half = slice(0, 3) if world.rank == 0 else slice(3, None)
    scores = rank_trainer.evaluate([toy_batch(7, half)])
    return {
        "loss": scores.loss,
        "counts": scores.counts,
        "steps": [*before["steps"], *finish_run(rank_trainer)["steps"]],
    }


def load_another_model(world: World, run: Path) -> str:
    """A checkpoint with another vocabulary size."""
    model = Narrow()
    model.table = nn.Embedding(29, WIDTH)
    try:
        resume_run(world, True, run, model=model)
    except ValueError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with join_process_group("cpu") as world:
        results: dict[str, Any] = {
            "toy": [finish_run(toy(world, shard)) for shard in (False, True)],
            "unfreeze": [finish_run(toy(world, shard, plan=UNFREEZE)) for shard in (False, True)],
            "real": [finish_run(real(world, shard)) for shard in (False, True)],
            "shared": [finish_run(shared(world, shard)) for shard in (False, True)],
            "recompute": finish_run(real(world, True, activation_checkpointing=True)),
            "other_seeds": finish_run(toy(world, True, seed=world.rank)),
            "interrupted": interrupted(world, folder),
            "bytes_held": [bytes_held(world, shard) for shard in (False, True)],
            "refused": refused(world),
            "nan": one_rank_has_nan(world),
            "scored": [scored(world, shard) for shard in (False, True)],
            "another": load_another_model(world, folder / "split"),
        }
        torch.compile = partial(torch.compile, backend="eager", fullgraph=True)
        results["compiled"] = finish_run(real(world, True, compile=True))
        (folder / f"{world.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
