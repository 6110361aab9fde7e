"""Fixtures of fine-tuning head tests: small models with one head, labelled batches, single texts."""

from __future__ import annotations

from typing import Any

import torch
from model_fixtures import random_labels, random_rows, randomize_weights, small_bert_config

from bertsmith.data.collate import collate
from bertsmith.model_io.model import Model
from bertsmith.types import Batch, Row

LENGTHS = [12, 9, 23, 7, 40, 5, 31, 16]
SHAPE = (6, 10)  # two text slots are empty


def model_with(settings: Any, **changes: Any) -> Model:
    """A small BERT with large weights and one head, in evaluation mode."""
    return randomize_weights(Model.build(small_bert_config(**{"layers": 5} | changes), [settings])).eval()


def rows_and_labels(lengths: list[int] | None = None) -> tuple[list[Row], dict[str, Any], dict[str, Any]]:
    """Rows, labels and indices for all objectives."""
    rows = random_rows(lengths or LENGTHS)
    return rows, *random_labels(rows)


def packed(**how: Any) -> Batch:
    """All texts packed into few rows, with empty slots."""
    rows, labels, places = rows_and_labels()
    how = {"pack": True, "shape": SHAPE} | how
    return collate(rows, length=40, labels=labels, indices=places, **how)


def alone(number: int) -> Batch:
    """One of the texts in its own batch, without padding."""
    rows, _, _ = rows_and_labels()
    return collate([rows[number]], length=len(rows[number]))


def layers_of(model: Model, number: int) -> list[torch.Tensor]:
    """Every layer [tokens, D] of one separately encoded text."""
    return list(model.encoder(alone(number), return_layers=True).layers)
