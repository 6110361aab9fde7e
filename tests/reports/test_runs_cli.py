"""`bertsmith runs`: list, show, compare, plot."""

from __future__ import annotations

import io
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from command_line import call
from reports.run_fixtures import RECIPE, RunBuilder, finished_run
from rich.console import Console

from bertsmith.reports import terminal_runs
from bertsmith.reports.run_history import RunHistory, RunReader, read_run
from bertsmith.system.durable import Disk


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    finished_run(tmp_path / "runs" / "first")
    finished_run(tmp_path / "runs" / "second", recipe=RECIPE | {"seed": 9})
    return tmp_path / "runs"


def test_list(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    done = call("runs", "list")
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("first", "second", "made/up", "finished", "40/40", "2,000", "6.200"))
    result = json.loads(call("runs", "list", runs, "--json").stdout)
    assert [run["run"] for run in result["runs"]] == ["first", "second"]


def test_list_continues_past_a_damaged_run(runs: Path) -> None:
    (runs / "first" / "events.jsonl").write_text("oops\n", encoding="utf-8")
    done = call("runs", "list", runs)
    assert done.returncode == 0
    assert "events.jsonl:1 is not an event" in done.stdout
    assert "second" in done.stdout


def test_show(runs: Path) -> None:
    done = call("runs", "show", runs / "first")
    assert done.returncode == 0, done.stderr
    assert "40 of 40" in done.stdout
    assert "unigram 7.25" in done.stdout
    assert "chance 50%" in done.stdout
    assert any("⠀" < letter <= "⣿" for letter in done.stdout)
    assert "█" in done.stdout
    facts = json.loads(call("runs", "show", runs / "first", "--json").stdout)
    assert facts["held_out"]["loss/guess_lm"] == 4.95  # of the best model
    assert (facts["best_step"], facts["last_step"]) == (30, 40)
    assert "5.650 at step 30" in done.stdout
    assert "6.200 at step 40" in done.stdout


def test_show_follows_until_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = RunBuilder(tmp_path / "run")
    built.write("start", step=0, notes=[])
    built.steps(1, 5)
    monkeypatch.setattr("bertsmith.reports.terminal_runs.REFRESH", 0.02)
    locked = threading.Event()

    def train() -> None:
        with Disk().lock(built.folder):
            locked.set()
            time.sleep(0.3)
            built.steps(6, 12)
            built.checkpoint(12)

    trainer = threading.Thread(target=train)
    began = time.monotonic()
    trainer.start()
    locked.wait()
    done = call("runs", "show", built.folder, "--follow")
    seconds = time.monotonic() - began
    trainer.join()
    assert seconds >= 0.3  # until its lock is released
    assert done.returncode == 0, done.stderr
    assert "stopped" in done.stdout
    assert "12 of 40" in done.stdout


def test_the_followed_card_fits_the_screen(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=90, height=24, color_system=None)
    monkeypatch.setattr(terminal_runs, "console", screen)
    monkeypatch.setattr(terminal_runs, "REFRESH", 0.01)
    first = replace(read_run(runs / "first"), state="running")
    states = iter([first, first, replace(first, state="finished")])

    class Reader:
        def read(self) -> RunHistory:
            return next(states)

    terminal_runs.follow(cast(RunReader, Reader()))
    output = screen.file.getvalue()  # type: ignore[attr-defined]
    frames = [frame for frame in output.split("\x1b[?1049l")[0].split("\x1b[H") if "running" in frame]
    assert len(frames) >= 2
    assert all("steps\n" in frame and frame.count("\n") < 24 for frame in frames)  # down to the axis of the chart
    assert not any("best, step 30" in frame for frame in frames)
    assert "best, step 30" in output.split("\x1b[?1049l")[-1]  # back on the normal screen: the whole card


def test_compare(runs: Path, tmp_path: Path) -> None:
    done = call("runs", "compare", runs / "first", runs / "second", "-o", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "seed" in done.stdout
    assert "perplexity of guess lm" in done.stdout
    assert "first held out" in done.stdout
    assert (tmp_path / "page.html").stat().st_size > 10_000
    facts = json.loads(call("runs", "compare", runs, "--json").stdout)
    assert facts["differences"] == {"seed": [0, 9]}
    alone = call("runs", "compare", runs / "first")
    assert alone.returncode == 2
    assert "name another one" in alone.stderr


@pytest.mark.parametrize("width", [60, 100, 250])
def test_many_runs_are_compared_in_several_tables(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"a-run-with-a-long-name-{number}" for number in range(8)]
    for number, name in enumerate(names):
        finished_run(tmp_path / name, recipe=RECIPE | {"seed": number})
    output = io.StringIO()
    monkeypatch.setattr(terminal_runs, "console", Console(file=output, width=width))
    terminal_runs.comparison([read_run(tmp_path / name) for name in names])
    text, _, picture = output.getvalue().rpartition("Loss")
    assert picture
    assert "…" not in text
    assert all(len(line.rstrip()) <= width for line in text.split("\n"))
    settings, *tables = (block.split("\n") for block in text.split("\n\n") if block.strip())
    if width == 250:
        assert settings[1].split() == ["seed", *map(str, range(8))]
    else:
        sentences = " ".join(" ".join(settings).split())
        assert all(
            f"{names[position]} compared with {names[0]}: seed={position}" in sentences for position in range(1, 8)
        )
    assert len(tables) == {60: 8, 100: 4, 250: 1}[width]
    assert all(table[1].split()[0] == "state" for table in tables), "every table names its rows"
    assert [name for table in tables for name in table[0].split()] == names


def test_runs_with_long_names_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        f"bert-mini-encoder.layers={number}-encoder.width=768-encoder.heads=12-learning_rate=1e-3" for number in (3, 6)
    ]
    for number, name in enumerate(names):
        finished_run(tmp_path / name, recipe=RECIPE | {"seed": number})
    output = io.StringIO()
    monkeypatch.setattr(terminal_runs, "console", Console(file=output, width=80))
    terminal_runs.comparison([read_run(tmp_path / name) for name in names])
    text = output.getvalue()
    assert "…" not in text
    assert all(text.count(name) == 1 for name in names)
    listed, settings, numbers, *_ = (block.split("\n") for block in text.split("\n\n"))
    assert listed == [f"{position}  {name}" for position, name in enumerate(names, 1)]
    assert [line.split() for line in settings] == [["setting", "1", "2"], ["seed", "0", "1"]]
    assert numbers[0].split() == ["1", "2"]
    assert "perplexity of guess lm" in text
    assert "1 held out" in text, "and the chart has the same label"


def test_an_absent_group_of_settings_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr(terminal_runs, "console", Console(file=output, width=70))
    both = RECIPE | {"objectives": {"a": {"kind": "a", "rate": 0.15}, "b": {"kind": "b", "rate": 0.5}}, "odd": 1}
    one = RECIPE | {"objectives": {"a": {"kind": "a", "rate": 0.3}}}
    for name, recipe in (("first-of-all-the-runs", both), ("another-of-these-runs", one), ("a-third", both)):
        finished_run(tmp_path / name, recipe=recipe)
    terminal_runs.comparison([read_run(tmp_path / name) for name in ("first-of-all-the-runs", "another-of-these-runs")])
    assert "objectives.b.rate" in output.getvalue(), "in one table where that has room"
    output.truncate(0)
    result = [read_run(tmp_path / name) for name in ("first-of-all-the-runs", "another-of-these-runs", "a-third")]
    terminal_runs.comparison(result)
    text = " ".join(output.getvalue().split())
    first = "compared with first-of-all-the-runs:"
    assert (
        f"another-of-these-runs {first} objectives.a.rate=0.3, without objectives.b, without odd a-third {first} "
        in text
    )


def test_plot(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    one = call("runs", "plot", runs / "first", "--open")
    assert one.returncode == 0, one.stderr
    assert "Loss: guess lm (nats)" in one.stdout
    assert "Accuracy: next sentence (%)" in one.stdout
    assert (runs / "first" / "report.html").exists()
    assert opened == [(runs / "first" / "report.html").resolve().as_uri()]
    two = json.loads(call("runs", "plot", runs / "first", runs / "second", "--json").stdout)
    assert Path(two["page"]) == (runs / "runs.html").resolve()
    assert two["bytes"] == (runs / "runs.html").stat().st_size
    folder = call("runs", "plot", runs / "first", "-o", runs)
    assert (folder.returncode, folder.stderr.count("\n")) == (2, 1)
    assert f"{runs} is a folder: name a file, such as" in folder.stderr


@pytest.mark.parametrize("command", ["list", "show", "compare", "plot"])
def test_a_wrong_folder_is_a_one_line_error(command: str, tmp_path: Path) -> None:
    absent = call("runs", command, tmp_path / "absent")
    assert (absent.returncode, absent.stderr.count("\n")) == (2, 1)
    assert "no such folder" in absent.stderr
    empty = call("runs", command, tmp_path)
    assert (empty.returncode, empty.stderr.count("\n")) == (2, 1)
    assert ("is not a run folder" if command == "show" else "no run in") in empty.stderr


@pytest.mark.parametrize("command", ["show", "plot"])
def test_damage_is_named_with_file_and_line(command: str, runs: Path) -> None:
    with (runs / "first" / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write("{oops\n")
    done = call("runs", command, runs / "first")
    assert done.returncode == 0
    assert command == "plot" or "events.jsonl:52 is not an event and was skipped" in " ".join(done.stdout.split())
    (runs / "first" / "events.jsonl").write_text("{oops\n" * 2, encoding="utf-8")
    done = call("runs", command, runs / "first")
    assert (done.returncode, done.stderr.count("\n")) == (65, 1)
    assert "events.jsonl:1 is not an event: it is not JSON; nor is any other line: remove" in done.stderr
    (runs / "second" / "recipe.json").write_text("{", encoding="utf-8")
    done = call("runs", command, runs / "second")
    assert (done.returncode, done.stderr.count("\n")) == (65, 1)
    assert "recipe.json:1 is not a recipe" in done.stderr
