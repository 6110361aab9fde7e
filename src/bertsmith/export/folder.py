"""The folder of an export, and its model card (README.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bertsmith.errors import BertsmithError, StorageError
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_card import plain, table
from bertsmith.system.durable import Disk, partial_path
from bertsmith.tokenizers.tokenizer import Tokenizer


class ParityError(BertsmithError):
    """The exported model differs from the original."""

    exit_code = 70


@contextmanager
def new_folder(final: Path, disk: Disk) -> Iterator[Path]:
    """The path of a folder that gets its final name at the end of the context, and is removed after an error."""
    partial = partial_path(final)
    if partial.exists():
        disk.remove_folder(partial)
    try:
        yield partial
    except BaseException:
        with suppress(StorageError):
            disk.remove_folder(partial)
        raise
    disk.commit_folder(partial, final)


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
