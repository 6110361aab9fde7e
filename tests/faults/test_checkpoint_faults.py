"""Checkpoints under faults (F1 to F6, F13): the code survives all of them; deliberately broken builds are detected.

The short campaigns run with every test; the long ones are marked slow and run with `make faults`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from faults import broken_disks
from faults.checkpoint_crashes import (
    kills,
    kills_at_random,
    power_losses,
    power_losses_after_kills,
    refusals,
    terminations,
)
from faults.checkpoint_damage import flips, truncations
from faults.shard_fixtures import Outcome
from threads import threads

from bertsmith.errors import BertsmithError, StorageError
from bertsmith.training import checkpoints
from bertsmith.training.checkpoints import Checkpoint, Checkpoints, TrainingState


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Runs are bitwise reproducible only with the same number of threads; small ones are faster with one."""
    with threads(1):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def check(outcome: Outcome, at_least: int) -> None:
    print(outcome)
    assert outcome.landed == outcome.requested >= at_least
    assert not outcome.failures, "\n".join([str(outcome), *outcome.failures[:5]])


def check_broken(outcome: Outcome, failures: int = 1) -> None:
    print(outcome, *outcome.failures[:1], sep="\n")
    assert outcome.landed == outcome.requested
    assert len(outcome.failures) >= failures, "this campaign does not notice a broken build"


def test_kill_at_every_operation(folder: Path) -> None:
    check(kills(folder, again=3), at_least=83)


def test_power_loss_in_every_state(folder: Path) -> None:
    check(power_losses(folder), at_least=100)


def test_power_loss_after_a_kill(folder: Path) -> None:
    check(power_losses_after_kills(folder, every=22, limit=16), at_least=150)


def test_disk_errors(folder: Path) -> None:
    check(refusals(folder), at_least=250)


def test_flipped_bits(folder: Path) -> None:
    check(flips(folder), at_least=2000)


def test_truncated_files(folder: Path) -> None:
    check(truncations(folder), at_least=150)


def test_stop_signals_in_every_phase(folder: Path) -> None:
    check(terminations(folder), at_least=14)


class RetiresEarly(Checkpoints):
    """Removes old checkpoints before the new one is written."""

    def save(self, state: TrainingState) -> Path:
        while len(self.all()) >= self.keep:
            self.disk.remove_folder(self.all()[0])
        return super().save(state)


class IgnoresDiskErrors(Checkpoints):
    """Ignores disk errors."""

    def save(self, state: TrainingState) -> Path:
        try:
            return super().save(state)
        except StorageError:
            return self.folder


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are written in place instead of to a temporary name."""
    monkeypatch.setattr(checkpoints, "partial_path", lambda path: path)


@pytest.mark.usefixtures("in_place")
def test_kills_detect_writing_in_place(folder: Path) -> None:
    check_broken(kills(folder, every=4), failures=10)


def test_kills_detect_early_removal_of_old_checkpoints(folder: Path) -> None:
    check_broken(kills(folder, build=RetiresEarly, every=4), failures=4)


@pytest.mark.parametrize("disk", ["NoFsyncRecording", "NoFolderSyncRecording"])
def test_power_losses_detect_missing_syncs(folder: Path, disk: str) -> None:
    check_broken(power_losses(folder, disk=getattr(broken_disks, disk), limit=4))


def test_power_losses_detect_early_removal_of_old_checkpoints(folder: Path) -> None:
    check_broken(power_losses(folder, build=RetiresEarly, limit=16))


def test_disk_errors_detect_swallowed_exceptions(folder: Path) -> None:
    check_broken(refusals(folder, build=IgnoresDiskErrors), failures=100)


def test_flipped_bits_detect_missing_checksums(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint, "read", lambda self, name: (self.folder / name).read_bytes())
    check_broken(flips(folder, spacing=101), failures=100)


def test_stop_signals_detect_an_ignored_signal(folder: Path) -> None:
    check_broken(terminations(folder, heeded=False), failures=14)


def test_two_processes_detect_a_missing_lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoints(folder):
        with pytest.raises(BertsmithError, match="another process is using"), Checkpoints(folder):
            pass
        monkeypatch.setattr("bertsmith.system.durable.Disk.lock", lambda self, folder: nullcontext())
        with Checkpoints(folder):
            pass


@pytest.mark.slow
def test_long_kills(folder: Path) -> None:
    check(kills(folder, again=500, seed=1), at_least=600)


@pytest.mark.slow
def test_kills_at_random_times(tmp_path: Path) -> None:
    check(kills_at_random(tmp_path, count=200), at_least=200)


@pytest.mark.slow
def test_long_power_loss(folder: Path) -> None:
    check(power_losses(folder, whole=True), at_least=200)


@pytest.mark.slow
def test_long_power_loss_after_a_kill(folder: Path) -> None:
    check(power_losses_after_kills(folder), at_least=5_000)


@pytest.mark.slow
def test_long_flips(folder: Path) -> None:
    check(flips(folder, spacing=1, bits=4, seed=1), at_least=20_000)


@pytest.mark.slow
def test_long_truncations(folder: Path) -> None:
    check(truncations(folder, count=2000), at_least=4000)
