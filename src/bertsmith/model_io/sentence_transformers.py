"""sentence-transformers folders: how the embedding of a text is pooled, read and written beside the model.

modules.json lists the modules: the model, pooling, an optional linear layer, optional normalisation; each has a folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.encoders.encoder import Encoder
from bertsmith.errors import DataError
from bertsmith.model_io.safetensors_files import WEIGHTS, WeightFiles, file_chunks
from bertsmith.model_io.untrusted_files import UntrustedFile, exists, read_json, shown
from bertsmith.tokenizers.folder import json_bytes

MODULES = "modules.json"
SETTINGS = "config.json"
POOLING, DENSE, NORMALIZE = "Pooling", "Dense", "Normalize"
MOST_BYTES = 1 << 16
MODES = {"mean": "mean", "cls": "first"}  # sentence-transformers' names -> ours
OLD_KEYS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
TANH = "torch.nn.modules.activation.Tanh"


@dataclass(frozen=True)
class SentenceSettings:
    """How the embedding of a text is computed."""

    pooling: str = "mean"  # mean, first or pooled
    normalize: bool = False
    unread: str = ""  # why the settings of the folder are not supported


def tanh_pooler(encoder: Encoder) -> tuple[Tensor, Tensor] | None:
    """Weight [D, D] and bias [D] of the encoder's pooler, if it is a linear layer with tanh."""
    pooler = getattr(encoder, "pooler", None)
    if isinstance(pooler, nn.Linear) and getattr(pooler, "activation", None) is torch.tanh:
        return pooler.weight.detach(), pooler.bias.detach()
    return None


def sentence_files(settings: SentenceSettings, encoder: Encoder) -> dict[str, bytes]:
    """The files of a sentence-transformers folder beside the encoder's, by relative path."""
    mode = "mean" if settings.pooling == "mean" else "cls"
    kinds = [POOLING, *([DENSE] if settings.pooling == "pooled" else []), *([NORMALIZE] if settings.normalize else [])]
    paths = [f"{number}_{kind}" for number, kind in enumerate(kinds, start=1)]
    modules = [("", "Transformer"), *zip(paths, kinds, strict=True)]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules)
    ]
    found = {
        MODULES: json_bytes(listed),
        "sentence_bert_config.json": json_bytes({"max_seq_length": encoder.max_positions, "do_lower_case": False}),
        "config_sentence_transformers.json": json_bytes({"prompts": {}, "similarity_fn_name": "cosine"}),
        f"1_{POOLING}/{SETTINGS}": json_bytes(
            {"word_embedding_dimension": encoder.width, **{key: key == OLD_KEYS[mode] for key in OLD_KEYS.values()}}
        ),
    }
    if settings.pooling == "pooled":
        pooler = tanh_pooler(encoder)
        assert pooler is not None, "callers check that the encoder has a tanh pooler"
        size = {"in_features": encoder.width, "out_features": encoder.width}
        dense = {**size, "bias": True, "activation_function": TANH}
        weights = {"linear.weight": pooler[0], "linear.bias": pooler[1]}
        found[f"2_{DENSE}/{SETTINGS}"] = json_bytes(dense)
        found[f"2_{DENSE}/{WEIGHTS}"] = b"".join(bytes(chunk) for chunk in file_chunks(weights))
    return found


def read_sentence_settings(folder: str | Path, encoder: Encoder) -> SentenceSettings:
    """The settings of a folder; the defaults where it has none."""
    folder = Path(folder)
    if not exists(folder, MODULES):
        return SentenceSettings()
    try:
        return _read(folder, encoder)
    except DataError as error:
        return SentenceSettings(unread=str(error))


def _read(folder: Path, encoder: Encoder) -> SentenceSettings:
    steps = [(path, kind) for path, kind in _steps(folder) if kind != "Transformer"]
    kinds = [kind for _, kind in steps]
    if kinds[:1] != [POOLING] or kinds[1:] not in ([], [NORMALIZE], [DENSE], [DENSE, NORMALIZE]):
        listed = ", ".join(map(shown, kinds[:9])) or "none"
        raise DataError(f"{folder / MODULES} has the modules {listed}; supported are Pooling, Dense and Normalize")
    pooling = _pooling(_below(folder, steps[0][0]))
    if DENSE in kinds:
        where, pooler = _below(folder, steps[1][0]), tanh_pooler(encoder)
        if pooling != "first" or pooler is None or not _is_pooler(where, pooler):
            raise DataError(f"{where}: this layer is not the model's pooler; others are not supported")
        pooling = "pooled"
    return SentenceSettings(pooling, kinds[-1] == NORMALIZE)


def _steps(folder: Path) -> list[tuple[str, str]]:
    """Path and class name of each module, in order."""
    with UntrustedFile(folder, MODULES, most=MOST_BYTES) as file:
        data = file.read(0, file.size)
    try:
        found = json.loads(data)
        return [(str(step["path"]), str(step["type"]).rpartition(".")[2]) for step in found]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise DataError(
            f"{folder / MODULES} is not a list of modules with path and type: {shown(str(error), 120)}"
        ) from error


def _below(folder: Path, name: str) -> Path:
    """The folder of a module, which must be inside the model's."""
    where = folder / name
    if name in {"", ".", ".."} or "/" in name or "\\" in name or not name.isprintable():
        raise DataError(f"{folder / MODULES}: {shown(name)} is not the name of a folder")
    if where.is_dir() and where.resolve().parent != folder.resolve():
        raise DataError(f"{where} is a link to another folder")
    return where


def _pooling(where: Path) -> str:
    """mean or first, in the format of any version."""
    values = read_json(where, SETTINGS)
    mode = values.get("pooling_mode")
    if mode is None:
        on = [key for key, value in values.items() if key.startswith("pooling_mode_") and value]
        mode = next((name for name, key in OLD_KEYS.items() if on == [key]), ", ".join(on) or "nothing")
    mode = mode[0] if isinstance(mode, list) and len(mode) == 1 else mode
    if not isinstance(mode, str) or mode not in MODES:
        raise DataError(f"{where / SETTINGS}: pooling {shown(mode)} is not supported: mean or cls")
    return MODES[mode]


def _is_pooler(where: Path, pooler: tuple[Tensor, Tensor]) -> bool:
    """Whether a module equals the model's pooler."""
    values: Mapping[str, Any] = read_json(where, SETTINGS)
    if values.get("activation_function") != TANH or not exists(where, WEIGHTS):
        return False
    with WeightFiles.of(where) as weights:
        for name, expected in zip(("linear.weight", "linear.bias"), pooler, strict=True):
            entry = weights.entries.get(name)
            if entry is None or entry.shape != tuple(expected.shape):
                return False
            stored = torch.empty(expected.shape)
            weights.fill(name, stored)
            if not torch.equal(stored, expected.detach().cpu().float()):
                return False
    return True
