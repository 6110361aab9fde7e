"""What every answer needs of a predictor: a head that can give it, and logits for rows of any length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import Backend, ModelInput
from bertsmith.model_io.model import Model
from bertsmith.tasks.task import Features
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.finetuning.answering import apart
from bertsmith.types import Batch


class TextModel(Protocol):
    """What answering needs of a predictor."""

    model: Model
    tokenizer: Tokenizer
    backend: Backend
    max_length: int


@dataclass(frozen=True)
class LogitsQuery:
    """The logits of one objective, in the shapes that `Task.read` takes; of each text where there are no places."""

    objective: str
    name: ClassVar[str] = "answers"
    one_per_batch: ClassVar[bool] = False

    def forward(self, model: Model, batch: Batch, items: Sequence[ModelInput]) -> list[Any]:
        """See `Wish`."""
        return list(apart(model.predict(batch, self.objective), items, self.objective))


def require_head(model: Model, *names: str) -> str:
    """The first of these heads that the model has; an error where it has none of them."""
    for name in names:
        if name in model.objectives:
            return name
    has = ", ".join(model.objectives) or "none"
    raise BertsmithError(
        f"this model has no {' or '.join(names)} head (it has: {has}): open one that was trained for it"
    )


def predict_logits(asker: TextModel, asked: Sequence[Features], objective: str) -> list[NDArray[np.float32]]:
    """The logits of everything asked."""
    return asker.backend.run(LogitsQuery(objective), [ModelInput(one.rows, one.indices) for one in asked])


def check_top_k(top_k: int) -> None:
    """Raises where nothing is asked for."""
    if top_k < 1:
        raise BertsmithError(f"top_k={top_k}: at least one answer must be asked for")
