"""A model folder for sentence-transformers: the encoder, with its pooling.

The folder is loaded again and its embeddings compared before it gets its final name.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import BertsmithError
from bertsmith.export.folder import ParityError, export_card, model_facts, new_folder
from bertsmith.inference.encoder_outputs import POOLINGS
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.checksums import CHECKSUMS, checksums_file, read_checksums
from bertsmith.model_io.huggingface.format import format_of
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_card import plain
from bertsmith.model_io.model_folder import CARD, check_target, open_model, save_model
from bertsmith.model_io.run_folder import find_model_folder
from bertsmith.model_io.sentence_transformers import (
    MODULES,
    SentenceSettings,
    read_sentence_settings,
    sentence_files,
    tanh_pooler,
)
from bertsmith.model_io.untrusted_files import shown
from bertsmith.system.durable import Disk, WrittenFile
from bertsmith.tokenizers.tokenizer import Tokenizer

TOLERANCE = 1e-5
LENGTHS = (1, 3, 8, 30, 10_000)  # tokens of the texts that are compared, and lengths around the maximum


def export_sentence_transformers(
    folder: str | Path,
    output: str | Path,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    tolerance: float = TOLERANCE,
    tokenizer: str | Path | None = None,
    disk: Disk | None = None,
) -> dict[str, Any]:
    """Writes the encoder of a folder so that sentence-transformers and `bertsmith.load` compute equal embeddings.

    The settings of a sentence-transformers folder are kept: maximum length, lower-casing, prompts, pooling, dense
    layers and normalization. `pooling` replaces its pooling and dense layers, `normalize` its normalization; other
    folders have the mean without normalization by default.
    """
    disk, final = disk or Disk(), Path(os.path.abspath(output))
    check_target(final, replace=None)
    if pooling not in (None, *POOLINGS):
        raise BertsmithError(f'pooling "{pooling}" does not exist: choose {", ".join(POOLINGS)}')
    folder = find_model_folder(folder)
    model, words, _ = open_model(folder, ignore_heads=True, tokenizer=tokenizer)
    if format_of(model) is None:
        raise BertsmithError(
            f"{folder}: transformers has no class for this encoder, and sentence-transformers opens only what "
            "transformers opens: use bertsmith.load, or export it with --to onnx"
        )
    settings, encoder = _settings(folder, model, pooling, normalize), model.encoder
    if settings.pooling == "pooled" and tanh_pooler(encoder) is None:
        raise BertsmithError(f"{folder} has no pooler with tanh: use pooling mean or first")
    with new_folder(final, disk) as partial:
        save_model(model, words, partial, disk=disk)
        written: dict[str, WrittenFile] = dict(read_checksums(partial) or {})
        for file, data in sentence_files(settings, encoder).items():
            disk.make_folder((partial / file).parent)
            written[file] = disk.write_file(partial / file, [data], atomic=False)
        original = Predictor(model, words, sentence_settings=settings)
        difference, compared = _check_embeddings(partial, original, tolerance=tolerance)
        facts = {
            "format": "sentence-transformers",
            "pooling": settings.pooling,
            "normalize": settings.normalize,
            "width": original.embedding_width(),
            "max_length": original.max_embedding_length,
            "prompts": ", ".join(map(shown, settings.prompts)) or "none",
            "default_prompt": shown(settings.default_prompt) if settings.default_prompt else "none",
            "bytes": sum(one.bytes for one in written.values()),
            "compared": compared,
            "max_abs_diff": difference,
            "tolerance": tolerance,
        }
        written[CARD] = disk.write_file(partial / CARD, [_card(final.name, model, words, facts)], atomic=False)
        top_level = {file: one for file, one in written.items() if "/" not in file}
        disk.write_file(partial / CHECKSUMS, [checksums_file(top_level)], atomic=False)
    return {"output": str(final), **facts}


def _settings(folder: str | Path, model: Model, pooling: str | None, normalize: bool | None) -> SentenceSettings:
    """The settings of the folder with those of the caller."""
    settings = read_sentence_settings(folder, model.encoder)
    if settings.unread:
        raise BertsmithError(f"{settings.unread}; to export the encoder alone, copy the folder without {MODULES}")
    changes: dict[str, Any] = {} if pooling is None else {"pooling": pooling, "dense": ()}
    return dataclasses.replace(settings, normalize=settings.normalize if normalize is None else normalize, **changes)


def _check_embeddings(folder: Path, original: Predictor, *, tolerance: float) -> tuple[float, str]:
    """The largest difference of the new folder from the original on random texts, and what was compared.

    An error over the tolerance. The texts are as long as `LENGTHS` and around the maximum length.
    """
    generator, tokenizer, most = np.random.default_rng(0), original.tokenizer, original.max_embedding_length
    lengths = sorted({*LENGTHS, *range(max(most - 3, 1), most + 3)})
    texts = [tokenizer.decode(generator.integers(0, tokenizer.vocab_size, length)) for length in lengths]
    again, settings = Predictor.open(folder, device="cpu"), original.sentence_settings
    names = [None, *(settings.prompts if settings.include_prompt else ())]
    difference = max(
        float(np.abs(original.encode(texts, prompt=name) - again.encode(texts, prompt=name)).max()) for name in names
    )
    longer = len(original.embed(texts).truncated)
    prompts = f" and with {len(names) - 1} prompts" if len(names) > 1 else ""
    compared = f"{len(texts)} random texts, {longer} of them over {most} tokens{prompts}: this folder and the original"
    if not difference <= tolerance:
        raise ParityError(
            f"its embeddings differ from the model's by up to {difference:.2g}, more than --tolerance {tolerance:g}: "
            "nothing was written"
        )
    return difference, f"{compared}, both with bertsmith"


def _card(name: str, model: Model, tokenizer: Tokenizer, facts: dict[str, Any]) -> bytes:
    poolings = {"mean": "mean of all tokens", "first": "first token", "max": "maximum", "pooled": "pooler output"}
    export = {
        "pooling": poolings.get(facts["pooling"], facts["pooling"]),
        "normalized": "yes" if facts["normalize"] else "no",
        "max length": f"{facts['max_length']} tokens",
        "prompts": plain(facts["prompts"]),
        "default prompt": plain(facts["default_prompt"]),
        "compared": facts["compared"],
        "largest difference": f"{facts['max_abs_diff']:.2g}",
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
