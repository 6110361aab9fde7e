"""The documentation: every Python block runs, every command has a page, the site builds without a warning."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_code_of_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTSMITH_EXTENSIONS", "")  # restored after pages that add extensions
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    namespace: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}[{number}]", "exec"), namespace)


def command_pages() -> Any:
    spec = importlib.util.spec_from_file_location("command_pages", DOCS / "command_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_every_page_is_in_the_index() -> None:
    listed = (DOCS / "index.md").read_text(encoding="utf-8").splitlines()
    for page in DOCS.rglob("*.md"):
        name = str(page.relative_to(DOCS).with_suffix(""))
        result = any(fnmatch(name, line) for line in listed)
        assert result or name == "index" or name.startswith(("commands/", "_build/")), (
            f"{name} is in no toctree of index.md"
        )


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
