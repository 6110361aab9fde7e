"""Does the second text follow the first? (P-BERT §3.1, task 2)."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.objectives.objective import BuildContext
from bertsmith.objectives.pair_head import PairHead

FOLLOWS, RANDOM = 0, 1  # the labels, as in bert: create_pretraining_data.py


@dataclass(frozen=True, kw_only=True)
class Config:
    """Labels come with the batch: whoever makes the pairs knows which follow."""

    weight: float = 1.0  # of this loss in the total

    def build(self, context: BuildContext) -> NextSentence:
        """The objective with new weights."""
        return NextSentence(context, weight=self.weight)


class NextSentence(PairHead):
    """The logits of FOLLOWS and RANDOM."""
