"""Which class is each word of? (named entities, P-BERT §5.3). R places that are read, T flat places, K classes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from bertsmith.objectives.between import BetweenSettings, check_dropout, read_between
from bertsmith.objectives.label_names import check_names, numbered
from bertsmith.objectives.objective import BuildContext, Objective
from bertsmith.objectives.readout import LayerMix, Layers, check
from bertsmith.types import Batch, Encoding


@dataclass(frozen=True, kw_only=True)
class Config(BetweenSettings):
    """places["tag"] [R] int64: the flat place of each word's first token; labels["tag"] [R] int64: its class.

    IGNORE_INDEX where nothing is asked.
    """

    labels: tuple[str, ...] = numbered(2)  # the names of the classes, by their numbers
    dropout: float = 0.1  # on the vector of each word
    layers: Layers = "top"  # of the encoder, that are read
    weight: float = 1.0  # of its mean loss in the total

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.labels)
        check_dropout(self.dropout)
        check("raw_first", self.layers)

    def build(self, context: BuildContext) -> Tag:
        """The objective with new weights."""
        return Tag(self, context)


class Tag(Objective):
    """Softmax over the classes at each word's first token; the other tokens are asked nothing."""

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(weight=config.weight)
        self.config = config
        self.layers = LayerMix(config.layers, width=context.width, count=context.layers)
        self.reads_all_layers = self.layers.deep or config.between == "bilstm"  # which reads whole texts
        width = self.layers.width
        self.between = config.build_between(width)
        if self.between is not None:
            width = self.between.width
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(width, len(config.labels))
        context.layer_config.init_weights(self)

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor) -> Tensor:
        """The logits of the classes at each place that is read [R, K]."""
        x_TW = self.layers(encoding)
        if self.between is not None:
            x_TW = read_between(self.between, x_TW, batch)
        x_RW = x_TW[encoding.selections[self.name]]
        logits_RK: Tensor = self.head(self.dropout(x_RW))
        return logits_RK
