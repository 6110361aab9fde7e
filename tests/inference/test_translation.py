"""`Predictor.translate`: decoding with a cache, independence of the batch, limits, saved models, an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from inference.generation_fixtures import TRANSLATOR_POSITIONS, random_lstm_translator, random_translator
from inference.predictor_fixtures import random_model, tokenizer

import bertsmith
from bertsmith.data.collate import collate
from bertsmith.errors import BertsmithError
from bertsmith.inference.beam_search import Hypothesis, SearchSettings
from bertsmith.inference.deadline import DeadlineExceeded, RequestTooLarge, deadline
from bertsmith.inference.engine import Engine
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.translation_search import TranslationSearch
from bertsmith.objectives import tag
from bertsmith.tokenizers.special_tokens import frame_texts
from bertsmith.types import Frame, Row

torch.set_num_threads(1)
TEXTS = ["the smith", "the", "쇠가", "an anvil burns"]


@pytest.fixture(scope="module")
def translator() -> Predictor:
    return random_translator()


def same(one: Any, other: Any) -> bool:
    """Equal up to rounding in the scores."""
    keys = one.keys() - {"score", "logprob"}
    close = all(one[name] == pytest.approx(other[name], abs=1e-4) for name in ("score", "logprob"))
    return close and other.keys() - {"score", "logprob"} == keys and all(one[key] == other[key] for key in keys)


@torch.inference_mode()
def greedy_ids(predictor: Predictor, text: str, *, limit: int) -> tuple[list[int], float]:
    """The most likely tokens, with the whole target in every forward pass, and their log probability."""
    words, model = predictor.tokenizer, predictor.model
    ids = words.encode(text)
    source = frame_texts(Frame(("a", words.end_id), ()), ids, None, max_length=TRANSLATOR_POSITIONS)
    tokens, total = [words.start_id], 0.0
    banned = [*(words.special_ids - {words.end_id}), *range(words.vocab_size, words.vocab_size + 3)]
    while len(tokens) <= limit:
        row = words.encode("")
        target = frame_texts(Frame(tuple(tokens), ()), row, None, max_length=TRANSLATOR_POSITIONS)
        batch = collate([source], length=len(source)).replace(target=collate([target], length=len(tokens)))
        log_probs = model.predict(batch, "translation")[-1].log_softmax(-1)
        log_probs[banned] = -torch.inf
        token = int(log_probs.argmax())
        total += float(log_probs[token])
        if token == words.end_id:
            return tokens[1:], total
        tokens.append(token)
    return tokens[1:], total


@pytest.mark.parametrize("pre_norm", [False, True])
def test_greedy_search_with_a_cache_equals_whole_forward_passes(pre_norm: bool) -> None:
    predictor = random_translator(pre_norm=pre_norm)
    words = predictor.tokenizer
    for text in TEXTS[:3]:
        found = predictor.translate(text, beam_size=1, max_extra_tokens=6)
        ids, logprob = greedy_ids(predictor, text, limit=len(words.encode(text)) + 6)
        assert found["text"] == words.decode(ids).strip()
        assert found["logprob"] == pytest.approx(logprob, abs=1e-3)


@torch.inference_mode()
def forced_logprob(predictor: Predictor, source: Row, found: Hypothesis) -> float:
    """The log probability of the tokens of a hypothesis, in one forward pass over all of them."""
    words = predictor.tokenizer
    ids = [*found.tokens, words.end_id] if found.finished else list(found.tokens)
    target = frame_texts(Frame((words.start_id, *ids[:-1]), ()), words.encode(""), None, max_length=len(ids))
    batch = collate([source], length=len(source)).replace(target=collate([target], length=len(ids)))
    log_probs = predictor.model.predict(batch, "translation").log_softmax(-1)
    return float(log_probs[torch.arange(len(ids)), torch.tensor(ids)].sum())


@pytest.mark.parametrize("translator_of", [random_translator, random_lstm_translator])
def test_log_probabilities_are_those_of_a_forward_pass_over_each_hypothesis(translator_of: Any) -> None:
    """Hypotheses that are reordered take their past with them."""
    predictor = translator_of()
    rows = predictor.source_rows(TEXTS)
    settings = SearchSettings(beam_size=4, n_best=4, max_extra_tokens=8)
    found = predictor.search_translations(rows, settings)
    assert len({len(row) for row in rows}) > 1
    for row, some in zip(rows, found, strict=True):
        assert len({one.tokens for one in some}) == 4
        assert [one.logprob for one in some] == pytest.approx(
            [forced_logprob(predictor, row, one) for one in some], abs=1e-4, rel=1e-5
        )


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_batch_equals_single_texts(translator: Predictor, beam_size: int) -> None:
    options: Any = {"beam_size": beam_size, "max_extra_tokens": 8}
    together = translator.translate([*TEXTS, *TEXTS[::-1]], **options)
    for text, found in zip([*TEXTS, *TEXTS[::-1]], together, strict=True):
        assert same(found, translator.translate(text, **options))
    assert {one["finish_reason"] for one in together} <= {"end", "length"}


def test_several_results_are_sorted_and_begin_with_the_best(translator: Predictor) -> None:
    best = translator.translate(TEXTS, max_extra_tokens=8)
    lists = translator.translate(TEXTS, n_best=3, max_extra_tokens=8)
    for one, some in zip(best, lists, strict=True):
        assert len(some) == 3
        scores = [each["score"] for each in some if each["finish_reason"] == "end"]
        assert scores == sorted(scores, reverse=True)
        assert same(one, some[0]) or one["finish_reason"] == "end"
    assert len(lists.to_pandas()) == 3 * len(TEXTS)


def test_empty_and_long_texts(translator: Predictor) -> None:
    assert translator.translate("") == {"text": "", "score": 0.0, "logprob": 0.0, "finish_reason": "end"}
    assert translator.translate([" ", "the"], max_extra_tokens=3)[0]["text"] == ""
    assert translator.translate([]) == []
    found = translator.translate("iron " * 60, max_extra_tokens=3)
    assert found["truncated"]
    shortest = translator.translate("the", max_extra_tokens=0, beam_size=1)
    ids, _ = greedy_ids(translator, "the", limit=len(translator.tokenizer.encode("the")))
    assert shortest["text"] == translator.tokenizer.decode(ids).strip()


def test_saved_models_translate_alike(translator: Predictor, tmp_path: Path) -> None:
    translator.save(tmp_path / "model")
    loaded = bertsmith.load(tmp_path / "model", device="cpu")
    assert translator.translate(TEXTS, max_extra_tokens=8) == loaded.translate(TEXTS, max_extra_tokens=8)
    assert loaded.model.encoder.config == translator.model.encoder.config
    assert 'pipeline_tag: "translation"' in (tmp_path / "model" / "README.md").read_text()


def test_an_engine_gives_the_same_results(translator: Predictor) -> None:
    with Engine(translator.backend) as engine:
        shared = translator.with_backend(engine)
        for one, other in zip(
            shared.translate(TEXTS, max_extra_tokens=8), translator.translate(TEXTS, max_extra_tokens=8), strict=True
        ):
            assert same(one, other)


def test_attention_is_that_of_the_forward_pass_that_predicts_each_token(translator: Predictor) -> None:
    words, model, text = translator.tokenizer, translator.model, TEXTS[0]
    result = translator.translate(text, attention=True, beam_size=1, max_extra_tokens=5)
    source = frame_texts(Frame(("a", words.end_id), ()), words.encode(text), None, max_length=TRANSLATOR_POSITIONS)
    ((hypothesis,),) = translator.search_translations([source], SearchSettings(beam_size=1, max_extra_tokens=5))
    cut_off = list(hypothesis.tokens)
    ended = translator.cross_attention(source, Hypothesis(tuple(cut_off), -1.0, -1.0, finished=True))
    for found, ids in ((result["attention"], cut_off), (ended, [*cut_off, words.end_id])):
        target = frame_texts(Frame((words.start_id, *ids[:-1]), ()), words.encode(""), None, max_length=len(ids))
        batch = collate([source], length=len(source)).replace(target=collate([target], length=len(ids)))
        with torch.inference_mode():
            expected = torch.cat(model.encoder(batch, return_attentions=True).target.attentions).numpy()
            likely = model.predict(batch, "translation")[:, : words.vocab_size].argmax(-1).tolist()
        assert likely[: len(cut_off)] == cut_off, "row t of the weights predicts token t"
        assert len(found.target_tokens) == len(ids)
        assert found.source_tokens == ("th", "e", "smith", "</s>")
        assert found.weights.shape == (2, 2, len(ids), len(source))
        np.testing.assert_allclose(found.weights, expected, atol=1e-6)
        np.testing.assert_allclose(found.select(2, 1), expected[1, 0], atol=1e-6)
        np.testing.assert_allclose(found.select(), expected.mean((0, 1)), atol=1e-6)
        assert found._repr_svg_().count("<text ") == 1 + len(ids) + len(source)
        assert "layer 2, head 1;" in found.plot(2, 1).title
    with pytest.raises(BertsmithError, match=r"^head 3 does not exist: choose 1 to 2$"):
        ended.select(head=3)
    assert ended.target_tokens[-1] == "</s>"
    assert translator.translate("", attention=True)["attention"].weights.shape == (2, 2, 1, 1)


def test_attention_of_the_encoder_is_over_the_source_as_it_is_trained(translator: Predictor) -> None:
    text = "  the smith\n"
    found = translator.attention(text)
    (row,) = translator.source_rows([text])
    assert (
        found.tokens == tuple(map(translator.tokenizer.id_to_token, row.ids.tolist())) == ("th", "e", "Ġsmith", "</s>")
    )
    assert [text[begin:end].strip() for begin, end in found.offsets.tolist()] == ["th", "e", "smith", ""]
    with torch.inference_mode():
        expected = translator.model.encoder(
            collate([row], length=len(row)).replace(target=collate([row], length=len(row))), return_attentions=True
        ).attentions
    np.testing.assert_allclose(found.weights, torch.cat(expected).numpy(), atol=1e-6)
    with pytest.raises(BertsmithError, match="reads one source text at a time: leave out the second text"):
        translator.attention("the", "smith")


def test_a_search_ends_when_its_caller_leaves(translator: Predictor) -> None:
    with deadline(60) as own, mock.patch.object(TranslationSearch, "run") as run:
        run.side_effect = lambda device: setattr(own, "cancelled", run.call_count == 3)
        with pytest.raises(DeadlineExceeded):
            translator.translate(TEXTS, beam_size=1)
    assert run.call_count == 3
    with deadline(60, max_tokens=400), pytest.raises(RequestTooLarge, match=r"^427 tokens, at most 400"):
        translator.translate(TEXTS[:2])  # 4 + 3 source tokens, 4 hypotheses of 53 and of 52 tokens


def test_other_models_do_not_translate() -> None:
    predictor = Predictor(random_model(tag.Config(labels=("O", "B-X"))), tokenizer())
    with pytest.raises(
        BertsmithError, match=r"^this model does not translate \(heads: tag\): use one that was trained"
    ):
        predictor.translate("the smith")
