"""Text classification (P-BERT §4.1, bert: run_classifier.py). N texts, K classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bertsmith.objectives.heads import LabelConfig, TextHead, check_weights, weight_tensor
from bertsmith.objectives.objective import BuildContext, Pipeline


@dataclass(frozen=True, kw_only=True)
class Config(LabelConfig):
    """labels["classify"] [N] int64: the class of each text, IGNORE_INDEX where it is unknown."""

    class_weights: tuple[float, ...] = ()  # of the losses of each class; fine-tuning takes balanced or {LABEL = WEIGHT}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(self.class_weights, self.labels, "class_weights")

    def build(self, context: BuildContext) -> Classify:
        return Classify(self, context)


class Classify(TextHead):
    """Softmax over the classes of each text; `predict` gives the logits [N, K]."""

    pipeline: ClassVar[Pipeline] = "text-classification"
    problem_type = "single_label_classification"

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(config, context, outputs=len(config.labels))
        self.class_weights = weight_tensor(config.class_weights)
