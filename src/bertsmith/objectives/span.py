"""Where does the answer begin and end? (SQuAD, P-BERT §4.2 and §4.3; bert: run_squad.py).

N texts, M places of the longest text, D width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.objectives.between import BetweenSettings
from bertsmith.objectives.objective import BuildContext, Objective, exact
from bertsmith.objectives.texts import Texts
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss


@dataclass(frozen=True, kw_only=True)
class Config(BetweenSettings):
    """labels["span"] [N, 2] int64: first and last place of the answer, counted from 0 within its text.

    (0, 0), the text's first token, where there is no answer; IGNORE_INDEX twice where nothing is asked.
    """

    no_answer: float | None = None  # log odds of no answer above which there is none; None: there always is one
    weight: float = 1.0  # of its mean loss in the total

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.no_answer is not None and not math.isfinite(self.no_answer):
            raise ConfigError(f"no_answer={self.no_answer} must be a number")

    def build(self, context: BuildContext) -> Span:
        """The objective with new weights."""
        return Span(self, context)


class Span(Objective):
    """Softmax over all places of each text, once for the begin and once for the end."""

    reads_all_tokens = True

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(weight=config.weight)
        self.config = config
        self.between = config.build_between(context.width)
        width = context.width if self.between is None else self.between.width
        self.head = nn.Linear(width, 2)  # differs from the paper: with a bias, as its code
        context.layer_config.init_weights(self)

    def label_mask(self, batch: Batch) -> Tensor:
        """Texts that are asked [N] bool."""
        return (self.labels(batch) != IGNORE_INDEX).all(1)

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor) -> Tensor:
        """The logits of begin and end at each place of each text [N, M, 2]; -inf beyond the text."""
        texts = Texts.of(batch)
        logits_NM2: Tensor
        if self.between is None:
            logits_NM2 = self.head(encoding.last_hidden)[texts.places]
        else:
            logits_NM2 = self.head(self.between(encoding.last_hidden[texts.places], texts.lengths()))
        return logits_NM2.masked_fill(~texts.inside[:, :, None], -torch.inf)

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor) -> Loss:
        """The mean of the two cross entropies of each text; right where both places are."""
        logits_N2M, labels_N2 = exact(self.predict(encoding, batch, table)).transpose(1, 2), self.labels(batch)
        total = F.cross_entropy(
            logits_N2M.flatten(0, 1), labels_N2.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
        )
        return self.make_loss(batch, total / 2, self.label_mask(batch) & (logits_N2M.argmax(-1) == labels_N2).all(1))
