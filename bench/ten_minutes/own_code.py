"""Fine-tuning with transformers' own classes in a plain loop, as its example scripts do: padded batches, AdamW, linear.

Rows are those of our tasks, so that everybody reads the same; scores are our scorers'. B questions, L places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from bertsmith.errors import BertsmithError, DataError
from bertsmith.nn.attention import NOT_CUDNN  # whose gradients are not always numbers
from bertsmith.tasks.task import Features
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.finetune import TaskData
from bertsmith.training.recipe import FinetuneConfig

CLASSES = {
    "classify": "AutoModelForSequenceClassification",
    "regress": "AutoModelForSequenceClassification",
    "span": "AutoModelForQuestionAnswering",
    "tag": "AutoModelForTokenClassification",
    "choose": "AutoModelForMultipleChoice",
}
IGNORED = -100
AT_ONCE = 128  # questions that are answered together
MULTIPLE = 8  # places of a batch

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Tuner:
    """One task with one model folder."""

    folder: Path
    tuning: FinetuneConfig
    ready: TaskData
    tokenizer: Tokenizer
    device: torch.device
    fresh: bool = False

    def run(self, rate: float, seed: int) -> dict[str, float]:
        """The scores on dev of the best epoch, as ours are chosen."""
        torch.manual_seed(seed)
        model = self.model().to(self.device)
        fused = self.device.type == "cuda"
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, fused=fused)  # as its scripts
        train, tuning = self.ready.train, self.tuning
        steps, each = tuning.steps(len(train)), tuning.eval_every(len(train))
        plan = tuning.plan(len(train))
        found: list[dict[str, float]] = []
        for step in range(steps):
            model.train()
            loss = self._loss(model, [train[number] for number in _chosen(len(train), step, tuning.batch_size, seed)])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = rate * plan.factor(plan.progress(step, 0.0))
            optimizer.step()
            optimizer.zero_grad()
            if (each and (step + 1) % each == 0) or step + 1 == steps:
                found.append(self.score(model))
        return max(found, key=lambda scores: scores[self.ready.task.main_metric])

    def model(self) -> Any:
        """The class for the task, over the folder's weights or new ones."""
        import transformers

        transformers.logging.disable_progress_bar()
        transformers.logging.set_verbosity_error()  # it tells at length that heads are new
        task = self.ready.task
        kind, labels = getattr(transformers, CLASSES[task.objective]), task.head_config().get("labels")
        shape = transformers.AutoConfig.from_pretrained(self.folder)
        if task.objective in ("classify", "tag"):
            shape.num_labels = len(labels)
        if task.objective == "regress":
            shape.num_labels, shape.problem_type = 1, "regression"
        return kind.from_config(shape) if self.fresh else kind.from_pretrained(self.folder, config=shape)

    @torch.no_grad()
    def score(self, model: Any) -> dict[str, float]:
        """On the dev examples."""
        task, examples, asked = self.ready.task, self.ready.dev, self._dev
        model.eval()
        answers: list[NDArray[np.float32]] = []
        for first in range(0, len(asked), AT_ONCE):
            some = asked[first : first + AT_ONCE]
            with self._autocast():
                output = model(**self._inputs(some))
            answers += _apart(output, some, task.objective)
        if not all(np.isfinite(answer).all() for answer in answers):
            raise BertsmithError(f"{self.folder} on {self.ready.task.name}: what it answers is no number")
        return task.score(examples, task.decode(examples, asked, answers))

    @cached_property
    def _dev(self) -> list[Features]:
        return self.ready.task.rows(self.ready.dev, self.tokenizer, max_length=self.ready.max_length)

    def _loss(self, model: Any, asked: Sequence[Features]) -> Tensor:
        inputs = self._inputs(asked)
        labels = _LABELS[self.ready.task.objective](asked, inputs["input_ids"].shape[-1])
        with sdpa_kernel(NOT_CUDNN), self._autocast():
            loss: Tensor = model(**inputs, **{name: value.to(self.device) for name, value in labels.items()}).loss
        return loss

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def _inputs(self, asked: Sequence[Features]) -> Inputs:
        found = padded(asked, self.tokenizer.padding_id)
        if self.ready.task.objective == "choose":
            choices = len(asked[0].rows)
            if any(len(one.rows) != choices for one in asked):
                raise DataError("transformers' multiple choice needs the same number of choices in every question")
            found = {name: value.unflatten(0, (len(asked), choices)) for name, value in found.items()}
        return {name: value.to(self.device) for name, value in found.items()}


def padded(asked: Sequence[Features], padding_id: int) -> Inputs:
    """One row to a line, filled up to the longest of them."""
    rows = [row for one in asked for row in one.rows]
    length = math.ceil(max(map(len, rows)) / MULTIPLE) * MULTIPLE
    ids = np.full((len(rows), length), padding_id, np.int64)
    kinds, mask = np.zeros_like(ids), np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)], kinds[number, : len(row)], mask[number, : len(row)] = row.ids, row.segment_ids, 1
    found = {"input_ids": ids, "token_type_ids": kinds, "attention_mask": mask}
    return {name: torch.from_numpy(value) for name, value in found.items()}


def _chosen(count: int, step: int, rows: int, seed: int) -> list[int]:
    """The questions of a step: all of them in each epoch, in an order of its own."""
    found = []
    for place in range(step * rows, (step + 1) * rows):
        epoch, turn = divmod(place, count)
        found.append(int(_shuffled(count, seed, epoch)[turn]))
    return found


@lru_cache(maxsize=4)
def _shuffled(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


def _classes(asked: Sequence[Features], length: int) -> Inputs:
    return {"labels": torch.tensor([one.target for one in asked])}


def _numbers(asked: Sequence[Features], length: int) -> Inputs:
    return {"labels": torch.tensor([float(one.target) for one in asked])}


def _ends(asked: Sequence[Features], length: int) -> Inputs:
    first, last = zip(*(one.target for one in asked), strict=True)
    return {"start_positions": torch.tensor(first), "end_positions": torch.tensor(last)}


def _tags(asked: Sequence[Features], length: int) -> Inputs:
    labels = np.full((len(asked), length), IGNORED, np.int64)
    for number, one in enumerate(asked):
        labels[number, one.indices] = one.target
    return {"labels": torch.from_numpy(labels)}


_LABELS: dict[str, Callable[[Sequence[Features], int], Inputs]] = {
    "classify": _classes,
    "regress": _numbers,
    "span": _ends,
    "tag": _tags,
    "choose": _classes,
}


def _apart(output: Any, asked: Sequence[Features], objective: str) -> list[NDArray[np.float32]]:
    """What was said of each question, in the shapes that `Task.read` takes."""
    if objective == "span":
        ends = torch.stack((output.start_logits, output.end_logits), -1).float().cpu().numpy()
        return [ends[number, : len(one.rows[0])] for number, one in enumerate(asked)]
    logits = output.logits.float().cpu().numpy()
    if objective == "tag":
        return [logits[number, one.indices] for number, one in enumerate(asked)]
    return list(logits)
