"""The model card (README.md) of an export."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_card import plain, table
from bertsmith.tokenizers.tokenizer import Tokenizer


def export_card(
    name: str,
    *,
    description: str,
    metadata: Mapping[str, object],
    tables: Mapping[str, Mapping[str, object]],
    usage: Sequence[str],
) -> bytes:
    """The card: YAML metadata, a one-sentence description, tables, and Python lines that use the export."""
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in metadata.items()), "---", ""]
    lines += [f"# {plain(name)}", "", description, ""]
    for title, facts in tables.items():
        lines += table(title, facts)
    lines += ["## Usage", "", "```python", *usage, "```", ""]
    lines += ["`checksums.json` has the size and sha256 of every file of this folder. This card may be edited.", ""]
    return "\n".join(lines).encode("utf-8", "replace")


def model_facts(model: Model, tokenizer: Tokenizer) -> dict[str, object]:
    """Architecture and size of a model."""
    encoder = model.encoder
    return {
        "encoder": type(encoder).__name__,
        "layers": encoder.layers,
        "width": encoder.width,
        "max length": encoder.max_positions,
        "parameters": parameter_count(model),
        "heads": ", ".join(model.objectives) or "none (embeddings)",
        "tokenizer": f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens, fingerprint {tokenizer.fingerprint}",
    }
