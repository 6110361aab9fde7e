"""The card (README.md) of an export, from facts that are at hand. Cannot fail: every fact is only ever printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from bertsmith.model_io.loading import parameters
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_card import pipeline_tag, plain, table
from bertsmith.tokenizers.tokenizer import Tokenizer


def export_card(
    name: str,
    *,
    what: str,
    front: Mapping[str, object],
    tables: Mapping[str, Mapping[str, object]],
    use: Sequence[str],
) -> bytes:
    """The card: `what` it is in one sentence, tables of facts as they come, and how it is used, as Python."""
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in front.items()), "---", ""]
    lines += [f"# {plain(name)}", "", what, ""]
    for title, facts in tables.items():
        lines += table(title, facts)
    lines += ["## Use", "", "```python", *use, "```", ""]
    lines += ["`checksums.json` holds size and sha256 of the files of this folder. This card may be edited.", ""]
    return "\n".join(lines).encode("utf-8", "replace")


def task_of(model: Model) -> dict[str, object]:
    """What the hub calls the use of the model, where it has a name for it."""
    tag = pipeline_tag(model.objectives)
    return {"pipeline_tag": tag} if tag else {}


def shape_of(model: Model, tokenizer: Tokenizer) -> dict[str, object]:
    """The size of a model in figures."""
    encoder = model.encoder
    return {
        "encoder": type(encoder).__name__,
        "layers": encoder.layers,
        "width": encoder.width,
        "positions": encoder.max_positions,
        "parameters": parameters(model),
        "heads": ", ".join(model.objectives) or "none: vectors",
        "tokenizer": f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens, fingerprint {tokenizer.fingerprint}",
    }
