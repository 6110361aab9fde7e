"""Replaced-token detection: which tokens did a generator replace? (P-ELECTRA §2).

T flat tokens, R slots for masked tokens, V vocabulary, E width of the token table.
"""

# differs from the paper's code: the discriminator's head is initialised like all other weights, not by Glorot's rule,
# and its bias starts at the log-odds of the share of masked tokens. From a bias of 0, Adam's first steps move the
# weights of all layers in the one direction that lowers the logit of every token. With a short warm-up all tokens then
# have the same vector, and the encoder learns nothing more (LOG.md, "The model family").

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.nn.activations import get_activation
from bertsmith.objectives.generator import GENERATOR_TERM, Generator, GeneratorConfig, GeneratorObjective, scatter_where
from bertsmith.objectives.objective import BuildContext, Embed
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss

ORIGINAL, REPLACED = 0, 1  # the labels
BASE_RATE = "base_rate"  # a loss term without weight: the share of REPLACED, and the accuracy of always ORIGINAL


@dataclass(frozen=True, kw_only=True)
class Config(GeneratorConfig):
    """The generator replaces 15 % of the tokens; the discriminator classifies every token but padding."""

    predict_at: Literal["all", "words", "masked"] = "all"  # all but padding; not at special tokens; only at masked ones
    discriminator_weight: float = 50.0  # of the discriminator's loss; 0: only the generator and embeddings are trained
    weight: float = 1.0  # of both in the total

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predict_at not in ("all", "words", "masked"):
            raise ConfigError(f"predict_at={self.predict_at} must be one of all, words, masked")
        if self.discriminator_weight < 0:
            raise ConfigError(f"discriminator_weight={self.discriminator_weight:g} must be at least 0")

    def build(self, context: BuildContext) -> ReplacedToken:
        return ReplacedToken(self, self.build_generator(context, weight=self.weight), context)


class ReplacedToken(GeneratorObjective):
    """Classifies each token as ORIGINAL or REPLACED."""

    reads_all_tokens = True
    classes = 2

    def __init__(self, config: Config, generator: Generator | None, context: BuildContext) -> None:
        super().__init__(weight=config.weight * config.discriminator_weight)
        self.config = config
        self.transform = nn.Linear(context.width, context.width)
        self.activation = get_activation(context.layer_config.activation)
        self.classifier = nn.Linear(context.width, 1)
        context.layer_config.init_weights(self)
        nn.init.constant_(self.classifier.bias, self._initial_bias())
        self.generator = generator
        self.reads_encoding = config.discriminator_weight > 0

    def _initial_bias(self) -> float:
        """The log-odds of REPLACED with a new generator, whose samples nearly always differ; see above."""
        share = self.config.masking.mask_probability
        return 0.0 if self.config.predict_at == "masked" else math.log(share / (1 - share))

    def corrupt(self, batch: Batch) -> Batch:
        """Masks tokens for the generator; labels [T] are ORIGINAL at every token that will be classified."""
        head = self.required_generator().masked_lm
        masked = head.corrupt(batch)
        labelled = ~batch.special_mask if self.config.predict_at == "words" else batch.document_ids != 0
        labelled_T = labelled.flatten()
        if self.config.predict_at == "masked":
            used_R = head.label_mask(masked)
            labelled_T = scatter_where(
                torch.zeros_like(labelled_T), masked.indices[GENERATOR_TERM], used_R, torch.ones_like(used_R)
            )
        labels_T = torch.where(labelled_T, ORIGINAL, IGNORE_INDEX)
        return masked.replace(labels={**masked.labels, self.name: labels_T})

    def sample_replacements(self, batch: Batch, embed: Embed, table: Tensor | None) -> tuple[Batch, Loss | None]:
        """Masked tokens become the generator's samples; the label of those that differ is REPLACED."""
        if self.generator is None:
            return batch, None
        filled, changed_T, loss = self.generator.replace_masked(batch, embed, table)
        labels_T = self.labels(batch)
        labels_T = torch.where(changed_T & (labels_T != IGNORE_INDEX), REPLACED, labels_T)
        return filled.replace(labels={**batch.labels, self.name: labels_T}), loss

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """With the base rate, unless only the generator is trained."""
        return (*super().loss_terms, BASE_RATE) if self.reads_encoding else super().loss_terms

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Of the discriminator's labels for both of its terms."""
        counts = super().counts(batch)
        return counts | ({BASE_RATE: counts[self.name]} if self.reads_encoding else {})

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Loss:
        """The discriminator's, and beside it, with weight 0, the share of replaced tokens.

        A discriminator that has learned nothing always predicts ORIGINAL; its accuracy rises as the generator improves.
        """
        labels_T, count = self.labels(batch), super().counts(batch)[self.name]
        replaced, original = ((labels_T == label).sum() for label in (REPLACED, ORIGINAL))
        base_rate = Loss({BASE_RATE: replaced.float()}, {BASE_RATE: count}, {BASE_RATE: original}, {BASE_RATE: 0.0})
        return super().loss(encoding, batch, table) + base_rate

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The logits of ORIGINAL, which is always 0, and of REPLACED at every token [T, 2]."""
        replaced_T1 = self.classifier(self.activation(self.transform(encoding.last_hidden)))
        return torch.cat((torch.zeros_like(replaced_T1), replaced_T1), -1)

    def graph_outputs(self, logits: Tensor, shape: Sequence[int]) -> list[Tensor]:
        """The logits of REPLACED [B, L], as transformers returns them."""
        return [logits.view(*shape, -1)[..., 1]]
