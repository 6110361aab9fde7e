"""Fixtures of training tests: a fast model of three layer groups, and its batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.training import optimizers
from bertsmith.training.optimizers import Weight, adamw, weights_of
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.trainer import Trainer
from bertsmith.types import Batch, Loss

SIZE, WIDTH, LENGTH, ROWS = 23, 6, 7, 8


class Toy(nn.Module):
    """Predicts each word and the row length. Bottom: embeddings; middle: a matrix and a norm; top: two heads."""

    compiles, threads_over_rows = True, False

    def __init__(self, *, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = nn.Identity()  # has no parts of its own outside of the groups
            self.table = nn.Embedding(SIZE, WIDTH)
            self.middle = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH), nn.Dropout(dropout))
            self.heads = nn.ModuleDict({"word": nn.Linear(WIDTH, SIZE), "long": nn.Linear(WIDTH, 2)})

    def layer_groups(self) -> list[nn.Module]:
        return [self.table, self.middle, self.heads]

    def tied_tables(self) -> list[nn.Parameter]:
        return []

    def enable_fp8(self, *, whole: bool = True) -> None:
        raise AssertionError("never called")

    def corrupt(self, batch: Batch) -> Batch:
        ids = batch.input_ids
        labels = {"word": torch.where(batch.document_ids > 0, ids, -100), "long": batch.labels["long"]}
        return batch.replace(input_ids=torch.where(ids % 5 == 1, 0, ids), labels=labels)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return {name: (labels != -100).sum() for name, labels in batch.labels.items()}

    def forward(self, batch: Batch) -> Loss:
        seen = self.middle(self.table(batch.input_ids))
        logits = {"word": self.heads["word"](seen).flatten(0, 1), "long": self.heads["long"](seen.mean(1))}
        labels = {name: batch.labels[name].flatten() for name in logits}
        return Loss(
            sums={name: F.cross_entropy(logits[name], labels[name], reduction="sum") for name in logits},
            counts=self.counts(batch),
            correct={name: (logits[name].argmax(-1) == labels[name]).sum() for name in logits},
            weights={"word": 1.0, "long": 0.5},
        )


def toy_batch(step: int, rows: slice = slice(None)) -> Batch:
    """Rows of a step: texts of different lengths, so that equal micro-batches have different label counts."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(1, SIZE, (ROWS, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (ROWS,), generator=generator)
    document = (torch.arange(LENGTH) < lengths[:, None]).int()
    ids, document, lengths = (ids * document)[rows], document[rows], lengths[rows]
    no_offsets = torch.zeros_like(ids)
    return Batch(
        input_ids=ids,
        position_ids=no_offsets,
        segment_ids=no_offsets,
        document_ids=document,
        special_mask=document == 0,
        sample_ids=no_offsets,
        epoch=torch.tensor(0),
        cu_seqlens=torch.zeros(2, dtype=torch.int32),
        cls_positions=torch.zeros(len(ids), dtype=torch.int64),
        max_seqlen=LENGTH,
        labels={"long": torch.where(lengths == 1, -100, (lengths > 4).long())},
    )


def feed(*, micro_batch_size: int = ROWS, rank: int = 0, ranks: int = 1) -> Callable[[int], Sequence[Batch]]:
    """The micro-batches of each step, or those of one rank."""

    def of_step(step: int) -> Sequence[Batch]:
        begins = range(0, ROWS, micro_batch_size)
        left_value = begins[rank * len(begins) // ranks : (rank + 1) * len(begins) // ranks]
        return [toy_batch(step, slice(begin, begin + micro_batch_size)) for begin in left_value]

    return of_step


def trainer(
    *,
    plan: TrainingPlan | None = None,
    optimiser: optimizers.OptimizerConfig | None = None,
    dropout: float = 0.0,
    **how: Any,
) -> Trainer:
    """A trainer of the toy model with settings that change every weight."""
    given = {"feed": feed(), **how}
    toy, batches = given.pop("model", None) or Toy(dropout=dropout), given.pop("feed")
    chosen = plan or TrainingPlan(steps=12, learning_rate=0.05, warmup=0.25)
    return Trainer(toy, batches, plan=chosen, optimizer=optimiser or adamw.Config(), **given)


def toy_weights(model: Toy | None = None) -> list[Weight]:
    """The weights of a toy model."""
    model = model or Toy()
    return weights_of(dict(model.named_parameters()), model.layer_groups())


def snapshot(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def same(left_tensors: dict[str, Tensor], right_tensors: dict[str, Tensor]) -> bool:
    """Whether two sets of tensors are bitwise equal."""
    return left_tensors.keys() == right_tensors.keys() and all(
        torch.equal(left_tensors[name], right_tensors[name]) for name in left_tensors
    )
