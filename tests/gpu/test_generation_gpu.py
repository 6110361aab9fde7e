"""On CUDA generation equals the CPU's; steps replayed as a CUDA graph equal steps without one."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from inference.generation_fixtures import gpt_tokenizer, random_lm

from bertsmith.encoders import gpt, modern
from bertsmith.inference import decoding
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model import Model
from bertsmith.objectives import causal_lm

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
PROMPTS = ["iron", "the smith heats iron", "while fire burns", "the"]
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 1}


@pytest.mark.parametrize("encoder", [gpt, modern])
@pytest.mark.parametrize("options", [{}, SAMPLED])
def test_equal_to_the_cpu_with_and_without_graphs(
    encoder: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    predictor = random_lm(encoder, max_positions=64)
    expected = predictor.generate(PROMPTS, max_new_tokens=40, **options)
    predictor.to("cuda")
    assert predictor.generate(PROMPTS, max_new_tokens=40, **options) == expected
    assert not [one for one in recwarn if "CUDA graphs" in str(one.message)]
    monkeypatch.setattr(decoding, "GRAPH_STEPS", 1000)
    assert predictor.generate(PROMPTS, max_new_tokens=40, **options) == expected


def test_a_step_of_128_texts_takes_a_few_milliseconds(recwarn: pytest.WarningsRecorder) -> None:
    model = Model.build(gpt.Config(), [causal_lm.Config()])
    predictor = Predictor(model, gpt_tokenizer(), device="cuda", precision="bfloat16")
    prompts = ["the smith " * 64] * 128
    predictor.generate(prompts, max_new_tokens=20)
    began = time.perf_counter()
    predictor.generate(prompts, max_new_tokens=128, temperature=1.0)
    milliseconds = 1000 * (time.perf_counter() - began) / 128
    assert not [one for one in recwarn if "CUDA graphs" in str(one.message)]
    assert milliseconds < 10
