"""What every objective is: what it hides, what it reads, its head, its score, its answer. Knows no encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import BertsmithError
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss, Vocabulary

FOLDER = "bertsmith.objectives"
Embed = Callable[[Batch], Tensor]  # of an encoder: the vectors [T, E] of a batch below its blocks


class Objective(nn.Module):
    """A question put to an encoding. Q things asked in a batch, V rows of the token table, D width."""

    name: ClassVar[str]  # the name of its file; its labels, places and parts of the loss go by it
    causal: ClassVar[bool] = False  # it can only be asked of an encoder that sees nothing ahead
    # What it reads where all are False: the top layer at `places`.
    reads_pooled: bool = False  # the encoder's own vector for each text
    reads_all_tokens: bool = False  # the top layer everywhere
    reads_all_layers: bool = False  # every layer, everywhere

    def __init__(self, *, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def __init_subclass__(cls) -> None:
        cls.name = cls.__module__.rpartition(".")[2]

    def corrupt(self, batch: Batch) -> Batch:
        """The batch with this objective's question in it: ids exchanged, `places` and `labels` set."""
        return batch

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The names of the parts of its loss."""
        return (self.name,)

    def sample_replacements(self, batch: Batch, embed: Embed, table: Tensor) -> tuple[Batch, Loss | None]:
        """The hidden batch with guesses of the objective's own in it, and the loss of guessing.

        Nearly all objectives guess nothing. `embed` and `table` [V, E] are the encoder's.
        """
        return batch, None

    def per_token_modules(self) -> list[nn.Module]:
        """Its modules that every token goes through, whether something is asked there or not."""
        return []

    def chance_accuracy(self, asked: Mapping[str, float]) -> float | None:
        """The share that one is right in by always saying the same, where that follows from how much is asked."""
        return None

    def indices(self, batch: Batch) -> Tensor | None:
        """The flat places [R] at which it reads the top layer; None where the batch does not say."""
        return batch.indices.get(self.name)

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor) -> Loss:
        """How wrong the answers are, as sums and counts; `table` [V, D] is the encoder's."""
        return self.loss_from_logits(self.predict(encoding, batch, table), batch)

    def loss_from_logits(self, logits: Tensor, batch: Batch) -> Loss:
        """How wrong these answers [Q, choices] are."""
        labels = self.labels(batch)
        total = F.cross_entropy(exact(logits), labels, ignore_index=IGNORE_INDEX, reduction="sum")
        return self.make_loss(batch, total, self.label_mask(batch) & (logits.argmax(-1) == labels))

    def make_loss(self, batch: Batch, total: Tensor, right: Tensor | None) -> Loss:
        """The loss whose sum is `total` []; `right` is bool, None where there is no right and wrong."""
        return Loss(
            sums={self.name: total},
            counts={self.name: self.counts(batch)[self.name]},
            correct={} if right is None else {self.name: right.sum()},
            weights={self.name: self.weight},
        )

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor) -> Tensor:
        """The logits of each thing asked [Q, choices]."""
        raise NotImplementedError

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """How many things are asked of a hidden batch [], by part of the loss; known before the forward."""
        return {self.name: self.label_mask(batch).sum()}

    def label_mask(self, batch: Batch) -> Tensor:
        """What of all that has a label is asked [Q] bool."""
        return self.labels(batch) != IGNORE_INDEX

    def labels(self, batch: Batch) -> Tensor:
        """The right answer to each thing asked [Q]."""
        if self.name not in batch.labels:
            known = ", ".join(batch.labels) or "none at all"
            raise BertsmithError(f"this batch has no labels for {self.name} (it has {known}): hide it, or bring them")
        return batch.labels[self.name]


def exact(logits: Tensor) -> Tensor:
    """The same numbers, wide enough for sums of exponentials: at least float32."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What an objective knows of the encoder and of the tokenizer when it is built."""

    width: int  # of the encoder's hidden states
    layers: int = 0  # of the encoder, embeddings not counted
    vocab_size: int  # rows of the token table
    embedding_width: int | None = None  # of the token table; None: the encoder's width
    vocabulary: Vocabulary | None = None  # needed to corrupt batches, not to compute losses or predictions
    layer_config: LayerConfig = field(default_factory=LayerConfig)
    seed: int = 0  # of the corruption


class ObjectiveConfig(Protocol):
    """An objective's `Config`."""

    def build(self, context: BuildContext) -> Objective:
        """The objective with new weights."""
