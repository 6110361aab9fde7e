"""ES modules are bundled into one script."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertsmith.reports.html import bundle_modules


def test_each_module_is_bundled_once_after_its_imports(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir()
    shared.mkdir()
    (own / "page.js").write_text('import { one, two } from "./middle.js";\nimport { three } from "./low.js";\none();\n')
    (own / "middle.js").write_text(
        'import {\n  three,\n} from "./low.js";\nexport const one = () => two();\nexport function two() {}\n'
    )
    (shared / "low.js").write_text("export class Three {}\nconst text = 'export const four';\n")
    (shared / "page.js").write_text("the first folder wins")
    result = bundle_modules("page.js", [own, shared])
    assert result.startswith('"use strict";\n')
    assert "import" not in result
    assert result.index("class Three") < result.index("const one") < result.index("one();")
    assert result.count("class Three") == 1
    assert "'export const four'" in result
    assert "\nexport" not in result


def test_a_name_defined_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text('import { x } from "./b.js";\nconst place = 1;\n')
    (tmp_path / "b.js").write_text("export const x = 1;\nfunction place() {}\n")
    with pytest.raises(AssertionError, match="defined twice in its modules: place"):
        bundle_modules("a.js", [tmp_path])
