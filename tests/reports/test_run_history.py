"""Run folders: states, resumed runs, non-finite numbers, torn lines, a million steps."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from reports.run_fixtures import RunBuilder, finished_run, long_log, step_facts

from bertsmith.errors import BertsmithError, DataError
from bertsmith.reports import run_history
from bertsmith.reports.run_history import RunReader, find_runs, read_run
from bertsmith.system.durable import Disk
from bertsmith.training.log import last_of_each_step, read_events


def test_a_finished_run(tmp_path: Path) -> None:
    run = read_run(finished_run(tmp_path / "run"))
    assert (run.name, run.recipe_name, run.state) == ("run", "made/up", "finished")
    assert (run.steps, run.planned_steps, run.tokens, run.checkpoint) == (40, 40, 20_000, 40)
    assert run.seconds == pytest.approx(10.0)
    assert run.tokens_per_second == pytest.approx(2000.0)
    assert run.best == (30, pytest.approx(5.65))
    assert run.last == (40, pytest.approx(6.2))
    assert run.best_held_out["loss/guess_lm"] == pytest.approx(4.95)  # of the best model, not of the last one
    assert run.curves["loss/guess_lm"].values[9] == step_facts(10)["loss/guess_lm"]
    assert run.held_out["loss/guess_lm"].steps.tolist() == [10, 20, 30, 40]
    assert [mark.step for mark in run.marks if mark.kind == "checkpoint"] == [10, 20, 30, 40]
    assert run.facts["unigram"] == {"guess_lm": 7.25}
    assert run.notes == ()


def test_steps_abandoned_by_a_resumed_run_do_not_count(tmp_path: Path) -> None:
    built = RunBuilder(tmp_path / "run")
    built.write("start", step=0, notes=[])
    built.steps(1, 10)
    built.checkpoint(10)
    built.steps(11, 18, loss=99.0)
    built.evaluation(15, 1.0)
    built.now += 1000  # no process holds its lock
    built.write("start", step=10, notes=["step-00000015 was passed over: damaged"])
    built.steps(11, 14)
    run = read_run(built.folder)
    assert run.steps == 14
    assert run.curves["loss"].steps.tolist() == list(range(1, 15))
    assert run.curves["loss"].values.max() < 99
    assert run.tokens == 14 * 500
    assert not run.held_out
    assert run.notes == ("resumed from step 10: step-00000015 was passed over: damaged",)
    assert run.state == "unfinished"
    built.steps(15, 20)
    result = read_run(built.folder).curves["loss"]
    expected = last_of_each_step(read_events(built.folder / "events.jsonl"), "step")
    assert result.values.tolist() == [event["loss"] for event in expected]


def test_states(tmp_path: Path) -> None:
    built = RunBuilder(tmp_path / "run")
    assert read_run(built.folder).state == "unfinished"
    assert read_run(built.folder).steps == 0
    built.write("start", step=0, notes=[])
    built.steps(1, 3)
    assert read_run(built.folder).state == "unfinished"
    built.checkpoint(3)
    assert read_run(built.folder).state == "stopped"
    with Disk().lock(built.folder):
        assert read_run(built.folder).state == "running"
    assert read_run(built.folder).state == "stopped"
    (built.folder / "last").mkdir()
    assert read_run(built.folder).state == "finished"


@pytest.mark.parametrize("listed", [True, False], ids=["as the system lists locks", "as a lock is tried"])
def test_checking_a_lock_does_not_take_it(tmp_path: Path, listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not listed:
        monkeypatch.setattr(run_history, "LOCKS", tmp_path / "nowhere")
    elif not run_history.LOCKS.exists():
        pytest.skip("this system lists no locks")
    folder = tmp_path / "run"
    folder.mkdir()
    assert not run_history.is_locked(folder)
    with Disk().lock(folder):
        assert run_history.is_locked(folder)
        assert not run_history.is_locked(tmp_path)
    with Disk().lock(folder):  # the check leaves no lock behind
        pass


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    built = RunBuilder(tmp_path / "run")
    built.write("start", step=0, notes=[])
    built.steps(1, 80)
    built.write("step", **step_facts(81, loss=float("nan"), gradient_norm=float("inf"), skipped=True))
    built.steps(82, 90)
    built.write("evaluation", step=90, loss=float("nan"))
    run = read_run(built.folder)
    assert np.flatnonzero(np.isnan(run.curves["loss"].values)).tolist() == [80]
    assert np.isposinf(run.curves["gradient_norm"].values[80])
    assert run.notes == ("skipped 1 update because a loss or gradient was not finite: step 81",)
    assert run.best is None


def test_an_unterminated_line_is_read_later(tmp_path: Path) -> None:
    built = RunBuilder(tmp_path / "run")
    built.steps(1, 3)
    events = built.folder / "events.jsonl"
    whole = events.read_bytes()
    fourth = whole.splitlines(keepends=True)[0].replace(b'"step": 1,', b'"step": 4,')
    events.write_bytes(whole + fourth[:50])
    reader = RunReader(built.folder)
    assert reader.read().steps == 3
    events.write_bytes(whole + fourth)
    assert reader.read().steps == 4
    assert reader.read().steps == 4


@pytest.mark.parametrize("where", [3, 203], ids=["few", "many"])
@pytest.mark.parametrize(
    "line",
    [
        b"{broken\n",
        b"[1]\n",
        b'{"kind": "step"}\n',
        b'{"kind": "step", "step": 1}{"kind": "step", "step": 2}\n',
        b'{"kind": "step", "step": 1' + b"0" * 400 + b"}\n",
        b"\x00\xff\x80\x00\n",
    ],
)
def test_damaged_lines_are_skipped_and_reported(tmp_path: Path, where: int, line: bytes) -> None:
    folder = RunBuilder(tmp_path / "run").folder
    long_log(folder / "events.jsonl", 300)
    expected = read_run(folder)
    lines = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "events.jsonl").write_bytes(b"".join([*lines[: where - 1], line, *lines[where - 1 :]]))
    run = read_run(folder)
    assert run.curves["loss"].values.tolist() == expected.curves["loss"].values.tolist()
    (note,) = run.notes
    assert note.startswith(f"events.jsonl:{where} is not an event and was skipped: ")


def test_only_some_damaged_lines_are_listed(tmp_path: Path) -> None:
    folder = RunBuilder(tmp_path / "run").folder
    (folder / "events.jsonl").write_bytes(b'{"kind": "facts"}\n' + b"rubbish\n" * 9)
    assert read_run(folder).notes[2:] == (
        "events.jsonl:4 is not an event and was skipped: it is not JSON",
        "6 more lines of events.jsonl were skipped",
    )


def test_columnar_and_plain_parsing_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunBuilder(tmp_path / "run").folder
    long_log(folder / "events.jsonl", 5000, odd=(17, 4999))
    fast = read_run(folder)
    monkeypatch.setattr("bertsmith.reports.event_log.MIN_COLUMNAR_LINES", 1 << 60)
    plain = read_run(folder)
    assert fast.curves.keys() == plain.curves.keys()
    for name, curve in plain.curves.items():
        assert np.array_equal(fast.curves[name].values, curve.values, equal_nan=True), name
        assert np.array_equal(fast.curves[name].steps, curve.steps)


def test_a_long_run_is_read_in_time(tmp_path: Path) -> None:
    folder = RunBuilder(tmp_path / "run").folder
    long_log(folder / "events.jsonl", 100_000, odd=(77_777,))
    began = time.monotonic()
    run = read_run(folder)
    assert time.monotonic() - began < 10
    assert run.steps == 100_000
    assert np.isnan(run.curves["loss"].values).sum() == 1


@pytest.mark.slow
def test_a_million_steps_are_read_in_seconds(tmp_path: Path) -> None:
    folder = RunBuilder(tmp_path / "run").folder
    long_log(folder / "events.jsonl", 1_000_000)
    began = time.monotonic()
    assert read_run(folder).steps == 1_000_000
    assert time.monotonic() - began < 60  # 6.4 s of processor time when it was measured


def test_wrong_folders(tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="no such folder"):
        read_run(tmp_path / "absent")
    with pytest.raises(BertsmithError, match="is not a run folder"):
        read_run(tmp_path)
    built = RunBuilder(tmp_path / "run")
    (built.folder / "recipe.json").write_text('{"name": \n oops}', encoding="utf-8")
    with pytest.raises(DataError, match=r"recipe\.json:2 is not a recipe"):
        read_run(built.folder)


def test_runs_are_found_below_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a", "group/c"):
        finished_run(tmp_path / name)
    (tmp_path / "group" / "notes").mkdir()
    assert [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)] == ["a", "b", "group/c"]
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]
    assert find_runs(tmp_path / "group" / "notes") == []


def test_the_best_step_of_a_run_with_a_score_has_the_highest_score(tmp_path: Path) -> None:
    scores = {5: 0.4, 10: 0.9, 15: 0.7}
    events = [{"kind": "start", "time": 1.0, "step": 0}, {"kind": "facts", "time": 1.0, "step": 0, "main": "score/f1"}]
    events += [{"kind": "evaluation", "time": 2.0, "step": s, "cost": -v, "score/f1": v} for s, v in scores.items()]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    run = read_run(tmp_path)
    assert (run.main_metric, run.best, run.last) == ("score/f1", (10, 0.9), (15, 0.7))
