"""A CPU run that clearly does not fit into memory is refused before it writes anything; one that may fit is not."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Done, call
from finetune_fixtures import made_up, tiny_model, write

from bertsmith import cli
from bertsmith.errors import BertsmithError, is_out_of_memory
from bertsmith.system import devices
from bertsmith.training import memory
from bertsmith.training import run as run_module
from bertsmith.training.memory import MemoryEstimate

SMALL = ["encoder.width=32", "encoder.heads=2", "encoder.layers=2", "max_length=32", "batch_size=16"]
ALLOCATIONS: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.empty(1 << 55),
    "numpy": lambda: np.empty(1 << 55, np.uint8),
    "Python": lambda: bytearray(1 << 60),
}


def limit_memory(monkeypatch: pytest.MonkeyPatch, size: int, swap: int | None = 0) -> None:
    monkeypatch.setattr(memory, "cpu_memory_bytes", lambda: size)
    monkeypatch.setattr(memory, "swap_bytes", lambda: swap)


def pretrain(shards: Path, output: Path, *changes: object) -> Done:
    return call(
        "pretrain",
        "bert/tiny",
        "-d",
        shards,
        "-o",
        output,
        "-q",
        "--device",
        "cpu",
        *SMALL,
        "eval_rows=4",
        "steps=1",
        *changes,
    )


@pytest.fixture(scope="module")
def estimate(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> MemoryEstimate:
    found: list[MemoryEstimate] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryEstimate, "refuse", lambda estimate, **_: found.append(estimate))
        assert pretrain(shards, tmp_path_factory.mktemp("estimate") / "run").returncode == 0
    return found[-1]


def test_a_run_that_does_not_fit_is_refused_with_a_setting_that_fits(
    estimate: MemoryEstimate, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, estimate.fixed + 5 * estimate.row_activations)
    refused = pretrain(shards, tmp_path / "run")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert re.match(
        r"bertsmith: the run needs about [\d.]+ MB: .* for 16 rows of one forward; .* available", refused.stderr
    )
    assert not (tmp_path / "run").exists()
    (advice,) = re.findall(r"set (micro_batch_size=\d+)$", refused.stderr.strip())
    assert advice == "micro_batch_size=4"
    assert pretrain(shards, tmp_path / "run", advice).returncode == 0
    before = sorted(path for path in (tmp_path / "run").rglob("*"))
    assert pretrain(shards, tmp_path / "run", "--overwrite").stderr == refused.stderr
    assert sorted(path for path in (tmp_path / "run").rglob("*")) == before


@pytest.mark.parametrize("swap", [0, None])
def test_a_run_that_may_fit_is_not_refused(
    swap: int | None, estimate: MemoryEstimate, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    activations = estimate.weights + estimate.fixed_activations + estimate.activations
    limit_memory(monkeypatch, 1000 if swap is None else max(activations, 3 * estimate.weights), swap)
    assert pretrain(shards, tmp_path / "run").returncode == 0


def test_a_model_that_does_not_fit_is_not_even_built(shards: Path, tmp_path: Path) -> None:
    refused = pretrain(shards, tmp_path / "run", "encoder.width=65536", "encoder.heads=64", "encoder.layers=48")
    assert refused.returncode == 2
    assert re.search(r"the run needs about [\d,.]+ GB: .* or take a smaller encoder or max_length\n", refused.stderr)
    assert not (tmp_path / "run").exists()


def test_fine_tuning_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path)
    write(tmp_path / "train.jsonl", made_up("classification", 32, 0))
    found: list[MemoryEstimate] = []
    words = ["finetune", model, "-t", "classification", "--train", tmp_path / "train.jsonl", "-o", tmp_path / "run"]
    words += ["-q", "--device", "cpu", "batch_size=32", "epochs=1"]
    with monkeypatch.context() as patch:
        patch.setattr(MemoryEstimate, "refuse", lambda estimate, **_: found.append(estimate))
        assert call(*words).returncode == 0
    limit_memory(monkeypatch, found[0].weights * 4 + 9 * found[0].row_activations)
    refused = call(*words, "--overwrite")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "for 32 examples of one forward" in refused.stderr
    assert refused.stderr.endswith("set micro_batch_size=8\n")
    assert (tmp_path / "run" / "last").is_dir()
    assert call(*words, "--overwrite", "micro_batch_size=8").returncode == 0


@pytest.mark.parametrize("kind", ALLOCATIONS)
def test_a_failed_allocation_on_a_cpu_is_one_line(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "command", lambda *_: lambda **__: ALLOCATIONS[kind]())
    with pytest.raises(SystemExit) as left:
        cli.main()
    error = capsys.readouterr().err
    assert (left.value.code, len(error.splitlines())) == (2, 1)
    assert error.startswith("bertsmith: out of memory; ")
    advice = pytest.raises(BertsmithError, match="8 rows in one forward: resume with micro_batch_size=4")
    with advice, run_module.memory_advice(8, "rows"):
        ALLOCATIONS[kind]()


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    assert is_out_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert not is_out_of_memory(OSError(errno.ENOSPC, "No space left on device"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


@pytest.mark.parametrize(
    ("line", "file"), [("0::/a/b", "a/memory.max"), ("4:cpu,memory:/x", "memory/memory.limit_in_bytes")]
)
def test_the_limit_of_a_control_group_counts(
    line: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(devices, "PROC_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(devices, "CGROUPS", tmp_path)
    (tmp_path / "cgroup").write_text(f"1:name=systemd:/\n{line}\n")
    (tmp_path / file).parent.mkdir()
    for text, expected in (("max\n", machine), (f"{1 << 62}\n", machine), ("1000000\n", 1_000_000)):
        (tmp_path / file).write_text(text)
        assert devices.cpu_memory_bytes() == expected
    monkeypatch.setattr(devices, "MEMINFO", tmp_path / "meminfo")
    assert devices.swap_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nSwapTotal:       2 kB\n")
    assert devices.swap_bytes() == 2048
