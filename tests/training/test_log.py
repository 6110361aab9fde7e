"""The log: events are written immediately, numbers are exact, torn lines are dropped, lines are not interleaved."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from training.training_fixtures import trainer

from bertsmith.errors import StorageError
from bertsmith.training.log import EventLog, last_of_each_step, read_events


def test_events_are_read_as_written(tmp_path: Path) -> None:
    toy_trainer, path = trainer(), tmp_path / "events.jsonl"
    steps = []
    with EventLog(path, clock=lambda: 12.3456) as log:
        for step in toy_trainer:
            log.write("step", **step.metrics())
            steps.append(step)
            assert len(read_events(path)) == step.number, "a kill now loses nothing"
        log.write("saved", step=12, path="step-00000012")
        log.sync()
    events = read_events(path)
    assert [event["kind"] for event in events] == ["step"] * 12 + ["saved"]
    assert [event["loss"].hex() for event in events[:-1]] == [step.loss.hex() for step in steps]
    assert events[0]["time"] == 12.346
    assert read_events(tmp_path / "none.jsonl") == []


def test_non_finite_numbers_are_kept(tmp_path: Path) -> None:
    with EventLog(tmp_path / "log") as log:
        log.write("step", step=1, loss=math.nan, gradient_norm=math.inf, parts={"a": -math.inf})
    event = read_events(tmp_path / "log")[0]
    assert math.isnan(float(event["loss"]))
    assert float(event["gradient_norm"]) == math.inf
    assert float(event["parts"]["a"]) == -math.inf
    assert b"NaN" not in (tmp_path / "log").read_bytes()


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_last_line_is_removed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "log"
    with EventLog(path, clock=lambda: 0.0) as log:
        for step in (1, 2, 3):
            log.write("step", step=step)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert [event["step"] for event in read_events(path)] == [1, 2]
    with EventLog(path, clock=lambda: 0.0) as log:
        log.write("step", step=3)
    assert path.read_bytes() == whole


def test_a_torn_line_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"kind": "a", "step": 1}\n' + b"x" * 200_000)
    with EventLog(path) as log:
        log.write("a", step=2)
    assert [event["step"] for event in read_events(path)] == [1, 2]
    path.write_bytes(b"y" * 70_000)
    EventLog(path).close()
    assert path.read_bytes() == b""


def test_the_later_event_of_a_repeated_step_counts(tmp_path: Path) -> None:
    with EventLog(tmp_path / "log") as log:
        for step, loss in ((1, 5.0), (2, 4.0), (3, 3.0), (2, 4.5), (3, 3.5), (4, 2.5)):
            log.write("step", step=step, loss=loss)
            log.write("held_out", step=step, loss=9.0)
    events = last_of_each_step(read_events(tmp_path / "log"), "step")
    assert [(event["step"], event["loss"]) for event in events] == [(1, 5.0), (2, 4.5), (3, 3.5), (4, 2.5)]


def test_a_full_disk_is_named_and_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "log", os.write
    with EventLog(path) as log:
        log.write("step", step=1)

        def full(descriptor: int, data: memoryview) -> int:
            if len(data) > 10:
                return write(descriptor, data[:7])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StorageError, match=rf"No space left on device: writing {path} wanted \d+ bytes"):
            log.write("step", step=2)
        monkeypatch.undo()
        log.write("step", step=3)
    assert [event["step"] for event in read_events(path)] == [1, 3]


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    for wrong in (b"nonsense", b"[1]", b'{"b": 1}', b"\x00\xff\x80", b'{"kind": "st{"kind": "b"}', b'{"kind": "step"}'):
        (tmp_path / "log").write_bytes(b'{"kind": "a"}\n' + wrong + b'\n{"kind": "c"}\n')
        assert [event["kind"] for event in read_events(tmp_path / "log")] == ["a", "c"]
    with pytest.raises(StorageError, match="opening"):
        EventLog(tmp_path)
