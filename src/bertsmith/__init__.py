"""bertsmith: from raw text to your own working BERT."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(
    folder: Any,
    *,
    device: str = "auto",
    precision: Any = "float32",
    head: str | None = None,
    ignore_heads: bool = False,
    tokenizer: Any = None,
) -> Any:
    """Loads a model folder written by bertsmith or transformers: a `bertsmith.inference.predictor.Predictor`.

    `precision` is the data type of the weight matrices: float32, bfloat16 or int8. `head` is the only head to load,
    such as `classify`, for folders whose class bertsmith does not know; `ignore_heads` loads the encoder alone.
    `tokenizer` is the folder of the tokenizer, where it is another.
    """
    from bertsmith.inference.predictor import Predictor

    opening = {"head": head, "ignore_heads": ignore_heads, "tokenizer": tokenizer}
    return Predictor.open(folder, device=device, precision=precision, **opening)
