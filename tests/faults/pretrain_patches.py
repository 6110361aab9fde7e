"""Patches applied inside the process of the command: faults, recordings, and deliberately broken builds.

Each function modifies classes of bertsmith in place and is called by name before the command starts; the process ends
with the command, so nothing is restored.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.data.packing.packing import Packing
from bertsmith.data.shards import reader as shard_reader
from bertsmith.errors import StorageError
from bertsmith.model_io.model import Model
from bertsmith.system.durable import Disk
from bertsmith.training import checkpoints, forward_backward, prefetch, pretrain, run
from bertsmith.training.checkpoints import Checkpoints
from bertsmith.training.signals import StopSignal
from bertsmith.training.trainer import Trainer
from bertsmith.types import IGNORE_INDEX, Batch, Loss

CHANGES = ("_open", "_write", "_fsync", "_rename", "_unlink", "_mkdir", "_rmdir", "_sync_folder")


def _around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replaces a method by `wrapper`, called with the original method before the arguments."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *arguments, **named: wrapper(original, *arguments, **named))


def _append(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def _at_each_change(act: Callable[[int], None]) -> None:
    """Calls `act` with the number of each disk operation before it happens, counted from 0 over all disks."""
    count = [0]

    def struck(original: Callable[..., Any], disk: Disk, *arguments: Any) -> Any:
        count[0] += 1
        act(count[0] - 1)
        return original(disk, *arguments)

    for name in CHANGES:
        _around(Disk, name, struck)


def quick_start() -> None:
    """Not broken: skips the peak measurement, which takes longer than a complete small run."""
    pretrain.measure_peak_flops = lambda *anything: 1.0  # type: ignore[assignment]


def count_changes(path: str) -> None:
    """Appends one character to `path` for each disk operation."""
    _at_each_change(lambda number: _append(path, "."))


def kill_at_change(number: int) -> None:
    def act(now: int) -> None:
        if now == number:
            os.kill(os.getpid(), signal.SIGKILL)

    _at_each_change(act)


def refuse_change(number: int, mode: str, marker: str) -> None:
    """A disk error at one operation and all later ones; creates `marker` when it occurs."""

    def act(now: int) -> None:
        if now >= number:
            Path(marker).touch()
            raise OSError(getattr(errno, mode), os.strerror(getattr(errno, mode)))

    _at_each_change(act)


def _at(phase: str, act: Callable[[], None]) -> None:
    """Calls `act` once, when the run first reaches a phase such as `step-3`, `save-2` or `evaluation`."""
    kind, _, moment = phase.partition("-")
    owner, name = {
        "step": (Trainer, "_gradients"),
        "update": (Trainer, "_update"),
        "save": (checkpoints, "write_checkpoint"),
        "manifest": (checkpoints, "checksummed_json"),
        "evaluation": (Trainer, "evaluate"),
        "resume": (Checkpoints, "resume"),
        "model": (Model, "build"),
        "write": (run, "save_model"),
    }[kind]
    calls = [0]

    def wrapper(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        now = arguments[0].steps_done + 1 if kind in ("step", "update") else calls[0]
        if now == int(moment or 1):
            act()
        return original(*arguments, **named)

    _around(owner, name, wrapper)


def signal_at(phase: str, number: int, marker: str, rank: int = 0, times: int = 1) -> None:
    """Sends a signal to the process in this phase and creates the file `marker`."""

    def act() -> None:
        if int(os.environ.get("RANK", "0")) == rank:
            Path(marker).touch()
            for _ in range(times):
                os.kill(os.getpid(), number)

    _at(phase, act)


def kill_at(phase: str) -> None:
    _at(phase, lambda: os.kill(os.getpid(), signal.SIGKILL))


def pause_at(phase: str, path: str, seconds: float = 30.0) -> None:
    """The run creates `path` and waits until it is removed."""

    def act() -> None:
        Path(path).touch()
        deadline = time.monotonic() + seconds
        while os.path.exists(path) and time.monotonic() < deadline:
            time.sleep(0.002)

    _at(phase, act)


def batches(number: int, mode: str, patience: float = 0.0) -> None:
    """The data loading thread raises or hangs at a micro-batch; `patience` is the timeout of its consumer."""

    def wrapper(original: Callable[..., Any], packing: Packing, micro: int, **named: Any) -> Any:
        if micro == number:
            if mode == "hang":
                time.sleep(1000)
            raise {"error": StorageError, "bug": ZeroDivisionError}[mode](f"micro-batch {micro} cannot be loaded")
        return original(packing, micro, **named)

    _around(Packing, "batch", wrapper)
    if patience:
        patient(patience)


def checked_each_time() -> None:
    """Every block of a shard is verified on each access, as in a run that reads more than its memory."""

    def wrapper(original: Callable[..., Any], reader: shard_reader.ShardReader, *arguments: Any) -> Any:
        reader.checked[:] = False
        return original(reader, *arguments)

    _around(shard_reader.ShardReader, "_check", wrapper)


def patient(seconds: float) -> None:
    prefetch.TIMEOUT = seconds


def record(folder: str) -> None:
    """Records digests of the training rows: masked tokens, document ids and all labels."""

    def wrapper(
        original: Callable[..., Any],
        owner: forward_backward.ForwardBackward,
        batch: Batch,
        *arguments: Any,
        **named: Any,
    ) -> Any:
        line = {"step": named["step"] + 1, "micro": named["micro"], "rows": digests(batch)}
        _append(str(Path(folder, f"rows-{owner.world.rank}.jsonl")), json.dumps(line) + "\n")
        return original(owner, batch, *arguments, **named)

    Path(folder).mkdir(parents=True, exist_ok=True)
    _around(forward_backward.ForwardBackward, "accumulate_gradients", wrapper)


def digests(batch: Batch) -> list[str]:
    """One digest per row of a corrupted batch, independent of the other rows."""
    rows, length = batch.input_ids.shape
    values = [batch.input_ids, batch.sample_ids, batch.document_ids, batch.segment_ids, batch.position_ids]
    columns = [value.reshape(rows, -1).numpy().astype(np.int64) for value in values]
    for name in sorted(batch.labels):
        columns.append(_by_position(batch, batch.labels[name].numpy(), name).reshape(rows, length))
    return [hashlib.sha256(np.concatenate(row).tobytes()).hexdigest()[:16] for row in zip(*columns, strict=True)]


def _by_position(batch: Batch, labels: Any, name: str) -> Any:
    """Labels of positions or of texts as one number per flat position."""
    flat_labels = np.full(batch.input_ids.numel(), IGNORE_INDEX, np.int64)
    if labels.shape == batch.input_ids.shape:
        return labels.reshape(-1)
    positions = batch.indices.get(name, batch.cls_positions).numpy()
    labelled = labels != IGNORE_INDEX
    flat_labels[positions[labelled]] = labels[labelled]
    return flat_labels


def not_finite(steps: list[int], value: str = "nan") -> None:
    """Makes the losses of these steps non-finite."""
    now = [0]

    def learn(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        now[0] = named["step"] + 1
        result = original(*arguments, **named)
        now[0] = 0
        return result

    def forward(original: Callable[..., Any], *arguments: Any, **named: Any) -> Loss:
        loss: Loss = original(*arguments, **named)
        factor = float(value) if now[0] in steps else 1.0
        return Loss({name: part * factor for name, part in loss.sums.items()}, loss.counts, loss.correct, loss.weights)

    _around(forward_backward.ForwardBackward, "accumulate_gradients", learn)
    _around(Model, "forward", forward)


def order_from_a_generator() -> None:
    """The next batch follows the last one of this process instead of the step."""
    made = [0]

    def wrapper(original: Callable[..., Any], packing: Packing, micro: int, **named: Any) -> Any:
        made[0] += 1
        return original(packing, made[0] - 1, **named)

    _around(Packing, "batch", wrapper)


def order_by_rank() -> None:
    """Every rank has its own row order."""

    def batch(packing: Packing, micro: int, *, batch_size: int, rank: int = 0, world_size: int = 1) -> Any:
        share = batch_size // world_size
        return packing.rows(rank * 1000 + micro * share, share)

    Packing.batch = batch  # type: ignore[method-assign]


def moments_forgotten() -> None:
    def wrapper(original: Callable[..., Any], trainer: Trainer, *arguments: Any) -> Any:
        load, trainer.optimizer.load = trainer.optimizer.load, lambda state: None  # type: ignore[method-assign]
        result = original(trainer, *arguments)
        trainer.optimizer.load = load  # type: ignore[method-assign]
        return result

    _around(Trainer, "load", wrapper)


def progress_forgotten() -> None:
    def wrapper(original: Callable[..., Any], trainer: Trainer, *arguments: Any) -> Any:
        result = original(trainer, *arguments)
        trainer.steps_done = 0
        return result

    _around(Trainer, "load", wrapper)


def dropout_by_the_clock() -> None:
    forward_backward._seed_dropout = lambda device, seed: torch.default_generator.manual_seed(time.time_ns())  # type: ignore[assignment]


def in_place() -> None:
    """Checkpoints are written in place instead of to a temporary name."""
    checkpoints.partial_path = lambda path: path  # type: ignore[assignment]


def retires_early() -> None:
    """Old checkpoints are removed before the new one is written, possibly all."""

    def wrapper(original: Callable[..., Any], made: Checkpoints, state: Any) -> Any:
        for path in made.all():
            made.disk.remove_folder(path)
        return original(made, state)

    _around(Checkpoints, "save", wrapper)


def deaf() -> None:
    StopSignal.request = lambda self: None  # type: ignore[method-assign]


def hears_itself_only() -> None:
    """A rank stops on its own signal without informing the others."""
    Trainer._finish_steps = _settle_alone  # type: ignore[method-assign]


def _settle_alone(trainer: Trainer, most: int) -> None:
    while trainer._in_flight and len(trainer._in_flight) >= most:
        trainer._finished = trainer._in_flight.popleft()
        trainer.tokens += int(trainer._finished.numbers["tokens"])
    trainer.stopped = trainer.stopped or trainer.stop_signal.requested


def without_lock() -> None:
    Disk.lock = lambda self, folder: nullcontext()  # type: ignore[method-assign,assignment]


def not_finite_is_learned() -> None:
    """Every step updates the weights, whatever its gradients."""

    def wrapper(original: Callable[..., Any], trainer: Trainer, *arguments: Any, **named: Any) -> None:
        original(trainer, *arguments, **named)
        step = trainer.optimizer.step
        trainer.optimizer.step = lambda rates, *, divisor, skip: step(  # type: ignore[method-assign]
            rates, divisor=divisor, skip=torch.zeros_like(skip)
        )

    _around(Trainer, "__init__", wrapper)


def endlessly_patient() -> None:
    patient(1e6)


def shards_unchecked() -> None:
    shard_reader.ShardReader._check = lambda *anything: None  # type: ignore[method-assign, assignment]


def errors_of_the_disk_ignored() -> None:
    def wrapper(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with suppress(StorageError):
            return original(*arguments, **named)

    _around(Checkpoints, "save", wrapper)
