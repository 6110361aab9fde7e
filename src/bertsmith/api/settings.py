"""Settings as typed keywords, and errors that name keywords instead of options of the command line.

`Recipe` and `FinetuneConfig` say what each setting does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from bertsmith.errors import BertsmithError

P = ParamSpec("P")
R = TypeVar("R")

PathLike = str | os.PathLike[str]
Precision = Literal["auto", "fp32", "bf16", "fp8"]
Table = Mapping[str, Any]  # the settings of one part, such as {"kind": "adamw", "weight_decay": 0.1}


# What errors say for the command line, and what it is called in Python.
IN_PYTHON = (
    (r"\btask\.(\w+)=([^\s,;:()]+)", r'task_settings={"\1": "\2"}'),
    (r", or task_settings=\{\"header\": \"false\"\} if line 1 .*$", ""),  # rows in memory have no header
    (r"(\S+/)?data/(train|dev)\.jsonl:(\d+)", r"row \3 of \2"),
    (r"(\S+/)?data/(train|dev)\.jsonl", r"\2"),
    (r"--task glue/cola --data DIR", 'tasks={"glue/cola": FOLDER}'),
    (r"--(train|dev|data|file) (FILE|DIR)", r"\1=\2"),
    (r"--overwrite\b", "overwrite=True"),
    (r"\banother -o\b", "another output"),
    (r"--device (\w+)", r"device=\1"),
    (r"--set (\S+):dev_fraction=0.1", r'finetune_settings={"\1": {"dev_fraction": 0.1}}'),
    (r"--held-out(?= \d)", "--held_out"),
    (r"--(minutes|models|held_out) ", r"\1="),
    (r"--held-out\b", "held_out"),
    (r"--(pairs|text)\b", r"\1"),
)


def python_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Errors of the function name its keywords instead of options of the command line."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BertsmithError as error:
            message = str(error)
            for pattern, replacement in IN_PYTHON:
                message = re.sub(pattern, replacement, message)
            error.args = (message, *error.args[1:])
            raise

    return wrapped


class LineageSettings(TypedDict, total=False):
    """Further settings of `lineage`, see `bertsmith.studies.lineage.settings.LineageConfig`."""

    pairs: Sequence[PathLike]
    vocab_size: int
    held_out: float
    seed: int
    finetune_settings: Table
    learning_rates: Sequence[float]
    sentences: Sequence[str]
    jobs: int
    workers: int | None
    keep: bool


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
    vectors: PathLike
    after: str
    match_tokens: bool


class FinetuneSettings(RunSettings, total=False):
    """Settings of a fine-tuning run, see `bertsmith.training.recipe.FinetuneConfig`."""

    task_settings: Table
    tokenizer: PathLike
    sampling: Literal["all", "balanced"]
    group_by_length: bool
    limit: int
    subset: Literal["first", "stratified"]
    metrics: str | Mapping[str, str]
    main_metric: str
    head: Table
    auxiliary: Mapping[str, float]
    head_learning_rate: float | None
    dropout: float | None
    encoder: Table
    random_init: bool
    epochs: float
    dev_fraction: float
    evals_per_epoch: int
