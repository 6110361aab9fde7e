"""The next token from those before it: for the left-to-right ablation of P-BERT §5.1 and the models before BERT."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.objectives.objective import BuildContext
from bertsmith.objectives.words import Words
from bertsmith.types import IGNORE_INDEX, Batch


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every token is asked but the first of each text."""

    weight: float = 1.0  # of this loss in the total

    def build(self, context: BuildContext) -> CausalLM:
        """The objective with new weights."""
        return CausalLM(context, weight=self.weight)


class CausalLM(Words):
    """Each place is asked for the token that follows it in the same text, special tokens too."""

    causal = True

    def corrupt(self, batch: Batch) -> Batch:
        """Labels are the ids one place on; nothing is exchanged, since the encoder sees nothing ahead."""
        ids_T, document_T = batch.input_ids.flatten(), batch.document_ids.flatten()
        goes_on_T = (document_T == document_T.roll(-1)) & (document_T != 0)
        ends_T = torch.arange(1, len(ids_T) + 1, device=ids_T.device) % batch.input_ids.shape[1] == 0
        labels_T: Tensor = torch.where(goes_on_T & ~ends_T, ids_T.roll(-1), IGNORE_INDEX)
        places_T = torch.arange(len(ids_T), device=ids_T.device)
        return batch.replace(
            labels={**batch.labels, self.name: labels_T}, indices={**batch.indices, self.name: places_T}
        )
