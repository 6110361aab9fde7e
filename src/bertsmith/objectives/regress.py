"""Text regression: one number per text, such as the similarity of two sentences in STS-B (P-BERT §4.1). N texts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError
from bertsmith.objectives.heads import TextConfig, TextHead, default_names
from bertsmith.objectives.objective import BuildContext, at_least_float32
from bertsmith.types import Batch, Encoding, Loss


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    """labels["regress"] [N] float: the number of each text, NaN where it is unknown."""

    def build(self, context: BuildContext) -> Regress:
        return Regress(self, context, outputs=1)


class Regress(TextHead):
    """Squared error; `predict` gives the numbers [N, 1]."""

    pipeline = "text-regression"
    ignored_label = math.nan
    transformers_head = "classify"
    problem_type = "regression"
    default_labels = default_names(1)

    def labels(self, batch: Batch) -> Tensor:
        """The number of each text [N] float, NaN where it is unknown."""
        labels_N = super().labels(batch)
        if not labels_N.is_floating_point():
            raise BertsmithError(f"labels of regress are of type {labels_N.dtype}: they must be floating-point numbers")
        return labels_N

    def label_mask(self, batch: Batch) -> Tensor:
        """Texts with a number [N] bool."""
        return ~self.labels(batch).isnan()

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Loss:
        """The sum of squared errors."""
        predicted_N = at_least_float32(self.predict(encoding, batch, table)[:, 0])
        error_N = torch.where(self.label_mask(batch), predicted_N - self.labels(batch), 0.0)
        return self.make_loss(batch, error_N.square().sum(), None)
