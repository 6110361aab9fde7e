"""The report page: complete, escaped, small, without requests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser_fixtures import Reader, embedded
from reports.run_fixtures import RECIPE, RunBuilder, finished_run, long_log

from bertsmith.errors import BertsmithError
from bertsmith.reports.report_page import write_report
from bertsmith.reports.run_history import read_run

SVG = ("svg", "text", "line", "polyline")

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def test_a_notebook_shows_the_figures_and_the_loss(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / EVIL.replace("/", "_"), recipe={**RECIPE, "name": EVIL})
    run.steps(1, 40)
    run.write("evaluation", step=20, loss=5.5)
    read = read_run(run.folder)
    assert repr(read).endswith("unfinished, 40 steps, best loss 5.5 at step 20)")
    text = read._repr_html_()
    assert {tag for tag, _ in Reader(text).elements} <= {"div", "style", "h4", "p", "dl", "dt", "dd", *SVG}
    assert text.count("<svg") == 1
    assert text.count("<polyline") >= 2
    assert 'aria-label="loss"' in text
    assert "40 of 40" in text
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "events.jsonl").touch()
    assert "<svg" not in read_run(tmp_path / "new")._repr_html_()


def test_a_page_shows_the_run(tmp_path: Path) -> None:
    path = write_report([finished_run(tmp_path / "run")], tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    data = embedded(text)
    charts = {chart["name"]: chart for chart in data["charts"]}
    assert {
        "loss",
        "loss/guess_lm",
        "accuracy/next_sentence",
        "learning_rate",
        "gradient_norm",
        "tokens_per_second",
    } <= set(charts)
    assert not any(name.startswith(("count", "rows")) for name in charts)
    series = {one["kind"]: one for one in charts["loss/guess_lm"]["series"]}
    assert series["held out"]["x"] == [10, 20, 30, 40]
    assert len(series["each step"]["x"]) == len(series["smoothed"]["x"]) == 40
    assert charts["loss/guess_lm"]["lines"] == [{"label": "unigram 7.25", "value": 7.25}]
    assert charts["accuracy/next_sentence"]["lines"] == [{"label": "chance 50%", "value": 50.0}]
    assert data["runs"][0]["axis"]["tokens"][-1] == 20_000
    assert data["runs"][0]["axis"]["minutes"][-1] == pytest.approx(10 / 60, rel=1e-4)
    assert "40 of 40" in text
    assert "learning_rate" in text


def test_the_page_makes_no_requests(tmp_path: Path) -> None:
    path = write_report([finished_run(tmp_path / "run")], tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text, flags=re.IGNORECASE)
    for tag, attributes in Reader(text).elements:
        assert not attributes.keys() & {"src", "href", "data", "action", "srcset"}, tag
    assert "default-src 'none'" in text


def test_text_of_a_run_is_escaped(tmp_path: Path) -> None:
    recipe = RECIPE | {"name": EVIL, EVIL: {"nested": EVIL}}
    built = RunBuilder(tmp_path / EVIL.replace("/", "\u2215"), recipe=recipe)
    built.write("start", step=0, notes=[EVIL])
    built.write("facts", step=0, device=EVIL, tokenizer=EVIL, data=EVIL, unigram={EVIL: 1.0})
    built.write("step", **{"step": 1, "loss": 1.0, f"loss/{EVIL}": 2.0, EVIL: 3.0, "tokens": 1, "seconds": 1.0})
    built.write("evaluation", **{"step": 1, "loss": 1.0, f"accuracy/{EVIL}": 0.5})
    plain = write_report([finished_run(tmp_path / "plain")], tmp_path / "plain.html").read_text(encoding="utf-8")
    for runs in ([built.folder], [built.folder, tmp_path / "plain"]):
        text = write_report(runs, tmp_path / "page.html").read_text(encoding="utf-8")
        read = Reader(text)
        tags = [tag for tag, _ in read.elements]
        assert tags.count("script") == 2
        assert "img" not in tags
        assert not any(name.startswith("on") for _, attributes in read.elements for name in attributes)
        assert read.inside[-1] == Reader(plain).inside[-1]  # the page's own script, as it was
        assert any(chart["name"] == EVIL for chart in embedded(text)["charts"])


def test_several_runs_share_the_charts(tmp_path: Path) -> None:
    other = RECIPE | {"seed": 5}
    runs = [finished_run(tmp_path / "x" / "run"), finished_run(tmp_path / "y" / "run", recipe=other)]
    text = write_report(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    data = embedded(text)
    assert [run["name"] for run in data["runs"]] == ["x/run", "y/run"]
    assert {series["run"] for series in data["charts"][0]["series"]} == {0, 1}
    assert "Recipe differences" in text
    assert "<td>seed</td><td>0</td><td>5</td>" in text


def test_a_long_run_makes_a_small_page(tmp_path: Path) -> None:
    built = RunBuilder(tmp_path / "run")
    long_log(built.folder / "events.jsonl", 60_000, odd=(5, 30_000))
    lines = (built.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    lines[45_678] = re.sub(r'"loss": [\d.]+', '"loss": 77.0', lines[45_678], count=1)
    (built.folder / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = write_report([built.folder], tmp_path / "page.html")
    assert path.stat().st_size < 2_000_000
    chart = next(chart for chart in embedded(path.read_text(encoding="utf-8"))["charts"] if chart["name"] == "loss")
    assert all(len(series["x"]) <= 2000 for series in chart["series"])
    raw = next(series for series in chart["series"] if series["kind"] == "each step")
    assert max(value for value in raw["y"] if value is not None) == 77.0


def test_the_page_of_many_runs_stays_small(tmp_path: Path) -> None:
    for number in range(8):
        built = RunBuilder(tmp_path / f"run{number}")
        long_log(built.folder / "events.jsonl", 4000)
    folders = sorted(tmp_path.glob("run*"))
    assert write_report(folders, tmp_path / "page.html").stat().st_size < 2_000_000


def test_a_run_without_steps(tmp_path: Path) -> None:
    text = write_report([RunBuilder(tmp_path / "run").folder], tmp_path / "page.html").read_text(encoding="utf-8")
    assert embedded(text)["charts"] == []


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="at least one run"):
        write_report([], tmp_path / "page.html")
    with pytest.raises(BertsmithError, match="no such folder"):
        write_report([finished_run(tmp_path / "run")], tmp_path / "absent" / "page.html")
