"""With FSDP2 on two ranks, runs and checkpoints equal those on one rank and those with DDP."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from training import fsdp_ranks
from training.test_distributed import TESTS, equal, on_two_ranks
from training.training_fixtures import same, snapshot

from bertsmith.training.checkpoints import Checkpoints
from bertsmith.training.distributed import World
from bertsmith.training.optimizers import lamb
from bertsmith.training.parallelism import DataParallel

pytestmark = pytest.mark.xdist_group("sharding")  # in one worker process, so that the runs are shared


@pytest.fixture(scope="module")
def ranks_results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    return on_two_ranks(TESTS / "training" / "fsdp_ranks.py", tmp_path_factory)


@pytest.mark.parametrize("case", ["toy", "unfreeze", "real", "shared"])
def test_fsdp_equals_ddp_and_one_rank(ranks_results: Any, case: str) -> None:
    """With clipping, accumulation, odd row counts, frozen groups, missing gradients and shared blocks."""
    _, first, second = ranks_results
    alone = {
        "toy": lambda: fsdp_ranks.toy(World(), False),
        "unfreeze": lambda: fsdp_ranks.toy(World(), False, plan=fsdp_ranks.UNFREEZE),
        "real": lambda: fsdp_ranks.real(World(), False),
        "shared": lambda: fsdp_ranks.shared(World(), False),
    }[case]()
    one = fsdp_ranks.finish_run(alone)
    whole, split = first[case]
    assert split["steps"] == second[case][1]["steps"]
    added = "the norm is added in another order: else nothing was split"
    assert (split["steps"], split["weights"]) != (whole["steps"], whole["weights"]), added
    assert split["split"] == [*split["weights"]]
    assert whole["split"] == one["split"] == []
    for other in (whole, one):
        equal(split, other, tolerance=3e-6)
    if case == "toy":
        assert all(step[1] > fsdp_ranks.CLIP for step in split["steps"]), "every step is clipped"


def test_fsdp_with_activation_checkpointing_or_compilation(ranks_results: Any) -> None:
    _, first, _ = ranks_results
    assert first["recompute"] == first["real"][1]
    equal(first["compiled"], first["real"][1], tolerance=3e-6)


def test_initial_weights_are_those_of_rank_0(ranks_results: Any) -> None:
    _, first, _ = ranks_results
    assert first["other_seeds"] == first["toy"][1]


def test_a_resumed_run_with_fsdp_is_bit_identical(ranks_results: Any) -> None:
    _, first, second = ranks_results
    results, uninterrupted = first["interrupted"]["split_split"], first["interrupted"]["uninterrupted"]
    assert results["begun"] == 5
    assert results["notes"] == []
    assert results["steps"] == uninterrupted["steps"][5:], "losses equal as hex floats"
    assert results["weights"] == uninterrupted["weights"]
    assert second["interrupted"]["split_split"]["steps"] == results["steps"]


@pytest.mark.parametrize(
    ("case", "note"),
    [("split_whole", "sharded was True, now False"), ("whole_split", "sharded was False, now True")],
)
def test_a_run_resumes_with_and_without_fsdp(ranks_results: Any, case: str, note: str) -> None:
    _, first, _ = ranks_results
    uninterrupted = first["interrupted"]["uninterrupted_whole"]
    assert first["interrupted"][case]["notes"] == [note]
    equal(first["interrupted"][case], {**uninterrupted, "steps": uninterrupted["steps"][5:]}, tolerance=3e-6)


def test_a_checkpoint_of_two_ranks_resumes_on_one(ranks_results: Any) -> None:
    folder, _, _ = ranks_results
    states = [Checkpoints(folder / name).resume().state for name in ("split", "whole")]
    assert states[0].weights.keys() == states[1].weights.keys()
    assert states[0].optimizer.keys() == states[1].optimizer.keys()
    for name, tensor in states[0].weights.items():
        assert tensor.shape == states[1].weights[name].shape
        assert float((tensor - states[1].weights[name]).abs().max()) < 1e-6, name
    continued = fsdp_ranks.toy(World(), True)
    notes = {note for note in continued.load(states[0]) if not note.startswith("threads")}
    assert notes == {"ranks was 2, now 1", "sharded was True, now False"}
    assert continued.steps_done == 5
    assert not next(continued).skipped


def test_each_of_two_ranks_holds_half_of_the_weights(ranks_results: Any) -> None:
    """Weights, gradients and moments together."""
    _, first, second = ranks_results
    for rank in (first, second):
        whole, split = rank["bytes_held"]
        assert split / whole == pytest.approx(0.5, abs=0.01)
    assert first["bytes_held"][1] + second["bytes_held"][1] == pytest.approx(first["bytes_held"][0], rel=1e-3)


def test_optimizers_that_need_complete_matrices_are_refused(ranks_results: Any) -> None:
    _, first, second = ranks_results
    assert first["refused"] == second["refused"]
    assert [line.split(", but ")[1].split(" ")[0] for line in first["refused"]] == ["lamb", "muon"]
    assert all("compute.fsdp" in line for line in first["refused"])


def test_a_non_finite_value_on_one_rank_is_skipped_by_all(ranks_results: Any) -> None:
    _, first, second = ranks_results
    assert [step[4] for step in first["nan"]["steps"]] == [False, True, False, False]
    assert math.isnan(first["nan"]["steps"][1][1])
    assert [step[0] for step in first["nan"]["steps"]] == [step[0] for step in second["nan"]["steps"]]


def test_evaluation_does_not_change_training(ranks_results: Any) -> None:
    _, first, second = ranks_results
    whole, split = first["scored"]
    assert split["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert split["counts"] == whole["counts"]
    assert split["steps"] == first["toy"][1]["steps"]
    assert second["scored"][1] == split


def test_another_models_checkpoint_is_refused_by_all(ranks_results: Any) -> None:
    _, first, second = ranks_results
    assert first["another"] == second["another"]
    assert "table.weight has the shape [23, 6], but table.weight has [29, 6]" in first["another"]


def test_fsdp_has_no_effect_on_one_rank() -> None:
    toy_trainer = fsdp_ranks.toy(World(), True)
    assert isinstance(toy_trainer.parallel, DataParallel)
    list(toy_trainer)
    plain = fsdp_ranks.toy(World(), False)
    list(plain)
    assert same(toy_trainer.module.state_dict(), snapshot(plain.full_weights()))
    assert not torch.distributed.is_initialized()
    assert not next(fsdp_ranks.toy(World(), True, optimiser=lamb.Config())).skipped
