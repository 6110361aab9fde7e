"""A model folder for sentence-transformers: the encoder, with its pooling.

The folder is loaded again and its embeddings compared before it gets its final name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import BertsmithError
from bertsmith.export.folder import ParityError, export_card, model_facts, new_folder
from bertsmith.export.graph import POOLINGS
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.checksums import CHECKSUMS, checksums_file, read_checksums
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import CARD, check_target, open_model, save_model
from bertsmith.model_io.sentence_transformers import SentenceSettings, sentence_files, tanh_pooler
from bertsmith.system.durable import Disk, WrittenFile
from bertsmith.tokenizers.tokenizer import Tokenizer

TOLERANCE = 1e-5
LENGTHS = (1, 3, 8, 30, 10_000)  # tokens of the texts that are compared


def export_sentence_transformers(
    folder: str | Path,
    output: str | Path,
    *,
    pooling: str = "mean",
    normalize: bool = False,
    tolerance: float = TOLERANCE,
    tokenizer: str | Path | None = None,
    disk: Disk | None = None,
) -> dict[str, Any]:
    """Writes the encoder of a folder so that sentence-transformers and `bertsmith.load` compute equal embeddings.

    `pooling` and `normalize` become the defaults of `Predictor.embed` for the new folder.
    """
    disk, final = disk or Disk(), Path(os.path.abspath(output))
    check_target(final, replace=False)
    if pooling not in POOLINGS:
        raise BertsmithError(f'pooling "{pooling}" does not exist: choose {", ".join(POOLINGS)}')
    model, words, _ = open_model(folder, ignore_heads=True, tokenizer=tokenizer)
    if pooling == "pooled" and tanh_pooler(model.encoder) is None:
        raise BertsmithError(f"{folder} has no pooler with tanh: use pooling mean or first")
    settings, encoder = SentenceSettings(pooling, normalize), model.encoder
    with new_folder(final, disk) as partial:
        save_model(model, words, partial, disk=disk)
        written: dict[str, WrittenFile] = dict(read_checksums(partial) or {})
        for file, data in sentence_files(settings, encoder).items():
            disk.make_folder((partial / file).parent)
            written[file] = disk.write_file(partial / file, [data], atomic=False)
        facts = {
            "format": "sentence-transformers",
            "pooling": pooling,
            "normalize": normalize,
            "width": encoder.width,
            "max_length": encoder.max_positions,
            "bytes": sum(one.bytes for one in written.values()),
            "max_abs_diff": _check_embeddings(partial, model, words, settings, tolerance=tolerance),
            "tolerance": tolerance,
        }
        written[CARD] = disk.write_file(partial / CARD, [_card(final.name, model, words, facts)], atomic=False)
        top_level = {file: one for file, one in written.items() if "/" not in file}
        disk.write_file(partial / CHECKSUMS, [checksums_file(top_level)], atomic=False)
    return {"output": str(final), **facts}


def _check_embeddings(
    folder: Path, model: Model, tokenizer: Tokenizer, settings: SentenceSettings, *, tolerance: float
) -> float:
    """The largest difference of the loaded folder from the model, on random texts; an error over the tolerance."""
    generator = np.random.default_rng(0)
    texts = [tokenizer.decode(generator.integers(0, tokenizer.vocab_size, length)) for length in LENGTHS]
    pooling: Any = settings.pooling
    expected = Predictor(model, tokenizer).encode(texts, pooling=pooling, normalize=settings.normalize)
    loaded = Predictor.open(folder, device="cpu").encode(texts)
    difference = float(np.abs(expected - loaded).max())
    if not difference <= tolerance:
        raise ParityError(
            f"its embeddings differ from the model's by up to {difference:.2g}, more than --tolerance {tolerance:g}: "
            "nothing was written"
        )
    return difference


def _card(name: str, model: Model, tokenizer: Tokenizer, facts: dict[str, Any]) -> bytes:
    poolings = {"mean": "mean of all tokens", "first": "first token", "pooled": "pooler output"}
    export = {
        "pooling": poolings[facts["pooling"]],
        "normalized": "yes" if facts["normalize"] else "no",
        "max length": f"{facts['max_length']} tokens",
    }
    usage = [
        "from sentence_transformers import SentenceTransformer",
        "",
        'model = SentenceTransformer("path/to/this/folder")',
        'vectors = model.encode(["A text.", "Another."])',
    ]
    metadata: dict[str, object] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "feature-extraction", "bertsmith"],
    }
    description = "An encoder written by bertsmith for sentence-transformers; bertsmith and transformers load it too."
    tables: dict[str, dict[str, Any]] = {"Embeddings": export, "Model": model_facts(model, tokenizer)}
    return export_card(name, description=description, metadata=metadata, tables=tables, usage=usage)
