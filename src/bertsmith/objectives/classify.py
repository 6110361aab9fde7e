"""Which class is a text of? (P-BERT §4.1, bert: run_classifier.py). N texts, K classes."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.nn.layer_config import LayerConfig
from bertsmith.objectives.label_names import check_names, numbered
from bertsmith.objectives.text_head import TextHead, TextSettings
from bertsmith.types import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Config(TextSettings):
    """labels["classify"] [N] int64: the number of each text's class, IGNORE_INDEX where nothing is asked."""

    labels: tuple[str, ...] = numbered(2)  # the names of the classes, by their numbers

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.labels)

    def build(
        self,
        *,
        width: int,
        vocab_size: int,
        embedding_width: int | None = None,
        vocabulary: Vocabulary | None = None,
        layer_config: LayerConfig = LayerConfig(),
        layers: int = 0,
        seed: int = 0,
    ) -> Classify:
        """See `objective.Settings`; nothing is hidden."""
        return Classify(self, width=width, layer_config=layer_config, layers=layers)


class Classify(TextHead):
    """Softmax over the classes of each text; `answer` gives their logits [N, K]."""

    def __init__(self, config: Config, *, width: int, layer_config: LayerConfig, layers: int) -> None:
        super().__init__(config, width=width, layers=layers, outputs=len(config.labels), layer_config=layer_config)
        self.config = config
