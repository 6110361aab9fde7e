"""A recurrent network between encoder and head (P-BERT §5.1 and §5.3): its settings, and how it reads.

T flat places, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.objectives.texts import Texts
from bertsmith.types import Batch

Between = Literal["none", "bilstm"]


@dataclass(frozen=True, kw_only=True)
class BetweenSettings:
    """What heads say that may have such a network before them."""

    between: Between = "none"  # what stands between encoder and head
    between_layers: int = 2  # of the bilstm
    between_width: int = 768  # of the bilstm, in each direction
    between_dropout: float = 0.0  # on what each layer of the bilstm reads

    def __post_init__(self) -> None:
        if self.between not in ("none", "bilstm"):
            raise ConfigError(f"between={self.between} must be one of none, bilstm")
        if self.between_layers < 1 or self.between_width < 1:
            sizes = f"between_layers={self.between_layers} and between_width={self.between_width}"
            raise ConfigError(f"{sizes} must be at least 1")
        check_dropout(self.between_dropout, "between_dropout")

    def build_between(self, width: int) -> BiLSTM | None:
        """The network over vectors of that width; None where nothing stands between."""
        if self.between == "none":
            return None
        return BiLSTM(width, self.between_width, layers=self.between_layers, dropout=self.between_dropout)


def read_between(between: BiLSTM, x_TW: Tensor, batch: Batch) -> Tensor:
    """What it makes of every place [T, W], each text for itself."""
    texts = Texts.of(batch)
    return texts.flat(between(x_TW[texts.places], texts.lengths()), x_TW.shape[0])


def check_dropout(dropout: float, name: str = "dropout") -> None:
    """Raises a ConfigError where it is no share."""
    if not 0 <= dropout < 1:
        raise ConfigError(f"{name}={dropout} must be at least 0 and less than 1")
