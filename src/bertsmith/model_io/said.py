"""One setting of a config.json that a stranger may have written: of the right type, within its limits, or an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import ConfigError
from bertsmith.model_io.foreign_files import shown

MOST = 1 << 31  # no size of a model is larger


@dataclass(frozen=True)
class Said:
    """What a config.json says, and where it lies."""

    settings: Mapping[str, Any]
    path: Path

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it stands there."""
        return self.settings.get(key, default)

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number."""
        value = self.get(key, default)
        if value is None:
            raise ConfigError(f"{self.path} does not say {key}: it is no config of such a model")
        if type(value) is not int or not least <= value < MOST:
            raise ConfigError(f"{self.path}: {key}={shown(value)} must be a whole number, {least} or more")
        return value

    def share(self, key: str, default: float) -> float:
        """A number from 0 up to 1."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise ConfigError(f"{self.path}: {key}={shown(value)} must be a number, at least 0 and less than 1")
        return float(value)

    def text(self, key: str, default: str) -> str:
        """A name."""
        value = self.get(key, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self.path}: {key}={shown(value)} must be a name")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.path}: {key}={shown(value)} must be true or false")
        return value

    def usual(self, key: str, usual: Any) -> None:
        """Raises where a setting is there and is not the only one that is read here."""
        if self.get(key, usual) not in (usual, None):
            raise ConfigError(f"{self.path}: {key}={shown(self.get(key))}; bertsmith reads {shown(usual)} only")
