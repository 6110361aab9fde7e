"""The model card (README.md) of a folder, from the given facts. It cannot fail, since facts are only printed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from bertsmith.model_io import huggingface
from bertsmith.model_io.model import Model
from bertsmith.model_io.native import ARCHITECTURE
from bertsmith.objectives.objective import objective_class

# the hub's names, where they differ
HUB_PIPELINES = {
    **dict.fromkeys(("text-regression", "multi-label-classification"), "text-classification"),
    "next-sentence": "",
}


def model_card(
    name: str, *, model: Model, architecture: str, shape: Mapping[str, object], facts: Mapping[str, object]
) -> bytes:
    """The card; `shape` and `facts` are shown as they come, in two tables."""
    in_transformers = architecture != ARCHITECTURE
    kind = type(model.encoder.config).__module__.rpartition(".")[2]
    family = huggingface.families().get(kind)
    title = family.title if family else kind
    front: dict[str, object] = {
        "library_name": "transformers" if in_transformers else "bertsmith",
        "tags": [family.model_type if family else kind, "bertsmith"],
    }
    front |= {"pipeline_tag": tag} if (tag := pipeline_tag(model.objectives)) else {}
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in front.items()), "---", "", f"# {plain(name)}", ""]
    article = "An" if title[0] in "AEIOU" else "A"
    transformers = f"as a folder of Hugging Face transformers (`{architecture}`)"
    form = transformers if in_transformers else "in bertsmith's own format"
    lines += [f"{article} {title} model written by bertsmith, {form}.", ""]
    lines += [*table("Shape", shape), *table("Origin", facts), *_use(architecture if in_transformers else None)]
    return "\n".join(lines).encode("utf-8", "replace")


def pipeline_tag(objectives: Iterable[str]) -> str:
    """The hub's name of the first pipeline that these objectives offer, or nothing."""
    pipelines = [objective_class(name).pipeline for name in objectives]
    return next((tag for name in pipelines if (tag := HUB_PIPELINES.get(name, name))), "")


def table(title: str, rows: Mapping[str, object]) -> list[str]:
    if not rows:
        return []
    cells = [f"| {plain(key)} | {plain(value)} |" for key, value in rows.items()]
    return [f"## {title}", "", "| | |", "|---|---|", *cells, ""]


def _use(architecture: str | None) -> list[str]:
    """How to open it: with transformers' class, or with bertsmith where it has none."""
    code = [
        f"from transformers import AutoTokenizer, {architecture}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        f'model = {architecture}.from_pretrained("path/to/this/folder")',
    ]
    code = code if architecture else ["import bertsmith", "", 'model = bertsmith.load("path/to/this/folder")']
    sums = "`checksums.json` holds size and sha256 of every file; bertsmith compares them when it opens the folder."
    return ["## Use", "", "```python", *code, "```", "", sums, "This card may be edited.", ""]


def plain(value: object) -> str:
    """One cell of a table: one line, and nothing that ends the cell."""
    text = f"{value:,}" if type(value) is int else str(value)
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
