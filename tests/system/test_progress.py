"""Progress on a terminal, in a notebook and in a log."""

from __future__ import annotations

import io
from typing import Any

import pytest

from bertsmith.system import progress
from bertsmith.system.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class OutStream(io.StringIO):
    """Standard error of a notebook's kernel."""


OutStream.__module__ = "ipykernel.iostream"


class ColabStream(OutStream):
    """As in Colab."""


def shown(text: str) -> list[str]:
    """The lines that a notebook shows: text after a carriage return overwrites what is there."""
    lines = []
    for line in text.split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        lines.append("".join(cells).rstrip())
    return lines


def run(stream: Any, monkeypatch: pytest.MonkeyPatch, *, steps: int = 1000) -> list[str]:
    """The text of the stream after every second step."""
    clock = iter(range(10**6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    texts = []
    with Progress("preparing", total=steps, stream=stream) as shows:
        for done in range(1, steps + 1):
            shows.update(done, documents=10 ** (6 - done * 6 // steps))  # lines become shorter
            texts.append(stream.getvalue())
    return [*texts, stream.getvalue()]


@pytest.mark.parametrize("kind", [OutStream, ColabStream])
def test_a_notebook_shows_one_line(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = run(kind(), monkeypatch)
    assert "\x1b" not in texts[-1]
    assert "\n" not in texts[-1]
    (line,) = shown(texts[-2])
    assert line.startswith("preparing ━━━━━━━━━━━━━━━━━━━━ 100% ·")
    assert line.count("documents") == 1
    assert "1 documents" in line
    assert shown(texts[-1]) == [""]  # removed at the end


def test_a_terminal_erases_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(Terminal(), monkeypatch)[-1]
    assert text.count("\r\x1b[2K") == 1001
    assert "\n" not in text


def test_other_streams_have_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run(io.StringIO(), monkeypatch, steps=100)[-1].splitlines()
    assert len(lines) == 10
    assert all(line.startswith("preparing") for line in lines)
    assert not {"\r", "\x1b", "━"} & set("".join(lines))


def test_quiet_work_shows_nothing() -> None:
    for stream in (OutStream(), Terminal(), io.StringIO()):
        with Progress("preparing", total=1, quiet=True, stream=stream) as shows:
            shows.last -= 100
            shows.update(1)
        assert stream.getvalue() == ""


def test_without_a_total_there_is_no_percentage() -> None:
    line = Progress("preparing", total=0).line(2_000_000, 4.0, {"documents": 5})
    assert line == "preparing 2.0 MB · 5 documents · 0.5 MB/s"
