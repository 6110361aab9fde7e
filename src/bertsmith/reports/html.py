"""HTML pages in a single file: shared style, bundled script, embedded data, and a policy that forbids any request.

All text from files, runs and models is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.errors import BertsmithError
from bertsmith.reports.text_charts import Points, axis_ticks, number
from bertsmith.system.durable import Disk

ASSETS = files("bertsmith.reports") / "assets"
LINES = {  # of a chart in a notebook: readable on white and on black
    "each step": 'stroke="#3b82c4" stroke-opacity=".5"',
    "smoothed": 'stroke="#3b82c4" stroke-width="2"',
    "held out": 'stroke="#d97a1e" stroke-width="2"',
}
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', flags=re.MULTILINE)
DEFINITION = re.compile(r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", flags=re.MULTILINE)


def render_page(folder: Traversable, name: str, *, heading: str, title: str, main: str, data: Any = None) -> str:
    """A page with the markup of its main element, and the style `name`.css and the script `name`.js of an asset folder.

    `data`: for the script. A page without `name`.js has no script.
    """
    style = (ASSETS / "base.css").read_text(encoding="utf-8") + (folder / f"{name}.css").read_text(encoding="utf-8")
    policy, scripts = f"default-src 'none'; style-src '{_sha256(style)}'", ""
    if (folder / f"{name}.js").is_file():
        script = bundle_modules(f"{name}.js", [folder, ASSETS])
        policy += f"; script-src '{_sha256(script)}'"
        scripts = (
            f'<script type="application/json" id="data">{json_for_script(data)}</script>\n<script>{script}</script>\n'
        )
    values = {"policy": policy, "title": escape(title), "style": style, "heading": escape(heading), "main": main}
    return _substitute((ASSETS / "page.html").read_text(encoding="utf-8"), {**values, "scripts": scripts})


def render_main(folder: Traversable, name: str, *, parts: Mapping[str, str]) -> str:
    """`name`.html of an asset folder, the contents of a main element, with its parts."""
    return _substitute((folder / f"{name}.html").read_text(encoding="utf-8"), parts)


def _substitute(template: str, values: Mapping[str, str]) -> str:
    return re.sub(r"<!--(\w+)-->", lambda match: values[match[1]], template)  # values are not searched again


def write(path: Path, text: str) -> Path:
    """Writes a page and returns its path."""
    if not path.parent.is_dir():
        raise BertsmithError(f"no such folder: {path.parent}")
    if path.is_dir():
        raise BertsmithError(f"{path} is a folder: name a file, such as {path / 'report.html'}")
    Disk().write_file(path, [text.encode()])
    return path


def json_for_script(data: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def section(title: str, about: str, *contents: str) -> str:
    """A heading, a line of explanation, and markup."""
    return f'<h2>{escape(title)}</h2><p class="faint">{escape(about)}</p>{"".join(contents)}'


def table(
    headings: Iterable[str], rows: Iterable[Iterable[str]], *, wrap: bool = False, left: int | None = None
) -> str:
    """A table of plain text, which is escaped here. `left`: how many columns are left-aligned; by default all."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    align = "" if left is None else f' class="left-{left}"'
    markup = f"<table{align}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide{" wrap" if wrap else ""}" tabindex="0">{markup}</div>'


def figures(facts: Mapping[str, str]) -> str:
    """Names and values in large type, side by side."""
    pairs = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="figures">{"".join(pairs)}</dl>'


def figure(title: str, unit: str, markup: str, *, size: tuple[float, float], values: str = "") -> str:
    """A chart with its caption. `markup` is that of the SVG; `values` are read aloud with the caption."""
    caption = f"<figcaption><h3>{escape(title)}</h3><span>{escape(unit)}</span></figcaption>"
    label = escape(", ".join(filter(None, (title, unit))) + (f": {values}" if values else ""))
    svg = f'<svg role="img" aria-label="{label}" viewBox="0 0 {size[0]} {size[1]}">{markup}</svg>'
    return f"<figure>{caption}{svg}</figure>"


def figure_grid(some: Sequence[str]) -> str:
    """Figures side by side."""
    return f'<div class="figure-grid">{"".join(some)}</div>' if some else ""


def notebook(markup: str) -> str:
    """Markup for the output of a notebook's cell: readable on any background, and without the style too."""
    style = (ASSETS / "notebook.css").read_text(encoding="utf-8")
    return f'<div class="bertsmith"><style>{style}</style>{markup}</div>'


def line_chart(curves: Mapping[str, Points], *, title: str) -> str:
    """Curves over steps by name, one of `LINES`, as an SVG picture; empty without finite values."""
    known = {name: _finite(*points) for name, points in curves.items()}
    known = {name: points for name, points in known.items() if len(points)}
    if not known:
        return ""
    width, height, left, right, top, bottom = 440, 210, 52, 14, 34, 40
    steps, values = np.concatenate(list(known.values())).T
    low, high, last = float(values.min()), float(values.max()), max(float(steps.max()), 1.0)
    high = high if high > low else low + 1
    size = np.array([(width - left - right) / last, (height - top - bottom) / (low - high)])
    parts = []
    for index, (name, points) in enumerate(known.items()):
        pixels = np.round((points - [0.0, high]) * size + [left, top], 1).tolist()
        line = " ".join(f"{x},{y}" for x, y in pixels)
        parts.append(f'<polyline points="{line}" fill="none" {LINES[name]}/>')
        x = left + 100 * index
        parts.append(
            f'<line x1="{x}" x2="{x + 16}" y1="24" y2="24" {LINES[name]}/><text x="{x + 21}" y="28">{name}</text>'
        )
    for value in axis_ticks(low, high, 4):
        y = (value - high) * size[1] + top + 4
        parts.append(f'<text x="{left - 8}" y="{y:.1f}" text-anchor="end">{number(value)}</text>')
    for step in axis_ticks(0, last, 4):
        x_text = f'x="{step * size[0] + left:.1f}" y="{height - 22}" text-anchor="middle"'
        parts.append(f"<text {x_text}>{number(step)}</text>")
    return (
        f'<svg role="img" aria-label="{escape(title)}" width="{width}" height="{height}">'
        f'<text x="{left}" y="12">{escape(title)}</text>{"".join(parts)}'
        f'<text x="{width - right}" y="{height - 6}" text-anchor="end">step</text></svg>'
    )


def _finite(x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    """The points with finite values [points, 2]."""
    points = np.column_stack([np.asarray(x, np.float64), np.asarray(y, np.float64)])
    return points[np.isfinite(points).all(axis=1)]


def bundle_modules(name: str, folders: Sequence[Traversable]) -> str:
    """The ES module `name` and its imports as one script; each module once, taken from the first folder that has it.

    Imports and exports are removed, so all modules of a script share one scope: no name may be defined twice.
    """
    bundled: dict[str, str] = {}

    def add(module: str) -> None:
        if module in bundled:
            return
        text = next(folder / module for folder in folders if (folder / module).is_file()).read_text(encoding="utf-8")
        bundled[module] = ""  # ends the recursion of modules that import each other
        for imported in IMPORT.findall(text):
            add(imported)
        del bundled[module]
        bundled[module] = re.sub(r"^export ", "", IMPORT.sub("", text), flags=re.MULTILINE)

    add(name)
    script = '"use strict";\n' + "\n".join(bundled.values())
    names = DEFINITION.findall(script)
    duplicates = {one for one in names if names.count(one) > 1}
    assert not duplicates, f"{name}: defined twice in its modules: {', '.join(sorted(duplicates))}"
    return script


def _sha256(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
