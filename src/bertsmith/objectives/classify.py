"""Text classification (P-BERT §4.1, bert: run_classifier.py). N texts, K classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bertsmith.objectives.heads import TextConfig, TextHead, check_label_names, default_names
from bertsmith.objectives.objective import BuildContext, Pipeline


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    """labels["classify"] [N] int64: the class of each text, IGNORE_INDEX where it is unknown."""

    labels: tuple[str, ...] = default_names(2)  # class names by class index

    def __post_init__(self) -> None:
        super().__post_init__()
        check_label_names(self.labels)

    def build(self, context: BuildContext) -> Classify:
        return Classify(self, context, outputs=len(self.labels))


class Classify(TextHead):
    """Softmax over the classes of each text; `predict` gives the logits [N, K]."""

    pipeline: ClassVar[Pipeline] = "text-classification"
    problem_type = "single_label_classification"
