"""A model: one encoder and its objectives, the module that the trainer trains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from bertsmith.encoders.encoder import Encoder, EncoderConfig
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.nn.fp8 import enable_fp8
from bertsmith.nn.meta_device import on_meta_device
from bertsmith.nn.scalar_mix import ScalarMix
from bertsmith.objectives.objective import BuildContext, Objective, ObjectiveConfig, Pipeline
from bertsmith.types import Batch, Encoding, Loss, Vocabulary

PENALTY = "penalty"  # the loss term of the L2 penalties of mixes of layers


class Model(nn.Module):
    """`corrupt`, then `forward`: sample replacements, encode once, compute the loss of each objective.

    An objective that reads a corrupted copy of the batch has an encoding of its own.

    `corrupt` is separate because the counts that the loss is divided by are needed before the forward.
    """

    def __init__(self, encoder: Encoder, objectives: Iterable[Objective]) -> None:
        super().__init__()
        self.encoder = encoder
        self.objectives = nn.ModuleDict({objective.name: objective for objective in objectives})
        for objective in self._each():
            if objective.reads_pooled and not encoder.has_pooler:
                missing = "but the encoder has no pooler: set encoder.pooler=true"
                raise ConfigError(f"{objective.name} reads the pooled vector of each text, {missing}")
            if objective.causal and encoder.direction not in ("forward", "backward"):
                raise ConfigError(
                    f"{objective.name} predicts the next token: it needs a causal encoder, set encoder.causal=true"
                )
            if objective.reads_target and not encoder.has_decoder:
                raise ConfigError(f"{objective.name} needs an encoder with a decoder: set encoder.kind=seq2seq")
        self._penalized = [part for part in self.modules() if isinstance(part, ScalarMix) and part.l2]
        owners: dict[str, str] = {}
        for part, name in ((part, objective.name) for objective in self._each() for part in objective.loss_terms):
            if owners.setdefault(part, name) != name:
                raise ConfigError(f"{owners[part]} and {name} both have a loss term {part}: remove one of them")

    @classmethod
    def build(
        cls,
        encoder: EncoderConfig,
        objectives: Iterable[ObjectiveConfig],
        *,
        vocabulary: Vocabulary | None = None,
        seed: int = 0,
    ) -> Self:
        """A model with new weights; objectives corrupt batches by `vocabulary` and `seed`."""
        made = encoder.build()
        context = build_context(made, vocabulary=vocabulary, seed=seed)
        return cls(made, [settings.build(context) for settings in objectives])

    def corrupt(self, batch: Batch) -> Batch:
        """The batch with the inputs and labels of every objective."""
        for objective in self._each():
            corrupted = objective.corrupt(batch)
            if objective.reads_copy:
                copies = {**batch.copies, objective.name: corrupted.input_ids}
                corrupted = corrupted.replace(input_ids=batch.input_ids, copies=copies)
            batch = corrupted
        return batch

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The number of labels [] of a corrupted batch, by loss term."""
        counts = {part: count for objective in self._each() for part, count in objective.counts(batch).items()}
        return counts | ({PENALTY: torch.ones((), device=batch.input_ids.device)} if self._penalized else {})

    def layer_weights(self) -> dict[str, float]:
        """The learned weights of layers in the sums that encoder and heads read, as `MIX/LAYER`."""
        found: dict[str, float] = {}
        for name, module in self.named_modules():
            if isinstance(module, ScalarMix):
                kind, *path = name.split(".")
                title = _mix_title(path) if kind == "encoder" else path[0]
                found |= {f"{title}/{layer}": value for layer, value in module.layer_weights().items()}
        return found

    def _penalties(self) -> list[Loss]:
        """The L2 penalties as a loss term: each micro-batch adds it once, so that its mean is its value."""
        if not self._penalized:
            return []
        value = torch.stack([mix.penalty() for mix in self._penalized]).sum()
        return [Loss({PENALTY: value}, {PENALTY: value.new_ones(())}, {}, {PENALTY: 1.0})]

    @property
    def compiles(self) -> bool:
        """Whether the encoder can be compiled by torch.compile and captured in CUDA graphs."""
        return self.encoder.compiles

    @property
    def threads_over_rows(self) -> bool:
        """Whether a training step on a CPU mainly runs threads over parts of the rows (`nn.row_threads`)."""
        return all(objective.threads_over_rows for objective in self._each())

    def forward(self, batch: Batch, state: tuple[Tensor, ...] | None = None) -> Loss:
        """The loss of a corrupted batch; the encoder computes its last layer only at tokens that objectives read.

        `state`: of a stateful encoder, `Loss.state` of the previous batch.
        """
        table = self.encoder.token_embeddings
        losses: list[Loss] = []
        for objective in self._each():
            batch, loss = objective.sample_replacements(batch, self.encoder.embed, table)
            losses += [] if loss is None else [loss]
        shared = [head for head in self._each() if head.reads_encoding and not head.reads_copy]
        encoding = self._encode(batch, shared, state) if shared else None
        if encoding is not None:
            losses += [objective.loss(encoding, batch, self._table(objective)) for objective in shared]
        losses += self._penalties()
        for name, ids in batch.copies.items():
            copy = batch.replace(input_ids=ids)
            losses.append(self._head(name).loss(self._encode(copy, [self._head(name)]), copy, table))
        after = () if encoding is None else tuple(tensor.detach() for tensor in encoding.state or ())
        return replace(reduce(add, losses), state=after)

    def predict(self, batch: Batch, name: str) -> Tensor:
        """The logits of one objective for an uncorrupted batch, at its indices, or at every token where it has none."""
        if name not in self.objectives:
            raise BertsmithError(f"this model has no head {name}: it has {', '.join(self.objectives) or 'none'}")
        objective = self._head(name)
        if objective.indices(batch) is None and not objective.reads_target:
            everywhere = torch.arange(batch.input_ids.numel(), device=batch.input_ids.device)
            batch = batch.replace(indices={**batch.indices, name: everywhere})
        return objective.predict(self._encode(batch, [objective]), batch, self._table(objective))

    def _encode(self, batch: Batch, objectives: list[Objective], state: tuple[Tensor, ...] | None = None) -> Encoding:
        """The encoding with what these objectives read."""
        indices: dict[str, Tensor] = {}
        for objective in objectives:
            if objective.reads_all_tokens and objective.name in batch.indices:
                indices[objective.name] = batch.indices[objective.name]
            if objective.reads_pooled or objective.reads_all_tokens or objective.reads_target:
                continue
            selected = objective.indices(batch)
            if selected is None:
                raise BertsmithError(f"{objective.name} has no indices in this batch: corrupt it first")
            indices[objective.name] = selected
        return_layers = any(objective.reads_all_layers for objective in objectives)
        all_tokens = return_layers or any(objective.reads_all_tokens for objective in objectives)
        encoding: Encoding = self.encoder(
            batch.replace(indices=indices),
            state,
            indices=None if all_tokens else indices,
            pool=any(objective.reads_pooled for objective in objectives),
            return_layers=return_layers,
        )
        return encoding

    def _table(self, objective: Objective) -> Tensor | None:
        return self.encoder.target_embeddings if objective.reads_target else self.encoder.token_embeddings

    def head_for(self, *pipelines: Pipeline) -> str | None:
        """The name of the first objective whose predictions one of these pipelines decodes."""
        return next((head.name for head in self._each() if head.pipeline in pipelines), None)

    def only_head_for(self, *pipelines: Pipeline) -> str | None:
        """The same; an error where several tasks have such a head."""
        names = [head.name for head in self._each() if head.pipeline in pipelines]
        if len(names) > 1 and any("-" in name for name in names):
            some = " or ".join(f"--head {name}" for name in names)
            raise BertsmithError(f"this model has several heads for this: choose one when it is loaded, {some}")
        return self.head_for(*pipelines)

    def layer_groups(self) -> list[nn.Module]:
        """The encoder's modules from bottom to top, then the objectives; every parameter is in exactly one."""
        return [*self.encoder.layer_groups(), self.objectives]

    def tied_tables(self) -> list[nn.Parameter]:
        """The token tables of the encoder that are also the output of a head."""
        tables = [self._table(head) for head in self._each() if head.tied]
        return [table for table in tables if isinstance(table, nn.Parameter)]

    def enable_fp8(self, *, whole: bool = True) -> None:
        """Uses FP8 between the embeddings and the heads; weights and their names stay.

        `whole`: fused blocks where possible. A block then contains the weights of the layer norm below it.
        """
        for part in self.layer_groups()[1:-1]:
            enable_fp8(part, blocks=whole)

    def with_encoder(self, encoder: Encoder) -> Model:
        """The same heads, shared with this model, on another encoder of the same width and layers."""
        return Model(encoder, self._each())

    def auxiliary_models(self) -> dict[str, Model]:
        """The models that objectives train beside the encoder, such as a generator, by name; they share weights.

        Empty where the encoder's embeddings cannot have another width than its blocks.
        """
        config = getattr(self.encoder, "config", None)
        if not getattr(config, "projects_embeddings", False):
            return {}
        state, models = self.encoder.state_dict(), dict[str, Model]()
        shared = {name: state[name] for name in state if name.startswith("embeddings.") and ".project." not in name}
        for name, part in ((name, part) for head in self._each() for name, part in head.auxiliary_models().items()):
            with on_meta_device():
                encoder: Encoder = replace(cast(Any, config), **part.encoder_changes).build()
            encoder.load_state_dict({**shared, **part.weights}, assign=True)
            models[name] = Model(encoder, [part.head]).train(self.training)
        return models

    def _head(self, name: str) -> Objective:
        return cast(Objective, self.objectives[name])

    def _each(self) -> list[Objective]:
        return cast(list[Objective], list(self.objectives.values()))


def build_context(encoder: Encoder, *, vocabulary: Vocabulary | None, seed: int) -> BuildContext:
    """What objectives need to know of an encoder."""
    table = encoder.token_embeddings
    size = len(table) if table is not None else 0 if vocabulary is None else vocabulary.size
    return BuildContext(
        width=encoder.width,
        layers=encoder.layers,
        layer_widths=encoder.layer_widths,
        vocab_size=size,
        target_vocab_size=len(target)
        if encoder.has_decoder and (target := encoder.target_embeddings) is not None
        else 0,
        embedding_width=None if table is None else table.shape[1],
        vocabulary=vocabulary,
        layer_config=encoder.layer_config,
        direction=encoder.direction,
        rope_theta=encoder.rope_theta,
        compiles=encoder.compiles,
        seed=seed,
    )


def _mix_title(path: Sequence[str]) -> str:
    """Which frozen encoder a mix reads, and where its vectors enter: `features-0 at the input`."""
    numbers = [part for part in path if part.isdigit()]
    if len(numbers) != 2:  # an encoder with another structure
        return ".".join(path)
    layer, source = numbers
    return f"features-{source} {'at the input' if layer == '0' else f'after layer {layer}'}"
