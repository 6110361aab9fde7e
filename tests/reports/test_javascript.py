"""Modules become one script: each once, what is imported first, no name twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertsmith.reports.javascript import bundled


def test_each_module_once_after_what_it_imports(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir()
    shared.mkdir()
    (own / "page.js").write_text('import { one, two } from "./middle.js";\nimport { three } from "./low.js";\none();\n')
    (own / "middle.js").write_text(
        'import {\n  three,\n} from "./low.js";\nexport const one = () => two();\nexport function two() {}\n'
    )
    (shared / "low.js").write_text("export class Three {}\nconst text = 'export const four';\n")
    (shared / "page.js").write_text("the first folder wins")
    found = bundled("page.js", [own, shared])
    assert found.startswith('"use strict";\n')
    assert "import" not in found
    assert found.index("class Three") < found.index("const one") < found.index("one();")
    assert found.count("class Three") == 1
    assert "'export const four'" in found
    assert "\nexport" not in found


def test_no_name_twice(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text('import { x } from "./b.js";\nconst place = 1;\n')
    (tmp_path / "b.js").write_text("export const x = 1;\nfunction place() {}\n")
    with pytest.raises(AssertionError, match="share the names place"):
        bundled("a.js", [tmp_path])
