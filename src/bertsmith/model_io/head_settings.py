"""The heads of a model folder in config.json, in and out: which there are, the names of their classes, their dropout.

A model that transformers has no class for (a head reads other layers, or the mean of a text) is written in our own
words, and the folder's model type is ours: transformers then refuses the folder instead of answering something else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from bertsmith import config as registry
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError
from bertsmith.model_io.foreign_files import shown
from bertsmith.model_io.hf_config import OWN
from bertsmith.model_io.huggingface.family import Family, Shapes
from bertsmith.model_io.model import Model
from bertsmith.model_io.said import Said
from bertsmith.objectives.heads import default_names
from bertsmith.objectives.objective import FOLDER, Objective, ObjectiveConfig, objective_class

OBJECTIVES = "objectives"  # under our key in config.json


def config_of(model: Model) -> TransformerConfig:
    """The settings of its encoder, which every encoder with a folder has."""
    return cast(TransformerConfig, getattr(model.encoder, "config", None))


def is_own(family: Family, model: Model) -> bool:
    """Whether transformers has no class for this model: for its encoder, or for its heads."""
    if not family.has_class(config_of(model), tuple(model.objectives)):
        return True
    return not all(cast(Objective, objective).has_transformers_head for objective in model.objectives.values())


def head_contents(family: Family, model: Model) -> dict[str, Any]:
    """What config.json says of the heads; empty for those of pre-training."""
    found: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, objective in model.objectives.items():
        settings: Any = getattr(objective, "config", None)
        kind = objective_class(name)
        if hasattr(settings, "dropout"):
            found[family.dropout_key(name)] = settings.dropout
        if labels := getattr(settings, "labels", kind.default_labels):
            found |= _label_table(labels)
        if kind.problem_type:
            found["problem_type"] = kind.problem_type
        values = {key: getattr(settings, field) for field, key in kind.config_keys.items()}
        found |= {key: value for key, value in values.items() if value is not None}
        own[name] = registry.to_dict(settings) if settings is not None else {}
    ours = {"model_type": OWN, OWN: {"encoder": family.name, OBJECTIVES: own}}
    return found | (ours if is_own(family, model) else {})


def _label_table(labels: tuple[str, ...]) -> dict[str, Any]:
    return {
        "num_labels": len(labels),
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def heads_of(family: Family, said: Said, *, architectures: Iterable[str]) -> set[str]:
    """The objectives whose heads a config.json promises."""
    if said.get("model_type") == OWN:
        return set(_own_objectives(said))
    promised = {head for name in architectures for head in family.architectures.get(name, ())}
    return {_by_problem_type(head, said) for head in promised}


def _by_problem_type(head: str, said: Said) -> str:
    """The objective that a head of transformers' was trained for: one head serves classification and regression."""
    if not objective_class(head).problem_type:
        return head
    known = {
        kind.problem_type: name
        for name in registry.kinds(FOLDER)
        if (kind := objective_class(name)).problem_type and head in (name, kind.transformers_head)
    }
    problem = said.get("problem_type")
    if problem is None:
        labels = said.get("id2label")
        count = len(labels) if isinstance(labels, dict) else said.get("num_labels", 2)
        problem = "regression" if count == 1 else objective_class(head).problem_type
    if problem not in known:
        raise ConfigError(
            f"{said.path}: problem_type={shown(problem)}; bertsmith reads {' and '.join(sorted(known))}; "
            "objectives=() opens the rest"
        )
    return known[problem]


def read_head(family: Family, name: str, said: Said, *, shapes: Shapes) -> ObjectiveConfig:
    """The settings of a head that a folder has, as far as it says them; `shapes` are the weights' by today's names."""
    if said.get("model_type") == OWN:
        return _read_own(name, said, shapes=shapes)
    module, kind = registry.find_kind(FOLDER, name), objective_class(name)
    fields = {item.name for item in dataclasses.fields(module.Config)}
    known: dict[str, Any] = family.read_head(name, said)
    if "dropout" in fields:
        usual, key = said.share("hidden_dropout_prob", 0.1), family.dropout_key(name)
        known["dropout"] = usual if said.get(key) is None else said.share(key, usual)
    if "labels" in fields:
        (head,) = family.their_names(f"objectives.{name}.head.weight", heads=[name])
        known["labels"] = _labels(said, count=(shapes.get(head) or (0,))[0])
    known |= {field: said.get(key) for field, key in kind.config_keys.items() if said.get(key) is not None}
    return _built(module.Config, known, said.path)


def _labels(said: Said, *, count: int) -> tuple[str, ...]:
    """The names of as many classes as the weights have."""
    table, path = said.get("id2label"), said.path
    if table is None:
        claimed = said.get("num_labels", count)
        if claimed != count:
            raise ConfigError(f"{path}: num_labels={shown(claimed)}, but the weights have {count} classes")
        return default_names(count)
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise ConfigError(f"{path}: id2label must give a name to every number of a class")
    if len(table) != count:
        raise ConfigError(f"{path}: id2label names {len(table)} classes, but the weights have {count}")
    missing = [number for number in range(count) if str(number) not in table]
    if missing:
        raise ConfigError(f"{path}: id2label has no name for class {missing[0]}")
    return tuple(table[str(number)] for number in range(count))


def _own_objectives(said: Said) -> dict[str, Any]:
    ours, path = said.get(OWN), said.path
    found = ours.get(OBJECTIVES) if isinstance(ours, dict) else None
    if not isinstance(found, dict) or not all(isinstance(item, dict) for item in found.values()):
        raise ConfigError(f"{path}: model_type={OWN!r}, but {OWN}.{OBJECTIVES} does not say which heads there are")
    unknown = [name for name in found if name not in registry.kinds(FOLDER)]
    if unknown:
        raise ConfigError(f"{path}: {OWN}.{OBJECTIVES} has {shown(unknown[0])}, which is no objective of this version")
    return found


def _read_own(name: str, said: Said, *, shapes: Shapes) -> ObjectiveConfig:
    found, path = _own_objectives(said), said.path
    if name not in found:
        raise ConfigError(f"{path} has no head {name}: it has {', '.join(found)}")
    settings = _built(registry.find_kind(FOLDER, name).Config, found[name], path)
    widest = max((size for shape in shapes.values() for size in shape), default=0)
    for key, most in (("recurrent_layers", len(shapes)), ("recurrent_width", widest)):
        if getattr(settings, "recurrent", "none") != "none" and getattr(settings, key) > most:  # before it is built
            raise ConfigError(f"{path}: {key}={getattr(settings, key)}, but no weights of that size are there")
    return settings


def _built(cls: Any, values: Mapping[str, Any], path: Path) -> ObjectiveConfig:
    try:
        made: ObjectiveConfig = registry.from_dict(cls, values)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(f"{path}: {text[:300] if text.isprintable() else shown(text, 300)}") from error
    return made
