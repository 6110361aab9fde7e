"""Does the second text follow the first? (P-BERT §3.1, task 2). N texts, D width."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from bertsmith.nn.style import Style
from bertsmith.objectives.objective import Objective
from bertsmith.types import Batch, Encoding, Vocabulary

FOLLOWS, RANDOM = 0, 1  # the labels, as in bert: create_pretraining_data.py


@dataclass(frozen=True, kw_only=True)
class Config:
    """Labels come with the batch: whoever makes the pairs knows which follow."""

    weight: float = 1.0  # of this loss in the total

    def build(
        self,
        *,
        width: int,
        vocabulary_size: int,
        vocabulary: Vocabulary | None = None,
        style: Style = Style(),
        layers: int = 0,
        seed: int = 0,
    ) -> NextSentence:
        """See `objective.Settings`; only width and style matter."""
        return NextSentence(width=width, style=style, weight=self.weight)


class NextSentence(Objective):
    """Two classes from the pooled vector of each text."""

    pools = True

    def __init__(self, *, width: int, style: Style, weight: float) -> None:
        super().__init__(weight=weight)
        self.classify = nn.Linear(width, 2)
        style.initialise(self)

    def answer(self, encoding: Encoding, batch: Batch, table: Tensor) -> Tensor:
        """The logits of FOLLOWS and RANDOM for each text [N, 2]."""
        assert encoding.pooled is not None, "the model asks the encoder to pool where an objective reads it"
        logits_N2: Tensor = self.classify(encoding.pooled)
        return logits_N2
