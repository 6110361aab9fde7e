"""A recurrent network between encoder and head (P-BERT §5.1 and §5.3): its settings checked, and the network itself.

T flat places, W width.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.objectives.texts import Texts
from bertsmith.types import Batch

Between = Literal["none", "bilstm"]


def check_between(between: Between, *, layers: int, width: int) -> None:
    """Raises a ConfigError where there is no such network."""
    if between not in ("none", "bilstm"):
        raise ConfigError(f"between={between} must be one of none, bilstm")
    if layers < 1 or width < 1:
        raise ConfigError(f"between_layers={layers} and between_width={width} must be at least 1")


def build_between(between: Between, width: int, *, layers: int, hidden: int) -> BiLSTM | None:
    """The network over vectors of that width; None where nothing stands between."""
    return BiLSTM(width, hidden, layers=layers) if between == "bilstm" else None


def read_between(between: BiLSTM, x_TW: Tensor, batch: Batch) -> Tensor:
    """What it makes of every place [T, W], each text for itself."""
    texts = Texts.of(batch)
    return texts.flat(between(x_TW[texts.places], texts.lengths()), x_TW.shape[0])
