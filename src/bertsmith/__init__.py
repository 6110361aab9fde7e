"""bertsmith: from raw text to your own working BERT."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(folder: Any, *, device: str = "auto", precision: Any = "float32") -> Any:
    """Loads a model folder written by bertsmith or transformers: a `bertsmith.inference.predictor.Predictor`.

    `precision` is the data type of the weight matrices: float32, bfloat16 or int8.
    """
    from bertsmith.inference.predictor import Predictor

    return Predictor.open(folder, device=device, precision=precision)
