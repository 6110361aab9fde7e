"""Tables of texts and numbers in every form."""

from __future__ import annotations

from bertsmith.reports import terminal
from bertsmith.reports.text_table import TextTable

TABLE = TextTable(["Model", "Idea", "F1"], [["a|b", "<i>", "1.0"], ["c", "", "22.0"]], left=2)


def test_markdown_escapes_bars_and_aligns_numbers() -> None:
    assert TABLE.markdown().splitlines() == [
        "| Model | Idea | F1 |",
        "| --- | --- | ---: |",
        r"| a\|b | <i> | 1.0 |",
        "| c |  | 22.0 |",
    ]


def test_markup_is_escaped() -> None:
    assert '<table class="left-2">' in TABLE.html()
    assert "<td>a|b</td><td>&lt;i&gt;</td><td>1.0</td>" in TABLE.html()


def test_a_column_is_left_out() -> None:
    without = TABLE.without("Idea")
    assert without.headings == ["Model", "F1"]
    assert without.rows == [["a|b", "1.0"], ["c", "22.0"]]
    assert (without.left, TABLE.without("F1").left) == (1, 2)


def test_rows_as_dicts() -> None:
    assert TABLE.records()[1] == {"Model": "c", "Idea": "", "F1": "22.0"}


def test_it_is_printed_below_its_title() -> None:
    with terminal.console.capture() as capture:
        TABLE.print("Scores")
    assert [line.split() for line in capture.get().splitlines()] == [
        ["Scores"],
        ["Model", "Idea", "F1"],
        ["a|b", "<i>", "1.0"],
        ["c", "22.0"],
    ]
