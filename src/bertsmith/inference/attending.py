"""Which token attends to which, in every layer and head. L places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import ModelInput
from bertsmith.model_io.model import Model
from bertsmith.types import Batch


@dataclass(frozen=True)
class AttentionQuery:
    """The attention of one row in all layers and heads [layers, heads, L, L]."""

    name: ClassVar[str] = "attentions"
    one_per_batch: ClassVar[bool] = True  # it grows with the square of the length
    objective: ClassVar[str] = ""

    def forward(self, model: Model, batch: Batch, items: Sequence[ModelInput]) -> list[Any]:
        """See `Wish`."""
        encoding = model.encoder(batch, pool=False, return_attentions=True)
        return [torch.cat(encoding.attentions).float().cpu().numpy()]


@dataclass(frozen=True)
class Attention:
    """The attention of a model over one row, special tokens among its tokens."""

    tokens: tuple[str, ...]  # [L]
    offsets: NDArray[np.int32]  # [L, 2] into the text that `texts` names; (0, 0) for special tokens
    sequence_ids: NDArray[np.int8]  # [L] 0 first text, 1 second text, -1 special token
    weights: NDArray[np.float32]  # [layers, heads, L, L] from each place (third) to each (fourth); rows sum to 1
    truncated: bool  # the text was longer than the model takes, and only its begin was read

    def select(self, layer: int | None = None, head: int | None = None) -> NDArray[np.float32]:
        """The weights [L, L] of one layer and head, counted from 1; the mean over those that are not chosen."""
        found = self.weights
        for axis, (name, number) in enumerate({"layer": layer, "head": head}.items()):
            count = found.shape[axis]
            if number is not None and not 1 <= number <= count:
                raise BertsmithError(f"{name} {number} is not there: 1 to {count}")
            found = found if number is None else found.take([number - 1], axis=axis)
        mean: NDArray[np.float32] = found.mean((0, 1))
        return mean


def attention_facts(found: Attention, layer: int | None, head: int | None) -> dict[str, Any]:
    """Plain JSON: the weights of the layer and head, or their mean where none is chosen."""
    return {
        "tokens": list(found.tokens),
        "offsets": found.offsets.tolist(),
        "layer": layer,
        "head": head,
        "weights": found.select(layer, head).tolist(),
        "cut": found.truncated,
    }
