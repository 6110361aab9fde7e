"""An encoder and the objectives that ask it: the one module that a trainer sees. Knows neither by name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Self, cast

import torch
from torch import Tensor, nn

from bertsmith.encoders.encoder import Encoder
from bertsmith.encoders.encoder import EncoderConfig as EncoderSettings
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.nn import float8, float8_block
from bertsmith.objectives.objective import BuildContext, Objective, Pipeline
from bertsmith.objectives.objective import ObjectiveConfig as ObjectiveSettings
from bertsmith.types import Batch, Encoding, Loss, Vocabulary


class Model(nn.Module):
    """`hide`, then `forward`: refill, encode once, score each.

    Hiding stands apart, because the counts that a loss is divided by are wanted before the forward.
    """

    def __init__(self, encoder: Encoder, objectives: Iterable[Objective]) -> None:
        super().__init__()
        self.encoder = encoder
        self.objectives = nn.ModuleDict({objective.name: objective for objective in objectives})
        for objective in self._each():
            if objective.reads_pooled and not encoder.has_pooler:
                raise ConfigError(f"{objective.name} reads one vector for each text: it needs an encoder with a pooler")
            if objective.causal and not encoder.causal:
                raise ConfigError(f"{objective.name} could see its own answers in this encoder: set causal=true")
        owners: dict[str, str] = {}
        for part, name in ((part, objective.name) for objective in self._each() for part in objective.loss_terms):
            if owners.setdefault(part, name) != name:
                raise ConfigError(f"{owners[part]} and {name} both have a loss {part}: leave one of them out")

    @classmethod
    def build(
        cls,
        encoder: EncoderSettings,
        objectives: Iterable[ObjectiveSettings],
        *,
        vocabulary: Vocabulary | None = None,
        seed: int = 0,
    ) -> Self:
        """A model with new weights; `vocabulary` and `seed` say how objectives hide words."""
        made = encoder.build()
        rows, embedding_width = made.token_embeddings.shape
        context = BuildContext(
            width=made.width,
            layers=made.layers,
            vocab_size=rows,
            embedding_width=embedding_width,
            vocabulary=vocabulary,
            layer_config=made.layer_config,
            seed=seed,
        )
        return cls(made, [settings.build(context) for settings in objectives])

    def corrupt(self, batch: Batch) -> Batch:
        """The batch with every objective's question in it."""
        for objective in self._each():
            batch = objective.corrupt(batch)
        return batch

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """How many things are asked of a hidden batch [], by part of the loss."""
        return {part: count for objective in self._each() for part, count in objective.counts(batch).items()}

    def forward(self, batch: Batch) -> Loss:
        """The loss of a hidden batch; the encoder computes its last layer only where an objective reads it."""
        table = self.encoder.token_embeddings
        losses: list[Loss] = []
        for objective in self._each():
            batch, guessing = objective.sample_replacements(batch, self.encoder.embed, table)
            losses += [] if guessing is None else [guessing]
        encoding = self._encode(batch, self._each())
        return reduce(add, [*losses, *(objective.loss(encoding, batch, table) for objective in self._each())])

    def predict(self, batch: Batch, name: str) -> Tensor:
        """The logits of one objective for a batch as it is: at its places in the batch, or at all where it has none."""
        if name not in self.objectives:
            raise BertsmithError(
                f"this model was not made for {name}: it has {', '.join(self.objectives) or 'no heads'}"
            )
        objective = cast(Objective, self.objectives[name])
        if objective.indices(batch) is None:
            everywhere = torch.arange(batch.input_ids.numel(), device=batch.input_ids.device)
            batch = batch.replace(indices={**batch.indices, name: everywhere})
        return objective.predict(self._encode(batch, [objective]), batch, self.encoder.token_embeddings)

    def _encode(self, batch: Batch, objectives: list[Objective]) -> Encoding:
        """The encoding with all that these objectives read, and no more."""
        places: dict[str, Tensor] = {}
        for objective in objectives:
            if objective.reads_pooled or objective.reads_all_tokens:
                continue
            asked = objective.indices(batch)
            if asked is None:
                raise BertsmithError(f"{objective.name} has asked nothing of this batch: hide it first")
            places[objective.name] = asked
        return_layers = any(objective.reads_all_layers for objective in objectives)
        everywhere = return_layers or any(objective.reads_all_tokens for objective in objectives)
        found: Encoding = self.encoder(
            batch.replace(indices=places),
            indices=None if everywhere else places,
            pool=any(objective.reads_pooled for objective in objectives),
            return_layers=return_layers,
        )
        return found

    def head_for(self, *pipelines: Pipeline) -> str | None:
        """The name of the first objective whose predictions one of these pipelines decodes."""
        return next((head.name for head in self._each() if head.pipeline in pipelines), None)

    def layer_groups(self) -> list[nn.Module]:
        """The encoder's parts from bottom to top, then the objectives; every parameter is in exactly one."""
        return [*self.encoder.layer_groups(), self.objectives]

    def enable_fp8(self, *, whole: bool = True) -> None:
        """From here on, in what stands between the bottom part and the heads; weights and their names stay.

        `whole`: blocks as a whole where they can. A block then takes the weights of the norm below it.
        """
        for part in self.layer_groups()[1:-1]:
            (float8_block if whole else float8).convert(part)

    def with_encoder(self, encoder: Encoder) -> Model:
        """The same heads, shared with this model, over another encoder of the same width and layers."""
        return Model(encoder, self._each())

    def _each(self) -> list[Objective]:
        return cast(list[Objective], list(self.objectives.values()))
