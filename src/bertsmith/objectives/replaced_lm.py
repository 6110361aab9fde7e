"""Which words stood where a small generator filled in guesses? The ablations between BERT and ELECTRA (P-ELECTRA §3.3).

Replace MLM asks at hidden places, so that no [MASK] is ever seen; All-Tokens MLM at every place, with a gate that may
copy what stands there. T flat places, Q places that are asked, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.objectives.generator import WORDS, Generator, Guessing, expect
from bertsmith.objectives.objective import BuildContext, Embed, exact
from bertsmith.objectives.words import Words
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss


@dataclass(frozen=True, kw_only=True)
class Config(Guessing):
    """The generator guesses 15 % of the words, the encoder is asked for what stood there: Replace MLM."""

    asked: Literal["hidden", "all"] = "hidden"  # all: every token but padding, All-Tokens MLM
    weight: float = 1.0  # of both losses in the total

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.asked not in ("hidden", "all"):
            raise ConfigError(f"asked={self.asked} must be one of hidden, all")

    def build(self, context: BuildContext) -> ReplacedLM:
        """The objective with new weights."""
        return ReplacedLM(self, self.make_generator(context, weight=self.weight), context)


class ReplacedLM(Words):
    """Guesses words as masked_lm does, in a text without masks; the generator learns by its own loss alone."""

    def __init__(self, config: Config, generator: Generator | None, context: BuildContext) -> None:
        super().__init__(context, weight=config.weight)
        self.config = config
        self.copies = nn.Linear(context.width, 1) if config.asked == "all" else None
        self.mixes = self.copies is not None
        if self.copies is not None:
            context.layer_config.init_weights(self.copies)
        self.generator = generator

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The generator's loss goes by the name of what it is."""
        return (self.name,) if self.generator is None else (WORDS, self.name)

    def corrupt(self, batch: Batch) -> Batch:
        """Hides words for the generator; labels [Q] are the ids of the text, at its places."""
        hidden = expect(self.generator, self.name).masked_lm.corrupt(batch)
        labels, places = hidden.labels[WORDS], hidden.indices[WORDS]
        if self.config.asked == "all":
            labels = torch.where(batch.document_ids != 0, batch.input_ids, IGNORE_INDEX).flatten()
            places = torch.arange(len(labels), device=labels.device)
        return hidden.replace(
            labels={**hidden.labels, self.name: labels}, indices={**hidden.indices, self.name: places}
        )

    def sample_replacements(self, batch: Batch, embed: Embed, table: Tensor) -> tuple[Batch, Loss | None]:
        """Every hidden place gets the generator's guess."""
        if self.generator is None:
            return batch, None
        filled, _, loss = self.generator.fill(batch, embed, table)
        return filled, loss

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Of both parts."""
        words = {} if self.generator is None else self.generator.masked_lm.counts(batch)
        return {**words, **super().counts(batch)}

    def per_token_modules(self) -> list[nn.Module]:
        """The generator but for its head."""
        return [] if self.generator is None else [self.generator.project, self.generator.blocks]

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor) -> Tensor:
        """The logits of every token at each place that is read [Q, V]; with a gate, the logarithms of probabilities.

        The gate mixes what the head guesses with the token that stands there: p = copy · [it] + (1 - copy) · softmax.
        """
        logits_QV = super().predict(encoding, batch, table)
        if self.copies is None:
            return logits_QV
        gate_Q1 = exact(self.copies(encoding.at(self.name)))
        there_Q1 = batch.input_ids.flatten()[batch.indices[self.name]].unsqueeze(1)
        guessed_QV = F.logsigmoid(-gate_Q1) + exact(logits_QV).log_softmax(-1)
        mixed_Q1 = torch.logaddexp(guessed_QV.gather(1, there_Q1), F.logsigmoid(gate_Q1))
        return guessed_QV.scatter(1, there_Q1, mixed_Q1)
