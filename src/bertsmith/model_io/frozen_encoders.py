"""Encoders that read features of frozen encoders: built over a model folder, saved with the frozen ones inside.

A model folder contains the frozen encoders: their settings are in config.json, their weights among its own, and the
tokenizer of each is in a subfolder with checksums of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bertsmith import config as registry
from bertsmith.encoders import encoder as encoders
from bertsmith.encoders.encoder import Encoder
from bertsmith.encoders.frozen_features import kinds_over_words
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.checksums import CHECKSUMS, checksums_file, verify_checksums
from bertsmith.model_io.folder_tokenizer import fitted_to, read_tokenizer, vocabulary_of
from bertsmith.model_io.loading import with_settings
from bertsmith.model_io.model import Model, build_context
from bertsmith.objectives.objective import ObjectiveConfig
from bertsmith.system.durable import WrittenFile
from bertsmith.tokenizers.tokenizer import Tokenizer

UNKNOWN = "unknown"  # a setting of the underlying encoder: the vectors of unknown words


def encoder_digest(encoder: Encoder) -> str:
    """Sixteen hexadecimal digits of an encoder's config and weights."""
    settings = registry.to_dict(getattr(encoder, "config"))  # noqa: B009 - an encoder of a model folder has one
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, value in encoder.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def read_tokenizers(encoder: Encoder, folder: Path) -> None:
    """Gives each frozen encoder of a model folder its tokenizer."""
    for name, part in encoder.frozen_encoders().items():
        if not (folder / name).is_dir():
            raise DataError(
                f"{folder / name} is missing: it has the tokenizer of a frozen encoder; copy the folder again"
            )
        verify_checksums(folder / name)
        rows = getattr(part.encoder.config, "vocab_size", 1 << 31)
        part.tokenizer = fitted_to(part.encoder, read_tokenizer(folder / name, rows))


def tokenizer_files(encoder: Encoder) -> dict[str, bytes]:
    """The tokenizers of frozen encoders for a model folder, by relative path."""
    files: dict[str, bytes] = {}
    for name, part in encoder.frozen_encoders().items():
        assert part.tokenizer is not None, "a model that is saved was opened or built with its tokenizers"
        own = part.tokenizer.files()
        written = {key: WrittenFile(len(data), hashlib.sha256(data).hexdigest()) for key, data in own.items()}
        files |= {f"{name}/{key}": data for key, data in (own | {CHECKSUMS: checksums_file(written)}).items()}
    return files


def build_over(
    base: tuple[Encoder, Tokenizer],
    folder: str | Path,
    settings: Mapping[str, Any],
    sources: Sequence[tuple[str, Encoder, Tokenizer]],
    *,
    seed: int,
) -> tuple[Encoder, Tokenizer]:
    """An encoder of the kind in `settings` over the one of a folder, with the features of other folders' encoders."""
    kind, (words, tokenizer) = settings["kind"], base
    cls = registry.find_kind(encoders.FOLDER, kind).Config
    field = getattr(cls, "built_over", None)
    if field is None:
        known = ", ".join(kinds_over_words())
        raise ConfigError(f"encoder.kind={kind} is not built over another encoder, only {known}")
    if hasattr(getattr(words, "config"), "built_over"):  # noqa: B009
        raise ConfigError(
            f"{folder} has the encoder {kind} already: leave out encoder.kind and the settings of its layers"
        )
    if tokenizer.kind != "words" or tokenizer.rules().get("marks"):
        found = f"a tokenizer of kind {tokenizer.kind}" + (" with marks" if tokenizer.kind == "words" else "")
        raise ConfigError(f"{folder} has {found}: {kind} is built over word vectors, whose tokens are words")
    features = [
        {"model": name, "fingerprint": encoder_digest(one), "encoder": getattr(one, "config")}  # noqa: B009
        for name, one, _ in sources
    ]
    changes = {name: value for name, value in settings.items() if name == UNKNOWN}
    base_config = with_settings(words.config, dropout=None, changes=changes)
    own = {field: base_config, "lowercase_words": bool(tokenizer.rules().get("lowercase")), "features": features}
    if given := sorted({field, "lowercase_words"} & settings.keys()):
        raise ConfigError(f"encoder.{given[0]} cannot be set: it is that of {folder}")
    settings = {name: value for name, value in settings.items() if name not in changes}
    config = registry.from_dict(cls, {**settings, **own}, "encoder")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        encoder: Encoder = config.build()
    encoder.get_submodule(field).load_state_dict(words.state_dict())
    for part, (_, one, its_tokenizer) in zip(encoder.frozen_encoders().values(), sources, strict=True):
        part.encoder.load_state_dict(one.state_dict())
        part.tokenizer = fitted_to(part.encoder, its_tokenizer)
    return encoder, fitted_to(encoder, tokenizer)


def with_heads(
    encoder: Encoder, tokenizer: Tokenizer, objectives: Mapping[str, ObjectiveConfig], *, seed: int
) -> Model:
    """The encoder with new heads, by name."""
    context = build_context(encoder, vocabulary=vocabulary_of(tokenizer), seed=seed)
    heads = []
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for name, settings in objectives.items():
            heads.append(settings.build(context))
            heads[-1].name = name
    return Model(encoder, heads).eval()
