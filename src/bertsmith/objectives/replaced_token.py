"""Which tokens are not those of the text? A small generator fills in guesses, every token is judged (P-ELECTRA §2).

T flat places, R slots for hidden places, V vocabulary, E width of the token table.
"""

# differs from the paper's code: weights of the judging head begin like all others, not by Glorot's rule.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.nn.activations import activation
from bertsmith.objectives.generator import WORDS, Generator, Guessing, expect, put
from bertsmith.objectives.objective import BuildContext, Embed, Objective
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss

ORIGINAL, REPLACED = 0, 1  # the labels


@dataclass(frozen=True, kw_only=True)
class Config(Guessing):
    """The generator guesses 15 % of the words; every token that is no padding is judged."""

    judged: Literal["all", "words", "hidden"] = "all"  # all: but padding; words: nor special tokens; hidden: only those
    judging_weight: float = 50.0  # of the loss of judging, beside the generator's
    weight: float = 1.0  # of both in the total

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judged not in ("all", "words", "hidden"):
            raise ConfigError(f"judged={self.judged} must be one of all, words, hidden")

    def build(self, context: BuildContext) -> ReplacedToken:
        """The objective with new weights."""
        return ReplacedToken(self, self.make_generator(context, weight=self.weight), context)


class ReplacedToken(Objective):
    """Judges every token; the generator learns by its own loss alone, never through what is made of its guesses."""

    reads_all_tokens = True

    def __init__(self, config: Config, generator: Generator | None, context: BuildContext) -> None:
        super().__init__(weight=config.weight * config.judging_weight)
        self.config = config
        self.transform = nn.Linear(context.width, context.width)
        self.activation = activation(context.layer_config.activation)
        self.judge = nn.Linear(context.width, 1)
        context.layer_config.init_weights(self)
        self.generator = generator

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The generator's loss goes by the name of what it is."""
        return (self.name,) if self.generator is None else (WORDS, self.name)

    def corrupt(self, batch: Batch) -> Batch:
        """Hides words for the generator; labels [T] are ORIGINAL wherever something will be judged."""
        words = expect(self.generator, self.name).masked_lm
        hidden = words.corrupt(batch)
        judged_T = (~batch.special_mask if self.config.judged == "words" else batch.document_ids != 0).flatten()
        if self.config.judged == "hidden":
            asked_R = words.label_mask(hidden)
            judged_T = put(torch.zeros_like(judged_T), hidden.indices[WORDS], asked_R, torch.ones_like(asked_R))
        labels_T = torch.where(judged_T, ORIGINAL, IGNORE_INDEX)
        return hidden.replace(labels={**hidden.labels, self.name: labels_T})

    def sample_replacements(self, batch: Batch, embed: Embed, table: Tensor) -> tuple[Batch, Loss | None]:
        """Every hidden place gets the generator's guess; where it is another token the label is REPLACED."""
        if self.generator is None:
            return batch, None
        filled, changed_T, loss = self.generator.fill(batch, embed, table)
        labels_T = self.labels(batch)
        labels_T = torch.where(changed_T & (labels_T != IGNORE_INDEX), REPLACED, labels_T)
        return filled.replace(labels={**batch.labels, self.name: labels_T}), loss

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Of both parts: what is hidden and what is judged is known before anything is guessed."""
        words = {} if self.generator is None else self.generator.masked_lm.counts(batch)
        return {**words, **super().counts(batch)}

    def per_token_modules(self) -> list[nn.Module]:
        """The generator but for its head."""
        return [] if self.generator is None else [self.generator.project, self.generator.blocks]

    def chance_accuracy(self, asked: Mapping[str, float]) -> float | None:
        """Of always saying ORIGINAL, if the generator never guessed right: it is more, the better that one gets."""
        spared = 1 - asked.get(WORDS, 0.0) / max(asked.get(self.name, 0.0), 1e-9)
        return spared if spared > 0.5 else None

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor) -> Tensor:
        """The logits of ORIGINAL, which is always 0, and of REPLACED at every place [T, 2]."""
        replaced_T1 = self.judge(self.activation(self.transform(encoding.last_hidden)))
        return torch.cat((torch.zeros_like(replaced_T1), replaced_T1), -1)
