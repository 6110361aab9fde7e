"""Fine-tuning with transformers' classes in a plain loop, as in its example scripts: padded, AdamW, linear decay.

Features and metrics are bertsmith's, so that all contestants see the same input. B examples, L positions.
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
from bertsmith.nn.attention import NOT_CUDNN  # cuDNN's gradients are not always finite
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
EVAL_BATCH_SIZE = 128  # features per evaluation batch
MULTIPLE = 8  # lengths of batches are multiples

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Finetuner:
    """Fine-tunes one model folder on one task."""

    folder: Path
    tuning: FinetuneConfig
    ready: TaskData
    tokenizer: Tokenizer
    device: torch.device
    fresh: bool = False

    def run(self, rate: float, seed: int) -> dict[str, float]:
        """Dev scores of the best epoch, selected as in bertsmith."""
        torch.manual_seed(seed)
        model = self.model().to(self.device)
        fused = self.device.type == "cuda"
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, fused=fused)  # as in its scripts
        train, tuning = self.ready.train, self.tuning
        steps, each = tuning.steps(len(train)), tuning.eval_every(len(train))
        plan = tuning.plan(len(train))
        results: list[dict[str, float]] = []
        for step in range(steps):
            model.train()
            loss = self._loss(
                model, [train[number] for number in _batch_indices(len(train), step, tuning.batch_size, seed)]
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = rate * plan.factor(plan.progress(step, 0.0))
            optimizer.step()
            optimizer.zero_grad()
            if (each and (step + 1) % each == 0) or step + 1 == steps:
                results.append(self.score(model))
        return max(results, key=lambda scores: scores[self.ready.task.main_metric])

    def model(self) -> Any:
        """The class for the task, with the folder's weights or random ones."""
        import transformers

        transformers.logging.disable_progress_bar()
        transformers.logging.set_verbosity_error()  # no warnings about new heads
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
        task, examples, features = self.ready.task, self.ready.dev, self._dev
        model.eval()
        outputs: list[NDArray[np.float32]] = []
        for first in range(0, len(features), EVAL_BATCH_SIZE):
            batch = features[first : first + EVAL_BATCH_SIZE]
            with self._autocast():
                output = model(**self._inputs(batch))
            outputs += _per_example(output, batch, task.objective)
        if not all(np.isfinite(array).all() for array in outputs):
            raise BertsmithError(f"{self.folder} on {self.ready.task.name}: its outputs are not finite")
        return task.score(examples, task.decode(examples, features, outputs))

    @cached_property
    def _dev(self) -> list[Features]:
        return self.ready.task.rows(self.ready.dev, self.tokenizer, max_length=self.ready.max_length)

    def _loss(self, model: Any, features: Sequence[Features]) -> Tensor:
        inputs = self._inputs(features)
        labels = _LABELS[self.ready.task.objective](features, inputs["input_ids"].shape[-1])
        with sdpa_kernel(NOT_CUDNN), self._autocast():
            loss: Tensor = model(**inputs, **{name: value.to(self.device) for name, value in labels.items()}).loss
        return loss

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def _inputs(self, features: Sequence[Features]) -> Inputs:
        inputs = padded(features, self.tokenizer.padding_id)
        if self.ready.task.objective == "choose":
            choices = len(features[0].rows)
            if any(len(feature.rows) != choices for feature in features):
                raise DataError("transformers' multiple choice needs the same number of choices in every question")
            inputs = {name: value.unflatten(0, (len(features), choices)) for name, value in inputs.items()}
        return {name: value.to(self.device) for name, value in inputs.items()}


def padded(features: Sequence[Features], padding_id: int) -> Inputs:
    """Rows padded to the longest of them, rounded up to `MULTIPLE`."""
    rows = [row for feature in features for row in feature.rows]
    length = math.ceil(max(map(len, rows)) / MULTIPLE) * MULTIPLE
    ids = np.full((len(rows), length), padding_id, np.int64)
    kinds, mask = np.zeros_like(ids), np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)], kinds[number, : len(row)], mask[number, : len(row)] = row.ids, row.segment_ids, 1
    arrays = {"input_ids": ids, "token_type_ids": kinds, "attention_mask": mask}
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


def _batch_indices(count: int, step: int, rows: int, seed: int) -> list[int]:
    """Feature indices of a step: a new permutation in each epoch."""
    indices = []
    for position in range(step * rows, (step + 1) * rows):
        epoch, index = divmod(position, count)
        indices.append(int(_shuffled(count, seed, epoch)[index]))
    return indices


@lru_cache(maxsize=4)
def _shuffled(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


def _classes(features: Sequence[Features], length: int) -> Inputs:
    return {"labels": torch.tensor([feature.target for feature in features])}


def _numbers(features: Sequence[Features], length: int) -> Inputs:
    return {"labels": torch.tensor([float(feature.target) for feature in features])}


def _ends(features: Sequence[Features], length: int) -> Inputs:
    first, last = zip(*(feature.target for feature in features), strict=True)
    return {"start_positions": torch.tensor(first), "end_positions": torch.tensor(last)}


def _tags(features: Sequence[Features], length: int) -> Inputs:
    labels = np.full((len(features), length), IGNORED, np.int64)
    for number, feature in enumerate(features):
        labels[number, feature.indices] = feature.target
    return {"labels": torch.from_numpy(labels)}


_LABELS: dict[str, Callable[[Sequence[Features], int], Inputs]] = {
    "classify": _classes,
    "regress": _numbers,
    "span": _ends,
    "tag": _tags,
    "choose": _classes,
}


def _per_example(output: Any, features: Sequence[Features], objective: str) -> list[NDArray[np.float32]]:
    """Outputs per feature, in the shapes that `Task.decode` takes."""
    if objective == "span":
        ends = torch.stack((output.start_logits, output.end_logits), -1).float().cpu().numpy()
        return [ends[number, : len(feature.rows[0])] for number, feature in enumerate(features)]
    logits = output.logits.float().cpu().numpy()
    if objective == "tag":
        return [logits[number, feature.indices] for number, feature in enumerate(features)]
    return list(logits)
