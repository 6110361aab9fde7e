"""Extractive question answering: first and last token of the answer (SQuAD, P-BERT §4.2, §4.3; bert: run_squad.py).

N texts, M tokens of the longest text, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.nn.pooling import TextTokens
from bertsmith.objectives.heads import RecurrentConfig
from bertsmith.objectives.objective import BuildContext, Objective, SelectedRows, at_least_float32
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss


@dataclass(frozen=True, kw_only=True)
class Config(RecurrentConfig):
    """labels["span"] [N, 2] int64: first and last token of the answer, counted from 0 within its text.

    (0, 0), the text's first token, for an unanswerable question; twice IGNORE_INDEX where the answer is unknown.
    """

    no_answer: float | None = None  # log odds of no answer above which none is returned; None: always an answer
    weight: float = 1.0  # of its mean loss in the total

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.no_answer is not None and not math.isfinite(self.no_answer):
            raise ConfigError(f"no_answer={self.no_answer} must be finite")

    def build(self, context: BuildContext) -> Span:
        return Span(self, context)


class Span(Objective):
    """Two softmaxes over the tokens of each text, for the first and for the last token of the answer."""

    reads_all_tokens = True
    pipeline = "question-answering"
    ignored_label = (IGNORE_INDEX, IGNORE_INDEX)
    config_keys: ClassVar[Mapping[str, str]] = {"no_answer": "no_answer_threshold"}  # transformers ignores the key
    output_names = ("start_logits", "end_logits")

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(weight=config.weight)
        self.config = config
        self.recurrent = config.build_recurrent(context.width)
        width = context.width if self.recurrent is None else self.recurrent.width
        self.head = nn.Linear(width, 2)  # differs from the paper: with a bias, as in its code
        context.layer_config.init_weights(self)

    def has_transformers_head(self, pooling: str) -> bool:
        """transformers reads the last layer."""
        return self.recurrent is None

    def label_mask(self, batch: Batch) -> Tensor:
        """Texts with a label [N] bool."""
        return (self.labels(batch) != IGNORE_INDEX).all(1)

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The logits of first and last token at each token of each text [N, M, 2]; -inf beyond the text."""
        texts = TextTokens.of(batch)
        logits_NM2: Tensor
        if self.recurrent is None:
            logits_NM2 = self.head(encoding.last_hidden)[texts.indices]
        else:
            logits_NM2 = self.head(self.recurrent(encoding.last_hidden[texts.indices], texts.lengths()))
        return logits_NM2.masked_fill(~texts.mask[:, :, None], -torch.inf)

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Loss:
        """The mean of the two cross entropies of each text; correct where both tokens are."""
        logits_N2M = at_least_float32(self.predict(encoding, batch, table)).transpose(1, 2)
        labels_N2 = self.labels(batch)
        total = F.cross_entropy(
            logits_N2M.flatten(0, 1), labels_N2.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
        )
        return self.make_loss(batch, total / 2, self.label_mask(batch) & (logits_N2M.argmax(-1) == labels_N2).all(1))

    @classmethod
    def split_logits(cls, logits: NDArray[np.float32], features: Sequence[SelectedRows]) -> list[NDArray[np.float32]]:
        """The logits of the tokens of each row [tokens, 2]."""
        return [logits[number, : len(one.rows[0])] for number, one in enumerate(features)]

    def graph_outputs(self, logits: Tensor, shape: Sequence[int]) -> list[Tensor]:
        """Start and end logits [B, L] each."""
        return list(logits.unbind(-1))
