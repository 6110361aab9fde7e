"""README.md and README.ko.md: their code and commands run, at tiny size."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import call

ROOT = Path(__file__).resolve().parents[1]
README, KOREAN = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.ko.md"))
TINY = ["minutes=0.01", "encoder.layers=1", "encoder.width=32", "encoder.heads=2", "batch_size=8", "max_length=32"]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def without_comments(text: str) -> list[str]:
    return [re.sub(r"\s+#.*", "", line) for line in text.splitlines()]


def test_readme_is_short_and_its_picture_is_small() -> None:
    assert len(README.split()) <= 900
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert (ROOT / picture).stat().st_size < 200_000


def test_both_languages_have_the_same_code_and_scores() -> None:
    for language in ("python", "console"):
        ours, theirs = ([without_comments(block) for block in blocks(text, language)] for text in (README, KOREAN))
        assert ours == theirs
    scores = [
        re.findall(r"\d+\.\d", "".join(re.findall(r"^\|.*\d\d\.\d.*", text, re.MULTILINE))) for text in (README, KOREAN)
    ]
    assert scores[0] == scores[1]


def test_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(README, "python")
    for shown, tiny in (
        ("minutes=1", "minutes=0.01"),
        ("list(topics.values())", "list(topics.values())[:20]"),
        ('"epochs": 5', '"epochs": 1'),
    ):
        assert shown in block
        block = block.replace(shown, tiny)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert re.search(r"'label': '(math|str)'", capsys.readouterr().out)


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    words = [f"word{number}" for number in range(300)]
    texts = [" ".join(words[start::7]) + "." for start in range(7)] * 30
    (tmp_path / "corpus" / "text.txt").write_text("\n\n".join(texts))
    rows = ["text,label", *("a fine film,positive", "a dull film,negative") * 20]
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    block = next(block for block in blocks(README, "console") if "pretrain" in block)
    lines = [shlex.split(line.removeprefix("$ bertsmith ")) for line in without_comments(block)]
    assert [line[0] for line in lines][-2:] == ["classify", "serve"]
    for line in lines[:-1]:  # the server would not end
        words = [word for word in line if word != "minutes=10"]
        tiny = {"pretrain": TINY, "finetune": ["epochs=1", "batch_size=8"]}.get(line[0], [])
        done = call(*words, *tiny)
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "scores" / "evaluation.html").is_file() or list((tmp_path / "scores").glob("*.html"))
