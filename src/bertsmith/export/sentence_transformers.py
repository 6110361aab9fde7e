"""A model folder as one of sentence-transformers: the encoder, and how the vector of a text is made of it.

The folder is opened again and its vectors compared before it gets its name.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import BertsmithError, StorageError
from bertsmith.export.cards import export_card, shape_of
from bertsmith.export.graph import POOLINGS
from bertsmith.export.parity import ParityError
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import CARD, check_target, open_model, save_model
from bertsmith.model_io.seal import SEAL, read_seal, seal
from bertsmith.model_io.sentence_folder import SentenceSettings, sentence_files, tanh_pooler
from bertsmith.system.durable import Disk, WrittenFile, partial_path
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
    disk: Disk | None = None,
) -> dict[str, Any]:
    """Writes the encoder of a folder so that sentence-transformers and `bertsmith.load` give the same vectors.

    `pooling` and `normalize`: as for `Predictor.embed`, whose default they are for whoever opens the folder.
    """
    disk, final = disk or Disk(), Path(os.path.abspath(output))
    check_target(final, replace=False)
    if pooling not in POOLINGS:
        raise BertsmithError(f"pooling {pooling} is not known: {', '.join(POOLINGS)}")
    model, tokenizer, _ = open_model(folder, objectives=())
    if pooling == "pooled" and tanh_pooler(model.encoder) is None:
        raise BertsmithError(f"{folder} has no pooler with tanh to make pooled vectors: use pooling mean or first")
    settings, aside = SentenceSettings(pooling, normalize), partial_path(final)
    if aside.exists():
        disk.remove_folder(aside)
    save_model(model, tokenizer, aside, disk=disk)
    try:
        facts = _finish(aside, final.name, model, tokenizer, settings, tolerance=tolerance, disk=disk)
    except BaseException:
        with suppress(StorageError):
            disk.remove_folder(aside)
        raise
    disk.commit_folder(aside, final)
    return {"output": str(final), **facts}


def _finish(
    aside: Path,
    name: str,
    model: Model,
    tokenizer: Tokenizer,
    settings: SentenceSettings,
    *,
    tolerance: float,
    disk: Disk,
) -> dict[str, Any]:
    """The files that make a model folder one of sentence-transformers."""
    encoder = model.encoder
    written: dict[str, WrittenFile] = dict(read_seal(aside) or {})
    for file, data in sentence_files(settings, encoder).items():
        disk.make_folder((aside / file).parent)
        written[file] = disk.write_file(aside / file, [data], atomic=False)
    largest = _difference(aside, model, tokenizer, settings)
    if not largest <= tolerance:
        raise ParityError(
            f"its vectors are up to {largest:.2g} away, more than --tolerance {tolerance:g}: nothing written"
        )
    facts = {
        "format": "sentence-transformers",
        "pooling": settings.pooling,
        "normalize": settings.normalize,
        "width": encoder.width,
        "length": encoder.max_positions,
        "bytes": sum(one.bytes for one in written.values()),
        "largest_difference": largest,
        "tolerance": tolerance,
    }
    written[CARD] = disk.write_file(aside / CARD, [_card(name, model, tokenizer, facts)], atomic=False)
    inside = {file: one for file, one in written.items() if "/" not in file}
    disk.write_file(aside / SEAL, [seal(inside)], atomic=False)
    return facts


def _difference(aside: Path, model: Model, tokenizer: Tokenizer, settings: SentenceSettings) -> float:
    """How far the vectors of the folder, opened again, are from those of the model, on texts of random tokens."""
    draw = np.random.default_rng(0)
    texts = [tokenizer.decode(draw.integers(0, tokenizer.vocab_size, length)) for length in LENGTHS]
    pooling: Any = settings.pooling
    ours = Predictor(model, tokenizer).encode(texts, pooling=pooling, normalize=settings.normalize)
    again = Predictor.open(aside, device="cpu").encode(texts)
    return float(np.abs(ours - again).max())


def _card(name: str, model: Model, tokenizer: Tokenizer, facts: dict[str, Any]) -> bytes:
    export = {
        "vector of a text": {"mean": "mean over its tokens", "first": "its first token", "pooled": "the pooler's"}[
            facts["pooling"]
        ],
        "of length 1": "yes" if facts["normalize"] else "no",
        "longest text": f"{facts['length']} tokens",
    }
    use = [
        "from sentence_transformers import SentenceTransformer",
        "",
        'model = SentenceTransformer("path/to/this/folder")',
        'vectors = model.encode(["A text.", "Another."])',
    ]
    front: dict[str, object] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "feature-extraction", "bertsmith"],
    }
    what = (
        "An encoder written by bertsmith as a folder of sentence-transformers; bertsmith and transformers open it too."
    )
    return export_card(
        name, what=what, front=front, tables={"Vectors": export, "Shape": shape_of(model, tokenizer)}, use=use
    )
