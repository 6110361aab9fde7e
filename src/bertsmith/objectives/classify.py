"""Which class is a text of? (P-BERT §4.1, bert: run_classifier.py). N texts, K classes."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.nn.style import Style
from bertsmith.objectives.between import Between, check_between
from bertsmith.objectives.label_names import check_names, numbered
from bertsmith.objectives.readout import Layers, Readout, check
from bertsmith.objectives.text_head import TextHead, check_dropout, readout_of
from bertsmith.types import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Config:
    """labels["classify"] [N] int64: the number of each text's class, NOT_ASKED where nothing is asked."""

    labels: tuple[str, ...] = numbered(2)  # the names of the classes, by their numbers
    dropout: float = 0.1  # on the vector of each text
    readout: Readout = "first"  # how one vector is made of a text; first: the encoder's pooler
    layers: Layers = "top"  # of the encoder, that are read
    between: Between = "none"  # what stands between encoder and readout
    between_layers: int = 2  # of the bilstm
    between_width: int = 768  # of the bilstm, in each direction
    weight: float = 1.0  # of its mean loss in the total

    def __post_init__(self) -> None:
        check_names(self.labels)
        check_dropout(self.dropout)
        check_between(self.between, layers=self.between_layers, width=self.between_width)
        check(self.readout, self.layers, self.between)

    def build(
        self,
        *,
        width: int,
        vocabulary_size: int,
        table_width: int | None = None,
        vocabulary: Vocabulary | None = None,
        style: Style = Style(),
        layers: int = 0,
        seed: int = 0,
    ) -> Classify:
        """See `objective.Settings`; nothing is hidden."""
        return Classify(self, width=width, style=style, layers=layers)


class Classify(TextHead):
    """Softmax over the classes of each text; `answer` gives their logits [N, K]."""

    def __init__(self, config: Config, *, width: int, style: Style, layers: int) -> None:
        readout = readout_of(config, width=width, count=layers)
        classes = len(config.labels)
        super().__init__(readout, outputs=classes, dropout=config.dropout, style=style, weight=config.weight)
        self.config = config
