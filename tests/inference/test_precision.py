"""Lower precision: nearly the same outputs, in less memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference.predictor_fixtures import TEXTS, random_model, tokenizer
from torch import nn

import bertsmith
from bertsmith.errors import BertsmithError
from bertsmith.inference.precision import QuantizedLinear, supports_bfloat16
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives import classify, masked_lm

HEADS = (masked_lm.Config(), classify.Config(labels=("no", "yes")))


def outputs_of(predictor: Predictor) -> tuple[Any, Any]:
    return predictor.encode(TEXTS, normalize=True), predictor.predict_proba(TEXTS)


@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.05), ("int8", 0.05)])
def test_low_precision_is_close_to_float32(tmp_path: Path, precision: Any, tolerance: float) -> None:
    vectors, expected = outputs_of(Predictor(random_model(*HEADS), tokenizer()))
    predictor = Predictor(random_model(*HEADS), tokenizer(), precision=precision)
    found, probabilities = outputs_of(predictor)
    assert found.dtype == np.float32
    assert 1e-6 < np.abs(found - vectors).max() < tolerance, "rounded, and not far off"
    assert np.abs(probabilities - expected).max() < tolerance
    assert predictor.fill_mask("the [MASK] is red")[0]["score"] > 0
    assert predictor.attention("the smith").weights.shape[:2] == (3, 4)
    save_model(random_model(HEADS[0]), tokenizer(), tmp_path / "m")
    saved_predictor = bertsmith.load(tmp_path / "m", device="cpu", precision=precision)
    assert saved_predictor.precision == precision


@pytest.mark.parametrize(("precision", "share"), [("bfloat16", 0.52), ("int8", 0.3)])
def test_low_precision_uses_less_memory(precision: Any, share: float) -> None:
    def bytes_of_matrices(predictor: Predictor) -> int:
        parts = [part for part in predictor.model.modules() if isinstance(part, nn.Linear | QuantizedLinear)]
        tensors = [value for part in parts for value in [*part.parameters(), *part.buffers()] if value.dim() > 1]
        return sum(value.nbytes for value in tensors)

    whole = Predictor(random_model(*HEADS), tokenizer())
    small = Predictor(random_model(*HEADS), tokenizer(), precision=precision)
    assert bytes_of_matrices(small) <= share * bytes_of_matrices(whole)
    assert whole.model.encoder.token_embeddings.dtype == small.model.encoder.token_embeddings.dtype == torch.float32


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_quantized_linear_rounds_its_weight(whole: bool, bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(24, 7, bias=bias)
    with torch.no_grad():
        linear.weight[3] = 0  # a row of zeros has no scale
    x = torch.randn(5, 24)
    with torch.no_grad():
        expected, found = linear(x), QuantizedLinear(linear, int8=whole)(x)
    most = float(linear.weight.detach().abs().max()) * (0.5 / 127 if whole else 2**-9)
    assert float((found - expected).abs().max()) <= most * float(x.abs().sum(1).max())
    assert torch.equal(found[:, 3], expected[:, 3])


def test_unknown_precision_is_an_error() -> None:
    wrong: Any = "float8"
    with pytest.raises(BertsmithError, match='precision "float8" does not exist: choose float32, bfloat16, int8'):
        Predictor(random_model(*HEADS), tokenizer(), precision=wrong)
    assert isinstance(supports_bfloat16("cpu"), bool)
    assert supports_bfloat16("cuda") is True
