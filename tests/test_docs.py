"""The documentation: every Python block runs, every command has a page, the site builds without a warning."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import bertsmith
from bertsmith import recipes
from bertsmith.training.recipe import FinetuneConfig, Recipe, with_overrides

DOCS = Path(__file__).resolve().parents[1] / "docs"
TUTORIALS = [DOCS / "tutorials" / f"{name}.md" for name in ("own_domain", "own_labels", "embeddings", "serving")]
KOREAN = DOCS / "ko.md"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "```python" in page.read_text(encoding="utf-8")]
SCALED = {
    r"minutes=\d+": "steps=2, minutes=0",
    r"encoder=dropout": 'encoder={"layers": 1, "width": 32, "heads": 2}, batch_size=4, max_length=32',
    r"epochs=\d+": "epochs=1",
    r"limit=[\d_]+": "limit=100_000",
    r"vocab_size=[\d_]+": "vocab_size=800",
    r"held_out=[\d.]+": "held_out=0.3",
}


def run_page(page: Path, scaled: dict[str, str] | None = None) -> None:
    """Runs the Python blocks of a page one after the other."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    namespace: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks):
        for pattern, replacement in (scaled or {}).items():
            block = re.sub(pattern, replacement, block)
        exec(compile(block, f"{page.name}[{number}]", "exec"), namespace)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in (*TUTORIALS, KOREAN)], ids=lambda page: str(page.relative_to(DOCS))
)
def test_code_of_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTSMITH_EXTENSIONS", "")  # restored after pages that add extensions
    run_page(page)


def test_tutorials_run_in_order_at_a_small_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They build on each other's folders. Numbers of steps, epochs and documents are smaller than on the pages."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tickets.csv").write_bytes((DOCS / "tutorials" / "tickets.csv").read_bytes())
    for page in TUTORIALS:
        run_page(page, SCALED)


def test_the_korean_tutorial_runs_at_a_small_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = {"훌륭한": 1, "좋은": 1, "지루한": 0, "나쁜": 0}
    rows = [
        f"{place} 본 {word} 영화 {number}편\t{words[word]}"
        for number in range(9)
        for place in "가나다"
        for word in words
    ]
    text = "\n".join(["id\tdocument\tlabel", *(f"{index}\t{row}" for index, row in enumerate(rows))])
    for name in ("ratings_train.txt", "ratings_test.txt"):
        Path(name).write_text(text + "\n", encoding="utf-8")
    run_page(KOREAN, SCALED)


def command_pages() -> Any:
    return module("command_pages")


def module(name: str) -> Any:
    """A module in docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_every_command_and_option_is_on_a_page() -> None:
    built = command_pages()
    pages = built.pages()
    commands = built.commands()
    assert {"pretrain", "tokenizer train", "runs show", "export"} <= set(commands)
    for name, command in commands.items():
        page = pages[f"{name.split()[0]}.md"]
        assert f"[`{name}`]" in pages["index.md"]
        assert f"$ bertsmith {name} " in page
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                assert not option.startswith("-") or re.search(rf"{re.escape(option)}\b", page), f"{name} {option}"


def test_every_public_name_is_in_the_python_reference() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    for name in set(bertsmith.__all__) - {"__version__"}:
        assert re.search(rf"^\.\. auto\w+:: bertsmith\.{name}(\(\))?$", page, flags=re.MULTILINE), name


def test_every_setting_and_its_comment_is_in_the_python_reference() -> None:
    pytest.importorskip("sphinx")
    tables = module("api_tables")
    for config in (Recipe, FinetuneConfig):
        rows = tables.table(config, types=False).splitlines()[2:]
        assert [row.split("`")[1] for row in rows] == [item.name for item in fields(config)]
        assert all(re.split(r"(?<!\\)\|", row)[3].strip() for row in rows), "a setting without a comment"


def test_tables_of_command_pages_have_three_columns() -> None:
    for name, page in command_pages().pages().items():
        for line in page.splitlines():
            if line.startswith("|") and name != "index.md":
                assert len(re.findall(r"(?<!\\)\|", line)) == 4, line


def test_command_pages_are_written_only_when_they_change(tmp_path: Path) -> None:
    built = command_pages()
    (tmp_path / "gone.md").write_text("a removed command")
    built.write(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    built.write(tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert set(before) == set(built.pages())


def console_commands(text: str) -> list[list[str]]:
    """The words of each `bertsmith` command in the console blocks of a text, without the program's name."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line)[2:] for line in lines if line.startswith("$ bertsmith ")]
    return [list(takewhile(lambda word: word not in {"|", ">", "#"}, words)) for words in commands]


def test_commands_on_all_pages_parse_and_their_recipes_have_the_settings() -> None:
    commands = command_pages().commands()
    found = 0
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("README*.md")]:
        for words in console_commands(page.read_text(encoding="utf-8")) if page.parent.name != "commands" else []:
            name = words[0] if words[0] in commands else " ".join(words[:2])
            context = commands[name].make_context(name, words[len(name.split()) :])
            if name == "pretrain" and not context.params["recipe"].endswith(".toml"):
                with_overrides(recipes.find(context.params["recipe"]), context.params["overrides"] or [])
            found += 1
    assert found > 150


def test_commands_in_sentences_exist_and_have_these_options() -> None:
    commands = command_pages().commands()
    groups = {name.split()[0] for name in commands} | {"--install-completion"}
    options = {option for one in commands.values() for parameter in one.params for option in parameter.opts}
    found = 0
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("README*.md")]:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for line in re.findall(r"`bertsmith ([^`]+)`", text) if page.parent.name != "commands" else []:
            assert line.split()[0] in groups, f"{page}: bertsmith {line}"
            unknown = set(re.findall(r"(?:^|\s)(--[\w-]+)", line)) - options - groups
            assert not unknown, f"{page}: bertsmith {line}"
            found += 1
    assert found > 60


def test_chapters_of_both_languages_try_the_same_commands() -> None:
    for page in sorted((DOCS / "ko").glob("*.md")):
        tried = []
        for chapter, start, end in (
            (DOCS / "papers" / page.name, "## Try it", "## Measured"),
            (page, "## 실행해 보기", "## 측정 결과"),
        ):
            section = chapter.read_text(encoding="utf-8").partition(start)[2].partition(end)[0]
            tried.append([words[: 2 if words[0] == "pretrain" else 1] for words in console_commands(section)])
        assert tried[0] == tried[1], page
        assert tried[0] or page.stem == "index", page


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = [
        str((page.parent / line).relative_to(DOCS))
        for page in DOCS.rglob("*.md")
        for tree in re.findall(r"^```{toctree}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for line in tree.splitlines()
        if line and not line.startswith(":")
    ]
    for page in DOCS.rglob("*.md"):
        name = str(page.relative_to(DOCS).with_suffix(""))
        result = any(fnmatch(name, line) for line in listed)
        assert result or name == "index" or name.startswith(("commands/", "_build/")), f"{name} is in no toctree"


def test_chapters_of_the_book_have_one_outline_and_a_figure() -> None:
    outline = ["The problem", "The idea", "Differences from its predecessor", "Try it", "Measured"]
    outline += ["Common misconceptions", "In bertsmith"]
    korean = ["문제", "아이디어", "이전 모델과 달라진 점", "실행해 보기", "측정 결과", "흔한 오해"]
    for folder, headings in (("papers", outline), ("ko", korean)):
        for page in sorted((DOCS / folder).glob("*.md")):
            text = page.read_text(encoding="utf-8")
            if page.stem != "index":
                assert re.findall(r"^## (.*)$", text, flags=re.M) == headings, page
            for picture in re.findall(r"^!\[.+\]\((.+)\)$", text, flags=re.M) or ["no figure"]:
                assert (page.parent / picture).is_file(), f"{page}: {picture}"


def test_stages_of_the_pipeline_link_to_pages() -> None:
    picture = (DOCS / "pictures" / "pipeline.svg").read_text(encoding="utf-8")
    pages = re.findall(r'href="([^"]+)\.html"', picture)
    assert len(pages) == 8
    assert [page for page in pages if not (DOCS / f"{page}.md").is_file()] == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    words = ["-m", "sphinx", "-W", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "commands" / "export.html").is_file()
