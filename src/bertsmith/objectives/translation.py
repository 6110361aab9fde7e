"""Translation: the decoder predicts each token of the target from the source and the target before it.

Teacher forcing and label smoothing (Vaswani et al. 2017, §5.4). T flat target tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.objectives.lm_head import LanguageModelHead
from bertsmith.objectives.objective import BuildContext, Pipeline
from bertsmith.types import IGNORE_INDEX, Batch, Encoding


@dataclass(frozen=True, kw_only=True)
class Config:
    """The softmax of the paper: the token table of the target, without a bias."""

    # Probability that the target distribution gives to the other tokens together, in training: the loss of
    # evaluations is the plain cross entropy, whose exponential is the perplexity. As the paper's code, and unlike
    # torch, it is spread over the other V-1 tokens.
    label_smoothing: float = 0.1
    tie_output: bool = True  # the output layer is the token table of the target; false: it has weights of its own
    weight: float = 1.0  # of this loss in the total

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing={self.label_smoothing} must be at least 0 and less than 1")

    def build(self, context: BuildContext) -> Translation:
        context = replace(context, vocab_size=context.target_vocab_size or context.vocab_size)
        return Translation(self, context if self.tie_output else replace(context, embedding_width=None))


class Translation(LanguageModelHead):
    """The next token at every token of `Batch.target`, the end token after the last one."""

    reads_target = True
    pipeline: ClassVar[Pipeline] = "translation"

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(context, weight=config.weight)
        self.config = config
        self.label_smoothing = config.label_smoothing
        self.end_id = None if context.vocabulary is None else context.vocabulary.end_id

    def corrupt(self, batch: Batch) -> Batch:
        """Labels [T] are the ids of the target shifted by one; the last token of a text precedes the end token."""
        if batch.target is None:
            raise BertsmithError("translation needs parallel text: prepare the shards with --parallel")
        if self.end_id is None:
            raise BertsmithError(
                "translation needs a tokenizer with an end token: train one of kind byte_bpe or unigram"
            )
        ids_BL, documents_BL = batch.target.input_ids, batch.target.document_ids
        continues_BL = documents_BL == documents_BL.roll(-1, 1)
        continues_BL[:, -1] = False
        next_BL = torch.where(continues_BL, ids_BL.roll(-1, 1), self.end_id)
        labels_T = torch.where(documents_BL == 0, IGNORE_INDEX, next_BL).flatten()
        return batch.replace(labels={**batch.labels, self.name: labels_T})

    @torch.no_grad()
    def keep_tokens(self, count: int) -> None:
        """Leaves only the first logits, where the table of the target has been cut."""
        self.classes = count
        if self.output is not None:
            kept = self.output.weight[:count].clone()
            self.output = torch.nn.Embedding(count, kept.shape[1], _weight=kept)
        if self.bias is not None:
            self.bias = torch.nn.Parameter(self.bias[:count].clone())

    def hidden(self, encoding: Encoding) -> Tensor:
        """The decoder's hidden states at every token of the target [T, D]."""
        assert encoding.target is not None, "`corrupt` refuses batches without a target"
        return super().hidden(encoding.target)
