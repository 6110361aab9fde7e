"""On CUDA a predictor equals the CPU's, alone and through an engine; lower precisions are close."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference.predictor_fixtures import LONG, TAGS, TEXTS, random_model, tokenizer

import bertsmith
from bertsmith.inference.engine import Engine
from bertsmith.inference.predictor import Predictor
from bertsmith.objectives import classify, masked_lm, span, tag

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
HEADS = (classify.Config(labels=("no", "yes")), tag.Config(labels=TAGS), span.Config(), masked_lm.Config())


def opened(device: str, precision: Any = "float32") -> Predictor:
    return Predictor(random_model(*HEADS), tokenizer(), device=device, precision=precision)


def outputs_of(predictor: Predictor) -> list[Any]:
    texts = [*TEXTS, LONG]
    return [
        predictor.encode(texts, normalize=True),
        predictor.encode(texts, pooling="first", layers=[-2], normalize=True),
        predictor.predict_proba(texts),
        np.array([one["score"] for one in predictor.answer("which thing", LONG, top_k=5)]),
        np.array([one["score"] for one in predictor.fill_mask("the [MASK] is")]),
        predictor.attention("the smith has iron").weights,
    ]


def test_equal_to_the_cpu() -> None:
    here, there = opened("cpu"), opened("cuda")
    expected = outputs_of(here)
    for result, other in zip(outputs_of(there), expected, strict=True):
        assert np.allclose(result, other, atol=1e-4)
    with Engine(there.backend) as engine, ThreadPoolExecutor(8) as pool:
        for some in pool.map(outputs_of, [there.with_backend(engine)] * 16):
            assert all(np.allclose(result, other, atol=1e-4) for result, other in zip(some, expected, strict=True))


def test_moved_saved_and_closed(tmp_path: Path) -> None:
    model = opened("cpu")
    expected = outputs_of(model)
    assert model.to("cuda").device == "cuda"
    assert all(np.allclose(result, other, atol=1e-4) for result, other in zip(outputs_of(model), expected, strict=True))
    with bertsmith.load(model.save(tmp_path / "model"), device="cuda", precision="bfloat16") as small:
        again = bertsmith.load(small.save(tmp_path / "again"), device="cpu")
    assert all(np.array_equal(result, other) for result, other in zip(outputs_of(again), expected, strict=True))
    held, size = torch.cuda.memory_allocated(), 4 * model.parameters
    model.close()
    assert torch.cuda.memory_allocated() <= held - size


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lower_precisions(precision: Any) -> None:
    expected, result = outputs_of(opened("cpu")), outputs_of(opened("cuda", precision))
    for actual, other in zip(result[:2], expected[:2], strict=True):
        assert actual.dtype == np.float32
        assert (actual * other).sum(-1).min() > 0.99
    assert np.abs(result[2] - expected[2]).max() < 0.05


def test_graphs_equal_eager_forward_passes() -> None:
    small, exact = opened("cuda", "bfloat16"), opened("cuda", "bfloat16")
    exact.backend.graphs = None  # type: ignore[attr-defined]
    expected = outputs_of(exact)
    backend: Any = small.backend
    for number in range(5):
        assert any(backend.graphs._graphs.values()) == (number > 2)
        for result, other in zip(outputs_of(small), expected, strict=True):
            assert np.allclose(result, other, atol=0.03), number
    with Engine(backend) as engine, ThreadPoolExecutor(8) as pool:
        for some in pool.map(outputs_of, [small.with_backend(engine)] * 16):
            assert all(np.allclose(result, other, atol=0.03) for result, other in zip(some, expected, strict=True))
    assert None not in backend.graphs._graphs.values()


def test_graphs_of_few_texts_and_of_many_do_not_mix() -> None:
    predictor = opened("cuda", "bfloat16")
    texts = ["the smith", "the smith has red iron", LONG]
    for _ in range(4):
        alone = [predictor.encode(text, normalize=True) for text in texts]
        together = predictor.encode(texts, normalize=True)
        assert all((one @ other) > 0.999 for one, other in zip(alone, together, strict=True))
