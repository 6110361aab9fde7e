"""Causal language model: each token is predicted from the tokens before it (GPT; the ablation of P-BERT §5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.objectives.lm_head import LanguageModelHead
from bertsmith.objectives.objective import BuildContext
from bertsmith.types import IGNORE_INDEX, Batch


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every token but the first of each text is predicted."""

    weight: float = 1.0  # of this loss in the total

    def build(self, context: BuildContext) -> CausalLM:
        return CausalLM(context, weight=self.weight)


class CausalLM(LanguageModelHead):
    """Each token predicts the next one of the same text, special tokens included."""

    causal = True
    pipeline = "text-generation"
    reads_all_tokens = True

    def corrupt(self, batch: Batch) -> Batch:
        """Labels are the ids shifted by one; the ids stay, since the encoder attends to earlier tokens only."""
        ids_T, document_T = batch.input_ids.flatten(), batch.document_ids.flatten()
        same_text_T = (document_T == document_T.roll(-1)) & (document_T != 0)
        row_end_T = torch.arange(1, len(ids_T) + 1, device=ids_T.device) % batch.input_ids.shape[1] == 0
        labels_T: Tensor = torch.where(same_text_T & ~row_end_T, ids_T.roll(-1), IGNORE_INDEX)
        return batch.replace(labels={**batch.labels, self.name: labels_T})
