"""The heads of a BERT folder in config.json, in and out: which there are, the names of their classes, their dropout.

A head that transformers has no class for (it reads other layers, or the mean of a text) is written in our own words,
and the folder's model type is ours: transformers then refuses the folder instead of answering something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from bertsmith import config as registry
from bertsmith.errors import ConfigError
from bertsmith.model import Model
from bertsmith.objectives import choose, classify, regress, tag
from bertsmith.objectives.label_names import numbered
from bertsmith.objectives.objective import FOLDER, Settings
from bertsmith.weights.foreign_files import shown
from bertsmith.weights.huggingface import ARCHITECTURES, OWN, share_of

CLASSIFIER = "classifier.weight"
OBJECTIVES = "objectives"  # under our key in config.json
USUAL = {"readout": "first", "layers": "top", "between": "none"}  # what transformers' heads read


def name_of(settings: Settings) -> str:
    """The objective's name."""
    return type(settings).__module__.rpartition(".")[2]


def is_own(model: Model) -> bool:
    """Whether transformers has no class for the heads of this model."""
    found = [getattr(objective, "config", None) for objective in model.objectives.values()]
    return any(getattr(settings, key, usual) != usual for settings in found for key, usual in USUAL.items())


def head_contents(model: Model) -> dict[str, Any]:
    """What config.json says of the heads; empty for those of pre-training."""
    found: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, objective in model.objectives.items():
        settings = getattr(objective, "config", None)
        if isinstance(settings, classify.Config | regress.Config | tag.Config | choose.Config):
            found["classifier_dropout"] = settings.dropout
        if isinstance(settings, classify.Config | tag.Config):
            found |= _label_table(settings.labels)
        if isinstance(settings, regress.Config):
            found |= _label_table(numbered(1)) | {"problem_type": "regression"}
        if isinstance(settings, classify.Config):
            found["problem_type"] = "single_label_classification"
        own[name] = registry.to_dict(settings) if settings is not None else {}
    return found | ({"model_type": OWN, OWN: {"encoder": "bert", OBJECTIVES: own}} if is_own(model) else {})


def _label_table(labels: tuple[str, ...]) -> dict[str, Any]:
    return {
        "num_labels": len(labels),
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def heads_of(config: Mapping[str, Any], path: Path, *, architectures: Iterable[str]) -> set[str]:
    """The objectives whose heads a config.json promises."""
    if config.get("model_type") == OWN:
        return set(_own_objectives(config, path))
    promised = {head for name in architectures for head in ARCHITECTURES.get(name, ())}
    if "classify" in promised and _problem(config, path) == "regression":
        promised = promised - {"classify"} | {"regress"}
    return promised


def _problem(config: Mapping[str, Any], path: Path) -> str:
    """What transformers' head for texts was trained for, as transformers finds it out."""
    known = ("regression", "single_label_classification")
    said = config.get("problem_type")
    if said is None:
        labels = config.get("id2label")
        count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
        said = known[0] if count == 1 else known[1]
    if said not in known:
        raise ConfigError(
            f"{path}: problem_type={shown(said)}; bertsmith reads {' and '.join(known)}; objectives=() opens the rest"
        )
    return cast(str, said)


def read_head(name: str, config: Mapping[str, Any], path: Path, *, shapes: Mapping[str, tuple[int, ...]]) -> Settings:
    """The settings of a head that a folder has, as far as it says them; `shapes` are the weights' by today's names."""
    if config.get("model_type") == OWN:
        return _read_own(name, config, path, shapes=shapes)
    module = registry.find(FOLDER, name)
    known: dict[str, Any] = {}
    if name in ("classify", "regress", "tag", "choose"):
        usual = share_of(config, path, "hidden_dropout_prob", 0.1)
        said = config.get("classifier_dropout")
        known["dropout"] = usual if said is None else share_of(config, path, "classifier_dropout", usual)
    if name in ("classify", "tag"):
        known["labels"] = _labels(config, path, count=(shapes.get(CLASSIFIER) or (0,))[0])
    return _built(module.Config, known, path)


def _labels(config: Mapping[str, Any], path: Path, *, count: int) -> tuple[str, ...]:
    """The names of as many classes as the weights have."""
    table = config.get("id2label")
    if table is None:
        said = config.get("num_labels", count)
        if said != count:
            raise ConfigError(f"{path}: num_labels={shown(said)}, but the weights have {count} classes")
        return numbered(count)
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise ConfigError(f"{path}: id2label must give a name to every number of a class")
    if len(table) != count:
        raise ConfigError(f"{path}: id2label names {len(table)} classes, but the weights have {count}")
    missing = [number for number in range(count) if str(number) not in table]
    if missing:
        raise ConfigError(f"{path}: id2label has no name for class {missing[0]}")
    return tuple(table[str(number)] for number in range(count))


def _own_objectives(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    ours = config.get(OWN)
    found = ours.get(OBJECTIVES) if isinstance(ours, dict) else None
    if not isinstance(found, dict) or not found or not all(isinstance(item, dict) for item in found.values()):
        raise ConfigError(f"{path}: model_type={OWN!r}, but {OWN}.{OBJECTIVES} does not say which heads there are")
    unknown = [name for name in found if name not in registry.names(FOLDER)]
    if unknown:
        raise ConfigError(f"{path}: {OWN}.{OBJECTIVES} has {shown(unknown[0])}, which is no objective of this version")
    return found


def _read_own(name: str, config: Mapping[str, Any], path: Path, *, shapes: Mapping[str, tuple[int, ...]]) -> Settings:
    found = _own_objectives(config, path)
    if name not in found:
        raise ConfigError(f"{path} has no head {name}: it has {', '.join(found)}")
    settings = _built(registry.find(FOLDER, name).Config, found[name], path)
    widest = max((size for shape in shapes.values() for size in shape), default=0)
    for key, most in (("between_layers", len(shapes)), ("between_width", widest)):
        if getattr(settings, "between", "none") != "none" and getattr(settings, key) > most:  # before it is built
            raise ConfigError(f"{path}: {key}={getattr(settings, key)}, but no weights of that size are there")
    return settings


def _built(cls: Any, values: Mapping[str, Any], path: Path) -> Settings:
    try:
        made: Settings = registry.from_dict(cls, values)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(f"{path}: {text[:300] if text.isprintable() else shown(text, 300)}") from error
    return made
