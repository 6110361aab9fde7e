"""Hostile and damaged model folders (F5, F6, F7) are one-line errors; deliberately broken builds are detected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import folder_campaigns
from faults.folder_campaigns import flips, hostile, truncations
from faults.shard_fixtures import Outcome
from model_io.folder_fixtures import folder_in_memory, foreign

from bertsmith.model_io import checksums, loading, safetensors_files, untrusted_files
from bertsmith.model_io.huggingface.family import Family


@pytest.fixture
def work() -> Iterator[Path]:
    with folder_in_memory() as path:
        yield path


def check(outcome: Outcome, at_least: int) -> None:
    print(outcome)
    assert outcome.landed == outcome.requested >= at_least
    assert not outcome.failures, "\n".join(outcome.failures[:5])


def check_broken(outcome: Outcome, *, failures: int) -> None:
    print(outcome, *outcome.failures[:1], sep="\n")
    assert outcome.landed == outcome.requested
    assert len(outcome.failures) >= failures, "this campaign does not notice a broken build"


def test_hostile_folders(work: Path) -> None:
    check(hostile(work), at_least=150)


def test_flipped_bits(work: Path) -> None:
    check(flips(work), at_least=2000)


def test_truncated_files(work: Path) -> None:
    check(truncations(work), at_least=400)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read and reset as Linux does it")
def test_memory_while_opening(work: Path) -> None:
    """The weights are in memory once: no second read and no full copy."""
    folder = foreign(work / "model", "masked_lm", vocab_size=200_000, width=64)
    size = (folder / "model.safetensors").stat().st_size
    small = foreign(work / "small")

    # a new process: the peak of a forked one includes the memory of earlier tests
    program = (
        "import sys\n"
        "from bertsmith.model_io.model_folder import open_model\n"
        "def peak(): return next(int(line.split()[1]) for line in open('/proc/self/status') if 'VmHWM' in line)\n"
        "small = open_model(sys.argv[1])\n"  # imported and mapped code does not count; its memory is not used again
        "print('5', file=open('/proc/self/clear_refs', 'w'))\n"  # resets the peak to the current usage
        "used = peak()\n"
        "kept = open_model(sys.argv[2])\n"
        "print((peak() - used) * 1024)\n"
    )
    command = [sys.executable, "-c", program, str(small), str(folder)]
    growth = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    # pages that the small model has freed may be used again, so that the peak grows by a little less than the file
    assert size > 5e7
    assert 0.95 * size < growth < 1.2 * size


def offsets_unchecked(patch: pytest.MonkeyPatch) -> list[str]:
    patch.setattr(safetensors_files, "_check_layout", lambda file, entries, start: entries)
    return ["two weights in one place", "a gap before all"]


def links_are_followed(patch: pytest.MonkeyPatch) -> list[str]:
    patch.setattr(untrusted_files, "_inside", lambda folder, name: (folder / name).resolve())
    return [f"link from {name} out of the folder" for name in ("config.json", "model.safetensors", "vocab.txt")]


def pipes_are_waited_for(patch: pytest.MonkeyPatch) -> list[str]:
    patch.setattr(untrusted_files, "_open", lambda real, path: os.open(real, os.O_RDONLY))
    patch.setattr(folder_campaigns, "MAX_SECONDS", 1)
    return ["pipe as config.json"]


def no_caps_on_headers(patch: pytest.MonkeyPatch) -> list[str]:
    for name in ("MAX_HEADER_BYTES", "MAX_TENSORS"):
        patch.setattr(safetensors_files, name, 1 << 60)
    patch.setitem(untrusted_files.parse_object.__kwdefaults__, "max_values", 1 << 60)
    patch.setattr(folder_campaigns, "MAX_CPU_SECONDS", 1)
    return ["a million tensors"]


def settings_are_trusted(patch: pytest.MonkeyPatch) -> list[str]:
    patch.setattr(Family, "check_sizes", lambda *anything: None)
    patch.setattr(loading.Loader, "_without_memory", lambda loader, config: config.build())
    return ["hidden_size of 10**9", "intermediate_size of 10**9"]


def pickles_are_trusted(patch: pytest.MonkeyPatch) -> list[str]:
    def trusting(folder: Path) -> Any:
        return torch.load(folder / "model.safetensors", weights_only=False)

    patch.setattr(folder_campaigns.folders, "open_model", trusting)
    return ["pickle as model.safetensors", "torch file as weights"]


def errors_propagate(patch: pytest.MonkeyPatch) -> list[str]:
    patch.setattr(untrusted_files, "parse_object", lambda data, path, **how: json.loads(data))
    return ["config.json: not UTF-8", "config.json: deep", "config.json: a list"]


BROKEN: list[tuple[Callable[[pytest.MonkeyPatch], list[str]], int]] = [
    (offsets_unchecked, 2),
    (links_are_followed, 3),
    (pipes_are_waited_for, 1),
    (no_caps_on_headers, 1),
    (settings_are_trusted, 2),
    (pickles_are_trusted, 2),
    (errors_propagate, 3),
]


@pytest.mark.parametrize(("build", "failures"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_hostile_folders_detect_broken_builds(
    build: Any, failures: int, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_broken(hostile(work, cases=build(monkeypatch)), failures=failures)


def test_flipped_bits_detect_missing_checksums(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "difference", lambda *anything: None)
    check_broken(flips(work, spacing=1997), failures=20)


def test_truncations_detect_unchecked_short_reads(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def padded(self: untrusted_files.UntrustedFile, buffer: memoryview, begin: int) -> None:
        found = os.pread(self.descriptor, len(buffer), begin)
        buffer[: len(found)] = found

    offsets_unchecked(monkeypatch)
    monkeypatch.setattr(untrusted_files.UntrustedFile, "fill", padded)
    check_broken(truncations(work, count=20), failures=10)


@pytest.mark.slow
def test_long_flips(work: Path) -> None:
    check(flips(work, spacing=3, seed=1), at_least=30_000)
