"""Multiple choice (SWAG, P-BERT §4.4). N texts.

Each choice is a text that begins with its question. The choices of one question are adjacent texts of a batch;
questions may have different numbers of choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.objectives.heads import TextConfig, TextHead
from bertsmith.objectives.objective import BuildContext, LabelledRows, SelectedRows, at_least_float32
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss

MAX_CHOICES = -IGNORE_INDEX  # so that no label equals IGNORE_INDEX


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    """labels["choose"] [N] int64: the distance from each text to the correct choice of its question.

    0 for the correct choice itself, 1 for the choice before it, -1 for the one after it; IGNORE_INDEX where the correct
    choice is unknown.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.both_orders:
            raise ConfigError("both_orders=true is for pairs of texts, not for questions with choices: leave it out")

    def build(self, context: BuildContext) -> Choose:
        return Choose(self, context, outputs=1)


def choice_labels(correct: int, choices: int) -> list[int]:
    """The labels of the texts of one question."""
    if not 0 <= correct < choices <= MAX_CHOICES:
        raise BertsmithError(f"choice {correct} of {choices}: expected 1 to {MAX_CHOICES} choices, counted from 0")
    return [correct - choice for choice in range(choices)]


class Choose(TextHead):
    """Softmax over the choices of each question; `predict` gives the score of each text [N, 1]."""

    pipeline = "multiple-choice"
    several_rows = True

    def label_mask(self, batch: Batch) -> Tensor:
        """The correct choices [N] bool: one for each question."""
        return self.labels(batch) == 0

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Loss:
        """Cross entropy over the choices of each question, counted at the correct choice."""
        score_N, labels_N = at_least_float32(self.predict(encoding, batch, table)[:, 0]), self.labels(batch)
        index_N = torch.arange(len(labels_N), device=labels_N.device)
        # texts of one question point to the same correct choice; texts without a label are questions of their own
        correct_N = torch.where(labels_N == IGNORE_INDEX, -1 - index_N, index_N + labels_N)
        scores_NN = torch.where(correct_N[:, None] == correct_N, score_N, -torch.inf)
        loss_N = torch.where(self.label_mask(batch), scores_NN.logsumexp(1) - score_N, 0.0)
        return self.make_loss(batch, loss_N.sum(), self.label_mask(batch) & (scores_NN.argmax(1) == index_N))

    @classmethod
    def collate_labels(cls, features: Sequence[LabelledRows]) -> tuple[list[Any], list[Any] | None]:
        """A label for each choice."""
        labels: list[int] = []
        for one in features:
            choices = len(one.rows)
            labels += [IGNORE_INDEX] * choices if one.target is None else choice_labels(one.target, choices)
        return labels, None

    @classmethod
    def split_logits(cls, logits: NDArray[np.float32], features: Sequence[SelectedRows]) -> list[NDArray[np.float32]]:
        """The scores of the choices of each question [choices]."""
        sizes = [len(one.rows) for one in features]
        return [part[:, 0] for part in np.split(logits[: sum(sizes)], np.cumsum(sizes)[:-1])]

    def graph_outputs(self, logits: Tensor, shape: Sequence[int]) -> list[Tensor]:
        """The scores [B, choices]."""
        return [logits.view(*shape[:-1])]
