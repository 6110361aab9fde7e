"""Generated tokens, warped probabilities and surprisals equal those of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from inference.generation_fixtures import random_lm

from bertsmith.inference.generation import end_id
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.sampling import GenerationSettings, warp_logits

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
PROMPTS = ["the smith heats", "iron", "fire burns while the"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictor, Any]:
    """A GPT, and the same model in transformers."""
    ours = random_lm(ends=True)
    folder = ours.save(tmp_path_factory.mktemp("gpt") / "model")
    return ours, transformers.OpenAIGPTLMHeadModel.from_pretrained(folder).eval()


@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_greedy_texts_equal_those_of_transformers(pair: tuple[Predictor, Any], penalty: float) -> None:
    ours, theirs = pair
    tokenizer = ours.tokenizer
    end = end_id(tokenizer)
    banned = sorted({*tokenizer.special_ids, *range(tokenizer.vocab_size, tokenizer.vocab_size + 3)} - {end})
    results = ours.generate(PROMPTS, max_new_tokens=24, repetition_penalty=penalty)
    for prompt, result in zip(PROMPTS, results, strict=True):
        ids = torch.from_numpy(tokenizer.encode(prompt).ids.astype(np.int64))[None]
        options = {"max_new_tokens": 24, "do_sample": False, "suppress_tokens": banned, "repetition_penalty": penalty}
        found = theirs.generate(ids, attention_mask=torch.ones_like(ids), eos_token_id=end, pad_token_id=0, **options)
        expected = found[0, ids.shape[1] :].tolist()
        assert result["tokens"] == [token for token in expected if token != end]
        assert result["finish_reason"] == ("end" if end in expected else "length")


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (None, 0.7), (20, 0.4), (None, 0.001)])
def test_warped_probabilities_equal_those_of_transformers(top_k: int | None, top_p: float) -> None:
    logits, ids = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)) * 3, torch.arange(12).view(4, 3)
    settings = GenerationSettings(temperature=0.7, top_k=top_k, top_p=top_p, repetition_penalty=1.3)
    seen = torch.zeros(4, 50, dtype=torch.bool).scatter(1, ids, True)
    warpers = [transformers.RepetitionPenaltyLogitsProcessor(1.3), transformers.TemperatureLogitsWarper(0.7)]
    warpers += [transformers.TopKLogitsWarper(top_k)] if top_k else []
    warpers += [transformers.TopPLogitsWarper(top_p)] if top_p < 1 else []
    expected = transformers.LogitsProcessorList(warpers)(ids, logits)
    torch.testing.assert_close(warp_logits(logits, settings, seen).softmax(-1), expected.softmax(-1))


def test_surprisals_equal_the_loss_of_transformers(pair: tuple[Predictor, Any]) -> None:
    ours, theirs = pair
    scored = ours.score(PROMPTS)
    for prompt, result in zip(PROMPTS, scored, strict=True):
        ids = torch.from_numpy(ours.tokenizer.encode(prompt).ids.astype(np.int64))[None]
        values = [one["surprisal"] for one in result["tokens"]]
        assert values[0] is None
        assert [one["token"] for one in result["tokens"]] == ids[0].tolist()
        if len(values) > 1:
            with torch.no_grad():
                loss = float(theirs(ids, labels=ids).loss)
            assert np.isclose(np.mean(values[1:]), loss, rtol=1e-5)
            assert np.isclose(result["perplexity"], np.exp(loss), rtol=1e-4)
            size = len(prompt) - prompt.index(" ")  # without the first word
            assert np.isclose(result["nats_per_byte"], sum(values[1:]) / size, rtol=1e-6)
        else:
            assert result["perplexity"] is None
