"""The model folder that a pre-training run starts from: its encoder's shape, and its weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertsmith import config
from bertsmith.encoders.encoder import FOLDER
from bertsmith.errors import ConfigError
from bertsmith.model_io.huggingface.family import POOLER
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model, read_encoder
from bertsmith.model_io.run_folder import find_model_folder
from bertsmith.tokenizers.tokenizer import Tokenizer

# settings of training and of the tokenizer, which a recipe may choose anew
FREE = (
    *("dropout", "attention_dropout", "pooler", "pooler_dropout", "initializer_range", "truncated_init"),
    *("depth_scaled", "vocab_size", "padding_id", "unknown_ids"),
    *("input_dropout", "hidden_dropout", "embedding_dropout", "weight_dropout", "dropout_scale", "bptt"),
)
GROWING = ("layers", "max_positions")  # may be larger than the folder's; what is added is new
PROTECTING = ("unfreeze", "layer_decay")  # what lower layers have learned
BLOCKS, POSITIONS = "encoder.blocks.", "encoder.embeddings.positions."
# the token tables, and the biases and tables of language-model heads
TOKENS = ("embeddings.tokens.weight", "encoder.embeddings.weight", "_lm.bias", "_lm.output.weight")


def shape_overrides(encoder: Any, folder: str) -> list[str]:
    """The shape of the folder's encoder as overrides of a recipe; none where it is another kind than `encoder`."""
    theirs = read_encoder(folder)
    return [
        f"encoder.{name}={json.dumps(value)}" for name, value in _shape(theirs).items() if type(theirs) is type(encoder)
    ]


def finetuning_settings(folder: str, kind: str = "", *, random_init: bool = False) -> Mapping[str, Any]:
    """The fine-tuning settings of the paper of a folder's encoder; empty where they are the usual ones.

    `kind`: of an encoder that is built over the folder's. `random_init`: without those that protect trained layers.
    """
    if not kind and not (folder and Path(folder).is_dir()):
        return {}
    settings = getattr(_trained_kind(folder, kind), "finetuning", {})
    return {name: value for name, value in settings.items() if not (random_init and name in PROTECTING)}


def sets_random_init(changes: Iterable[str] | Mapping[str, Any]) -> bool:
    """Whether changes of a fine-tuning run set random weights."""
    if isinstance(changes, Mapping):
        return changes.get("random_init") is True
    pairs = [change.partition("=") for change in changes]
    values = [config.parse_value(value.strip()) for name, _, value in pairs if name.strip() == "random_init"]
    return values[-1:] == [True]


def encoder_kind(changes: Iterable[str] | Mapping[str, Any]) -> str:
    """The kind of encoder that changes of a fine-tuning run set; empty without one."""
    if not isinstance(changes, Mapping):
        given = [change.partition("=")[2].strip() for change in changes if change.partition("=")[0] == "encoder.kind"]
        return given[-1].strip("\"'") if given else ""
    table = changes.get("encoder", {})
    return str(changes.get("encoder.kind", table.get("kind", "") if isinstance(table, Mapping) else ""))


def text_head_settings(folder: str, kind: str = "") -> Mapping[str, Any]:
    """The settings of heads for texts in the paper of a folder's encoder; empty where they are the usual ones."""
    return getattr(_trained_kind(folder, kind), "text_head", {})


def _trained_kind(folder: str, kind: str) -> Any:
    """The settings of a folder's encoder, or the class of those of an encoder that is built over it."""
    return config.find_kind(FOLDER, kind).Config if kind else read_encoder(folder)


def with_shape(data: Any) -> Any:
    """The values of a recipe file; with `start`, settings of the encoder that it leaves out are the folder's."""
    start, given = (data.get("start"), data.get("encoder", {})) if isinstance(data, dict) else ("", {})
    if not isinstance(start, str) or not start or not isinstance(given, dict) or not Path(start).is_dir():
        return data
    theirs = read_encoder(start)
    kind = type(theirs).__module__.rpartition(".")[2]
    return data | {"encoder": {"kind": kind, **_shape(theirs), **given} if given.get("kind", kind) == kind else given}


def load_weights(model: Model, folder: str | Path, tokenizer: Tokenizer, *, match_tokens: bool = False) -> list[str]:
    """Copies the weights of a model folder into a model; returns notes for the user.

    Encoder and tokenizer must be the same, except that the model may have more layers and positions, which keep their
    new weights, as do heads and a pooler that the folder lacks. Auxiliary models beside the folder are loaded too.
    With `match_tokens` the tokenizer may be another: tokens that both have keep their vectors and biases, the others
    start as the mean of all (P-ULMFiT; fastai: text/learner.py).
    """
    folder = find_model_folder(folder)
    other, other_tokenizer, _ = open_model(folder)
    tokens = _matching_tokens(other_tokenizer, tokenizer) if match_tokens else None
    if tokens is None:
        _check_tokenizer(folder, other_tokenizer, tokenizer)
    notes = [
        f"started from the weights of {folder}",
        *_check_encoder(folder, other.encoder.config, model.encoder.config),
    ]
    if tokens is not None:
        known = int((tokens >= 0).sum())
        notes.append(f"{known:,} of {len(tokens):,} tokens are in its vocabulary; the others start as the mean of all")
    weights, saved = model.state_dict(), other.state_dict()
    if lost := [name for name in saved if name not in weights and not name.startswith(("objectives.", f"{POOLER}."))]:
        raise ConfigError(f"{folder} has {lost[0]}, which the recipe's encoder lacks: the encoder must be the same")
    for name, value in weights.items():
        if name in saved:
            if tokens is not None and name.endswith(TOKENS):
                _copy_tokens(saved[name], value, tokens, count=other_tokenizer.vocab_size)
            else:
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
        if any(f".{part}." in name for name in saved):  # a native folder holds it
            continue
        beside = folder.parent / part / folder.name
        loaded = load_weights(auxiliary, beside, tokenizer, match_tokens=match_tokens) if beside.is_dir() else None
        notes += [f"the {part} is new"] if loaded is None else loaded
    return notes


def _shape(config: Any) -> dict[str, Any]:
    """The settings that decide what an encoder computes from its weights."""
    values = {item.name: getattr(config, item.name) for item in fields(config) if item.name not in FREE}
    return values | ({"feed_forward": config.inner} if "feed_forward" in values else {})


def _check_tokenizer(folder: str | Path, theirs: Tokenizer, ours: Tokenizer) -> None:
    if theirs.tokens() != ours.tokens():
        raise ConfigError(
            f"{folder} has another vocabulary than the shards: prepare them with its tokenizer, or set "
            "match_tokens=true to keep the vectors of the tokens that both have"
        )
    if theirs.fingerprint != ours.fingerprint:
        rules = f"other rules (fingerprint {theirs.fingerprint}, in the shards {ours.fingerprint})"
        raise ConfigError(
            f"{folder} has a tokenizer with the shards' vocabulary, but {rules}: prepare them with its tokenizer"
        )


def _matching_tokens(theirs: Tokenizer, ours: Tokenizer) -> Tensor | None:
    """[V] the id of each of our tokens in their vocabulary, -1 for new ones; None where the tokenizers are equal."""
    if theirs.fingerprint == ours.fingerprint:
        return None
    known = {token: number for number, token in enumerate(theirs.tokens())}
    return torch.tensor([known.get(token, -1) for token in ours.tokens()])


def _copy_tokens(source: Tensor, target: Tensor, tokens: Tensor, *, count: int) -> None:
    """Copies the rows of matching tokens; the others become the mean of the `count` rows that are tokens."""
    mean = source[:count].mean(0, keepdim=True)
    known = (tokens >= 0).view(-1, *[1] * (source.dim() - 1))
    target[: len(tokens)].copy_(torch.where(known, source[tokens.clamp(min=0)], mean))


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
            expected = _as_written(stored[name])
            raise ConfigError(
                f"encoder.{name}={_as_written(value)} contradicts {folder}, where it is {expected}: "
                f"set encoder.{name}={expected}, or leave it out"
            )
    return notes


def _as_written(value: Any) -> str:
    """A setting as it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


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
