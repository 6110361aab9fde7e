"""Language modelling of text with replaced tokens: the ablations between BERT and ELECTRA (P-ELECTRA §3.3).

Replace MLM predicts at masked tokens, so that the encoder never reads [MASK]; All-Tokens MLM at every token, with a
gate that may copy the input token. T flat tokens, Q predictions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.objectives.generator import GENERATOR_TERM, Generator, GeneratorConfig, GeneratorObjective
from bertsmith.objectives.lm_head import LanguageModelHead
from bertsmith.objectives.objective import BuildContext, Embed, at_least_float32
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss


@dataclass(frozen=True, kw_only=True)
class Config(GeneratorConfig):
    """The generator replaces 15 % of the tokens; the encoder predicts the original ones: Replace MLM."""

    predict_at: Literal["masked", "all"] = "masked"  # all: every token but padding, All-Tokens MLM
    weight: float = 1.0  # of both losses in the total

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predict_at not in ("masked", "all"):
            raise ConfigError(f"predict_at={self.predict_at} must be one of masked, all")

    def build(self, context: BuildContext) -> ReplacedLM:
        return ReplacedLM(self, self.build_generator(context, weight=self.weight), context)


class ReplacedLM(GeneratorObjective, LanguageModelHead):
    """Predicts the original tokens as masked_lm does, from text without masks."""

    transformers_head = "masked_lm"

    def __init__(self, config: Config, generator: Generator | None, context: BuildContext) -> None:
        LanguageModelHead.__init__(self, context, weight=config.weight)
        self.config = config
        self.copy_gate = nn.Linear(context.width, 1) if config.predict_at == "all" else None
        self.fusable = self.copy_gate is None
        if self.copy_gate is not None:
            self.classes = 0
            context.layer_config.init_weights(self.copy_gate)
        self.generator = generator

    @property
    def perplexity_terms(self) -> tuple[str, ...]:
        """Both terms."""
        return self.loss_terms

    def corrupt(self, batch: Batch) -> Batch:
        """Masks tokens for the generator; labels [Q] are the original ids."""
        masked = self.required_generator().masked_lm.corrupt(batch)
        labels, indices = masked.labels[GENERATOR_TERM], masked.indices[GENERATOR_TERM]
        if self.config.predict_at == "all":
            labels = torch.where(batch.document_ids != 0, batch.input_ids, IGNORE_INDEX).flatten()
            indices = torch.arange(len(labels), device=labels.device)
        return masked.replace(
            labels={**masked.labels, self.name: labels}, indices={**masked.indices, self.name: indices}
        )

    def sample_replacements(self, batch: Batch, embed: Embed, table: Tensor | None) -> tuple[Batch, Loss | None]:
        """Masked tokens become the generator's samples."""
        if self.generator is None:
            return batch, None
        filled, _, loss = self.generator.replace_masked(batch, embed, table)
        return filled, loss

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The logits over the vocabulary [Q, V]; with a gate, log probabilities.

        The gate mixes the head's distribution with the input token: p = copy · [input] + (1 - copy) · softmax.
        """
        logits_QV = super().predict(encoding, batch, table)
        if self.copy_gate is None:
            return logits_QV
        gate_Q1 = at_least_float32(self.copy_gate(encoding.at(self.name)))
        input_Q1 = batch.input_ids.flatten()[batch.indices[self.name]].unsqueeze(1)
        log_p_QV = F.logsigmoid(-gate_Q1) + at_least_float32(logits_QV).log_softmax(-1)
        mixed_Q1 = torch.logaddexp(log_p_QV.gather(1, input_Q1), F.logsigmoid(gate_Q1))
        return log_p_QV.scatter(1, input_Q1, mixed_Q1)
