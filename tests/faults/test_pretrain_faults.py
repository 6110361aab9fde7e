"""The `pretrain` command under faults (F2, F4, F13 to F15, F17, F20): it ends with the bits of an undisturbed run, and
deliberately broken builds are detected.

The short campaigns run with every test; the long ones are marked slow and run with `make faults`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.pretrain_fixtures import Scene
from faults.pretrain_kills import (
    files_too_large,
    kills_at_changes,
    kills_at_models,
    kills_at_phases,
    kills_at_random,
    refusals,
)
from faults.pretrain_late_steps import LATE_STEP, late_run, rows_after, rows_computed, seconds_to_first_step
from faults.pretrain_ranks import fewer_rows_than_ranks, signal_to_one_rank, worlds
from faults.pretrain_signals import (
    failing_batches,
    failing_shards,
    impatient_signals,
    not_finite,
    rivals,
    signals,
    signals_at_random,
)
from faults.shard_fixtures import Outcome


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="bertsmith-pretrain-") as name, Scene(Path(name)) as made:
        yield made


def check(outcome: Outcome, at_least: int) -> None:
    print(outcome)
    assert outcome.landed == outcome.requested >= at_least, "\n".join([str(outcome), *outcome.failures[:5]])
    assert not outcome.failures, "\n".join([str(outcome), *outcome.failures[:5]])


def check_broken(outcome: Outcome, failures: int = 1) -> None:
    print(outcome, *outcome.failures[:1], sep="\n")
    assert len(outcome.failures) >= failures, "this campaign does not notice a broken build"


def test_killed_at_random_times(scene: Scene) -> None:
    check(kills_at_random(scene, count=8), at_least=8)


def test_killed_at_critical_moments(scene: Scene) -> None:
    check(kills_at_phases(scene), at_least=6)


def test_killed_while_writing_a_model(scene: Scene) -> None:
    check(kills_at_models(scene), at_least=3)


def test_disk_errors(scene: Scene) -> None:
    check(refusals(scene, every=97), at_least=4)


def test_a_file_size_limit(scene: Scene) -> None:
    check(files_too_large(scene), at_least=2)


def test_stop_signals_in_every_phase(scene: Scene) -> None:
    check(signals(scene), at_least=8)


def test_two_stop_signals(scene: Scene) -> None:
    check(impatient_signals(scene), at_least=3)


def test_stop_signals_at_random_times(scene: Scene) -> None:
    check(signals_at_random(scene, count=3), at_least=3)


def test_batches_that_fail_or_hang(scene: Scene) -> None:
    check(failing_batches(scene), at_least=3)


def test_shards_damaged_during_the_run(scene: Scene) -> None:
    check(failing_shards(scene), at_least=2)


def test_losses_that_are_not_finite(scene: Scene) -> None:
    check(not_finite(scene), at_least=3)


def test_a_second_process_is_rejected(scene: Scene) -> None:
    check(rivals(scene), at_least=3)


def test_a_stop_signal_to_one_of_two_ranks(scene: Scene) -> None:
    check(signal_to_one_rank(scene), at_least=4)


def test_world_size_and_micro_batch_size_do_not_change_the_rows(scene: Scene) -> None:
    check(worlds(scene), at_least=3)


def test_fewer_held_out_rows_than_ranks(scene: Scene) -> None:
    statuses, (alone, together) = fewer_rows_than_ranks(scene)
    assert statuses == [0] * 5
    assert together == pytest.approx(alone, rel=1e-4)


def test_a_million_steps_do_not_slow_down_a_resume(scene: Scene) -> None:
    run = scene.fresh()
    late_run(scene, run)
    rows = rows_after(scene, run)
    assert list(rows) == [LATE_STEP + 1]
    assert rows[LATE_STEP + 1] == rows_computed(scene, run, LATE_STEP + 1)
    assert rows[LATE_STEP + 1] != rows_computed(scene, run, LATE_STEP + 2)
    seconds, busy = seconds_to_first_step(scene, run)
    print(f"step {LATE_STEP + 2:,} was logged {seconds:.1f} s after the start, of which {busy:.1f} s at work")
    crowded = os.getloadavg()[0] > (os.cpu_count() or 1)  # a busy machine: wall time is not meaningful
    assert (busy if crowded else seconds) < 10


@pytest.mark.parametrize(
    ("build", "phase"),
    {
        "order_from_a_generator": "step-5",
        "moments_forgotten": "step-5",
        "progress_forgotten": "step-5",
        "dropout_by_the_clock": "step-5",
        "in_place": "manifest-4",
        "retires_early": "save-2",
    }.items(),
)
def test_kills_detect_a_broken_build(scene: Scene, build: str, phase: str) -> None:
    check_broken(kills_at_phases(scene, build=build, only=phase))


def test_disk_errors_detect_swallowed_exceptions(scene: Scene) -> None:
    check_broken(refusals(scene, build="errors_of_the_disk_ignored", first=20, every=1000))


def test_stop_signals_detect_an_ignored_signal(scene: Scene) -> None:
    check_broken(signals(scene, build="deaf", only="update-5"))


def test_a_rank_that_stops_alone_is_detected(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.pretrain_ranks.SLACK", 12.0)
    check_broken(signal_to_one_rank(scene, build="hears_itself_only", only="update-5-of-1"))


def test_a_missing_timeout_is_detected(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.pretrain_signals.SLACK", 3.0)
    check_broken(failing_batches(scene, build="endlessly_patient", only="hang"))


def test_missing_shard_checksums_are_detected(scene: Scene) -> None:
    check_broken(failing_shards(scene, build="shards_unchecked", only="changed"))


def test_hidden_losses_are_detected(scene: Scene) -> None:
    check_broken(not_finite(scene, build="not_finite_is_learned"), failures=3)


def test_a_missing_lock_is_detected(scene: Scene) -> None:
    check_broken(rivals(scene, build="without_lock", only="save-2"))


def test_diverging_ranks_are_detected(scene: Scene) -> None:
    check_broken(worlds(scene, build="order_by_rank", plans="2x2"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_long_kills_at_random_times(scene: Scene, seed: int) -> None:
    check(kills_at_random(scene, count=200, seed=seed), at_least=200)


@pytest.mark.slow
def test_killed_at_every_change_of_the_disk(scene: Scene) -> None:
    check(kills_at_changes(scene), at_least=250)


@pytest.mark.slow
def test_disk_errors_at_every_change(scene: Scene) -> None:
    check(refusals(scene), at_least=250)


@pytest.mark.slow
def test_long_signals(scene: Scene) -> None:
    check(signals_at_random(scene, count=100, seed=1), at_least=100)


@pytest.mark.slow
def test_many_world_sizes(scene: Scene) -> None:
    plans = "4x2,1x8,1x1,4x1-2x2-1x8,2x4-4x2-2x1-1x4-4x1"
    check(worlds(scene, plans=plans), at_least=5)
