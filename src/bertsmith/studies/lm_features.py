"""Tables of features of frozen language models (P-TagLM, P-ELMo): where they are read, which models, layers and mixes.

Each row is a variant of the encoder `taglm`, trained and scored like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from bertsmith.encoders import taglm
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.model_folder import open_model
from bertsmith.model_io.run_folder import find_model_folder, model_name
from bertsmith.reports.layer_weights import weights_of
from bertsmith.reports.run_history import read_run
from bertsmith.studies.ablations import Cell, run_cells
from bertsmith.studies.lm_features_report import write_page
from bertsmith.studies.published import LM_FEATURES, Published
from bertsmith.studies.task_setup import TaskSetup
from bertsmith.system.durable import Disk, checksummed_json
from bertsmith.tokenizers.unknown_words import each_warning_once
from bertsmith.training.finetune_data import build_task
from bertsmith.training.recipe import make_finetune_config
from bertsmith.training.run import advise_removal

TableName = Literal["position", "models", "layers", "mix", "injection"]
TABLES: tuple[TableName, ...] = get_args(TableName)
RESULT, PAGE = "lm_features.json", "lm_features.html"
NONE = "no features"
NO_FEATURES = {"features": [], "mix_l2": 0.0, "mix_layer_norm": False}
REGULARIZATION = (1.0, 0.001)  # of the mix, in P-ELMo Table 2


@dataclass(frozen=True)
class Variant:
    """A row of the table: settings of the encoder that differ from the others."""

    name: str
    encoder: Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """A frozen language model."""

    name: str
    folder: str
    layers: int
    mixable: bool  # all layers have the same width


def sources(folders: Sequence[str]) -> list[Source]:
    """The models of `--features [NAME=]FOLDER`."""
    found: dict[str, Source] = {}
    for text in folders:
        name, equals, path = text.partition("=")
        name, path = (name, path) if equals else (model_name(text), text)
        if not Path(path).is_dir():
            raise DataError(f"{path} is not a folder: --features needs a model folder or a run")
        if not name or name in found or "/" in name:
            raise ConfigError(f"--features {text}: the name must be unique: write --features NAME=FOLDER")
        encoder = open_model(path, ignore_heads=True)[0].encoder
        found[name] = Source(name, str(find_model_folder(path)), encoder.layers, len({*encoder.layer_widths}) == 1)
    return list(found.values())


def variants(table: TableName, models: Sequence[Source], *, recurrent_layers: int) -> list[Variant]:
    """The rows of a table."""
    if not models:
        raise ConfigError("no frozen model: pass --features FOLDER")
    features, nothing = [one.folder for one in models], Variant(NONE, NO_FEATURES)
    top = recurrent_layers
    if table == "position":
        positions = [("input of layer 1", 0), *((f"output of layer {n}", n) for n in range(1, top + 1))]
        return [nothing, *(Variant(name, {"features": features, "features_at": [n]}) for name, n in positions)]
    if table == "models":
        alone = [Variant(one.name, {"features": [one.folder]}) for one in models]
        return [nothing, *alone, *([Variant("all", {"features": features})] if len(models) > 1 else [])]
    if table == "injection":
        chosen: dict[str, list[int]] = {"input": [0], "input and output": [0, top], "output": [top]}
        return [nothing, *(Variant(name, {"features": features, "features_at": at}) for name, at in chosen.items())]
    mixes = all(one.mixable for one in models)
    if table == "layers":
        count = min(one.layers for one in models) + 1
        each = [Variant(f"layer {n}", {"features": features, "feature_layers": n}) for n in range(count)]
        return each + ([Variant("mix", {"features": features, "feature_layers": "mix"})] if mixes else [])
    if not mixes:
        odd = next(one.folder for one in models if not one.mixable)
        raise ConfigError(f"--table mix: the layers of {odd} have different widths, so that they cannot be mixed")
    mix = {"features": features, "feature_layers": "mix"}
    regularized = [Variant(f"mix, λ={value:g}", {**mix, "mix_l2": value}) for value in REGULARIZATION]
    normed = Variant("mix, layer norm", {**mix, "mix_layer_norm": True})
    return [nothing, Variant("top", {**mix, "feature_layers": "top"}), *regularized, Variant("mix, λ=0", mix), normed]


@advise_removal()
@each_warning_once()
def lm_features(
    words: str | Path,
    features: Sequence[str],
    tasks: Sequence[TaskSetup],
    output: str | Path,
    *,
    table: TableName,
    learning_rates: Sequence[float] = (),
    seeds: int = 1,
    jobs: int = 1,
    device: str = "auto",
    quiet: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Trains every variant on every task over the word vectors of a folder; finished runs are reused.

    `report` gets a message before each cell, or with several jobs after it.
    """
    if table not in TABLES:
        raise ConfigError(f"--table {table} must be one of {', '.join(TABLES)}")
    output = Path(output)
    Disk().make_folder(output)
    cells = list(_planned(find_model_folder(words), sources(features), tasks, output, table))
    published = LM_FEATURES[table]
    options: dict[str, Any] = {"learning_rates": learning_rates, "seeds": seeds, "jobs": jobs, "device": device}
    rows: dict[str, dict[str, Any]] = {}
    results = run_cells(cells, **options, quiet=quiet, report=report)
    for (name, cell), result in zip(cells, results, strict=True):
        row = rows.setdefault(name, {"name": name, "folder": str(words), "cells": {}})
        row["cells"][cell.name] = _cell(result, cell, published, name)
    return _write(list(rows.values()), published, table, output)


def _planned(
    words: Path, models: Sequence[Source], tasks: Sequence[TaskSetup], output: Path, table: TableName
) -> Iterator[tuple[str, Cell]]:
    """Every cell, with the name of its row."""
    bases = {}
    for setup in tasks:
        changes = ["encoder.kind=taglm", *setup.changes]
        bases[setup.task] = make_finetune_config(setup.task, words, setup.files, changes)
    given = next(iter(bases.values())).encoder.get("layers", taglm.Config.layers)
    for variant, setup in product(variants(table, models, recurrent_layers=int(given)), tasks):
        base = bases[setup.task]
        settings = replace(base, encoder={**base.encoder, **variant.encoder})
        folder = output / table / variant.name.replace(" ", "-").replace(",", "") / setup.folder
        yield variant.name, Cell(setup.task, build_task(settings), settings, folder)


def _cell(result: Mapping[str, Any], cell: Cell, published: Published, name: str) -> dict[str, Any]:
    history = read_run(Path(result["run"]))
    score = published.scores.get(name, {}).get(cell.task.name)
    return {**result, "published": score, "weights": weights_of(history)}


def _write(rows: list[dict[str, Any]], published: Published, table: str, output: Path) -> dict[str, Any]:
    shown = any(cell["published"] is not None for row in rows for cell in row["cells"].values())
    result: dict[str, Any] = {
        "table": table,
        "source": published.source if shown else "",
        "tasks": list(rows[0]["cells"]),
        "rows": rows,
    }
    folder = output / table
    Disk().write_file(folder / RESULT, [checksummed_json(result)])
    return result | {"page": str(write_page(result, folder / PAGE))}
