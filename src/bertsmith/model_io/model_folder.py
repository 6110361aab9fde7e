"""Model folders: written atomically, opened with every value checked; no code of a folder is run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

import torch

from bertsmith.config import did_you_mean
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.model_io.checksums import CHECKSUMS, checksums_file, verify_checksums
from bertsmith.model_io.folder_tokenizer import fitted, fitted_to, read_tokenizer
from bertsmith.model_io.frozen_encoders import build_over, read_tokenizers, tokenizer_files, with_heads
from bertsmith.model_io.huggingface.format import format_of
from bertsmith.model_io.loading import FolderFormat, Loader, parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_card import model_card
from bertsmith.model_io.native import NATIVE, encoder_config
from bertsmith.model_io.run_folder import MODELS, find_model_folder
from bertsmith.model_io.safetensors_files import INDEX, WEIGHTS, WeightFiles, file_chunks
from bertsmith.model_io.sentence_transformers import encoder_folder
from bertsmith.model_io.untrusted_files import ConfigReader, exists, shown
from bertsmith.objectives.objective import ObjectiveConfig, name_of
from bertsmith.system.durable import Disk, partial_path
from bertsmith.tokenizers.folder import CONFIG as TOKENIZER_CONFIG
from bertsmith.tokenizers.folder import json_bytes
from bertsmith.tokenizers.tokenizer import Tokenizer

CONFIG, CARD = "config.json", "README.md"
RETIRED = ".retired"  # suffix of a folder while a new one replaces it


@dataclass(frozen=True)
class FolderFacts:
    """What is known of an opened folder besides the model."""

    folder: Path
    architectures: tuple[str, ...]
    verified: bool  # it has checksums, and every file matches
    parameters: int
    notes: tuple[str, ...]  # for users: new heads, unused weights, a padded token table


def save_model(
    model: Model,
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    facts: Mapping[str, object] | None = None,
    extra_files: Mapping[str, bytes] | None = None,
    replace: bool = False,
    disk: Disk | None = None,
) -> None:
    """Writes a model folder, in transformers' format where it has a class for the model, else natively.

    The same model under the same name gives the same bytes. `facts` go into the model card; `extra_files` are written
    too, by relative path. An existing folder is an error unless `replace` is set.
    """
    disk, final = disk or Disk(), Path(os.path.abspath(folder))
    aside = partial_path(final)
    check_target(final, replace=replace)
    contents = folder_contents(model, tokenizer, final.name, facts or {})
    extra_files = {**tokenizer_files(model.encoder), **(extra_files or {})}
    if aside.exists():
        disk.remove_folder(aside)
    disk.make_folder(aside)
    for parent in sorted({(aside / name).parent for name in extra_files} - {aside}):
        disk.make_folder(parent)
    contents |= extra_files
    written = {name: disk.write_file(aside / name, [data], atomic=False) for name, data in contents.items()}
    written[WEIGHTS] = disk.write_file(aside / WEIGHTS, file_chunks(folder_format(model).tensors(model)), atomic=False)
    top_level = {name: one for name, one in written.items() if "/" not in name}
    disk.write_file(aside / CHECKSUMS, [checksums_file(top_level)], atomic=False)
    _exchange(aside, final, final.with_name(final.name + RETIRED), disk)


def _exchange(aside: Path, final: Path, retired: Path, disk: Disk) -> None:
    """Replaces a folder; at every moment one of the two is complete."""
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
    head: str | None = None,
    ignore_heads: bool = False,
    tokenizer: str | Path | None = None,
    objectives: Iterable[str | ObjectiveConfig] | None = None,
    new_heads: Iterable[str | ObjectiveConfig] = (),
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    lowercase: bool | None = None,
) -> tuple[Model, Tokenizer, FolderFacts]:
    """The model and tokenizer of a native or transformers folder, or of a run, on the CPU, in evaluation mode.

    `head`: the only head to load; `ignore_heads`: none. `tokenizer`: the folder of the tokenizer, where it is another.
    `objectives`: which heads to load, by name or with settings; None: all. `new_heads`: heads with new weights,
    whatever the folder has. `seed`: of the corruption of batches. `lowercase`: instead of the tokenizer's setting.
    """
    objectives = chosen_heads(head, ignore_heads) if objectives is None else objectives
    options: dict[str, Any] = {"objectives": objectives, "new_heads": new_heads, "lowercase": lowercase}
    return _opened(folder, tokenizer, **options, seed=seed, dtype=dtype)


def chosen_heads(head: str | None, ignore_heads: bool) -> list[str] | None:
    """The heads to load; None: all."""
    if head and ignore_heads:
        raise BertsmithError(f"--head {head} and --ignore-heads exclude each other")
    return [head] if head else [] if ignore_heads else None


def open_for(
    folder: str | Path,
    objectives: Iterable[ObjectiveConfig] | Mapping[str, ObjectiveConfig],
    *,
    keep: Iterable[str | ObjectiveConfig] = (),
    tokenizer: str | Path | None = None,
    dropout: float | None = None,
    encoder: Mapping[str, Any] | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Model, Tokenizer, FolderFacts]:
    """The encoder of a folder with new heads for fine-tuning, which may have names; heads in `keep` are loaded.

    New weights depend on `seed` alone. A pooler that no head reads is removed. A note lists new and unused weights.
    `dropout`: of the encoder, instead of the folder's, as are the other settings in `encoder`.
    """
    wanted = objectives if isinstance(objectives, Mapping) else {name_of(settings): settings for settings in objectives}
    if twice := set(wanted) & set(map(_name, keep := list(keep))):
        raise BertsmithError(f"{sorted(twice)[0]} cannot be both kept and new")
    options: dict[str, Any] = {"objectives": keep, "new_heads": wanted, "keep_pooler": False, "dropout": dropout}
    options["encoder"] = encoder or {}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _opened(folder, tokenizer, **options, seed=seed, dtype=dtype)


def _name(objective: str | ObjectiveConfig) -> str:
    return objective if isinstance(objective, str) else name_of(objective)


def _opened(
    source: str | Path, words: str | Path | None, *, lowercase: bool | None = None, **options: Any
) -> tuple[Model, Tokenizer, FolderFacts]:
    """`words`: the folder of the tokenizer, where it is another."""
    given = find_model_folder(source)
    folder = encoder_folder(given)
    _expect_model_folder(folder, given)
    notes = verify_checksums(folder, editable=frozenset({CARD}))
    reader = ConfigReader.open(folder, CONFIG)
    with WeightFiles.of(folder) as weights:
        loader = Loader(weights, reader, notes=list(notes or ()))
        tokenizer = read_tokenizer(find_model_folder(words or folder), loader.vocab_size(), lowercase=lowercase)
        model = loader.build(tokenizer, **options)
    facts = FolderFacts(folder, loader.architectures, notes is not None, parameter_count(model), tuple(loader.notes))
    read_tokenizers(model.encoder, folder)
    return model, fitted_to(model.encoder, tokenizer), facts


def open_over(
    folder: str | Path,
    objectives: Mapping[str, ObjectiveConfig],
    *,
    encoder: Mapping[str, Any],
    tokenizer: str | Path | None = None,
    dropout: float | None = None,
    seed: int = 0,
) -> tuple[Model, Tokenizer, FolderFacts]:
    """A new encoder of the kind `encoder.kind` over the encoder of a folder, with new heads for fine-tuning.

    `encoder.features`: model folders of frozen encoders. The notes are as in `open_for`.
    """
    settings = {**encoder} if dropout is None else {**encoder, "dropout": dropout}
    given = settings.pop("features", ())
    if isinstance(given, str):
        if given.startswith("["):  # not TOML, or it would be a list
            plain = given.strip("[]").replace(" ", "")
            raise ConfigError(f"encoder.features={given}: a list needs quotes; write encoder.features={plain}")
        given = given.split(",")
    names = [one["model"] if isinstance(one, Mapping) and "model" in one else one for one in given]
    if wrong := [one for one in names if not isinstance(one, str)]:
        raise ConfigError(f'encoder.features={shown(wrong)}: write model folders, as in encoder.features=["lm"]')
    words, own_tokenizer, facts = open_model(folder, ignore_heads=True, tokenizer=tokenizer)
    sources = [
        (name, opened[0].encoder, opened[1]) for name in names for opened in [open_model(name, ignore_heads=True)]
    ]
    built, own_tokenizer = build_over((words.encoder, own_tokenizer), folder, settings, sources, seed=seed)
    model = with_heads(built, own_tokenizer, objectives, seed=seed)
    kind = settings["kind"]
    frozen = f", with features of {', '.join(names)}" if names else ""
    notes = (f"{kind} over the word vectors of {folder}{frozen}; newly initialised: its layers and heads",)
    return model, own_tokenizer, replace_fields(facts, parameters=parameter_count(model), notes=notes)


def read_encoder(source: str | Path) -> Any:
    """The settings of a folder's encoder, checked against the headers of its weights."""
    given = find_model_folder(source)
    folder = encoder_folder(given)
    _expect_model_folder(folder, given)
    with WeightFiles.of(folder) as weights:
        loader = Loader(weights, ConfigReader.open(folder, CONFIG))
        return loader.format.read_encoder(loader.reader, loader.shapes())


def read_heads(source: str | Path) -> list[str]:
    """The heads that a folder has, by the headers of its weights."""
    folder = encoder_folder(find_model_folder(source))
    with WeightFiles.of(folder) as weights:
        loader = Loader(weights, ConfigReader.open(folder, CONFIG))
        return loader.format.heads(loader.reader, loader.architectures, loader.shapes())[0]


def verify_folder(folder: str | Path) -> tuple[str, ...] | None:
    """Compares every file with checksums.json: a changed file is a DataError; None where there are no checksums."""
    if not Path(folder).is_dir():
        raise DataError(f"{folder} is not a folder")
    return verify_checksums(Path(folder))


def _expect_model_folder(folder: Path, given: Path) -> None:
    """A one-line error for anything but a model folder; `given` is the folder around that of the encoder, if any."""
    if not folder.is_dir():
        before = folder.with_name(folder.name + RETIRED)
        hint = f"; a replacement was interrupted: its previous contents are in {before}" if before.is_dir() else ""
        if folder.is_file() and exists(folder.parent, CONFIG):
            raise DataError(f"{folder} is a file of a model: pass its folder, {folder.parent}")
        if folder.name in MODELS and (run := find_model_folder(folder.parent)) != folder.parent:
            raise DataError(f"{folder} does not exist: the model of this run is {run}; pass {folder.parent}")
        found = "is not a folder" if os.path.exists(folder) else "does not exist"
        beside = [] if os.path.exists(folder) else [path.name for path in folder.parent.glob("*/")]
        near = hint or did_you_mean(folder.name, beside, f"{folder.parent}/" if folder.parent.name else "")
        raise DataError(f"{folder} {found}: a model is a local folder with {CONFIG} and {WEIGHTS}{near}")
    if exists(folder, CONFIG) and (exists(folder, WEIGHTS) or exists(folder, INDEX)):
        return
    for name in sorted(os.listdir(folder)):
        if name.endswith(".index") or name.startswith(("pytorch_model", "params_0.npy")):
            kind = "a TensorFlow checkpoint is" if name.endswith(".index") else "pickled weights are"
            kind = "OpenAI's files are" if name.startswith("params_") else kind
            raise DataError(
                f"{folder / name}: {kind} not opened directly: convert with bertsmith import {given} -o OUTPUT"
            )
    for pattern, found in (("train-*.shard", "a shard set"), ("tokenizer.json", "a tokenizer")):
        if any(folder.glob(pattern)) and not exists(folder, CONFIG):
            raise DataError(f"{folder} is {found}, not a model: a model is a folder with {CONFIG} and {WEIGHTS}")
    missing = CONFIG if not exists(folder, CONFIG) else WEIGHTS
    raise DataError(f"{folder} is not a model folder: it has no {missing}")


def check_target(final: Path, *, replace: bool | None) -> None:
    """Raises where a model folder cannot be written. `replace`: None if the command has no `--overwrite`."""
    if not final.exists() or (final.is_dir() and not os.listdir(final)):
        return
    if not replace:
        advice = "" if replace is None else ", or pass --overwrite to replace it"
        raise BertsmithError(f"{final} exists: choose another -o{advice}")
    if not final.is_dir() or not exists(final, CONFIG) or not (exists(final, WEIGHTS) or exists(final, INDEX)):
        raise BertsmithError(f"{final} is not a model folder and is not replaced: choose another folder")


def folder_contents(model: Model, tokenizer: Tokenizer, name: str, facts: Mapping[str, object]) -> dict[str, bytes]:
    """Every file of a model folder except the weights and the checksums."""
    form, encoder = folder_format(model), model.encoder
    rows = getattr(encoder_config(model), "vocab_size", tokenizer.vocab_size)
    if tokenizer.vocab_size > rows:
        raise BertsmithError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model's token table only {rows:,} rows"
        )
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    values = form.config_values(model, dtype)
    heads = getattr(encoder_config(model), "heads", None)
    shape: dict[str, object] = {
        "layers": encoder.layers,
        "width": encoder.width,
        **({} if heads is None else {"heads": heads}),
        "positions": encoder.max_positions,
        "parameters": sum(value.numel() for value in form.tensors(model).values()),
        "type": dtype,
        "objectives": ", ".join(model.objectives) or "none",
        "tokenizer": f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens, fingerprint {tokenizer.fingerprint}",
    }
    card = model_card(name, model=model, architecture=values["architectures"][0], shape=shape, facts=facts)
    words = fitted(tokenizer, encoder.max_positions).files()
    if names := form.model_input_names:
        settings = json.loads(words[TOKENIZER_CONFIG]) | {"model_input_names": names}
        words[TOKENIZER_CONFIG] = json_bytes(settings)
    return {CONFIG: json_bytes(values), **words, CARD: card}


def folder_format(model: Model) -> FolderFormat:
    """transformers' format where it has a class for the model, else the native one."""
    return format_of(model) or NATIVE
