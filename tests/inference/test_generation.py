"""Generation: cached steps equal whole forward passes, batches single prompts, and texts end where they should."""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from inference.generation_fixtures import POSITIONS, byte_tokenizer, gpt_tokenizer, random_lm, wordpiece
from inference.predictor_fixtures import random_model

from bertsmith.data.collate import collate_unpadded
from bertsmith.encoders import albert, bert, gpt, modern, roformer
from bertsmith.errors import BertsmithError, UnknownWordsWarning
from bertsmith.inference import generation
from bertsmith.inference.deadline import DeadlineExceeded, RequestTooLarge, deadline
from bertsmith.inference.decoding import Step
from bertsmith.inference.engine import Engine, Overloaded
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.sampling import GenerationSettings
from bertsmith.objectives import masked_lm
from bertsmith.tokenizers.special_tokens import frame_texts
from bertsmith.types import Frame

PROMPTS = ["iron", "the smith heats iron and strikes an anvil", "while fire burns", "the"]


@pytest.fixture(scope="module")
def model() -> Predictor:
    return random_lm()


def whole_forward_passes(predictor: Predictor, prompt: str, steps: int) -> list[int]:
    """Greedy decoding in which each step encodes the whole text again."""
    tokenizer, model = predictor.tokenizer, predictor.model
    ids = tokenizer.encode(prompt).ids.tolist()
    ids = [tokenizer.start_id, *ids] if model.encoder.starts_texts else ids
    banned = sorted(set(tokenizer.special_ids) - {generation.end_id(tokenizer)})
    tokens: list[int] = []
    while len(tokens) < steps and generation.end_id(tokenizer) not in tokens:
        row = frame_texts(Frame(("a",), ()), generation.ids_only(np.array(ids + tokens, np.int32)), None, max_length=99)
        with torch.no_grad():
            logits = model.predict(collate_unpadded([row]), "causal_lm")[-1].clone()
        logits[banned] = -torch.inf
        tokens.append(int(logits[: tokenizer.vocab_size].argmax()))
    return [token for token in tokens if token != generation.end_id(tokenizer)]


@pytest.mark.parametrize("encoder", [gpt, bert, roformer, modern, albert])
def test_cached_steps_equal_whole_forward_passes(encoder: Any) -> None:
    settings = {"sharing": "attention"} if encoder is albert else {}
    predictor = random_lm(encoder, wordpiece() if encoder is bert else None, **settings)
    prompts = PROMPTS if encoder is not bert else ["the", "the smith has iron", "it is"]
    results = predictor.generate(prompts, max_new_tokens=20)
    for prompt, result in zip(prompts, results, strict=True):
        assert result["tokens"] == whole_forward_passes(predictor, prompt, 20)


def test_a_text_does_not_depend_on_the_other_prompts(model: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "the smith " * (POSITIONS // 2 - 5)  # only ten tokens fit after it
    options: dict[str, Any] = {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "seed": 5, "repetition_penalty": 1.3}
    together = model.generate([*PROMPTS, long], samples=2, **options)
    assert [len(one["tokens"]) for one in together[-1]] == [10] * 2
    assert len(together[0][0]["tokens"]) == POSITIONS - 1
    assert len({one["text"] for one in together[0]}) == 2
    assert together == [model.generate(prompt, samples=2, **options) for prompt in [*PROMPTS, long]]
    monkeypatch.setattr(generation, "DEFAULT_CACHE_TOKENS", 2 * POSITIONS)  # batches of two texts
    assert model.generate([*PROMPTS, long], samples=2, **options) == together
    assert model.generate(PROMPTS[0], **options) == together[0][0]
    assert model.generate(PROMPTS[0], **options | {"seed": 6}) != together[0][0]


def test_samples_have_the_probabilities_of_the_model(model: Predictor) -> None:
    options: dict[str, Any] = {"max_new_tokens": 1, "top_logprobs": 3, "samples": 128, "top_k": 3, "temperature": 2.0}
    drawn = [one for seed in range(4) for one in model.generate("the smith", seed=seed, **options)]
    top = drawn[0]["logprobs"][0]["top"]
    expected = np.exp([one["logprob"] / 2 for one in top])
    found = np.array([sum(one["tokens"] == [likely["token"]] for one in drawn) for likely in top])
    assert found.sum() == 512
    assert np.allclose(found / 512, expected / expected.sum(), atol=0.08)


def test_log_probabilities_are_those_of_the_model_whatever_is_sampled(model: Predictor) -> None:
    result = model.generate("the smith", max_new_tokens=3, temperature=9.0, top_k=2, seed=1, top_logprobs=4)
    for token, one in zip(result["tokens"], result["logprobs"], strict=True):
        assert one["token"] == token
        assert one["token_str"] == model.tokenizer.id_to_token(token)
        assert len(one["top"]) == 4
        assert one["logprob"] in [other["logprob"] for other in one["top"]]
        assert [other["logprob"] for other in one["top"]] == sorted((o["logprob"] for o in one["top"]), reverse=True)


def test_stop_strings_and_the_end_token_end_a_text(model: Predictor) -> None:
    whole = model.generate("the smith", max_new_tokens=25)
    assert whole["finish_reason"] == "length"
    stop = whole["text"][20:24]
    stopped = model.generate("the smith", max_new_tokens=25, stop=["never", stop])
    place = whole["text"].index(stop)
    assert stopped["text"] == whole["text"][:place]
    assert stopped["finish_reason"] == "stop"
    assert stopped["tokens"] == whole["tokens"][: len(stopped["tokens"])]
    assert len(stopped["tokens"]) < 25
    ended = random_lm(ends=True).generate("iron", repetition_penalty=1.4)
    assert ended["finish_reason"] == "end"
    assert len(ended["tokens"]) == 10
    assert generation.end_id(model.tokenizer) not in ended["tokens"]


def parts_of(tokenizer: Any, prompt: str, text: str, **options: Any) -> list[str]:
    """The parts of a text that is generated token by token."""
    settings = GenerationSettings(**options)
    ids = tokenizer.encode(text).ids
    row = frame_texts(Frame(("a",), ()), tokenizer.encode(prompt), None, max_length=99)
    building = generation._Text(tokenizer, 0, 0, row, settings, len(ids))
    empty = np.zeros((1, len(ids), 0))
    steps = [Step(ids[None, :end].astype(np.int64), empty[0], empty, empty) for end in range(1, len(ids) + 1)]
    pieces = [building.update(step, 0) for step in steps if not building.finish_reason]
    assert pieces[-1] is not None
    assert pieces[-1].result is not None
    parts = [piece.text for piece in pieces if piece]
    assert "".join(parts) == pieces[-1].result["text"]
    return parts


def test_parts_of_a_stream_hold_whole_characters_and_no_stop_string() -> None:
    text = " 쇠를 두드린다 the 🔨 smith"
    parts = parts_of(byte_tokenizer(), " the", text)
    assert "".join(parts) == text
    assert len(parts) > 9
    assert not any("\ufffd" in part for part in parts)
    assert "".join(parts_of(byte_tokenizer(), "", text, stop=["드린", "smith"])) == " 쇠를 두"
    assert "".join(parts_of(byte_tokenizer(), "", text, stop=["smiths", "🔨 x"])) == text
    assert "드" not in parts_of(byte_tokenizer(), "", " 두드린드릴", stop="드릴")[:2]
    cut = byte_tokenizer().encode("쇠").ids[:2]
    assert byte_tokenizer().decode(cut) == "\ufffd"  # two of three bytes


def test_decomposed_hangul_is_streamed_in_whole_syllables() -> None:
    parts = parts_of(wordpiece(), "the", "쇠에서 iron 쇠")
    assert unicodedata.normalize("NFC", "".join(parts)) == " 쇠에서 iron 쇠"
    assert "".join(map(partial(unicodedata.normalize, "NFC"), parts)) == " 쇠에서 iron 쇠"
    assert parts_of(gpt_tokenizer(), "the smith", "heats iron") == [" heats", " iron"]


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ("the", {"temperature": -0.1}, "temperature=-0.1: it must be at least 0"),
        ("the", {"temperature": float("nan")}, "temperature=nan: it must be at least 0"),
        ("the", {"top_p": 0.0}, "top_p=0.0: it must be above 0 and at most 1"),
        ("the", {"top_p": 1.5}, "top_p=1.5: it must be above 0 and at most 1"),
        ("the", {"top_k": 0}, "top_k=0: it must be at least 1"),
        ("the", {"samples": 1000, "temperature": 1}, "samples=1000: it must be from 1 to 128"),
        ("the", {"samples": 2}, "samples=2 with temperature=0 would give equal texts: set a temperature, such as 0.8"),
        ("the", {"max_new_tokens": 0}, "max_new_tokens=0: it must be at least 1"),
        ("the", {"max_new_tokens": 32}, "takes 1 of the model's 32 positions: at most 31 new tokens fit"),
        (["the", "the " * 40], {}, "prompt 2 takes 40 of the model's 32 positions: shorten it"),
        ("the", {"stop": [""]}, "stop takes at most 16 strings of at least one character"),
        ("the", {"repetition_penalty": 0.0}, "repetition_penalty=0.0: it must be above 0"),
        ("the", {"top_logprobs": 99}, "top_logprobs=99: it must be from 0 to 20"),
        (None, {}, "the texts are None: pass a list of strings"),
    ],
)
def test_bad_input_is_one_clear_line(model: Predictor, prompts: Any, options: Any, message: str) -> None:
    with pytest.raises(BertsmithError, match=re.escape(message)) as caught:
        model.generate(prompts, **options)
    assert "\n" not in str(caught.value)


def test_a_model_without_the_head_names_what_to_use() -> None:
    masked = Predictor(random_model(masked_lm.Config()), wordpiece())
    with pytest.raises(BertsmithError, match=r"no causal_lm head \(heads: masked_lm\).*fill-mask.*gpt/base"):
        masked.generate("the smith")


def test_an_empty_prompt_begins_with_the_start_token(model: Predictor) -> None:
    assert model.generate("", max_new_tokens=5)["tokens"]
    assert random_lm(bert, wordpiece()).generate("", max_new_tokens=5)["tokens"]
    assert model.generate([]) == []


def test_unknown_characters_are_reported() -> None:
    with pytest.warns(UnknownWordsWarning):
        random_lm().generate("漢字 漢字 漢字", max_new_tokens=1)


def test_an_engine_runs_generations_within_their_limits(model: Predictor) -> None:
    expected = model.generate(PROMPTS, max_new_tokens=20)
    with Engine(model.backend, max_queued_tokens=200) as engine:
        shared = model.with_backend(engine)
        assert shared.generate(PROMPTS, max_new_tokens=20) == expected
        settings = GenerationSettings(max_new_tokens=30)
        with deadline(60) as own:
            pieces = shared.generate_pieces(["the"] * 4, settings)
            next(pieces)
            assert engine.reserved_tokens == 4 * 31
            with pytest.raises(Overloaded, match="248 tokens would be queued; the limit is 200"):
                shared.generate(["the"] * 4, max_new_tokens=30)
            own.cancelled = True
            with pytest.raises(DeadlineExceeded):
                list(pieces)
        assert engine.reserved_tokens == 0
        with deadline(60, max_tokens=50), pytest.raises(RequestTooLarge, match="62 tokens, at most 50"):
            shared.generate(["the"] * 2, max_new_tokens=30)


def test_a_tokenizer_without_a_start_token_needs_a_prompt(model: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(gpt_tokenizer().special_tokens), "roles", lambda self: {})
    with pytest.raises(BertsmithError, match="the prompt is empty, and this tokenizer has no start token"):
        model.generate(" ")


@pytest.mark.parametrize("encoder", [gpt, bert])
def test_each_token_of_a_long_text_is_scored_once(encoder: Any) -> None:
    predictor = random_lm(encoder, max_positions=12)
    whole = random_lm(encoder, max_positions=64)
    table = whole.model.encoder.embeddings.positions.weight
    with torch.no_grad():  # positions have no effect, so that only the context differs
        for one in (predictor, whole):
            one.model.encoder.load_state_dict(
                whole.model.encoder.state_dict() | {"embeddings.positions.weight": table[: one.max_length] * 0}
            )
            one.model.objectives.load_state_dict(whole.model.objectives.state_dict())
    text = "the smith heats iron and strikes an anvil while fire burns the smith sings iron"
    (short, empty), (long, _) = predictor.score([text, ""]), whole.score([text, ""])
    assert "windows" not in long
    assert short["windows"] == 2
    assert [one["token"] for one in short["tokens"]] == [one["token"] for one in long["tokens"]]
    first = 12 - len(predictor.tokenizer.frame_ids.single[:1]) * (encoder is bert)
    values, exact = ([one["surprisal"] for one in result["tokens"]] for result in (short, long))
    assert values[1:first] == pytest.approx(exact[1:first], rel=1e-4)
    assert all(value is not None for value in values[1:])
    assert (values[0] is None) == (encoder is gpt)
    assert text[short["tokens"][1]["start"] : short["tokens"][1]["end"]] == "smith"
    assert empty == {"surprisal": 0.0, "perplexity": None, "nats_per_byte": None, "tokens": []}
    part = [one["token"] for one in short["tokens"]]
    assert (
        values[-1]
        == pytest.approx(  # the last window ends with the text
            predictor.score(predictor.tokenizer.decode(part[-first:]))["tokens"][-1]["surprisal"], rel=1e-4
        )
    )
