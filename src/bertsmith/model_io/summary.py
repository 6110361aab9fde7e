"""The summary of a model folder: sizes, parameters by module, size on disk, memory of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertsmith import config
from bertsmith.errors import BertsmithError
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import FolderFacts, open_model
from bertsmith.model_io.native import encoder_config
from bertsmith.model_io.run_folder import find_model_folder

FLOAT, HALF = 4, 2  # bytes
# Activations of width D that training keeps for the backward, per token and block: inputs and outputs of the two layer
# norms, q, k, v, the attention output, its projection, the feed-forward output, and dropout masks.
KEPT_PER_BLOCK = 12
# maximum tokens of a text in the memory estimate, since recurrent encoders and word vectors have no practical limit
DEFAULT_LENGTH = 512


def folder_facts(facts: FolderFacts) -> dict[str, Any]:
    """The facts of an opened folder as JSON values."""
    return {
        "folder": str(facts.folder),
        "architectures": list(facts.architectures),
        "parameters": facts.parameters,
        "checksums": facts.verified,
        "notes": list(facts.notes),
    }


def model_facts(folder: str | Path, *, batch: int = 32, length: int | None = None, **opening: Any) -> dict[str, Any]:
    """The summary of a folder; memory is estimated for a batch; `opening`: keywords of `open_model`."""
    folder = find_model_folder(folder)
    model, tokenizer, facts = open_model(folder, **opening)
    settings = config.to_dict(encoder_config(model))
    length = length or min(model.encoder.max_positions, DEFAULT_LENGTH)
    if length > model.encoder.max_positions:
        raise BertsmithError(f"--length {length} exceeds the model's {model.encoder.max_positions} positions")
    return {
        **folder_facts(facts),
        "encoder": settings,
        "objectives": list(model.objectives),
        "tokenizer": {"kind": tokenizer.kind, "size": tokenizer.vocab_size, "fingerprint": tokenizer.fingerprint},
        "parameters_by_module": parameters_by_module(model),
        "disk_bytes": sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
        "memory": memory_bytes(model, settings, tokens=batch * length) | {"batch": batch, "length": length},
    }


def parameters_by_module(model: Model) -> dict[str, int]:
    """Parameters of embeddings, all blocks, pooler and each head; their sum is the total."""
    modules = [*model.encoder.named_children(), *model.objectives.named_children()]
    return {name: parameter_count(module) for name, module in modules}


def memory_bytes(model: Model, settings: dict[str, Any], *, tokens: int) -> dict[str, int]:
    """Estimates: weights; inference in float32; training in mixed precision with Adam (gradients, two moments)."""
    weights, width = FLOAT * parameter_count(model), model.encoder.width
    inner = settings.get("feed_forward") or 4 * width
    block = KEPT_PER_BLOCK * width + 2 * inner
    return {
        "weights_bytes": weights,
        "inference_bytes": weights + FLOAT * tokens * (4 * width + inner),
        "training_bytes": 4 * weights + HALF * tokens * model.encoder.layers * block,
    }
