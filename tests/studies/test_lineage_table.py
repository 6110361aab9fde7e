"""The table of `lineage`, as rows, as Markdown and as a page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from browser_fixtures import IN_A_BROWSER, check_phone_and_screen

from bertsmith.studies.lineage import table
from bertsmith.studies.lineage.page import write_page


def score(mean: float, deviation: float | None) -> dict[str, Any]:
    return {"score": {"mean": mean, "deviation": deviation, "runs": 3}, "seconds": 2.0, "shown": ["a"]}


def test_differences_have_the_deviation_of_independent_runs() -> None:
    before = {"title": "a", "cells": {"x": score(0.5, 0.03), "y": score(0.2, 0.0)}}
    after = {"title": "b", "adds": "more", "cells": {"x": score(0.6, 0.04), "y": score(0.1, 0.02)}}
    added = table.difference(before, after, ["x", "y"])
    assert added["gains"]["x"]["mean"] == pytest.approx(0.1)
    assert added["gains"]["x"]["deviation"] == pytest.approx(0.05)
    assert added["mean"]["mean"] == pytest.approx(0.0)
    assert added["mean"]["deviation"] == pytest.approx(math.hypot(0.05, 0.02) / 2)
    assert table.points(added["gains"]["x"]) == "+10.0 ± 5.0"
    without = table.difference(before, {**after, "cells": {"x": None, "y": {"reason": "no"}}}, ["x", "y"])
    assert without["mean"] is None
    assert table.points(without["gains"]["x"]) == table.EMPTY


def sample_table() -> dict[str, Any]:
    """Two models on two tasks, one field of which is empty, and one not finished."""
    curve = [{"seconds": 1.0, "tokens": 10.0, "loss": 3.0}, {"seconds": 2.0, "tokens": 20.0, "loss": 2.0}]
    stage = {"recipe": "gpt/tiny", "minutes": 1.0, "curve": curve, "device": "cpu"}
    loss = {"kind": "likelihood", "nats_per_byte": 1.25, "tokens": 9, "unknown_bytes": 0.1}
    costs = {"minutes": 1.0, "seconds": 60.0, "tokens": 99, "flop": 1e9, "compile_seconds": 0.0, "parameters": 7}
    samples = {"next": [["of", "<i>"], ["a"]], "contexts": [[1.0, 0.5], [0.5, 1.0]]}
    rows = [
        {"name": name, "title": title, "paper": "X", "idea": idea, "adds": "<b>", "stages": {name: stage}, **costs}
        for name, title, idea in (("gpt", "GPT-1", "fine-tuned"), ("bert", "BERT", "bidirectional"))
    ]
    cells = [{"x": score(0.5, 0.1), "y": {"reason": "it is <odd>"}}, {"x": score(0.75, 0.05), "y": None}]
    for row, own, figure in zip(rows, cells, (loss, loss | {"kind": "masked"}), strict=True):
        row |= {"cells": own, "text_loss": figure, "samples": samples}
    facts = {"metric": "f1", "train_examples": 9, "dev_examples": 4, "shown": [{"text": "<text>", "gold": "a"}]}
    base = {"baseline": {"description": "most frequent label", "score": 0.4}}
    return {
        "minutes": 1.0,
        "size": "tiny",
        "seeds": 3,
        "sentences": ["the *a* b", "c *a*"],
        "texts": {"bpe": {"vocab_size": 9, "tokens": 99, "held_out_documents": 4, "data": "0" * 64}, "words": None},
        "tasks": [{"name": name, **facts, **base} for name in ("x", "y")],
        "rows": rows,
        "left_out": {"cove": "needs parallel text: pass it with --pairs"},
        "added": [table.difference(*rows, ["x", "y"])],
    }


def test_the_table_says_what_is_missing_and_what_each_figure_is() -> None:
    shown = sample_table()
    main = table.main_table(shown)
    headings, rows = main.headings, main.rows
    assert headings == ["Model", "Idea", "Minutes", "Nats/byte", "Loss", "x, f1", "y, f1", "Mean"]
    assert rows[0] == ["(no model)", "–", "–", "–", "–", "40.0", "40.0", "–"]
    assert rows[1] == ["GPT-1", "fine-tuned", "1", "1.250", "likelihood", "50.0 ± 10.0", "–", "–"]
    assert rows[2] == ["BERT", "bidirectional", "1", "(1.250)", "masked", "75.0 ± 5.0", "…", "–"]
    notes = list(table.notes(shown))
    assert notes[0] == "cove is left out: it needs parallel text: pass it with --pairs."
    assert notes[1] == "GPT-1 on y is empty: it is <odd>"
    assert any("GPT-1 10.0%" in line for line in notes)
    assert not any("devices" in line or "trained on" in line for line in notes)
    assert notes[-1] == "1 cell is not finished (…): the same command resumes."
    assert table.added_table(shown).rows == [["GPT-1", "BERT", "<b>", "+25.0 ± 11.2", "–", "–"]]
    text = table.markdown(shown)
    assert "| GPT-1 | fine-tuned | 1 | 1.250 | likelihood | 50.0 ± 10.0 | – | – |" in text
    assert "| BERT | gpt/tiny (1 min) | 7 | 99 | 1.00e+09 | 60 | 0 | 2 |" in text


@pytest.mark.parametrize(("width", "seen"), [(60, False), (140, True)])
def test_a_narrow_terminal_shows_fewer_columns(width: int, seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table.console, "width", width)
    with table.console.capture() as captured:
        table.show(sample_table() | {"page": "lineage.html"})
    printed = captured.get()
    assert ("fine-tuned" in printed, "likelihood " in printed.partition("Cost")[0]) == (seen, seen)
    assert "(no model)" in printed


def test_different_devices_are_noted() -> None:
    shown = sample_table()
    shown["rows"][1]["stages"]["bert"] = {**shown["rows"][1]["stages"]["bert"], "device": "H200"}
    assert any("stages were trained on H200 and cpu" in line for line in table.notes(shown))


def test_the_page_escapes_text_and_draws_every_score(tmp_path: Path) -> None:
    text = write_page(sample_table(), tmp_path / "p.html").read_text(encoding="utf-8")
    for written in ("<i>", "<odd>", "<text>", "<b>"):
        assert written not in text
        assert written.replace("<", "&lt;").replace(">", "&gt;") in text
    assert "<title>GPT-1: 50.0 ± 10.0</title>" in text
    assert text.count('class="error"') == 2
    assert text.count('class="base"') == 2
    assert text.count('class="curve ') == 2
    assert "GPT-1</td><td>0.50</td>" in text


class TestInABrowser:
    pytestmark = IN_A_BROWSER

    def test_the_page_fits_a_phone(self, tmp_path: Path) -> None:
        check_phone_and_screen(write_page(sample_table(), tmp_path / "p.html"), tmp_path)
