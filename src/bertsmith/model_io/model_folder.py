"""Model folders: written whole or not at all, opened with everything checked. Runs no code that a folder brings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import BertsmithError, DataError
from bertsmith.model_io.folder_tokenizer import fitted, read_tokenizer
from bertsmith.model_io.foreign_files import exists, read_json
from bertsmith.model_io.head_settings import config_of, head_contents, is_own
from bertsmith.model_io.hf_config import CONFIG, OWN_ARCHITECTURE, config_contents
from bertsmith.model_io.huggingface import family_of
from bertsmith.model_io.huggingface.family import Family
from bertsmith.model_io.loading import Loading, parameters
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_card import model_card
from bertsmith.model_io.order import in_turn
from bertsmith.model_io.safetensors_file import file_chunks
from bertsmith.model_io.seal import SEAL, check_seal, seal
from bertsmith.model_io.weight_files import INDEX, WEIGHTS, WeightFiles
from bertsmith.objectives.objective import ObjectiveConfig, name_of
from bertsmith.system.durable import Disk, WrittenFile, partial_path
from bertsmith.tokenizers.folder import json_bytes
from bertsmith.tokenizers.tokenizer import Tokenizer

CARD = "README.md"
RETIRED = ".retired"  # ends the name of the folder that a new one is just replacing


@dataclass(frozen=True)
class FolderFacts:
    """What opening a folder has shown besides the model itself."""

    folder: Path
    architectures: tuple[str, ...]
    sealed: bool  # it has checksums, and every file is as it was written
    parameters: int
    notes: tuple[str, ...]  # what a user should hear: new heads, weights left out, a padded table


def save_model(
    model: Model,
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    facts: Mapping[str, object] | None = None,
    replace: bool = False,
    disk: Disk | None = None,
) -> None:
    """Writes a model folder that transformers opens too; the same model under the same name gives the same bytes.

    `facts` go into the model card as they are. An existing folder is an error, unless it is to be replaced.
    """
    disk, final = disk or Disk(), Path(os.path.abspath(folder))
    aside = partial_path(final)
    check_target(final, replace=replace)
    family = family_of(config_of(model))
    contents = folder_contents(model, tokenizer, final.name, facts or {})
    if aside.exists():
        disk.remove_folder(aside)
    disk.make_folder(aside)
    written: dict[str, WrittenFile] = {}
    for name, data in contents.items():
        written[name] = disk.write_file(aside / name, [data], atomic=False)
    written[WEIGHTS] = disk.write_file(aside / WEIGHTS, file_chunks(_their_tensors(family, model)), atomic=False)
    disk.write_file(aside / SEAL, [seal(written)], atomic=False)
    _exchange(aside, final, final.with_name(final.name + RETIRED), disk)


def _exchange(aside: Path, final: Path, retired: Path, disk: Disk) -> None:
    """Puts a folder in the place of another; at every moment one of them is there whole."""
    if final.exists():
        if retired.exists():
            disk.remove_folder(retired)
        disk.commit_folder(final, retired)
    disk.commit_folder(aside, final)
    if retired.exists():
        disk.remove_folder(retired)


def open_model(
    folder: str | Path,
    *,
    objectives: Iterable[str | ObjectiveConfig] | None = None,
    new_heads: Iterable[str | ObjectiveConfig] = (),
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Model, Tokenizer, FolderFacts]:
    """The model and tokenizer of a folder, ours or transformers', on the CPU and ready for use.

    `objectives`: which heads to open, by name or with settings; all that are there where it is left out. `new_heads`:
    those that begin anew, whatever the folder has. `seed` is the key of what the objectives hide.
    """
    return _opened(Path(folder), objectives=objectives, new_heads=new_heads, seed=seed, dtype=dtype)


def open_for(
    folder: str | Path,
    objectives: Iterable[ObjectiveConfig],
    *,
    keep: Iterable[str | ObjectiveConfig] = (),
    dropout: float | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Model, Tokenizer, FolderFacts]:
    """The encoder of a folder under new heads for `objectives`, to be fine-tuned; heads in `keep` are taken over.

    New heads begin with numbers drawn by `seed`, whatever was drawn before. A pooler that no head reads is left out.
    One of the notes says what is new and what was left out. `dropout`: the encoder's, instead of what the folder says.
    """
    wanted = list(objectives)
    if twice := {name_of(settings) for settings in wanted} & set(map(_name, keep := list(keep))):
        raise BertsmithError(f"{sorted(twice)[0]} cannot be kept and begin anew")
    how: dict[str, Any] = {"objectives": keep, "new_heads": wanted, "spare_pooler": False, "dropout": dropout}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _opened(Path(folder), **how, seed=seed, dtype=dtype)


def _name(objective: str | ObjectiveConfig) -> str:
    return objective if isinstance(objective, str) else name_of(objective)


def _opened(folder: Path, **how: Any) -> tuple[Model, Tokenizer, FolderFacts]:
    _expect_model_folder(folder)
    notes = check_seal(folder, editable=frozenset({CARD}))
    settings = read_json(folder, CONFIG)
    with WeightFiles.of(folder) as weights:
        loading = Loading(weights, settings, folder / CONFIG, notes=list(notes or ()))
        tokenizer = read_tokenizer(folder, loading.rows())
        model = loading.build(tokenizer, **how)
    facts = FolderFacts(folder, loading.architectures, notes is not None, parameters(model), tuple(loading.notes))
    return model, fitted(tokenizer, model.encoder.max_positions), facts


def verify_folder(folder: str | Path) -> tuple[str, ...] | None:
    """Compares every file with checksums.json: a changed one is a DataError; None where the folder has no checksums."""
    if not Path(folder).is_dir():
        raise DataError(f"{folder} is no folder")
    return check_seal(Path(folder))


def _expect_model_folder(folder: Path) -> None:
    """One line for whoever brings something else."""
    if not folder.is_dir():
        before = folder.with_name(folder.name + RETIRED)
        hint = f"; it was just being replaced: what it held before is in {before}" if before.is_dir() else ""
        raise DataError(f"{folder} is no folder: a model is a folder with {CONFIG} and {WEIGHTS}{hint}")
    if exists(folder, CONFIG) and (exists(folder, WEIGHTS) or exists(folder, INDEX)):
        return
    for name in sorted(os.listdir(folder)):
        if name.endswith(".index") or name.startswith("pytorch_model"):
            kind = "a TensorFlow checkpoint is" if name.endswith(".index") else "pickled weights are"
            raise DataError(f"{folder / name}: {kind} not opened directly: bertsmith import {folder} -o OUTPUT")
    missing = CONFIG if not exists(folder, CONFIG) else WEIGHTS
    raise DataError(f"{folder} is no model folder: it has no {missing}")


def check_target(final: Path, *, replace: bool) -> None:
    """Raises where a model folder may not be written."""
    if not final.exists() or (final.is_dir() and not os.listdir(final)):
        return
    if not final.is_dir() or not replace:
        raise BertsmithError(f"{final} exists: choose another folder, or have it replaced")
    if not exists(final, CONFIG):
        raise BertsmithError(f"{final} holds something else than a model and is not replaced: choose another folder")


def folder_contents(model: Model, tokenizer: Tokenizer, name: str, facts: Mapping[str, object]) -> dict[str, bytes]:
    """Every file of a model's folder but the weights and the seal."""
    config = config_of(model)
    family = family_of(config)
    if tokenizer.vocab_size > config.vocab_size:
        rows = config.vocab_size
        raise BertsmithError(f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model's table only {rows:,} rows")
    objectives = tuple(model.objectives)
    architecture = OWN_ARCHITECTURE if is_own(family, model) else family.architecture_of(objectives)
    stored = str(model.encoder.token_embeddings.dtype).removeprefix("torch.")
    shape = {
        "layers": config.layers,
        "width": config.width,
        "heads": config.heads,
        "positions": config.max_positions,
        "parameters": sum(value.numel() for value in _their_tensors(family, model).values()),
        "type": stored,
        "objectives": ", ".join(objectives) or "none",
        "tokenizer": f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens, fingerprint {tokenizer.fingerprint}",
    }
    tokenizer = fitted(tokenizer, config.max_positions)
    card = model_card(name, family=family, architecture=architecture, objectives=objectives, shape=shape, facts=facts)
    settings = config_contents(family, config, architecture=architecture, stored=stored) | head_contents(family, model)
    return {CONFIG: json_bytes(settings), **tokenizer.files(), CARD: card}


def _their_tensors(family: Family, model: Model) -> dict[str, torch.Tensor]:
    """The weights under transformers' names; views, no copies where their order is ours."""
    config = model.encoder.config
    assert isinstance(config, TransformerConfig)
    found: dict[str, torch.Tensor] = family.counted(config)
    objectives, heads, own = tuple(model.objectives), config.heads, is_own(family, model)
    for ours, value in model.state_dict().items():
        names = family.their_names(ours, heads=objectives, own=own)
        parts = dict(zip(names, value.chunk(len(names)), strict=True)) if names else {}
        found |= {name: in_turn(part, heads) if family.in_turn(name) else part for name, part in parts.items()}
    return found if objectives else {name.removeprefix(family.prefix): value for name, value in found.items()}
