"""Native model folders: any encoder with any objectives, under the weight names of `Model.state_dict()`.

config.json holds `model_type`, the encoder's settings and the settings of each objective, as a recipe writes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import Tensor

from bertsmith import config as registry
from bertsmith.encoders import encoder as encoders
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.model_io.model import Model
from bertsmith.model_io.untrusted_files import ConfigReader, shown
from bertsmith.objectives.objective import FOLDER, ObjectiveConfig, kind_of

MODEL_TYPE, ARCHITECTURE = "bertsmith", "Bertsmith"
ENCODER, OBJECTIVES = "encoder", "objectives"  # keys in config.json
MAX_LAYERS = 1024  # layers may share weights, so the weights do not show how many there are
UNKNOWN_ROWS = 1 << 31  # of a token table that the encoder does not have


class NativeFormat:
    """Reads and writes native folders; `huggingface.format.TransformersFormat` has the same methods."""

    prefix, pooler_prefix = "encoder.", "encoder.pooler."
    copies: tuple[tuple[str, str], ...] = ()
    architectures: Collection[str] = (ARCHITECTURE,)
    adds_special_tokens, model_input_names = False, ()

    def head_prefixes(self, heads: Iterable[str] | None = None) -> tuple[str, ...]:
        """The prefixes of the weights of these objectives, or of all."""
        return ("objectives.",) if heads is None else tuple(f"objectives.{head}." for head in heads)

    def current_names(self, names: Iterable[str], folder: object) -> dict[str, str]:
        """Weight names are the model's own."""
        return {name: name for name in names}

    def file_names(self, name: str, *, heads: Collection[str] = ()) -> tuple[str, ...]:
        """The name itself."""
        return (name,)

    def read_encoder(self, reader: ConfigReader, shapes: Mapping[str, tuple[int, ...]]) -> Any:
        """The encoder's settings; sizes are compared with the weights once the encoder is built without memory."""
        values = _table(reader, ENCODER)
        return _build(encoders.FOLDER, values.get("kind"), values, reader)

    def vocab_size(self, reader: ConfigReader, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Rows of the encoder's token table."""
        return int(getattr(self.read_encoder(reader, shapes), "vocab_size", UNKNOWN_ROWS))

    def heads(self, reader: ConfigReader, architectures: Collection[str], shapes: object) -> tuple[list[str], str]:
        """The objectives of config.json, and no note."""
        return list(_table(reader, OBJECTIVES)), ""

    def stored_constants(self, config: Any) -> dict[str, Tensor]:
        """None."""
        return {}

    def read_head(self, name: str, reader: ConfigReader, shapes: Mapping[str, tuple[int, ...]]) -> ObjectiveConfig:
        """The settings of an objective."""
        objectives = _table(reader, OBJECTIVES)
        if name not in objectives:
            raise ConfigError(f"{reader.path} has no objective {name}; it has {', '.join(objectives) or 'none'}")
        values = objectives[name]
        if not isinstance(values, Mapping):
            raise ConfigError(f"{reader.path}: {OBJECTIVES}.{name}={shown(values)} must be a table of settings")
        config: ObjectiveConfig = _build(FOLDER, kind_of(name), values, reader)
        return config

    def with_pooler(self, config: Any, *, readers: Collection[str], stored: bool) -> Any:
        """The encoder's settings with the pooler that these objectives read, if the encoder has that setting."""
        return dataclasses.replace(config, pooler=bool(readers) or stored) if hasattr(config, "pooler") else config

    def from_file(self, name: str, value: Tensor, config: Any) -> Tensor:
        """The weight as it is."""
        return value

    def file_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape as it is."""
        return shape

    def config_values(self, model: Model, dtype: str) -> dict[str, Any]:
        """The settings of encoder and objectives for config.json."""
        return {
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "dtype": dtype,
            ENCODER: registry.to_dict(encoder_config(model)),
            OBJECTIVES: {name: _settings(head) for name, head in model.objectives.items()},
        }

    def tensors(self, model: Model) -> dict[str, Tensor]:
        """The weights by name."""
        return dict(model.state_dict())


NATIVE = NativeFormat()


def encoder_config(model: Model) -> Any:
    """The `Config` that built the encoder; an error where the encoder does not keep it."""
    config = getattr(model.encoder, "config", None)
    kind = type(config).__module__.rpartition(".")[2]
    if config is None or kind not in registry.kinds(encoders.FOLDER):
        name = type(model.encoder).__name__
        raise BertsmithError(f"{name} cannot be saved: it must keep the Config that built it as `self.config`")
    return config


def _settings(head: Any) -> dict[str, Any]:
    config = getattr(head, "config", None)
    return {"kind": kind_of(head.name)} if config is None else registry.to_dict(config)


def _table(reader: ConfigReader, key: str) -> dict[str, Any]:
    table = reader.get(key)
    if not isinstance(table, dict):
        raise ConfigError(f"{reader.path}: model_type={MODEL_TYPE!r} needs a table {key!r}, not {shown(table)}")
    return table


def _build(folder: str, kind: Any, values: Mapping[str, Any], reader: ConfigReader) -> Any:
    if not isinstance(kind, str) or kind not in registry.kinds(folder):
        what = folder.rpartition(".")[2]
        raise ConfigError(f"{reader.path}: {shown(kind)} is not among the {what} of this version")
    config = reader.build(registry.find_kind(folder, kind).Config, values)
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if "layers" in item.name and isinstance(value, int) and value > MAX_LAYERS:
            raise ConfigError(f"{reader.path}: {item.name}={value} is more than {MAX_LAYERS:,}")
    return config
