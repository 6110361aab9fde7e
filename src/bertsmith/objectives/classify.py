"""Which class is a text of? (P-BERT §4.1, bert: run_classifier.py). N texts, K classes."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.objectives.label_names import check_names, numbered
from bertsmith.objectives.objective import BuildContext
from bertsmith.objectives.text_head import TextHead, TextSettings


@dataclass(frozen=True, kw_only=True)
class Config(TextSettings):
    """labels["classify"] [N] int64: the number of each text's class, IGNORE_INDEX where nothing is asked."""

    labels: tuple[str, ...] = numbered(2)  # the names of the classes, by their numbers

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.labels)

    def build(self, context: BuildContext) -> Classify:
        """The objective with new weights."""
        return Classify(self, context)


class Classify(TextHead):
    """Softmax over the classes of each text; `answer` gives their logits [N, K]."""

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(config, context, outputs=len(config.labels))
        self.config = config
