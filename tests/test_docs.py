"""Every Python block of the documentation runs as it stands, in order, in one namespace per page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_code_of_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    namespace: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}[{number}]", "exec"), namespace)


def test_there_are_pages_with_code() -> None:
    assert {"prepare.md", "tokenizers.md", "corpora.md"} <= {page.name for page in PAGES}
