"""What every page shares: the look, a policy that forbids all but its own script, and the escaping of what is shown."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError
from bertsmith.reports.javascript import bundled
from bertsmith.system.durable import Disk


def fill(folder: Traversable, name: str, *, title: str, data: Any, parts: Mapping[str, str]) -> str:
    """The page `name`.html of a folder with its .css and .js, `data` for the script, and parts that are markup."""
    style, frame = ((folder / f"{name}.{kind}").read_text(encoding="utf-8") for kind in ("css", "html"))
    style = (files("bertsmith.reports") / "assets" / "base.css").read_text(encoding="utf-8") + style
    script = bundled(f"{name}.js", [folder, files("bertsmith.reports") / "assets"])
    known = {
        "policy": f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'",
        "title": escape(title),
        "style": style,
        "script": script,
        "data": embedded(data),
        **parts,
    }
    return _filled(frame, known)


def fill_main(folder: Traversable, name: str, *, parts: Mapping[str, str]) -> str:
    """What stands inside the main element of the same page, for a page that has a frame of its own."""
    frame = (folder / f"{name}.html").read_text(encoding="utf-8")
    return _filled(frame.partition("<main>\n")[2].partition("</main>")[0], parts)


def _filled(frame: str, known: Mapping[str, str]) -> str:
    return re.sub(r"<!--(\w+)-->", lambda place: known[place[1]], frame)  # looks for places in the frame alone


def write(path: Path, text: str) -> Path:
    """Writes a page and returns its path."""
    if not path.parent.is_dir():
        raise BertsmithError(f"no such folder: {path.parent}")
    Disk().write_file(path, [text.encode()])
    return path


def embedded(data: Any) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], *, wrap: bool = False) -> str:
    """A table of plain text: everything is escaped here."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    found = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide{" wrap" if wrap else ""}" tabindex="0">{found}</div>'


def figures(facts: Mapping[str, str]) -> str:
    """Names and values, large, side by side."""
    pairs = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="figures">{"".join(pairs)}</dl>'


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
