"""The model folder that a pre-training run starts from: its encoder's shape, and its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.model_io.huggingface.family import POOLER
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model, read_encoder
from bertsmith.model_io.run_folder import find_model_folder
from bertsmith.tokenizers.tokenizer import Tokenizer

# settings of training and of the tokenizer, which a recipe may choose anew
FREE = (
    *("dropout", "attention_dropout", "pooler", "pooler_dropout", "initializer_range", "truncated_init"),
    *("depth_scaled", "vocab_size", "padding_id"),
)
GROWING = ("layers", "max_positions")  # may be larger than the folder's; what is added is new
BLOCKS, POSITIONS = "encoder.blocks.", "encoder.embeddings.positions."
TOKENS = ("embeddings.tokens.weight", ".bias")  # the token table and the biases of language-model heads


def shape_overrides(encoder: Any, folder: str) -> list[str]:
    """The shape of the folder's encoder as overrides of a recipe; none where it is another kind than `encoder`."""
    theirs = read_encoder(folder)
    return [
        f"encoder.{name}={json.dumps(value)}" for name, value in _shape(theirs).items() if type(theirs) is type(encoder)
    ]


def finetuning_settings(folder: str) -> Mapping[str, Any]:
    """The fine-tuning settings of the paper of a folder's encoder; empty where they are the usual ones."""
    return getattr(read_encoder(folder), "finetuning", {}) if folder and Path(folder).is_dir() else {}


def with_shape(data: Any) -> Any:
    """The values of a recipe file; with `start`, settings of the encoder that it leaves out are the folder's."""
    start, given = (data.get("start"), data.get("encoder", {})) if isinstance(data, dict) else ("", {})
    if not isinstance(start, str) or not start or not isinstance(given, dict) or not Path(start).is_dir():
        return data
    theirs = read_encoder(start)
    kind = type(theirs).__module__.rpartition(".")[2]
    return data | {"encoder": {"kind": kind, **_shape(theirs), **given} if given.get("kind", kind) == kind else given}


def load_weights(model: Model, folder: str | Path, tokenizer: Tokenizer) -> list[str]:
    """Copies the weights of a model folder into a model; returns notes for the user.

    Encoder and tokenizer must be the same, except that the model may have more layers and positions, which keep their
    new weights, as do heads and a pooler that the folder lacks. Auxiliary models beside the folder are loaded too.
    """
    folder = find_model_folder(folder)
    other, other_tokenizer, _ = open_model(folder)
    _check_tokenizer(folder, other_tokenizer, tokenizer)
    notes = [
        f"started from the weights of {folder}",
        *_check_encoder(folder, other.encoder.config, model.encoder.config),
    ]
    weights, saved = model.state_dict(), other.state_dict()
    if lost := [name for name in saved if name not in weights and not name.startswith(("objectives.", f"{POOLER}."))]:
        raise ConfigError(f"{folder} has {lost[0]}, which the recipe's encoder lacks: the encoder must be the same")
    for name, value in weights.items():
        if name in saved:
            _copy(folder, name, saved[name], value, tokenizer.vocab_size)
        elif not name.startswith(("objectives.", f"{POOLER}.", BLOCKS)):
            raise ConfigError(f"{folder} has no {name}: the recipe must have the same encoder")
    heads = {f"the head {name}" for name in set(model.objectives) & set(other.objectives)}
    notes += [
        f"{name} is new" for name in sorted({_module(name) for name in weights.keys() - saved.keys()} - heads - {""})
    ]
    notes += [
        f"{name} of {folder} is not used" for name in sorted({*map(_module, saved.keys() - weights.keys())} - heads)
    ]
    for part, auxiliary in model.auxiliary_models().items():
        beside = folder.parent / part / folder.name
        notes += load_weights(auxiliary, beside, tokenizer) if beside.is_dir() else [f"the {part} is new"]
    return notes


def _shape(config: Any) -> dict[str, Any]:
    """The settings that decide what an encoder computes from its weights."""
    values = {item.name: getattr(config, item.name) for item in fields(config) if item.name not in FREE}
    return values | ({"feed_forward": config.inner} if "feed_forward" in values else {})


def _check_tokenizer(folder: str | Path, theirs: Tokenizer, ours: Tokenizer) -> None:
    if theirs.tokens() != ours.tokens():
        raise ConfigError(f"{folder} has another vocabulary than the shards: prepare them with its tokenizer")
    if theirs.fingerprint != ours.fingerprint:
        rules = f"other rules (fingerprint {theirs.fingerprint}, in the shards {ours.fingerprint})"
        raise ConfigError(
            f"{folder} has a tokenizer with the shards' vocabulary, but {rules}: prepare them with its tokenizer"
        )


def _check_encoder(folder: str | Path, theirs: Any, ours: Any) -> list[str]:
    """Notes on what the recipe's encoder adds; a ConfigError where it computes something else than the folder's."""
    if type(theirs) is not type(ours):
        found, wanted = (type(one).__module__.rpartition(".")[2] for one in (theirs, ours))
        raise ConfigError(
            f"{folder} has the encoder {found}, the recipe {wanted}: choose a recipe with encoder.kind={found}"
        )
    notes, stored = [], _shape(theirs)
    for name, value in _shape(ours).items():
        if name in GROWING and value > stored[name]:
            notes.append(f"encoder.{name}={value} instead of the {stored[name]} of {folder}: the added ones are new")
        elif value != stored[name]:
            raise ConfigError(
                f"encoder.{name}={value} contradicts {folder}, where it is {stored[name]}: "
                f"set encoder.{name}={stored[name]}, or leave it out"
            )
    return notes


def _copy(folder: str | Path, name: str, source: Tensor, target: Tensor, tokens: int) -> None:
    """Copies the rows that both have: token tables may be padded differently, position tables may grow."""
    rows = min(len(target), len(source)) if target.dim() else 0
    grown = name.startswith(POSITIONS) or (rows >= tokens and name.endswith(TOKENS))
    if source.shape[1:] != target.shape[1:] or (source.shape != target.shape and not grown):
        shapes = f"{list(source.shape)}, but {list(target.shape)} in the recipe"
        raise ConfigError(f"{folder}: {name} has the shape {shapes}: the encoder must be the same")
    target[:rows].copy_(source[:rows])


def _module(name: str) -> str:
    """A new or unused module in words; empty for blocks, which have a note."""
    if name.startswith(BLOCKS):
        return ""
    return "the pooler" if name.startswith(f"{POOLER}.") else f"the head {name.split('.')[1]}"
