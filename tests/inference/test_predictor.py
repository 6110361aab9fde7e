"""Fill-mask, sentence pairs and embeddings of a model folder equal transformers'."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.encoders import bert
from bertsmith.errors import BertsmithError
from bertsmith.inference.fill_mask import mask_log_probs
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives import masked_lm, next_sentence
from bertsmith.tokenizers import wordpiece
from bertsmith.tokenizers.training import count_text

TEXT = """the smith heats the iron and strikes the anvil while the fire burns
a forge needs air and the bellows blow until the steel glows
대장간에서 쇠를 두드리는 소리가 들린다 바람이 불고 불이 타오른다
unbelievable heat makes the hammer sing and the sparks fly over the water"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = wordpiece.Config(min_count=1)
    tokenizer = settings.train(count_text(TEXT, settings.word_splitter()), vocab_size=300)
    shape = bert.Config(layers=3, width=32, heads=4, vocab_size=tokenizer.vocab_size + 3, max_positions=48)
    torch.manual_seed(0)
    model = Model.build(shape, [masked_lm.Config(), next_sentence.Config()])
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(0, 0.3)
    path = tmp_path_factory.mktemp("model") / "tiny"
    save_model(model, tokenizer, path)
    return path


@pytest.fixture(scope="module")
def predictor(folder: Path) -> Predictor:
    return bertsmith.load(folder, device="cpu")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    model = transformers.BertForPreTraining.from_pretrained(folder).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def their_logits(theirs: tuple[Any, Any], text: str, second: str | None = None) -> Any:
    model, tokenizer = theirs
    with torch.no_grad():
        return model(**tokenizer(text, second, return_tensors="pt"), output_hidden_states=True), tokenizer


def test_one_mask_equals_transformers(predictor: Predictor, theirs: tuple[Any, Any]) -> None:
    text = "The smith heats the [MASK] and strikes."
    output, tokenizer = their_logits(theirs, text)
    place = tokenizer(text)["input_ids"].index(tokenizer.mask_token_id)
    logits = output.prediction_logits[0, place]
    logits[list(predictor.tokenizer.special_ids)] = -torch.inf
    logits[predictor.tokenizer.vocab_size :] = -torch.inf
    expected = logits.softmax(-1).topk(7)
    found = predictor.fill_mask(text, top_k=7)
    assert [filling["token"] for filling in found] == expected.indices.tolist()
    assert [filling["score"] for filling in found] == pytest.approx(expected.values.tolist(), rel=1e-4)
    word = found[0]["token_str"]
    assert found[0]["sequence"] == f"The smith heats the {word} and strikes."


FAMILIES = [
    ("bert", "english"),
    ("bert", "korean"),
    ("roberta", "korean"),
    ("albert", "english"),
    ("electra", "english"),
]


@pytest.mark.parametrize(("family", "language"), FAMILIES)
def test_full_vocabulary_equals_transformers_pipeline(family: str, language: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from model_io import zoo

    zoo.write(zoo.Case(family, language, head="ForMaskedLM"), tmp_path / "theirs")
    pipeline = transformers.pipeline("fill-mask", model=str(tmp_path / "theirs"), device="cpu")
    mask, predictor = pipeline.tokenizer.mask_token, bertsmith.load(tmp_path / "theirs", device="cpu")
    special = 0
    for text in zoo.TEXTS[language]:
        text = text.replace("[MASK]", "") + f" {mask}"
        expected, found = pipeline(text), predictor.fill_mask(text, full_vocabulary=True)
        assert [one["token"] for one in found] == [one["token"] for one in expected]
        assert [one["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-5)
        assert [one["token_str"] for one in found] == [one["token_str"].strip() for one in expected]
        everything = predictor.fill_mask(text, full_vocabulary=True, top_k=10_000)
        assert sum(one["score"] for one in everything) == pytest.approx(1, abs=1e-5)
        special += sum(one["token"] in predictor.tokenizer.special_ids for one in everything)
        if (word := {"bert": "cat", "electra": "dog"}.get(family)) and language == "english":
            (theirs,) = pipeline(text, targets=[word])
            (scored,) = predictor.fill_mask(text, targets=[word], full_vocabulary=True)
            assert scored["score"] == pytest.approx(theirs["score"], abs=1e-5)
    assert special


def test_padding_of_the_vocabulary_is_part_of_the_full_vocabulary(predictor: Predictor) -> None:
    found = predictor.fill_mask("the [MASK] burns", top_k=1000, full_vocabulary=True)
    assert len(found) == predictor.tokenizer.vocab_size + 3
    assert sum(one["score"] for one in found) == pytest.approx(1, abs=1e-5)
    assert sum(one["token_str"] == "" for one in found) == 3


def test_separate_masks_give_a_list_each(predictor: Predictor) -> None:
    found = predictor.fill_mask("The [MASK] heats the [MASK].", top_k=3)
    assert [len(run) for run in found] == [3, 3]
    assert "[MASK]" in found[0][0]["sequence"]


def test_adjacent_masks_are_filled_together(predictor: Predictor) -> None:
    """The score of the best candidate is the product of its tokens' probabilities, filled from left to right."""
    best = predictor.fill_mask("the smith [MASK] [MASK] burns", top_k=4)
    assert all(len(filling["token"]) == 2 for filling in best)
    assert [filling["score"] for filling in best] == sorted((filling["score"] for filling in best), reverse=True)
    first, second = best[0]["token"]
    row = predictor.tokenizer.frame(
        predictor.tokenizer.encode("the smith [MASK] [MASK] burns", parse_special_tokens=True), max_length=48
    )
    place = row.ids.tolist().index(predictor.tokenizer.mask_id)
    alone = mask_log_probs(predictor, [row], [place])[0, first]
    ids = row.ids.copy()
    ids[place] = first
    after = mask_log_probs(predictor, [dataclasses.replace(row, ids=ids)], [place + 1])[0, second]
    assert best[0]["score"] == pytest.approx(float((alone + after).detach().exp()), rel=1e-4)


def test_targets_are_scored_over_all_their_tokens(predictor: Predictor) -> None:
    """A word of several tokens scores lower than its first token alone: all of its tokens count."""
    text = "the [MASK] fire burns"
    found = {
        filling["token_str"]: filling for filling in predictor.fill_mask(text, targets=["iron", "hammers"], top_k=9)
    }
    assert set(found) == {"iron", "hammers"}
    pieces = found["hammers"]["token"]
    assert isinstance(pieces, list)
    assert len(pieces) > 1
    assert found["hammers"]["sequence"] == "the hammers fire burns"
    every = predictor.fill_mask(text, top_k=200)
    single = next(filling for filling in every if filling["token"] == found["iron"]["token"])
    assert found["iron"]["score"] == pytest.approx(single["score"], rel=1e-4)


def test_long_texts_are_read_around_the_mask(predictor: Predictor) -> None:
    text = "the iron glows " * 40 + "the [MASK] sings " + "the water flows " * 40
    found = predictor.fill_mask(text, top_k=2)
    assert found[0]["truncated"] is True
    assert found[0]["sequence"] == text.replace("[MASK]", found[0]["token_str"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda one: one.fill_mask("no gap here"), r"the text has no \[MASK\]"),
        (lambda one: one.fill_mask("a [MASK]", targets=["☃"]), "cannot be encoded"),
        (lambda one: one.fill_mask("a [MASK]", targets=[" "]), "has no tokens"),
        (lambda one: one.fill_mask("a [MASK]", top_k=0), "at least 1"),
        (lambda one: one.encode("a", layers=[9]), "layer 9 does not exist: choose 0 .* to 3"),
        (lambda one: one.encode("a", pooling="median"), 'pooling "median" does not exist'),
    ],
)
def test_invalid_arguments(predictor: Predictor, call: Any, message: str) -> None:
    with pytest.raises(BertsmithError, match=message):
        call(predictor)


def test_next_sentence_equals_transformers(predictor: Predictor, theirs: tuple[Any, Any]) -> None:
    output, _ = their_logits(theirs, "the fire burns", "바람이 불고 the water")
    expected = output.seq_relationship_logits[0].softmax(-1).tolist()
    found = predictor.next_sentence("the fire burns", "바람이 불고 the water")
    assert [found["is_next"], found["not_next"]] == pytest.approx(expected, rel=1e-4)
    assert found["objective"] == "next_sentence"
    assert found["truncated"] is False
    assert predictor.next_sentence("the fire " * 40, "burns")["truncated"] is True


def test_sentence_order_equals_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from command_line import call
    from model_io import zoo

    zoo.write(zoo.Case("albert", head="ForPreTraining"), tmp_path / "theirs")
    model = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "theirs").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    predictor = bertsmith.load(tmp_path / "theirs", device="cpu")
    pair = ("the cats sat on a mat.", "new york, a dog ran")
    for first, second in (pair, pair[::-1]):
        with torch.no_grad():
            logits = model(**tokenizer(first, second, return_tensors="pt", return_token_type_ids=True)).sop_logits[0]
        in_order, swapped = logits.softmax(-1).tolist()
        assert predictor.next_sentence(first, second) == {
            "objective": "sentence_order",
            "in_order": pytest.approx(in_order, abs=1e-5),
            "swapped": pytest.approx(swapped, abs=1e-5),
            "truncated": False,
        }
    found = json.loads(call("next-sentence", tmp_path / "theirs", *pair[::-1], "--json").stdout)
    assert found["in_order"] == pytest.approx(in_order, abs=1e-5)
    shown = call("next-sentence", tmp_path / "theirs", *pair[::-1]).stdout
    assert f"in order {in_order:.2%}" in shown
    assert "(sentence_order)" in shown


def test_embeddings_equal_transformers(predictor: Predictor, theirs: tuple[Any, Any]) -> None:
    texts = ["the smith", "a forge needs air and the bellows blow", "대장간에서 쇠를 두드리는", "", "heat " * 60]
    found = {
        "mean": predictor.encode(texts),
        "first": predictor.encode(texts, pooling="first", layers=[-2]),
        "last four": predictor.encode(texts, layers=[-4, -3, -2, -1], combine="concat"),
        "pooled": predictor.encode(texts, pooling="pooled"),
    }
    model, tokenizer = theirs
    for place, text in enumerate(texts):
        with torch.no_grad():
            inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=48)
            output = model.bert(**inputs, output_hidden_states=True)
        layers = [layer[0] for layer in output.hidden_states]
        assert np.allclose(found["mean"][place], layers[-1].mean(0), atol=1e-5)
        assert np.allclose(found["first"][place], layers[-2][0], atol=1e-5)
        assert np.allclose(found["last four"][place], torch.cat([layer.mean(0) for layer in layers[-4:]]), atol=1e-5)
        assert np.allclose(found["pooled"][place], output.pooler_output[0], atol=1e-5)
    assert predictor.embed(texts).truncated == (4,)
    assert np.allclose(np.linalg.norm(predictor.encode(texts, normalize=True), axis=1), 1, atol=1e-5)
    assert predictor.encode("one").shape == (32,)
    assert predictor.encode([]).shape == (0, 32)


def test_token_embeddings(predictor: Predictor, theirs: tuple[Any, Any]) -> None:
    texts = ["대장간에서 쇠를", "the smith heats", "heat " * 60]
    found = predictor.embed_all(texts)
    lower = predictor.embed_all(texts, layer=1)
    for place, text in enumerate(texts):
        output, tokenizer = their_logits(theirs, text) if place < 2 else (None, None)
        if output is not None:
            assert np.allclose(found.vectors[place], output.hidden_states[-1][0], atol=1e-5)
            assert np.allclose(lower.vectors[place], output.hidden_states[1][0], atol=1e-5)
            assert list(found.tokens[place]) == tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    assert found.truncated == (2,)
    assert found.vectors[2].shape == (48, 32)
    assert predictor.embed_all([]).vectors == []
    with pytest.raises(BertsmithError, match="layer 7 does not exist"):
        predictor.embed_all(texts, layer=7)


def test_tokenize(predictor: Predictor) -> None:
    texts = ["The smith, 쇠를 🔥", "", "heat " * 60]
    for specials in (True, False):
        for text, found in zip(texts, predictor.tokenize(texts, special_tokens=specials), strict=True):
            inner = slice(1, -1) if specials else slice(None)
            encoded = predictor.tokenizer.encode(text)
            assert list(found.ids[inner]) == encoded.ids.tolist()
            assert [list(pair) for pair in found.offsets[inner]] == encoded.offsets.tolist()
            assert (
                found.special == (True, *[False] * len(encoded), True)[0 if specials else 1 : None if specials else -1]
            )
            assert [predictor.tokenizer.token_to_id(token) for token in found.tokens] == list(found.ids)
    counts = [len(found.ids) for found in predictor.tokenize(texts)]
    assert predictor.count_tokens(texts) == counts
    assert counts[2] > predictor.max_length
    assert predictor.tokenize([]) == predictor.count_tokens([]) == []


def test_embed_ids(predictor: Predictor) -> None:
    texts = ["The smith, 쇠를", "heat " * 60]
    ids = [predictor.tokenizer.encode(text).ids.tolist() for text in texts]
    found = predictor.embed_ids(ids, normalize=True)
    expected = predictor.embed(texts, normalize=True)
    assert np.array_equal(found.vectors, expected.vectors)
    assert found.truncated == expected.truncated == (1,)
    for wrong in (-1, predictor.tokenizer.vocab_size):
        with pytest.raises(BertsmithError, match=f"id {wrong} is outside the vocabulary"):
            predictor.embed_ids([[3, wrong]])


def test_threads_share_a_predictor(predictor: Predictor) -> None:
    from concurrent.futures import ThreadPoolExecutor

    texts = [f"the smith {word} [MASK]" for word in TEXT.split()]
    alone = [predictor.fill_mask(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(predictor.fill_mask, texts)) == alone


def test_models_without_heads_raise_a_clear_error(folder: Path, tmp_path: Path) -> None:
    from bertsmith.model_io.model_folder import open_model

    model, tokenizer, _ = open_model(folder, objectives=[])
    with pytest.raises(BertsmithError, match="no masked_lm head"):
        Predictor(model, tokenizer).fill_mask("a [MASK]")
    with pytest.raises(BertsmithError, match="no next_sentence or sentence_order head"):
        Predictor(model, tokenizer).next_sentence("a", "b")


def test_command_line(folder: Path, tmp_path: Path) -> None:
    from command_line import call

    found = json.loads(call("fill-mask", folder, "the [MASK] burns", "-k", 2, "--json").stdout)
    assert len(found["fillings"][0]) == 2
    assert "%" in call("fill-mask", folder, "the [MASK] burns").stdout
    whole = json.loads(call("fill-mask", folder, "the [MASK] burns", "-k", 2, "--full-vocabulary", "--json").stdout)
    assert whole["fillings"][0][0]["score"] < found["fillings"][0][0]["score"] < 1
    assert 0 <= json.loads(call("next-sentence", folder, "the fire", "burns", "--json").stdout)["is_next"] <= 1
    shown = json.loads(call("show", folder, "--json").stdout)
    assert sum(shown["parameters_by_module"].values()) == shown["parameters"]
    assert shown["checksums"] is True
    assert "embeddings" in call("show", folder).stdout


@pytest.mark.parametrize("suffix", [".npy", ".jsonl", ".parquet"])
def test_embeddings_are_written_to_files(folder: Path, predictor: Predictor, tmp_path: Path, suffix: str) -> None:
    import pyarrow.parquet
    from command_line import call

    (tmp_path / "texts.txt").write_text(TEXT, encoding="utf-8")
    output = tmp_path / f"vectors{suffix}"
    done = call("embed", folder, tmp_path / "texts.txt", "-o", output, "--normalize", "--json")
    assert done.returncode == 0, done.stderr
    expected = predictor.encode(TEXT.split("\n"), normalize=True)
    if suffix == ".npy":
        vectors = np.load(output)
    elif suffix == ".jsonl":
        vectors = np.array([json.loads(line)["vector"] for line in output.read_text(encoding="utf-8").splitlines()])
    else:
        vectors = np.array(pyarrow.parquet.read_table(output)["vector"].to_pylist())
    assert np.allclose(vectors, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "status", "part"),
    [
        (["fill-mask", "{m}", "no gap"], 2, "no [MASK]"),
        (["fill-mask", "{t}", "a [MASK]"], 65, "not a model folder"),
        (["fill-mask", "{t}/nowhere", "a [MASK]"], 65, "nowhere"),
        (["fill-mask", "{m}", "a [MASK]", "--device", "cuda"], 2, "cuda"),
        (["embed", "{m}", "a text", "-o", "{t}/x.csv"], 2, ".parquet"),
        (["embed", "{m}", "text", "--layers", "a"], 2, "--layers"),
        (["show", "{m}", "--length", "600"], 2, "48 positions"),
    ],
)
def test_bad_input_is_a_one_line_error(folder: Path, tmp_path: Path, words: list[str], status: int, part: str) -> None:
    from command_line import call

    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    done = call(*[word.format(m=folder, t=tmp_path) for word in words])
    assert done.returncode == status, done.stderr
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
