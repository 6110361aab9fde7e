"""Fixtures of tests with recurrent state: columns of text, a small AWD-LSTM, and its trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from data.packing.packing_fixtures import FRAME, PADDING, make_shards, some_documents

from bertsmith.data.collate import from_packed
from bertsmith.data.packing.columns import Columns, Config
from bertsmith.data.shards import Shards
from bertsmith.encoders import awd_lstm
from bertsmith.model_io.model import Model
from bertsmith.objectives import causal_lm
from bertsmith.training.distributed import World
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.trainer import Trainer

COLUMNS = 8


def column_packing(folder: Path, columns: int = COLUMNS) -> Columns:
    return packing_of(make_shards(folder / "columns", some_documents(11, documents=60)), columns)


def packing_of(shards: Shards, columns: int = COLUMNS) -> Columns:
    return Config().build(shards, frame=FRAME, padding_id=PADDING, seed=3, max_length=10, columns=columns)


def column_model(dropout_scale: float = 0.0, **settings: Any) -> Model:
    encoder = awd_lstm.Config(
        layers=2, width=8, hidden=12, vocab_size=40_000, dropout_scale=dropout_scale, padding_id=PADDING
    )
    torch.manual_seed(1)
    return Model.build(encoder, [causal_lm.Config(**settings)])


def column_trainer(world: World, folder: Path, *, micro_batch_size: int = COLUMNS, **options: Any) -> Trainer:
    """Trains on columns of text that are the same in every world."""
    packing = column_packing(folder / f"rank-{world.rank}-of-{world.size}")
    size = min(micro_batch_size, COLUMNS // world.size) * world.size

    def batches(step: int) -> list[Any]:
        micros = range(step * COLUMNS // size, (step + 1) * COLUMNS // size)
        share = {"batch_size": size, "rank": world.rank, "world_size": world.size}
        return [from_packed(packing.batch(micro, **share)) for micro in micros]

    plan = TrainingPlan(**{"steps": 100, "learning_rate": 0.01, **options})
    return Trainer(column_model(), batches, plan=plan, optimizer=adamw.Config(), world=world, columns=packing)
