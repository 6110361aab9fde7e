"""Token classification (named entities, P-BERT §5.3). R selected tokens, T flat tokens, K classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.nn.pooling import LayerChoice, LayerMix, check_layers, run_recurrent
from bertsmith.objectives.heads import RecurrentConfig, check_dropout, check_weights, default_names, weight_tensor
from bertsmith.objectives.objective import BuildContext, LabelledRows, Objective, SelectedRows
from bertsmith.types import IGNORE_INDEX, Batch, Encoding


@dataclass(frozen=True, kw_only=True)
class Config(RecurrentConfig):
    """indices["tag"] [R] int64: the first token of each word; labels["tag"] [R] int64: its class, or IGNORE_INDEX."""

    labels: tuple[str, ...] = default_names(2)  # class names by class index; folders of others may repeat one
    dropout: float = 0.1  # on the vector of each word
    layers: LayerChoice = "top"  # which layers of the encoder are read
    class_weights: tuple[float, ...] = ()  # of the losses of each class; fine-tuning takes balanced or {LABEL = WEIGHT}
    weight: float = 1.0  # of its mean loss in the total

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(self.class_weights, self.labels, "class_weights")
        if not self.labels:
            raise ConfigError("labels is empty: a token classifier needs at least one label")
        check_dropout(self.dropout)
        check_layers(self.layers)

    def build(self, context: BuildContext) -> Tag:
        return Tag(self, context)


class Tag(Objective):
    """Softmax over the classes at the first token of each word; the other tokens have no label."""

    pipeline = "token-classification"

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(weight=config.weight)
        self.config = config
        self.layers = LayerMix(
            config.layers, width=context.width, layer_count=context.layers, layer_widths=context.layer_widths
        )
        self.reads_all_layers = self.layers.reads_all_layers or config.recurrent == "bilstm"  # which reads every token
        self.recurrent = config.build_recurrent(self.layers.width)
        width = self.layers.width if self.recurrent is None else self.recurrent.width
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(width, len(config.labels))
        self.class_weights = weight_tensor(config.class_weights)
        context.layer_config.init_weights(self)

    def has_transformers_head(self, pooling: str) -> bool:
        """transformers reads the last layer."""
        return self.config.layers == "top" and self.recurrent is None

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The logits at each selected token [R, K]."""
        x_TW = run_recurrent(self.recurrent, self.layers(encoding), batch)
        logits_RK: Tensor = self.head(self.dropout(x_TW[encoding.selections[self.name]]))
        return logits_RK

    @classmethod
    def collate_labels(cls, features: Sequence[LabelledRows]) -> tuple[list[Any], list[Any] | None]:
        """The classes and the first tokens of the words of each row."""
        indices = [np.zeros(0, np.int64) if one.indices is None else one.indices for one in features]
        labels = [
            np.full(len(selected), IGNORE_INDEX) if one.target is None else one.target
            for selected, one in zip(indices, features, strict=True)
        ]
        return labels, indices

    @classmethod
    def split_logits(cls, logits: NDArray[np.float32], features: Sequence[SelectedRows]) -> list[NDArray[np.float32]]:
        """The logits of the words of each row [words, K]."""
        sizes = [0 if one.indices is None else len(one.indices) for one in features]
        return np.split(logits[: sum(sizes)], np.cumsum(sizes)[:-1])
