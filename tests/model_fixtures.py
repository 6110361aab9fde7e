"""Fixtures for model tests: a vocabulary of 97 tokens, rows of random tokens, small models with large weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from bertsmith.data.collate import collate
from bertsmith.encoders import bert
from bertsmith.model_io.model import Model
from bertsmith.objectives import choose, masked_lm, next_sentence
from bertsmith.tokenizers.spelling import spell
from bertsmith.types import Batch, Row, Vocabulary

torch.set_num_threads(1)  # tensors are small here, and test workers share the cores

PADDING, START, END, MASK, UNKNOWN = range(5)
SIZE = 97
FIRST_CONTINUATION = 70  # ids from here on continue the word before them
VOCABULARY = Vocabulary(
    size=SIZE,
    mask_id=MASK,
    end_id=END,
    special_ids=(PADDING, START, END, MASK, UNKNOWN),
    is_continuation=np.arange(SIZE) >= FIRST_CONTINUATION,
)


def make_row(first: np.ndarray, second: np.ndarray | None = None) -> Row:
    """[CLS] first [SEP] second [SEP], as ids, with the spelling of words such as w33."""
    parts = [[START], first, [END]] + ([] if second is None else [second, [END]])
    sides, segments = [-1, 0, -1, 1, -1], [0, 0, 0, 1, 1]
    sizes = [len(part) for part in parts]
    ids = np.concatenate(parts).astype(np.int32)
    return Row(
        ids=ids,
        segment_ids=np.repeat(np.array(segments[: len(parts)], np.uint8), sizes),
        sequence_ids=np.repeat(np.array(sides[: len(parts)], np.int8), sizes),
        offsets=np.zeros((len(ids), 2), np.int32),
        words=np.zeros(len(ids), np.int32),
        characters=spell([f"w{number}" for number in ids.tolist()]),
    )


def random_rows(lengths: list[int], *, seed: int = 0, pairs: bool = True) -> list[Row]:
    """Rows with that many tokens each, every second one a pair where it is long enough."""
    random = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(lengths):
        pair = pairs and number % 2 == 0 and length >= 5
        words = random.integers(UNKNOWN + 1, SIZE, length - (3 if pair else 2))
        cut = random.integers(1, len(words)) if pair else len(words)
        rows.append(make_row(words[:cut], words[cut:] if pair else None))
    return rows


def random_batch(lengths: list[int], *, length: int, seed: int = 0, pairs: bool = True, **options: Any) -> Batch:
    """A batch of random rows with random labels for next_sentence."""
    labels = {"next_sentence": np.random.default_rng(seed + 1).integers(0, 2, len(lengths)).tolist()}
    return collate(random_rows(lengths, seed=seed, pairs=pairs), length=length, labels=labels, **options)


def random_labels(rows: list[Row], *, seed: int = 0) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Labels and token indices for the objectives that do not make their own; questions of two and three choices."""
    random = np.random.default_rng(seed + 2)
    sizes = [len(row) for row in rows]
    groups = [2, 3] * len(rows)
    cuts = [cut for cut in np.cumsum(groups).tolist() if cut < len(rows)]
    choices: list[int] = []
    for size in np.diff([0, *cuts, len(rows)]).tolist():
        choices += choose.choice_labels(int(random.integers(size)), size)
    spans = [sorted(random.integers(0, size, 2).tolist()) for size in sizes]
    words = [sorted(random.choice(size, max(1, size // 3), replace=False).tolist()) for size in sizes]
    labels = {
        "next_sentence": random.integers(0, 2, len(rows)).tolist(),
        "classify": random.integers(0, 2, len(rows)).tolist(),
        "multi_label": np.random.default_rng(seed).integers(0, 2, (len(rows), 2)).astype(float).tolist(),
        "regress": random.normal(size=len(rows)).tolist(),
        "span": spans,
        "tag": [random.integers(0, 2, len(indices)).tolist() for indices in words],
        "choose": choices,
    }
    labels["sentence_order"] = [1 - label for label in labels["next_sentence"]]
    return labels, {"tag": words}


def small_bert_config(**changes: Any) -> bert.Config:
    """A small BERT."""
    small: dict[str, Any] = {
        "layers": 3,
        "width": 32,
        "heads": 4,
        "feed_forward": 64,
        "vocab_size": SIZE,
        "max_positions": 40,
    }
    return bert.Config(**{**small, **changes})


def pretraining_model(seed: int = 0, **changes: Any) -> Model:
    """A small BERT with both pre-training heads and large weights, in evaluation mode."""
    model = Model.build(
        small_bert_config(**changes), [masked_lm.Config(), next_sentence.Config()], vocabulary=VOCABULARY
    )
    return randomize_weights(model, seed).eval()


def randomize_weights(module: nn.Module, seed: int = 0, std: float = 0.3) -> Any:
    """Draws all parameters from N(0, 0.3): with 0.02 a wrong activation would be within rounding (SPEC.md §3)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn * std)
    return module


def relative_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference, relative to the largest absolute value."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    return float((actual - expected).detach().abs().max() / expected.detach().abs().max().clamp(min=1e-30))
