"""transformers folders: config.json, the weights under transformers' names, and the settings of the heads.

A `Family` knows the names and settings of one model family; this file reads and writes folders with it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from torch import Tensor

from bertsmith import config as registry
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io import huggingface
from bertsmith.model_io.huggingface.family import TASK_HEADS, Family, Shapes
from bertsmith.model_io.model import Model
from bertsmith.model_io.untrusted_files import ConfigReader, shown
from bertsmith.objectives.heads import default_names
from bertsmith.objectives.objective import FOLDER, Objective, ObjectiveConfig, objective_class

TAG = re.compile(r"O|[BIESLU]-.+")  # label names of tagging
DEFAULT_TYPE = "bert"  # of configs without model_type: those of 2018 and 2019


class TransformersFormat:
    """Reads and writes the folders of one family; `native.NativeFormat` has the same methods."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.prefix, self.pooler_prefix = family.prefix, f"{family.pooler(())}."
        self.copies, self.architectures = family.copies, family.architectures
        self.file_names, self.read_encoder = family.transformers_names, family.read_encoder
        self.with_pooler, self.current_names = family.with_pooler, family.current_names
        self.stored_constants, self.adds_special_tokens = family.stored_constants, family.adds_special_tokens
        self.model_input_names = family.model_input_names

    def head_prefixes(self, heads: Iterable[str] | None = None) -> tuple[str, ...]:
        """The prefixes of the weights of these heads, or of all."""
        known = self.family.heads
        return self.family.head_prefixes([head for head in (known if heads is None else heads) if head in known])

    def vocab_size(self, reader: ConfigReader, shapes: Shapes) -> int:
        """Rows of the token table."""
        (table,) = self.file_names("encoder.embeddings.tokens.weight")
        shape = shapes.get(table, ())
        if len(shape) != 2:
            raise DataError(f"{reader.path.parent}: the weights lack {table}, or it is not a table")
        return shape[0]

    def heads(self, reader: ConfigReader, architectures: Sequence[str], shapes: Shapes) -> tuple[list[str], str]:
        """The objectives whose heads the class promises or whose weights are there, and a note where these were chosen.

        A class that is not known here may compute its task heads from modules of its own: then they are not read.
        """
        family = self.family
        found = family.stored_heads(shapes, causal=reader.get("is_decoder") is True)
        promised = [head for name in architectures for head in family.architectures.get(name, ())]
        found |= {_by_problem_type(head, reader) for head in promised}
        note, task_weights = "", [name for name in shapes if name.startswith(self.head_prefixes(TASK_HEADS))]
        if task_weights and not any(name in family.architectures for name in architectures):
            others = self._other_modules(shapes, width=reader.count(family.key("hidden_size")))
            found -= {"span"} if others or shapes.get("qa_outputs.weight", ())[:1] != (2,) else set()
            chosen = "" if others else self._classifier(reader, shapes)
            found |= {chosen} if chosen else set()
            unread = sorted(name for name in task_weights if not name.startswith(self.head_prefixes(found)))
            read = [head for head in TASK_HEADS if head in found]
            note = " and ".join(f"{TASK_HEADS[head]}* is read as the head {head}" for head in read)
            if unread:
                reason = f"which {others[0]} may precede" if others else "whose kind it does not say"
                note = f"{unread[0]} is not read, {reason}"
            named = f"the class {shown(architectures[0])} is not known" if architectures else "no class is named"
            note = note and f"{reader.path}: {named}: {note}; --head NAME reads a head, --ignore-heads none"
        return [head for head in family.heads if head in found], note

    def _other_modules(self, shapes: Shapes, *, width: int) -> list[str]:
        """Weights beside encoder and known heads that are not of output layers: they may precede a head."""
        known = (self.prefix, *self.head_prefixes(), *(copy for copy, _ in self.copies))
        others = [name for name in shapes if not name.startswith(known)]
        outputs = [name.removesuffix(".weight") for name in others if shapes[name][1:] == (width,) != shapes[name][:1]]
        return sorted(name for name in others if name.rpartition(".")[0] not in outputs)

    def _classifier(self, reader: ConfigReader, shapes: Shapes) -> str:
        """The objective of `classifier` weights in a class that is not known; empty where it may be several."""
        if "classify" not in self.family.heads:
            return ""
        stored = {name for name in shapes if name.startswith("classifier.")}
        modules = ("objectives.classify.head", "encoder.pooler")
        text = [f"{module}.{kind}" for module in modules for kind in ("weight", "bias")]
        needed = [name for ours in text for name in self.file_names(ours, heads=["classify"])]
        labels, problem = reader.get("id2label"), reader.get("problem_type")
        names = list(map(str, labels.values())) if isinstance(labels, dict) else []
        if stored == {"classifier.weight", "classifier.bias"} and names and all(map(TAG.fullmatch, names)):
            return "tag"
        if not stored <= {*needed} <= {*shapes}:
            return ""
        count = shapes[needed[0]][0]
        fits = count == (len(names) or count) and (count > 1 or problem is not None)
        return _by_problem_type("classify", reader) if fits else ""

    def read_head(self, name: str, reader: ConfigReader, shapes: Shapes) -> ObjectiveConfig:
        """The settings of a head, as far as config.json has them."""
        if name not in self.family.heads:
            known = ", ".join(self.family.heads)
            raise ConfigError(f"{name} is not a head of {self.family.title} folders of transformers: {known}")
        module, kind = registry.find_kind(FOLDER, name), objective_class(name)
        fields = {item.name for item in dataclasses.fields(module.Config)}
        values: dict[str, Any] = self.family.read_head(name, reader)
        if "dropout" in fields:
            default = reader.share(self.family.key("hidden_dropout_prob"), 0.1)
            key = self.family.dropout_key(name)
            values["dropout"] = default if reader.get(key) is None else reader.share(key, default)
        if "pooling" in fields:
            values["pooling"] = self.family.pooling
        if "labels" in fields:
            (head,) = self.file_names(f"objectives.{name}.head.weight", heads=[name])
            values["labels"] = _labels(reader, count=(shapes.get(head) or (0,))[0])
        values |= {field: reader.get(key) for field, key in kind.config_keys.items() if reader.get(key) is not None}
        config: ObjectiveConfig = reader.build(module.Config, values)
        return config

    def from_file(self, name: str, value: Tensor, config: TransformerConfig) -> Tensor:
        """A weight of a file in our layout."""
        return self.family.convert(name, value, config.heads, to_file=False)

    def file_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in a file of a weight of this shape."""
        return shape[::-1] if self.family.is_transposed(name) else shape

    def config_values(self, model: Model, dtype: str) -> dict[str, Any]:
        """The values of config.json."""
        config = cast(TransformerConfig, model.encoder.config)
        values: dict[str, Any] = {
            "architectures": [self.family.architecture_of(tuple(model.objectives))],
            "model_type": self.family.model_type,
            "dtype": dtype,  # 4.55 and older called it torch_dtype and do without it
            **self.family.config_values(config),
        }
        for name, objective in model.objectives.items():
            settings: Any = getattr(objective, "config", None)
            kind = objective_class(name)
            if hasattr(settings, "dropout"):
                values[self.family.dropout_key(name)] = settings.dropout
            if labels := getattr(settings, "labels", kind.default_labels):
                values |= _label_table(labels)
            if kind.problem_type:
                values["problem_type"] = kind.problem_type
            optional = {key: getattr(settings, field) for field, key in kind.config_keys.items()}
            values |= {key: value for key, value in optional.items() if value is not None}
        return values

    def tensors(self, model: Model) -> dict[str, Tensor]:
        """The weights under transformers' names; views, except where the layout differs."""
        family, config = self.family, cast(TransformerConfig, model.encoder.config)
        tensors: dict[str, Tensor] = family.stored_constants(config)
        objectives = tuple(model.objectives)
        for ours, value in model.state_dict().items():
            names = family.transformers_names(ours, heads=objectives)
            for name, part in zip(names, value.chunk(len(names)) if names else (), strict=True):
                tensors[name] = family.convert(name, part, config.heads, to_file=True)
        return tensors if objectives else {name.removeprefix(family.prefix): one for name, one in tensors.items()}


def format_of(model: Model) -> TransformersFormat | None:
    """The format of a model that transformers has a class for; None where it has none for the encoder or the heads."""
    config = getattr(model.encoder, "config", None)
    family = huggingface.families().get(type(config).__module__.rpartition(".")[2])
    if family is None or not family.has_class(cast(TransformerConfig, config)):
        return None
    heads = [cast(Objective, head) for head in model.objectives.values()]
    known = family.architecture_of(tuple(model.objectives)) and all(
        head.has_transformers_head(family.pooling) for head in heads
    )
    return TransformersFormat(family) if known else None


def format_of_config(reader: ConfigReader) -> TransformersFormat:
    """The format of a config.json; a DataError where the family or an architecture is not known here."""
    named, path = architectures_of(reader), reader.path
    families = huggingface.families().values()
    first = next((family for family in families if named and named[0].startswith(family.classes)), None)
    kind = reader.get("model_type", first.model_type if first else DEFAULT_TYPE)
    family = next((family for family in families if family.model_type == kind), None)
    others = tuple(other.classes for other in families if other is not family)
    if family is None or any(name.startswith(others) and not name.startswith(family.classes) for name in named):
        also = f" ({', '.join(map(shown, named[:3]))})" if named else ""
        known = family.architectures if family else [other.model_type for other in families]
        raise DataError(f"{path} is of a {shown(kind)} model{also}; bertsmith reads {', '.join(known)}")
    reader.require("add_cross_attention", False)
    reader.require("pruned_heads", {})
    if reader.get("quantization_config"):
        raise ConfigError(f"{path}: quantization_config: quantised weights are not supported")
    return TransformersFormat(family)


def architectures_of(reader: ConfigReader) -> tuple[str, ...]:
    """The class names in a config.json."""
    named = reader.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ConfigError(f"{reader.path}: architectures={shown(named)} must be a list of names")
    return tuple(named)


def _by_problem_type(head: str, reader: ConfigReader) -> str:
    """The objective of a transformers head: one head serves classification and regression."""
    if not objective_class(head).problem_type:
        return head
    known = {
        kind.problem_type: name
        for name in registry.kinds(FOLDER)
        if (kind := objective_class(name)).problem_type and head in (name, kind.transformers_head)
    }
    problem = reader.get("problem_type")
    if problem is None:
        labels = reader.get("id2label")
        count = len(labels) if isinstance(labels, dict) else reader.get("num_labels", 2)
        problem = "regression" if count == 1 else objective_class(head).problem_type
    if problem not in known:
        raise ConfigError(
            f"{reader.path}: problem_type={shown(problem)}; bertsmith reads {' and '.join(sorted(known))}; "
            "--ignore-heads opens the encoder alone"
        )
    return known[problem]


def _label_table(labels: tuple[str, ...]) -> dict[str, Any]:
    return {
        "num_labels": len(labels),
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def _labels(reader: ConfigReader, *, count: int) -> tuple[str, ...]:
    """The label names, as many as the weights have classes."""
    table, path = reader.get("id2label"), reader.path
    if table is None:
        claimed = reader.get("num_labels", count)
        if claimed != count:
            raise ConfigError(f"{path}: num_labels={shown(claimed)}, but the weights have {count} classes")
        return default_names(count)
    if not isinstance(table, dict) or not all(isinstance(name, str | int | float) for name in table.values()):
        raise ConfigError(f"{path}: id2label must map every class index to a name")
    if len(table) != count:
        raise ConfigError(f"{path}: id2label names {len(table)} classes, but the weights have {count}")
    if missing := [number for number in range(count) if str(number) not in table]:
        raise ConfigError(f"{path}: id2label has no name for class {missing[0]}")
    return tuple(str(table[str(number)]) for number in range(count))
