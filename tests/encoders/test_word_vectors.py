"""Word vectors: subwords, the settings for unknown words, neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command_line import call
from model_fixtures import randomize_weights

import bertsmith
from bertsmith.encoders import word_vectors
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.export.word_vectors import export_vectors
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.nn.subwords import ngram_rows
from bertsmith.tokenizers.spelling import spell
from bertsmith.tokenizers.words import Rules, Words

RULES = Rules()
WORDS = ["iron", "smith", "heats"]
TOKENIZER = Words([*RULES.reserved(), *WORDS], word_rules=RULES)
SHAPES = Rules(unknowns="classes")
SHAPE_TOKENIZER = Words([*SHAPES.reserved(), *WORDS], word_rules=SHAPES)
UNKNOWN = [{}, {"ngram_buckets": 5000}, {"unknown": "hashed"}, {"unknown": "characters", "ngram_buckets": 5000}]


def saved(folder: Path, tokenizer: Words = TOKENIZER, **settings: object) -> bertsmith.Predictor:
    """A model with random vectors that was written to a folder and loaded again."""
    known = {"vocab_size": tokenizer.vocab_size, "width": 6, "unknown_ids": tuple(sorted(tokenizer.unknown_ids))}
    model = randomize_weights(Model.build(word_vectors.Config(**known, **settings), []))
    save_model(model, tokenizer, folder / "m")
    return bertsmith.load(folder / "m", device="cpu")


def vectors(model: bertsmith.Predictor, *words: str) -> torch.Tensor:
    """The vector of each word, between two special tokens."""
    return torch.stack([torch.from_numpy(one[1]) for one in model.embed_all(words).vectors])


def test_unknown_words_are_one_vector_by_default(tmp_path: Path) -> None:
    model = saved(tmp_path)
    found = vectors(model, "anvil", "fire", "iron")
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("settings", [{"unknown": "hashed"}, {"unknown": "characters", "ngram_buckets": 5000}])
def test_unknown_words_differ_by_their_spelling(tmp_path: Path, settings: dict[str, object]) -> None:
    model = saved(tmp_path, **settings)
    words = ["anvil", "anvils", "배", "b" * 200, "b" * 199, "x"]
    found = vectors(model, *words)
    assert len({tuple(row.tolist()) for row in found}) == len(words)
    assert torch.equal(vectors(model, "ANVIL")[0], found[0]), "the vocabulary is lower-cased"
    assert torch.equal(vectors(model, "iron")[0], vectors(saved(tmp_path / "2", **settings), "iron")[0])


@pytest.mark.parametrize("tokenizer", [TOKENIZER, SHAPE_TOKENIZER], ids=["one", "classes"])
@pytest.mark.parametrize("settings", UNKNOWN, ids=str)
def test_unknown_words_of_each_class(tmp_path: Path, settings: dict[str, object], tokenizer: Words) -> None:
    model = saved(tmp_path, tokenizer, **settings)
    hyphen, other_hyphen, number, plain, other_plain = vectors(model, "red-hot", "ice-cold", "1,000", "anvil", "fire")
    spelled = "unknown" in settings
    assert torch.equal(hyphen, other_hyphen) is not spelled
    assert torch.equal(plain, other_plain) is not spelled
    shared = not spelled and tokenizer is TOKENIZER
    assert torch.equal(hyphen, plain) is torch.equal(hyphen, number) is shared
    if not spelled:
        table = model.model.encoder.token_embeddings
        token = "<unk:hyphen>" if tokenizer is SHAPE_TOKENIZER else "<unk>"
        assert torch.equal(hyphen, table[tokenizer.token_to_id(token)]), "no n-grams of the token's name"


def test_an_encoder_that_reads_characters_has_no_onnx_graph(tmp_path: Path) -> None:
    saved(tmp_path, unknown="hashed")
    refused = call("export", tmp_path / "m", "--to", "onnx", "-o", tmp_path / "graph")
    assert refused.returncode != 0
    assert "encoders that read characters cannot be exported to ONNX" in refused.stderr


def test_a_word_is_the_mean_of_its_row_and_its_ngrams(tmp_path: Path) -> None:
    model = saved(tmp_path, unknown="characters", ngram_buckets=5000, max_ngram=4)
    tables = model.model.encoder.embeddings
    for word in ("smith", "smiths"):
        rows, _ = ngram_rows(torch.from_numpy(spell([word])), smallest=3, largest=4, buckets=5000)
        parts = tables["ngrams"].weight[rows]
        if word == "smith":
            parts = torch.cat([parts, tables["tokens"].weight[TOKENIZER.token_to_id(word)][None]])
        assert torch.allclose(vectors(model, word)[0], parts.mean(0), atol=1e-6)


def test_neighbours(tmp_path: Path) -> None:
    model = saved(tmp_path, unknown="characters", ngram_buckets=50)
    (first, second) = model.neighbours("iron")
    assert {first.word, second.word} == {"smith", "heats"}
    assert first.similarity >= second.similarity
    found = vectors(model, "iron", first.word)
    assert first.similarity == pytest.approx(torch.cosine_similarity(found[:1], found[1:]).item(), abs=1e-5)
    assert len(model.neighbours("irons", top_k=2)) == 2
    with pytest.raises(BertsmithError, match="not in the vocabulary"):
        saved(tmp_path / "2").neighbours("irons")
    assert [one.word for one in model.neighbours(["iron", "smith"], minus=["heats"])] == []


def test_neighbours_and_export_leave_out_the_unknown_tokens_of_word_shapes(tmp_path: Path) -> None:
    model = saved(tmp_path, SHAPE_TOKENIZER)
    assert {one.word for one in model.neighbours("iron", top_k=100)} == {"smith", "heats"}
    with pytest.raises(BertsmithError, match="red-hot is not in the vocabulary"):
        model.neighbours("red-hot")
    export_vectors(tmp_path / "m", tmp_path / "vectors.txt", form="glove")
    assert [line.split()[0] for line in (tmp_path / "vectors.txt").read_text().splitlines()] == WORDS


def test_words_of_a_class_have_neighbours_by_their_spelling(tmp_path: Path) -> None:
    model = saved(tmp_path, SHAPE_TOKENIZER, unknown="hashed")
    assert model.neighbours("red-hot") != model.neighbours("ice-cold")


@pytest.mark.parametrize("wrong", [{"unknown": "characters"}, {"width": 0}, {"min_ngram": 7}, {"unknown": "none"}])
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        word_vectors.Config(**wrong)
