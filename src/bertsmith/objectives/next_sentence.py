"""Next-sentence prediction: does the second text follow the first? (P-BERT §3.1, task 2)."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.objectives.heads import PairHead
from bertsmith.objectives.objective import BuildContext

FOLLOWS, RANDOM = 0, 1  # the labels, as in bert: create_pretraining_data.py


@dataclass(frozen=True, kw_only=True)
class Config:
    """Labels come with the batch, from the packing that makes the pairs."""

    weight: float = 1.0  # of this loss in the total

    def build(self, context: BuildContext) -> NextSentence:
        return NextSentence(context, weight=self.weight)


class NextSentence(PairHead):
    """The logits of FOLLOWS and RANDOM."""

    class_names = ("is_next", "not_next")
    combined_output_name = "seq_relationship_logits"
