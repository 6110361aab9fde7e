"""What a model says to everything a task asks: logits by question, predictions by example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.model_io.model import Model
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.tasks.task import Example, Features, Prediction, Task, truncated_examples
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.finetuning.batches import batches_in_order
from bertsmith.types import Row

PLACES = {"cuda": 65_536}  # of one forward; elsewhere FEW_PLACES
FEW_PLACES = 4096


@dataclass(frozen=True)
class Answered:
    """Examples, and what a model said of them."""

    examples: list[Example]
    predictions: list[Prediction]
    cut: int  # examples of which not everything could be read


def predict(
    model: Model, task: Task, examples: Sequence[Example], tokenizer: Tokenizer, *, length: int, half: bool = False
) -> Answered:
    """A prediction for each example, by a model on its own device; `half`: in bfloat16."""
    asked = task.rows(examples, tokenizer, max_length=length)
    found = answers(model, asked, task.objective, padding_id=tokenizer.padding_id, length=length, half=half)
    return Answered(list(examples), task.decode(examples, asked, found), len(truncated_examples(asked)))


@torch.no_grad()
def answers(
    model: Model, asked: Sequence[Features], objective: str, *, padding_id: int, length: int, half: bool = False
) -> list[NDArray[np.float32]]:
    """The logits of each thing asked, in the shapes that `Task.read` takes."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    places = PLACES.get(device.type, FEW_PLACES)
    if any(isinstance(module, BiLSTM) for module in model.modules()):  # 768 wide, some 70 kB a place
        places = FEW_PLACES
    found: list[NDArray[np.float32] | None] = [None] * len(asked)
    for numbers, batch in batches_in_order(asked, objective, length=length, padding_id=padding_id, places=places):
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = model.predict(batch.to(device), objective)
        some = [asked[number] for number in numbers]
        for number, mine in zip(numbers, apart(logits, some, objective), strict=True):
            found[number] = mine
    model.train(was_training)
    return [one for one in found if one is not None]


class Question(Protocol):
    """What was asked, as far as its answer's shape depends on it; see `Features`."""

    @property
    def rows(self) -> tuple[Row, ...]: ...

    @property
    def indices(self) -> NDArray[np.int64] | None: ...


def apart(logits: Tensor, asked: Sequence[Question], objective: str) -> list[NDArray[np.float32]]:
    """The logits of a batch, question by question."""
    values: NDArray[np.float32] = logits.float().cpu().numpy()
    if objective == "span":
        return [values[number, : len(one.rows[0])] for number, one in enumerate(asked)]
    if objective == "tag":
        sizes = [0 if one.indices is None else len(one.indices) for one in asked]
    elif objective == "choose":
        sizes = [len(one.rows) for one in asked]
    else:
        return list(values[: len(asked)])
    parts = np.split(values[: sum(sizes)], np.cumsum(sizes)[:-1])
    return [part[:, 0] for part in parts] if objective == "choose" else parts
