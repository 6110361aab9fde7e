"""Trackers receive the metrics of a run, resume with it, never prompt, and never end a run."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bertsmith.errors import ConfigError
from bertsmith.training import trackers
from bertsmith.training.trackers import IDENTITIES, Trackers, check_trackers

RECIPE = {"name": "bert/tiny", "encoder": {"kind": "bert", "layers": 2}, "steps": 9, "unfreeze": []}


class RecordedCalls:
    """Records the calls of a fake tracker; raises in selected calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fails: set[str] = set()

    def note(self, what: str, entries: Any = None) -> Any:
        self.calls.append((what, entries))
        if what in self.fails:
            raise RuntimeError(f"{what} has\nfailed")
        return entries

    def of(self, what: str) -> list[Any]:
        return [entries for call, entries in self.calls if call == what]


@pytest.fixture
def recorded_calls() -> RecordedCalls:
    return RecordedCalls()


@pytest.fixture
def fake_trackers(monkeypatch: pytest.MonkeyPatch, recorded_calls: RecordedCalls) -> RecordedCalls:
    """Fake modules `wandb` and `mlflow` with the called functions."""
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    wandb, mlflow = ModuleType("wandb"), ModuleType("mlflow")

    def init(**how: Any) -> SimpleNamespace:
        recorded_calls.note("wandb.init", {**how, "terminal": sys.stdin.isatty()})
        return SimpleNamespace(
            log=lambda numbers: recorded_calls.note("wandb.log", numbers),
            define_metric=lambda pattern, step_metric: recorded_calls.note(
                "wandb.define_metric", (pattern, step_metric)
            ),
            finish=lambda: recorded_calls.note("wandb.finish"),
        )

    def start_run(run_id: str | None = None, run_name: str | None = None) -> SimpleNamespace:
        recorded_calls.note("mlflow.start_run", (run_id, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "given-by-the-server"))

    def log_metrics(numbers: dict[str, float], *, step: int, synchronous: bool) -> None:
        recorded_calls.note("mlflow.log_metrics", (step, numbers, synchronous))

    vars(wandb).update(init=init, Settings=lambda **how: SimpleNamespace(**how))
    vars(mlflow).update(
        set_experiment=lambda name: recorded_calls.note("mlflow.set_experiment", name),
        start_run=start_run,
        log_params=lambda parameters: recorded_calls.note("mlflow.log_params", parameters),
        log_metrics=log_metrics,
        end_run=lambda: recorded_calls.note("mlflow.end_run"),
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    return recorded_calls


def open_in(folder: Path, *names: str, **how: Any) -> trackers.Trackers:
    return Trackers(names, folder, name="my run", recipe=RECIPE, **how)


def write_events(opened: trackers.Trackers) -> None:
    """Writes a step, an evaluation, and an event without metrics."""
    opened.write("start", 0, {"notes": []})
    opened.write("facts", 0, {"parameters": 1_000})
    opened.write(
        "step", 1, {"step": 1, "loss": 2.5, "rows": 8, "skipped": True, "gradient_norm": math.nan, "word": "x"}
    )
    opened.write("evaluation", 1, {"loss": 2.25})


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    entries = accumulator.EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    entries.Reload()
    return {name: [(event.step, event.value) for event in entries.Scalars(name)] for name in entries.Tags()["scalars"]}


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with open_in(tmp_path, "tensorboard") as opened:
        write_events(opened)
    assert curves(tmp_path) == {
        "step/loss": [(1, 2.5)],
        "step/rows": [(1, 8.0)],
        "step/skipped": [(1, 1.0)],
        "evaluation/loss": [(1, 2.25)],
    }


def test_tensorboard_purges_repeated_steps(tmp_path: Path) -> None:
    """Four steps, of which two were saved; the repeated steps appear once."""
    pytest.importorskip("tensorboard")
    with open_in(tmp_path, "tensorboard") as opened:
        for step in (1, 2, 3, 4):
            opened.write("step", step, {"loss": 10.0 + step})
    with open_in(tmp_path, "tensorboard", step=2) as opened:
        for step in (3, 4, 5):
            opened.write("step", step, {"loss": 20.0 + step})
    assert curves(tmp_path)["step/loss"] == [(1, 11.0), (2, 12.0), (3, 23.0), (4, 24.0), (5, 25.0)]


def test_wandb_is_offline_and_does_not_prompt(
    tmp_path: Path, fake_trackers: RecordedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    with open_in(tmp_path, "wandb") as opened:
        write_events(opened)
    (settings,) = fake_trackers.of("wandb.init")
    assert (settings["mode"], settings["terminal"], settings["resume"]) == ("offline", False, "allow")
    assert (settings["name"], settings["config"], settings["dir"]) == ("my run", RECIPE, str(tmp_path))
    assert sys.stdin.isatty(), "the keyboard is back"
    assert fake_trackers.of("wandb.log") == [
        {"at_step": 1, "step/loss": 2.5, "step/rows": 8.0, "step/skipped": 1.0},
        {"at_step": 1, "evaluation/loss": 2.25},
    ]
    assert fake_trackers.of("wandb.define_metric") == [("*", "at_step")]
    assert len(fake_trackers.of("wandb.finish")) == 1
    monkeypatch.setenv("WANDB_MODE", "online")
    open_in(tmp_path, "wandb", step=1).close()
    resumed = fake_trackers.of("wandb.init")[1]
    assert resumed["mode"] == "online"
    assert resumed["id"] == settings["id"], "the resumed run is the same run"
    (tmp_path / "other").mkdir()
    open_in(tmp_path / "other", "wandb").close()
    assert fake_trackers.of("wandb.init")[2]["id"] != settings["id"]


def test_mlflow_resumes_the_same_run(tmp_path: Path, fake_trackers: RecordedCalls) -> None:
    with open_in(tmp_path, "mlflow") as opened:
        write_events(opened)
    with open_in(tmp_path, "mlflow", step=1) as opened:
        opened.write("step", 2, {"loss": 2.0})
    assert fake_trackers.of("mlflow.start_run") == [(None, "my run"), ("given-by-the-server", None)]
    parameters = {"name": "bert/tiny", "encoder.kind": "bert", "encoder.layers": "2", "steps": "9"}
    assert fake_trackers.of("mlflow.log_params") == [{**parameters, "unfreeze": "[]"}], "once"
    steps = [(step, numbers.get("step/loss"), waits) for step, numbers, waits in fake_trackers.of("mlflow.log_metrics")]
    assert steps == [(1, 2.5, False), (1, None, False), (2, 2.0, False)]
    assert len(fake_trackers.of("mlflow.end_run")) == 2


def test_each_tracker_has_its_own_id(tmp_path: Path, fake_trackers: RecordedCalls) -> None:
    open_in(tmp_path, "mlflow", "wandb", "mlflow").close()
    open_in(tmp_path, "wandb", "mlflow").close()
    assert len({settings["id"] for settings in fake_trackers.of("wandb.init")}) == 1
    assert [given for given, _ in fake_trackers.of("mlflow.start_run")] == [None, "given-by-the-server"]


@pytest.mark.parametrize("when", ["wandb.init", "wandb.log", "wandb.finish"])
def test_a_failing_tracker_is_dropped_and_the_others_continue(
    tmp_path: Path, fake_trackers: RecordedCalls, when: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_trackers.fails = {when}
    opened = open_in(tmp_path, "wandb", "mlflow")
    for step in (1, 2, 3):
        opened.write("step", step, {"loss": 1.0})
    opened.close()
    assert capsys.readouterr().err == f"bertsmith: wandb failed, and the run continues without it: {when} has failed\n"
    assert len(fake_trackers.of("wandb.log")) == {"wandb.init": 0, "wandb.log": 1, "wandb.finish": 3}[when]
    assert len(fake_trackers.of("mlflow.log_metrics")) == 3


def test_a_damaged_id_does_not_end_the_run(
    tmp_path: Path, fake_trackers: RecordedCalls, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / IDENTITIES).write_text("{")
    open_in(tmp_path, "wandb").close()
    output = capsys.readouterr().err.splitlines()
    assert len(output) == 1
    assert IDENTITIES in output[0]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_reported_in_one_line(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entries: Callable[[str], Any] = lambda name: None  # noqa: E731
    monkeypatch.setattr(trackers, "find_spec", entries)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError, match=rf"{name} is not installed: pip install bertsmith\[track\]"):
        open_in(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_unknown_trackers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'tensorbord' is not a tracker: .*; did you mean tensorboard\?"):
        check_trackers(["tensorbord"])


def test_no_package_is_imported_without_a_tracker(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from bertsmith.training.trackers import Trackers\n"
        f"with Trackers([], {str(tmp_path)!r}, name='x', recipe={{}}) as opened:\n"
        "    opened.write('step', 1, {'a': 1})\n"
        "assert not {'torch', 'tensorboard', 'wandb', 'mlflow'} & set(sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert not list(tmp_path.iterdir())
