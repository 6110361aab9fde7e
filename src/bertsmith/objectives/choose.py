"""Which of several choices is right? (SWAG, P-BERT §4.4). N texts.

Each choice is a text, with its question before it. The choices of a question stand one behind the other among the
texts of a batch; different questions may have different numbers of choices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError
from bertsmith.objectives.objective import BuildContext, exact
from bertsmith.objectives.text_head import TextHead, TextSettings
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss

MOST_CHOICES = -IGNORE_INDEX  # so that no distance is IGNORE_INDEX


@dataclass(frozen=True, kw_only=True)
class Config(TextSettings):
    """labels["choose"] [N] int64: how many texts on the right choice of each text's question stands.

    0 at the right choice itself, 1 at the one before it, -1 at the one behind it; IGNORE_INDEX where nothing is asked.
    """

    def build(self, context: BuildContext) -> Choose:
        """The objective with new weights."""
        return Choose(self, context)


def labels_of(right: int, choices: int) -> list[int]:
    """The labels of the texts of one question whose choice number `right` is the right one."""
    if not 0 <= right < choices <= MOST_CHOICES:
        raise BertsmithError(f"choice {right} of {choices}: there may be 1 to {MOST_CHOICES}, counted from 0")
    return [right - choice for choice in range(choices)]


class Choose(TextHead):
    """Softmax over the choices of each question; `answer` gives what each text scores [N, 1]."""

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(config, context, outputs=1)
        self.config = config

    def label_mask(self, batch: Batch) -> Tensor:
        """The right choices [N] bool: one for each question."""
        return self.labels(batch) == 0

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor) -> Loss:
        """Cross entropy over each question, counted at its right choice."""
        score_N, labels_N = exact(self.predict(encoding, batch, table)[:, 0]), self.labels(batch)
        number_N = torch.arange(len(labels_N), device=labels_N.device)
        # texts of one question name the same right choice; where nothing is asked, each is alone
        right_N = torch.where(labels_N == IGNORE_INDEX, -1 - number_N, number_N + labels_N)
        rivals_NN = torch.where(right_N[:, None] == right_N, score_N, -torch.inf)
        lost_N = torch.where(self.label_mask(batch), rivals_NN.logsumexp(1) - score_N, 0.0)
        return self.make_loss(batch, lost_N.sum(), self.label_mask(batch) & (rivals_NN.argmax(1) == number_N))
