"""Rank program of test_distributed.py: `torchrun --nproc-per-node 2 ranks.py FOLDER`, results in FOLDER/RANK.json."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from model_fixtures import VOCABULARY, randomize_weights, small_bert_config
from training.column_fixtures import column_trainer
from training.test_trainer import Poisoned, bert_feed
from training.training_fixtures import feed, toy_batch, trainer

from bertsmith.model_io.model import Model
from bertsmith.objectives import masked_lm
from bertsmith.training.checkpoints import Checkpoints
from bertsmith.training.distributed import World, join_process_group
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import TrainingPlan, Unfreeze
from bertsmith.training.signals import StopSignal
from bertsmith.training.trainer import Trainer

UNFREEZE = TrainingPlan(
    steps=6,
    learning_rate=0.05,
    unfreeze=(Unfreeze(after=0, groups=1), Unfreeze(after=2 / 6, groups=2), Unfreeze(after=4 / 6, groups=3)),
)


def finish_run(rank_trainer: Trainer) -> dict[str, Any]:
    """Runs to the end: losses and norms, then all weights."""
    steps = [(step.loss.hex(), step.gradient_norm, step.tokens, step.rows, step.skipped) for step in rank_trainer]
    weights = {name: value.flatten().tolist() for name, value in rank_trainer.module.state_dict().items()}
    return {"steps": steps, "weights": weights, "stopped": rank_trainer.stopped, "done": rank_trainer.steps_done}


def shared_feed(world: World) -> Any:
    return feed(micro_batch_size=2, rank=world.rank, ranks=world.size)


def uninterrupted(world: World, **kwargs: Any) -> dict[str, Any]:
    """Two micro-batches on each of two ranks, or four on one."""
    return finish_run(trainer(feed=shared_feed(world), world=world, **kwargs))


def real_model(world: World) -> dict[str, Any]:
    """BERT with an unused pooler, whose missing gradient ranks must not wait for."""
    changes = {"layers": 2, "dropout": 0.0, "attention_dropout": 0.0}
    model = randomize_weights(Model.build(small_bert_config(**changes), [masked_lm.Config()], vocabulary=VOCABULARY))
    complete = bert_feed(4, rows=8)

    def share(step: int) -> Any:
        return complete(step) if world.size == 1 else [complete(step)[world.rank]]

    plan = TrainingPlan(steps=3, learning_rate=1e-3, warmup=1 / 3)
    return finish_run(Trainer(model, share, plan=plan, optimizer=adamw.Config(), world=world))


def stop_signal_on_one_rank(world: World, run: Path) -> dict[str, Any]:
    """SIGTERM to rank 1 only; rank 0 saves after both have stopped."""
    with StopSignal() as stopper:
        rank_trainer = trainer(feed=shared_feed(world), world=world, stop_signal=stopper, dropout=0.3)
        for step in rank_trainer:
            if step.number == 4 and world.rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
        if world.is_main:
            with Checkpoints(run) as checkpoints:
                checkpoints.save(rank_trainer.state())
        return {"done": rank_trainer.steps_done, "stopped": rank_trainer.stopped, "asked": stopper.requested}


def resume_run(world: World, run: Path) -> dict[str, Any]:
    """Only rank 0 loads the checkpoint."""
    rank_trainer = trainer(feed=shared_feed(world), world=world, dropout=0.3)
    state = None
    if world.is_main:
        with Checkpoints(run) as checkpoints:
            state = checkpoints.resume().state
    notes = rank_trainer.load(state)
    return {"begun": rank_trainer.steps_done, "notes": notes, **finish_run(rank_trainer)}


def one_rank_has_nan(world: World) -> dict[str, Any]:
    model = Poisoned(where="loss", value=math.nan, passes=[2] if world.rank == 1 else [])
    return finish_run(
        trainer(feed=shared_feed(world), world=world, model=model, plan=TrainingPlan(steps=4, learning_rate=0.05))
    )


def clocks_differ(world: World) -> dict[str, Any]:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0 + 5 * world.rank
        return now[0]

    rank_trainer = trainer(
        feed=shared_feed(world), world=world, clock=clock, plan=TrainingPlan(steps=99, learning_rate=1.0, minutes=0.3)
    )
    return {"rates": [step.learning_rate for step in rank_trainer]}


def scored(world: World) -> dict[str, Any]:
    rank_trainer = trainer(feed=shared_feed(world), world=world)
    half = slice(0, 3) if world.rank == 0 else slice(3, None)
    scores = rank_trainer.evaluate([toy_batch(7, half)])
    return {"loss": scores.loss, "counts": scores.counts}


def stateful(world: World, folder: Path) -> dict[str, Any]:
    """An AWD-LSTM over columns of text: two steps on one rank, two more on the ranks of this world."""
    before = column_trainer(World(), folder / f"before-{world.rank}")
    first = [next(before).loss for _ in range(2)]
    after = column_trainer(world, folder / "after")
    after.load(before.state() if world.is_main else None)
    losses = [*first, *(next(after).loss for _ in range(2))]
    state = after.state()
    if world.is_main:
        with Checkpoints(folder / "stateful") as checkpoints:
            checkpoints.save(state)
    return {"losses": losses, "state": [tensor.tolist() for tensor in state.recurrent]}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with join_process_group("cpu") as world:
        results = {
            "uninterrupted": uninterrupted(world),
            "dropout": uninterrupted(world, dropout=0.3),
            "unfreeze": uninterrupted(world, plan=UNFREEZE),
            "real": real_model(world),
            "stop": stop_signal_on_one_rank(world, folder / "run"),
            "resumed": resume_run(world, folder / "run"),
            "nan": one_rank_has_nan(world),
            "clocks": clocks_differ(world),
            "scored": scored(world),
            "stateful": stateful(world, folder),
        }
        (folder / f"{world.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
