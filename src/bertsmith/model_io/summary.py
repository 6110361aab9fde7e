"""What a model folder holds, in figures: shape, parameters by room, size on disk, memory for a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from bertsmith import config
from bertsmith.errors import BertsmithError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import FolderFacts, open_model

FLOAT, HALF = 4, 2  # bytes
# Values of width D that training keeps for the backward, per token and block: inputs and outputs of the two norms,
# q, k, v, attention's output, its projection, the feed-forward's output, and dropout masks.
KEPT_PER_BLOCK = 12


def folder_facts(facts: FolderFacts) -> dict[str, Any]:
    """What opening a folder has shown, as plain values."""
    return {
        "folder": str(facts.folder),
        "architectures": list(facts.architectures),
        "parameters": facts.parameters,
        "checksums": facts.sealed,
        "notes": list(facts.notes),
    }


def model_facts(folder: str | Path, *, batch: int = 32, length: int | None = None) -> dict[str, Any]:
    """All figures of a folder; memory is an estimate for `batch` rows of `length`."""
    model, tokenizer, facts = open_model(folder)
    settings = config.to_dict(getattr(model.encoder, "config"))  # noqa: B009 - every encoder with a folder has one
    length = length or model.encoder.max_positions
    if length > model.encoder.max_positions:
        raise BertsmithError(f"--length {length} is more than the model's {model.encoder.max_positions} positions")
    return {
        **folder_facts(facts),
        "encoder": settings,
        "objectives": list(model.objectives),
        "tokenizer": {"kind": tokenizer.kind, "size": tokenizer.vocab_size, "fingerprint": tokenizer.fingerprint},
        "parameters_by_room": parameters_by_room(model),
        "disk_bytes": sum(path.stat().st_size for path in Path(folder).iterdir() if path.is_file()),
        "memory": memory_bytes(model, settings, tokens=batch * length) | {"batch": batch, "length": length},
    }


def parameters_by_room(model: Model) -> dict[str, int]:
    """Embeddings, blocks together, pooler, each head; they add up to all parameters."""
    rooms: dict[str, int] = {}
    for name, part in model.encoder.named_children():
        rooms[name] = _count(part)
    for name, part in model.objectives.named_children():
        rooms[name] = _count(part)
    return rooms


def memory_bytes(model: Model, settings: dict[str, Any], *, tokens: int) -> dict[str, int]:
    """Estimates: weights; use in float32; training in mixed precision with Adam (weights, gradients, two moments)."""
    weights = FLOAT * _count(model)
    width, inner = settings["width"], settings["feed_forward"] or 4 * settings["width"]
    block = KEPT_PER_BLOCK * width + 2 * inner
    return {
        "weights_bytes": weights,
        "use_bytes": weights + FLOAT * tokens * (4 * width + inner),
        "training_bytes": 4 * weights + HALF * tokens * model.encoder.layers * block,
    }


def _count(part: nn.Module) -> int:
    return sum(value.numel() for value in part.parameters())
