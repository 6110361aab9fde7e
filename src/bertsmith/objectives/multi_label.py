"""Text classification with any number of labels for each text. N texts, K labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.objectives.heads import LabelConfig, TextHead, check_weights, weight_tensor
from bertsmith.objectives.objective import BuildContext, LabelledRows, at_least_float32
from bertsmith.types import Batch, Loss


@dataclass(frozen=True, kw_only=True)
class Config(LabelConfig):
    """labels["multi_label"] [N, K] float: 1 where a text has the label, 0 where not, NaN where it is unknown."""

    # of the losses of texts that have the label, as torch's pos_weight; fine-tuning takes balanced or {LABEL = WEIGHT}
    positive_weights: tuple[float, ...] = ()
    thresholds: tuple[float, ...] | None = None  # probability of each label above which it is predicted; None: 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(self.positive_weights, self.labels, "positive_weights")
        if self.thresholds is not None and len(self.thresholds) != len(self.labels):
            raise ConfigError(f"thresholds has {len(self.thresholds)} numbers for {len(self.labels)} labels")

    def build(self, context: BuildContext) -> MultiLabel:
        """The objective with new weights."""
        return MultiLabel(self, context)


class MultiLabel(TextHead):
    """A sigmoid for each label, with the head of `classify`; `predict` gives the logits [N, K]."""

    pipeline = "multi-label-classification"
    ignored_label = math.nan
    transformers_head = "classify"
    problem_type = "multi_label_classification"
    config_keys: ClassVar[Mapping[str, str]] = {**TextHead.config_keys, "thresholds": "label_thresholds"}
    positive_weights: Tensor | None  # [K]

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(config, context, outputs=len(config.labels))
        self.label_count = len(config.labels)
        self.register_buffer("positive_weights", weight_tensor(config.positive_weights), persistent=False)

    def labels(self, batch: Batch) -> Tensor:
        """The labels [N, K]; one column of NaN stands for all where no text of the batch has labels."""
        return super().labels(batch).expand(-1, self.label_count)

    def label_mask(self, batch: Batch) -> Tensor:
        """Known labels [N, K] bool."""
        return ~self.labels(batch).isnan()

    def loss_from_logits(self, logits: Tensor, batch: Batch) -> Loss:
        """The binary cross entropy of every label."""
        labels_NK, known_NK, logits_NK = self.labels(batch), self.label_mask(batch), at_least_float32(logits)
        targets_NK = labels_NK.nan_to_num().to(logits_NK.dtype)
        losses_NK = F.binary_cross_entropy_with_logits(
            logits_NK, targets_NK, pos_weight=self.positive_weights, reduction="none"
        )
        correct_NK = known_NK & ((logits > 0) == (labels_NK > 0.5))
        return self.make_loss(batch, torch.where(known_NK, losses_NK, 0.0).sum(), correct_NK)

    @classmethod
    def collate_labels(cls, features: Sequence[LabelledRows]) -> tuple[list[Any], list[Any] | None]:
        """One number for each label and row."""
        size = next((len(one.target) for one in features if one.target is not None), 1)
        labels, indices = super().collate_labels(features)
        return [[math.nan] * size if isinstance(one, float) else one for one in labels], indices
