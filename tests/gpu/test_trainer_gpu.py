"""On CUDA: steps without synchronisation, skipped non-finite steps, results equal to the CPU's, CUDA graphs."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import pretraining_model
from training.test_trainer import Poisoned, bert_feed
from training.training_fixtures import same, snapshot, toy_batch, trainer

from bertsmith import config
from bertsmith.training import optimizers
from bertsmith.training.checkpoints import Checkpoints
from bertsmith.training.distributed import World
from bertsmith.training.forward_backward import ComputeConfig, Precision
from bertsmith.training.optimizers import adamw, bert_adam
from bertsmith.training.plan import Schedule, TrainingPlan
from bertsmith.training.trainer import Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LEVEL = TrainingPlan(steps=12, learning_rate=1e-2, schedule=Schedule("constant_then_decay"))
EAGER = ComputeConfig(compile=False)


def on_gpu() -> World:
    return World(device=torch.device("cuda"))


def bert(
    *,
    dropout: float = 0.0,
    compute: ComputeConfig = EAGER,
    precision: Precision = "fp32",
    world: World | None = None,
    plan: TrainingPlan = LEVEL,
) -> Trainer:
    model = pretraining_model(layers=2, width=64, heads=2, dropout=dropout, attention_dropout=dropout)
    how: dict[str, Any] = {"plan": plan, "optimizer": bert_adam.Config(), "precision": precision, "compute": compute}
    return Trainer(model, bert_feed(8, rows=16), world=world or on_gpu(), **how)


@pytest.mark.parametrize("kind", config.kinds(optimizers.FOLDER))
def test_a_step_skips_non_finite_gradients_without_synchronisation(kind: str) -> None:
    model = Poisoned(where="loss", value=math.nan, passes=[4])
    batches = [toy_batch(step).to("cuda") for step in range(12)]
    settings = config.find_kind(optimizers.FOLDER, kind).Config()
    built = trainer(
        model=model,
        feed=lambda step: [batches[step]],
        world=on_gpu(),
        optimiser=settings,
        precision="fp32",
        compute=EAGER,
        plan=LEVEL,
    )
    steps = list(itertools.islice(built, 3))
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps.append(next(built))
        before = snapshot(built.module.state_dict())
        steps.append(next(built))  # the poisoned one
        after = snapshot(built.module.state_dict())
        steps += list(itertools.islice(built, 3))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [step.skipped for step in steps] == [False] * 4 + [True] + [False] * 3
    assert math.isnan(steps[4].loss)
    assert same(before, after)
    assert all(math.isfinite(step.loss) for step in steps[5:])
    built.state().check_finite()


def test_results_equal_the_cpus() -> None:
    for step, other in zip(bert(), bert(world=World()), strict=True):
        assert step.scores.counts == other.scores.counts
        assert step.loss == pytest.approx(other.loss, rel=1e-3)


def test_compiled_half_precision_is_the_default_and_close() -> None:
    """At a learning rate where rounding does not dominate: at 1e-2 bfloat16 losses differ by up to 5 % on a CPU too."""
    plan = replace(LEVEL, learning_rate=3e-3)
    for step, other in zip(bert(compute=ComputeConfig(), precision="auto", plan=plan), bert(plan=plan), strict=True):
        assert step.loss == pytest.approx(other.loss, rel=1e-2)


def test_a_resumed_run_continues_with_the_same_losses(tmp_path: Path) -> None:
    """Equal up to rounding: GPU kernels may sum in varying order."""
    uninterrupted, begun = bert(dropout=0.1), bert(dropout=0.1)
    losses = [step.loss for step in uninterrupted]
    for _ in range(6):
        next(begun)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(begun.state())
        continued = bert(dropout=0.1)
        assert continued.load(checkpoints.resume().state) == ()
    assert [step.loss for step in continued] == pytest.approx(losses[6:], rel=1e-3)


def short(*, graphs: bool, compiled: bool = True, dropout: float = 0.1, plan: TrainingPlan = LEVEL) -> Trainer:
    model = pretraining_model(layers=2, width=64, heads=2, dropout=dropout, attention_dropout=dropout)
    compute = ComputeConfig(cuda_graphs=graphs, compile=compiled)
    how: dict[str, Any] = {"plan": plan, "optimizer": adamw.Config(), "compute": compute}
    return Trainer(model, bert_feed(16, rows=16), world=on_gpu(), **how)


@pytest.mark.parametrize("compiled", [True, False])
def test_cuda_graphs_equal_ordinary_steps(compiled: bool, tmp_path: Path) -> None:
    """Learning rates change, dropout is drawn anew, and a resumed run records a new graph."""
    how: dict[str, Any] = {"compiled": compiled, "plan": TrainingPlan(steps=12, learning_rate=1e-2, warmup=4 / 12)}
    plain, replayed = short(graphs=False, **how), short(graphs=True, **how)
    losses = [step.loss for step in plain]
    result = [step.loss for step in replayed]
    assert replayed._graphs is not None
    assert len(replayed._graphs._captures) == 1
    assert result == pytest.approx(losses, rel=2e-3)
    assert len({step.learning_rate for step in short(graphs=True, **how)}) > 4
    begun = short(graphs=True, **how)
    for _ in range(6):
        next(begun)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(begun.state())
        continued = short(graphs=True, **how)
        continued.load(checkpoints.resume().state)
    assert [step.loss for step in continued] == pytest.approx(result[6:], rel=2e-3)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_cuda_graph_does_not_synchronise(compiled: bool) -> None:
    replayed = short(graphs=True, compiled=compiled, plan=TrainingPlan(steps=100, learning_rate=1e-3))
    for _ in range(6):
        next(replayed)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            next(replayed)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("graphs", [False, True])
def test_seconds_of_steps_add_up_to_the_elapsed_time(graphs: bool) -> None:
    """The host launches steps far faster than the device runs them, so host time is not the time of a step."""
    model = pretraining_model(layers=2, width=64, heads=2)
    how: dict[str, Any] = {"plan": TrainingPlan(steps=30, learning_rate=1e-3), "optimizer": adamw.Config()}
    built = Trainer(model, bert_feed(16, rows=16), world=on_gpu(), compute=ComputeConfig(cuda_graphs=graphs), **how)
    work = torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
    feed = built.batches

    def slow(step: int) -> Any:
        for _ in range(8):  # about ten milliseconds, which the device spends and the host does not
            work @ work
        return feed(step)

    built.batches = slow
    for _ in range(6):
        next(built)
    torch.cuda.synchronize()
    began = time.monotonic()
    steps = list(built)
    torch.cuda.synchronize()
    gone = time.monotonic() - began
    assert sum(step.seconds for step in steps) == pytest.approx(gone, rel=0.1)


TWO_RUNS = """
from gpu.test_trainer_gpu import bert
from bertsmith.training.forward_backward import ComputeConfig
how = {"dropout": 0.1, "compute": ComputeConfig(deterministic=True), "precision": "auto"}
losses = [[step.loss.hex() for step in bert(**how)] for _ in range(2)]
assert losses[0] == losses[1], losses
"""


def test_deterministic_runs_are_bit_identical() -> None:
    """In a separate process: the setting is process-wide and must precede the start of cuBLAS."""
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", TWO_RUNS],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
