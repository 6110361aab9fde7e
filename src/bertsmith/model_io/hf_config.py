"""config.json of a model folder: whose it is, and what stands in it whatever the family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io import huggingface
from bertsmith.model_io.huggingface.family import Family
from bertsmith.model_io.untrusted_files import ConfigReader, shown

CONFIG = "config.json"
OWN, OWN_ARCHITECTURE = "bertsmith", "Bertsmith"  # of folders whose models transformers has not
USUAL = "bert"  # of configs that do not say it: those of 2018 and 2019


def check_family(config: Mapping[str, Any], path: Path) -> tuple[Family, tuple[str, ...]]:
    """The family of a config.json and the architectures that it names; a DataError where the family is none of ours."""
    said, named = ConfigReader(config, path), config.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ConfigError(f"{path}: architectures={shown(named)} must be a list of names")
    kind = _kind(config, named)
    family, own = huggingface.of_type(kind), config.get("model_type") == OWN
    if family is None or not (own or all(name.startswith(family.classes) for name in named)):
        also = f" ({', '.join(map(shown, named[:3]))})" if named else ""
        known = family.architectures if family else [huggingface.find(name).model_type for name in huggingface.names()]
        raise DataError(f"{path} is of a {shown(kind)} model{also}; bertsmith reads {', '.join(known)}")
    said.usual("add_cross_attention", False)
    said.usual("pruned_heads", {})
    if config.get("quantization_config"):
        raise ConfigError(f"{path}: quantization_config: quantised weights are not read")
    return family, tuple(named)


def _kind(config: Mapping[str, Any], named: list[str]) -> Any:
    """The family's model type, as a config says it; our own folders say the encoder's name."""
    if config.get("model_type") == OWN:
        ours = config.get(OWN)
        name = ours.get("encoder", USUAL) if isinstance(ours, dict) else USUAL
        return huggingface.find(name).model_type if name in huggingface.names() else name
    if "model_type" in config:
        return config["model_type"]
    found = map(huggingface.find, huggingface.names())
    begun = [family.model_type for family in found if named and named[0].startswith(family.classes)]
    return begun[0] if begun else USUAL


def config_contents(family: Family, config: TransformerConfig, *, architecture: str, stored: str) -> dict[str, Any]:
    """config.json without the heads; `stored` is the type of the weights, such as float32."""
    # 4.55 and older called it torch_dtype and do without it
    kind = {"architectures": [architecture], "model_type": family.model_type, "dtype": stored}
    return {**kind, **family.contents(config)}
