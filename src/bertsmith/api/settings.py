"""The settings of runs as typed keywords; `Recipe` and `FinetuneConfig` say what each of them does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

PathLike = str | os.PathLike[str]
Precision = Literal["auto", "fp32", "bf16", "fp8"]
Table = Mapping[str, Any]  # the settings of one part, such as {"kind": "adamw", "weight_decay": 0.1}


class RunSettings(TypedDict, total=False):
    """Settings of every training run."""

    learning_rate: float
    lr: float
    warmup: float
    schedule: Table
    layer_decay: float
    unfreeze: Sequence[Table]
    batch_size: int
    micro_batch_size: int
    max_length: int
    optimizer: Table | str
    weight_decay: float
    precision: Precision
    compute: Table
    seed: int
    patience: int
    save_every: int
    keep_checkpoints: int


class RecipeSettings(RunSettings, total=False):
    """Settings of a pre-training run, see `bertsmith.training.recipe.Recipe`."""

    name: str
    encoder: Table | str
    objectives: Mapping[str, Table]
    packing: Table | str
    steps: int
    minutes: float
    batch_size_warmup: Table | None
    eval_every: int
    eval_rows: int
    start: PathLike
    after: str


class FinetuneSettings(RunSettings, total=False):
    """Settings of a fine-tuning run, see `bertsmith.training.recipe.FinetuneConfig`."""

    task_settings: Table
    tokenizer: PathLike
    head: Table
    dropout: float | None
    random_init: bool
    epochs: float
    dev_fraction: float
    evals_per_epoch: int
