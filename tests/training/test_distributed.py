"""Two ranks under torchrun equal one: losses, gradients and weights; they stop together and resume on one."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training import ranks
from training.column_fixtures import column_trainer
from training.training_fixtures import toy_batch, trainer

from bertsmith.training.checkpoints import Checkpoints
from bertsmith.training.distributed import World, join_process_group
from bertsmith.training.signals import StopSignal

pytestmark = pytest.mark.xdist_group("world")  # in one worker process, so that the runs are shared

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def ranks_results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    return on_two_ranks(TESTS / "training" / "ranks.py", tmp_path_factory)


def on_two_ranks(script: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The folder and the results of both ranks; torchrun runs once per test session."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / script.stem
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "1.json").exists():
            _torchrun(script, folder)
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1))
    return folder, first, second


def _torchrun(script: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def equal(results: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-5) -> None:
    assert len(results["steps"]) == len(expected["steps"])
    for actual_step, expected_step in zip(results["steps"], expected["steps"], strict=True):
        assert float.fromhex(actual_step[0]) == pytest.approx(float.fromhex(expected_step[0]), rel=1e-6)
        assert actual_step[1] == pytest.approx(expected_step[1], rel=1e-4)
        assert list(actual_step[2:]) == list(expected_step[2:])
    for name, values in results["weights"].items():
        difference = np.abs(np.subtract(values, expected["weights"][name]))
        if name.endswith("attention.qkv.bias"):
            # A key bias shifts all attention scores of a query equally: its gradient is rounding noise, which Adam
            # normalizes, so the bias is noise.
            difference = np.delete(difference, np.arange(len(difference) // 3, 2 * len(difference) // 3))
        assert difference.max() < tolerance, name


@pytest.mark.parametrize("case", ["uninterrupted", "unfreeze", "real"])
def test_two_ranks_equal_one(ranks_results: Any, case: str) -> None:
    _, first, second = ranks_results
    alone = {
        "uninterrupted": lambda: ranks.uninterrupted(World()),
        "unfreeze": lambda: ranks.uninterrupted(World(), plan=ranks.UNFREEZE),
        "real": lambda: ranks.real_model(World()),
    }[case]()
    assert first[case] == second[case], "and equal to each other bit for bit"
    equal(first[case], alone)


def test_the_ranks_reduce_the_loss(ranks_results: Any) -> None:
    start = trainer().module.state_dict()["table.weight"].flatten().tolist()
    assert np.abs(np.subtract(start, ranks_results[1]["uninterrupted"]["weights"]["table.weight"])).max() > 0.1


def test_dropout_differs_between_ranks(ranks_results: Any) -> None:
    _, first, second = ranks_results
    assert first["dropout"] == second["dropout"]
    assert first["dropout"]["steps"] != first["uninterrupted"]["steps"]


def test_ranks_stop_after_the_same_step(ranks_results: Any) -> None:
    """F13: one of two ranks gets SIGTERM."""
    _, first, second = ranks_results
    assert first["stop"]["done"] == second["stop"]["done"] in (5, 6)
    assert first["stop"]["stopped"]
    assert second["stop"]["stopped"]
    assert (first["stop"]["asked"], second["stop"]["asked"]) == (False, True)


def test_ranks_resume_from_the_state_of_rank_0(ranks_results: Any) -> None:
    _, first, second = ranks_results
    begun = first["stop"]["done"]
    assert first["resumed"]["begun"] == second["resumed"]["begun"] == begun
    assert first["resumed"]["notes"] == []
    for rank in (first, second):
        assert rank["resumed"]["steps"] == rank["dropout"]["steps"][begun:], "losses equal as hex floats"
        assert rank["resumed"]["weights"] == rank["dropout"]["weights"]


def test_a_checkpoint_of_two_ranks_resumes_on_one(ranks_results: Any) -> None:
    folder, first, _ = ranks_results
    continued = trainer()
    notes = continued.load(Checkpoints(folder / "run").resume().state)
    assert "ranks was 2, now 1" in notes
    assert continued.steps_done == first["stop"]["done"]
    assert not next(continued).skipped


def test_a_non_finite_value_on_one_rank_is_skipped_by_all(ranks_results: Any) -> None:
    _, first, second = ranks_results
    assert [step[4] for step in first["nan"]["steps"]] == [False, True, False, False]
    assert [step[0] for step in first["nan"]["steps"]][1] == "nan"
    assert first["nan"]["weights"] == second["nan"]["weights"]


def test_all_ranks_use_the_clock_of_rank_0(ranks_results: Any) -> None:
    _, first, second = ranks_results
    assert first["clocks"]["rates"] == second["clocks"]["rates"]
    assert 3 < len(first["clocks"]["rates"]) < 30


def test_scores_cover_all_ranks(ranks_results: Any) -> None:
    _, first, second = ranks_results
    alone = trainer().evaluate([toy_batch(7)])
    assert first["scored"] == second["scored"]
    assert first["scored"]["counts"] == alone.counts
    assert first["scored"]["loss"] == pytest.approx(alone.loss, rel=1e-6)


def test_one_process_needs_no_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join_process_group("cpu") as world:
        assert not torch.distributed.is_initialized()
        assert (world.rank, world.size, world.is_main, world.device.type) == (0, 1, True, "cpu")
        assert world.broadcast_state(None, lambda name, tensor: tensor) is None
        module = torch.nn.Linear(1, 1)
        assert world.data_parallel(module) is module


def test_under_torchrun_a_second_signal_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler signals every process and torchrun forwards its signal: ranks still save before they exit."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a run")
    with StopSignal() as stopper:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopper.requested
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    with StopSignal(), pytest.raises(KeyboardInterrupt):  # noqa: PT012  # the second of the two
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


def test_recurrent_state_on_one_rank_then_two_then_one(ranks_results: Any, tmp_path: Path) -> None:
    folder, first, second = ranks_results
    trainer = column_trainer(World(), tmp_path)
    expected = [next(trainer).loss for _ in range(4)]
    state = trainer.state().recurrent
    for results in (first["stateful"], second["stateful"]):
        assert results["losses"] == pytest.approx(expected, rel=1e-5)
        assert all(torch.allclose(torch.tensor(a), b, atol=1e-5) for a, b in zip(results["state"], state, strict=True))
    resumed = column_trainer(World(), tmp_path / "again")
    with Checkpoints(folder / "stateful") as checkpoints:
        resumed.load(checkpoints.resume().state)
    assert [next(resumed).loss for _ in range(2)] == pytest.approx([next(trainer).loss for _ in range(2)], rel=1e-5)
