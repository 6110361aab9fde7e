"""Sentence-order prediction: are the two texts in their order, or swapped? (P-ALBERT §3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.objectives.heads import PairHead
from bertsmith.objectives.objective import BuildContext

IN_ORDER, SWAPPED = 0, 1  # the labels, as in albert: create_pretraining_data.py


@dataclass(frozen=True, kw_only=True)
class Config:
    """Labels come with the batch, from the packing that makes the pairs."""

    weight: float = 1.0  # of this loss in the total

    def build(self, context: BuildContext) -> SentenceOrder:
        return SentenceOrder(context, weight=self.weight)


class SentenceOrder(PairHead):
    """The logits of IN_ORDER and SWAPPED."""

    class_names = ("in_order", "swapped")
    combined_output_name = "sop_logits"
