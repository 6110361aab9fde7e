"""ES modules as one script: a page that stands alone carries what a served page fetches file by file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources.abc import Traversable

IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', flags=re.MULTILINE)
NAMED = re.compile(r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", flags=re.MULTILINE)


def bundled(name: str, folders: Sequence[Traversable]) -> str:
    """The module `name` after all that it imports, each once, looked for in these folders in their order.

    Imports and exports are dropped, so that all modules of a script share their names: none may be given twice.
    """
    found: dict[str, str] = {}

    def visit(module: str) -> None:
        if module in found:
            return
        text = next(folder / module for folder in folders if (folder / module).is_file()).read_text(encoding="utf-8")
        found[module] = ""  # so that modules that import each other end
        for other in IMPORT.findall(text):
            visit(other)
        del found[module]
        found[module] = re.sub(r"^export ", "", IMPORT.sub("", text), flags=re.MULTILINE)

    visit(name)
    script = '"use strict";\n' + "\n".join(found.values())
    names = NAMED.findall(script)
    twice = {one for one in names if names.count(one) > 1}
    assert not twice, f"{name}: modules of one script share the names {', '.join(sorted(twice))}"
    return script
