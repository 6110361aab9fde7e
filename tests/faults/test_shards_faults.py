"""Shards under faults (F1 to F6): the build survives all of them; deliberately broken builds are detected.

The short campaigns run with every test; the long ones are marked slow and run with `make faults`.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import broken_disks
from faults.shard_crashes import kills, power_losses, power_losses_after_kills, refusals, removals
from faults.shard_damage import flips, truncations
from faults.shard_fixtures import Outcome

from bertsmith.data.shards.format import BLOCK, Head, ShardFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(scope="module")
def slim() -> Iterator[Callable[..., Outcome]]:
    """Runs a campaign in a process with few imports, since each fork copies the memory of the process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield lambda campaign, *given, **named: pool.apply(campaign, given, named)


def check(outcome: Outcome, at_least: int) -> None:
    print(outcome)
    assert outcome.landed == outcome.requested
    assert outcome.requested >= at_least
    assert not outcome.failures, "\n".join([str(outcome), *outcome.failures[:5]])


def check_broken(outcome: Outcome) -> None:
    print(outcome, *outcome.failures[:1], sep="\n")
    assert outcome.landed == outcome.requested
    assert outcome.failures, "this campaign does not notice a broken build"


def test_kill_at_every_operation(folder: Path, slim: Callable[..., Outcome]) -> None:
    check(slim(kills, folder, again=5), at_least=95)


def test_kill_during_removal(folder: Path, slim: Callable[..., Outcome]) -> None:
    check(slim(removals, folder), at_least=50)


def test_power_loss_in_every_state(folder: Path) -> None:
    check(power_losses(folder, whole=True), at_least=150)


def test_power_loss_after_a_kill(folder: Path) -> None:
    check(power_losses_after_kills(folder, every=18), at_least=350)


def test_disk_errors(folder: Path) -> None:
    check(refusals(folder), at_least=300)


def test_flipped_bytes(folder: Path) -> None:
    check(flips(folder, masks=1), at_least=6000)


def test_truncated_files(folder: Path) -> None:
    check(truncations(folder), at_least=2000)


@pytest.mark.parametrize("disk", ["InPlaceFailing", "TrainFirstFailing", "IndexFirstFailing"])
def test_kills_detect_broken_builds(folder: Path, disk: str, slim: Callable[..., Outcome]) -> None:
    check_broken(slim(kills, folder, disk=getattr(broken_disks, disk)))


@pytest.mark.parametrize(
    "disk",
    [
        "NoFsyncRecording",
        "NoFolderSyncRecording",
        "InPlaceRecording",
        "TrainFirstRecording",
        "IndexFirstRecording",
    ],
)
def test_power_losses_detect_broken_builds(folder: Path, disk: str) -> None:
    check_broken(power_losses(folder, disk=getattr(broken_disks, disk), limit=8))


def test_flipped_bytes_detect_missing_checksums(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(file: ShardFile, block: int, head: Head) -> bytes:
        return file.read(min(BLOCK, head.header.body_bytes - block * BLOCK), head.body + block * BLOCK)

    monkeypatch.setattr(ShardFile, "read_block", unchecked)
    check_broken(flips(folder, masks=1))


def test_truncations_detect_unchecked_short_reads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def padded(file: ShardFile, size: int, offset: int) -> bytes:
        return os.pread(file.descriptor, size, offset).ljust(size, b"\0")

    monkeypatch.setattr(ShardFile, "read", padded)
    check_broken(truncations(folder, count=500))


@pytest.mark.slow
def test_long_kills(tmp_path: Path) -> None:
    check(kills(tmp_path, again=1000, seed=1), at_least=1000)


@pytest.mark.slow
def test_long_power_loss_after_a_kill(folder: Path) -> None:
    check(power_losses_after_kills(folder, every=1), at_least=6000)


@pytest.mark.slow
def test_long_flips(folder: Path) -> None:
    check(flips(folder, masks=24, seed=1), at_least=180_000)


@pytest.mark.slow
def test_long_truncations(folder: Path) -> None:
    check(truncations(folder, count=40_000, seed=1), at_least=40_000)
