"""Progress messages of a run."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bertsmith.system.progress import Progress, fit_line
from bertsmith.training import progress
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.step import Scores


def test_time_left_ignores_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One minute of compilation, then ten seconds for each of the other nine steps."""
    clock = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock)
    stream = io.StringIO()
    trainer: Any = SimpleNamespace(
        steps_done=0,
        seconds=0.0,
        plan=TrainingPlan(learning_rate=1e-3, steps=10),
        world=SimpleNamespace(device=torch.device("cpu")),
    )
    show = progress.ProgressDisplay(trainer, stream=stream)
    for number in range(1, 11):
        clock += 60 if number == 1 else 10
        scores = Scores(loss=1.0, losses={"masked_lm": 1.0}, accuracies={}, counts={})
        step: Any = SimpleNamespace(number=number, tokens=1000, learning_rate=1e-3, scores=scores)
        show.step(step)
    remaining = [line.split(" · ")[1] for line in stream.getvalue().splitlines()]
    assert remaining[0] == "9:00 left"  # the only estimate after one step
    assert remaining[1:] == [f"{seconds // 60}:{seconds % 60:02} left" for seconds in range(80, -1, -10)]


@pytest.mark.parametrize("columns", [80, 60, 30])
def test_the_time_left_is_visible_in_a_narrow_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    parts = ["step 123,456 (12%)", "1:02:03 left", "masked_lm 5.123 next_sentence 0.693", "12,345 tokens/s", "MFU 41%"]
    line = fit_line(parts, live=True)
    assert len(line) < columns
    assert "1:02:03 left" in line or columns == 30
    assert fit_line(parts, live=False) == " · ".join(parts)
    bar = Progress("preparing", total=100, stream=io.StringIO())
    bar.live = True
    text = bar.line(50, 10.0, {"documents": 1_000_000, "tokens": 1_234_567_890})
    assert len(text) < columns
    assert "0:10 left" in text or columns == 30


def test_a_notebook_shows_one_line_and_the_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    class OutStream(io.StringIO):
        __module__ = "ipykernel.iostream"

    clock = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock)
    stream = OutStream()
    trainer: Any = SimpleNamespace(
        steps_done=0,
        seconds=0.0,
        plan=TrainingPlan(learning_rate=1e-3, steps=100),
        world=SimpleNamespace(device=torch.device("cpu")),
    )
    show = progress.ProgressDisplay(trainer, chart=True, stream=stream)  # a chart needs a terminal
    for number in range(1, 101):
        clock += 1
        scores = Scores(loss=1.0, losses={"masked_lm": 1.0}, accuracies={}, counts={})
        show.step(SimpleNamespace(number=number, tokens=1000, learning_rate=1e-3, scores=scores))  # type: ignore[arg-type]
        if number == 50:
            show.note("held-out loss 1.0")
    show.close()
    first, last = (line.rpartition("\r")[2] for line in stream.getvalue().split("\n"))
    assert (first, last) == ("held-out loss 1.0", "")
    assert stream.getvalue().count("step ") == 100
    assert "\x1b" not in stream.getvalue()
