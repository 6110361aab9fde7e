"""Text classification with any number of labels for each text. N texts, K labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.objectives import classify
from bertsmith.objectives.objective import BuildContext, at_least_float32
from bertsmith.types import Batch, Loss


@dataclass(frozen=True, kw_only=True)
class Config(classify.Config):
    """labels["multi_label"] [N, K] float: 1 where a text has the label, 0 where not, NaN where it is unknown."""

    def build(self, context: BuildContext) -> MultiLabel:
        """The objective with new weights."""
        return MultiLabel(self, context, outputs=len(self.labels))


class MultiLabel(classify.Classify):
    """A sigmoid for each label, with the head of `classify`; `predict` gives the logits [N, K]."""

    pipeline = "multi-label-classification"
    ignored_label = math.nan
    transformers_head = "classify"
    problem_type = "multi_label_classification"

    def label_mask(self, batch: Batch) -> Tensor:
        """Known labels [N, K] bool."""
        return ~self.labels(batch).isnan()

    def loss_from_logits(self, logits: Tensor, batch: Batch) -> Loss:
        """The binary cross entropy of every label."""
        labels_NK, known_NK = self.labels(batch), self.label_mask(batch)
        targets_NK = labels_NK.nan_to_num().to(at_least_float32(logits).dtype)
        losses_NK = F.binary_cross_entropy_with_logits(at_least_float32(logits), targets_NK, reduction="none")
        correct_NK = known_NK & ((logits > 0) == (labels_NK > 0.5))
        return self.make_loss(batch, torch.where(known_NK, losses_NK, 0.0).sum(), correct_NK)
