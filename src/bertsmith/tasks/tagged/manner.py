"""The settings that every tagging task has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertsmith.errors import ConfigError
from bertsmith.tasks.tagged.schemes import Given


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How words are put to a model."""

    # document: a row holds as many sentences of a document as fit (BERT, section 5.3)
    context: Literal["sentence", "document"] = "sentence"
    overlap: int = 128  # tokens that neighbouring windows share where a text is longer than a row
    scheme: Given = "detect"  # how the files spell entities

    def __post_init__(self) -> None:
        if self.overlap < 0:
            raise ConfigError(f"overlap={self.overlap} must be 0 or more tokens")
