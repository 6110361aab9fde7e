"""What each rank does for test_sharding.py, as ranks.py does for test_world.py; answers in FOLDER/RANK.json."""

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

CLIP = 0.3  # well below the norms of the toy's gradients


class Narrow(Toy):
    """A toy with a matrix of one row, of which the second rank holds nothing."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.middle = nn.Sequential(*self.middle, nn.Linear(WIDTH, 1), nn.Linear(1, WIDTH))


def told(made: Trainer, steps: int = 99) -> dict[str, Any]:
    """The rest of a run: losses and norms, then all weights as numbers, which rank 0 alone has where they are split."""
    reports = [
        (step.loss.hex(), step.gradient_norm, step.tokens, step.rows, step.skipped) for step in islice(made, steps)
    ]
    weights = {name: value.flatten().tolist() for name, value in made.full_weights().items()}
    split = [name for name, weight in made.parallel.parameters.items() if isinstance(weight, DTensor)]
    return {"steps": reports, "weights": weights, "done": made.steps_done, "split": split}


def compute(shard: bool, **how: Any) -> ComputeConfig:
    return ComputeConfig(fsdp=shard, max_grad_norm=CLIP, **how)


def toy(world: World, shard: bool, *, seed: int = 0, **how: Any) -> Trainer:
    """Two micro-batches on each of two ranks, four on one."""
    chosen = how.pop("compute", None) or compute(shard)
    model, plan = (
        Narrow(dropout=how.pop("dropout", 0.0), seed=seed),
        TrainingPlan(steps=12, learning_rate=0.01, warmup=0.25),
    )
    given = {"model": model, "plan": plan, "optimiser": bert_adam.Config(), **how}
    return trainer(feed=shared_feed(world), world=world, compute=chosen, **given)


def real(world: World, shard: bool, *, encoder: Any = None, **how: Any) -> Trainer:
    """BERT, or another encoder, whose pooler nobody reads."""
    encoder = encoder or small_bert_config(layers=2, dropout=0.0, attention_dropout=0.0)
    model = randomize_weights(Model.build(encoder, [masked_lm.Config()], vocabulary=VOCABULARY))
    whole = bert_feed(2, rows=8)

    def share(step: int) -> Any:
        return whole(step)[world.rank :: world.size]

    plan, optimizer = (
        TrainingPlan(steps=4, learning_rate=1e-3, warmup=0.25),
        adamw.Config(epsilon=how.pop("epsilon", 1e-8)),
    )
    return Trainer(model, share, plan=plan, optimizer=optimizer, world=world, compute=compute(shard, **how))


def shared(world: World, shard: bool) -> Trainer:
    """ALBERT with blocks that are walked twice; with an epsilon that does not blow up gradients of almost nothing."""
    return real(world, shard, encoder=albert_config(sharing="attention", groups=2), epsilon=1e-3)


def save(made: Trainer, run: Path) -> None:
    state = made.state()
    if made.world.is_main:
        with Checkpoints(run) as checkpoints:
            checkpoints.save(state)


def goes_on(world: World, shard: bool, run: Path, **how: Any) -> dict[str, Any]:
    made, state = toy(world, shard, dropout=0.3, **how), None
    if world.is_main:
        with Checkpoints(run) as checkpoints:
            state = checkpoints.resume().state
    notes = made.load(state)
    return {"begun": made.steps_done, "notes": notes, **told(made)}


def interrupted(world: World, folder: Path) -> dict[str, Any]:
    """Runs that are saved after five steps, whole and split, and go on the same way and the other."""
    answers = {"straight": told(toy(world, True, dropout=0.3)), "straight_whole": told(toy(world, False, dropout=0.3))}
    for shard, name in ((True, "split"), (False, "whole")):
        made = toy(world, shard, dropout=0.3)
        list(islice(made, 5))
        save(made, folder / name)
    answers["split_split"] = goes_on(world, True, folder / "split")
    answers["split_whole"] = goes_on(world, False, folder / "split")
    answers["whole_split"] = goes_on(world, True, folder / "whole")
    return answers


def held(world: World, shard: bool) -> int:
    """Bytes of weights, gradients and moments that this rank holds after a step."""
    made = real(world, shard)
    next(made)
    gradients = [parameter.grad for parameter in made.parallel.parameters.values() if parameter.grad is not None]
    tensors = [*made.parallel.parameters.values(), *gradients, *made.optimizer.state().values()]
    mine = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in mine)


def refused(world: World) -> list[str]:
    found = []
    for optimiser in (lamb.Config(), muon.Config()):
        try:
            toy(world, True, optimiser=optimiser)
        except ConfigError as error:
            found.append(str(error))
    return found


def one_rank_has_nan(world: World) -> dict[str, Any]:
    model = Poisoned(where="gradient", value=math.nan, passes=[2] if world.rank == 1 else [])
    return told(toy(world, True, model=model, plan=TrainingPlan(steps=4, learning_rate=0.05)))


def scored(world: World, shard: bool) -> dict[str, Any]:
    """Scores in the middle of a run, which then goes on as if nothing had been."""
    made = toy(world, shard)
    before = told(made, 3)
    half = slice(0, 3) if world.rank == 0 else slice(3, None)
    scores = made.evaluate([toy_batch(7, half)])
    return {"loss": scores.loss, "counts": scores.counts, "steps": [*before["steps"], *told(made)["steps"]]}


def another_model(world: World, run: Path) -> str:
    """A checkpoint whose table has other rows."""
    model = Narrow()
    model.table = nn.Embedding(29, WIDTH)
    try:
        goes_on(world, True, run, model=model)
    except ValueError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with join_process_group("cpu") as world:
        answers: dict[str, Any] = {
            "toy": [told(toy(world, shard)) for shard in (False, True)],
            "thaw": [told(toy(world, shard, plan=UNFREEZE)) for shard in (False, True)],
            "real": [told(real(world, shard)) for shard in (False, True)],
            "shared": [told(shared(world, shard)) for shard in (False, True)],
            "recompute": told(real(world, True, activation_checkpointing=True)),
            "other_seeds": told(toy(world, True, seed=world.rank)),
            "interrupted": interrupted(world, folder),
            "held": [held(world, shard) for shard in (False, True)],
            "refused": refused(world),
            "nan": one_rank_has_nan(world),
            "scored": [scored(world, shard) for shard in (False, True)],
            "another": another_model(world, folder / "split"),
        }
        torch.compile = partial(torch.compile, backend="eager", fullgraph=True)
        answers["compiled"] = told(real(world, True, compile=True))
        (folder / f"{world.rank}.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
