"""What a model says to everything a task asks: logits by question, predictions by example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.model_io.model import Model
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.objectives.objective import SelectedRows, objective_class
from bertsmith.tasks.task import Example, Features, Prediction, Task, truncated_examples
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.finetuning.batches import batches_in_order

PLACES = {"cuda": 65_536}  # of one forward; elsewhere FEW_PLACES
FEW_PLACES = 4096


@dataclass(frozen=True)
class TaskPredictions:
    """Examples, and what a model said of them."""

    examples: list[Example]
    predictions: list[Prediction]
    cut: int  # examples of which not everything could be read


def predict(
    model: Model, task: Task, examples: Sequence[Example], tokenizer: Tokenizer, *, length: int, half: bool = False
) -> TaskPredictions:
    """A prediction for each example, by a model on its own device; `half`: in bfloat16."""
    asked = task.rows(examples, tokenizer, max_length=length)
    found = answers(model, asked, task.objective, padding_id=tokenizer.padding_id, length=length, half=half)
    return TaskPredictions(list(examples), task.decode(examples, asked, found), len(truncated_examples(asked)))


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


def apart(logits: Tensor, asked: Sequence[SelectedRows], objective: str) -> list[NDArray[np.float32]]:
    """The logits of a batch, question by question."""
    return objective_class(objective).split_logits(logits.float().cpu().numpy(), asked)
