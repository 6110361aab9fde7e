"""Word vectors of files and folders in the token table of a new model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.encoders import seq2seq_lstm
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.model import Model
from bertsmith.model_io.vector_files import import_vectors, read_vectors, vector_chunks
from bertsmith.model_io.word_tables import extend_vocabulary, load_vectors
from bertsmith.tokenizers.words import Rules, Words

WORDS = ["iron", "anvil", "Smith", "smith"]
VECTORS = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def vector_file(folder: Path, form: str = "glove") -> Path:
    path = folder / ("vectors.bin" if form == "word2vec-binary" else "vectors.txt")
    path.write_bytes(b"".join(vector_chunks(WORDS, VECTORS, form)))
    return path


def words(*names: str) -> Words:
    return Words([*Rules().reserved(), *names], word_rules=Rules())


def model_of(tokenizer: Words, **changes: Any) -> Model:
    small: dict[str, Any] = {"width": 4, "embedding_width": 6, "layers": 1, "vocab_size": tokenizer.vocab_size + 3}
    return Model.build(seq2seq_lstm.Config(**{**small, **changes}), [])


@pytest.mark.parametrize("form", ["glove", "word2vec", "word2vec-binary", "folder"])
@pytest.mark.parametrize("fixed", [False, True])
def test_vectors_by_word(tmp_path: Path, form: str, fixed: bool) -> None:
    source = vector_file(tmp_path, "glove" if form == "folder" else form)
    if form == "folder":
        import_vectors(source, tmp_path / "folder", lowercase=True)
        source = tmp_path / "folder"
    tokenizer = words("fire", "smith", "iron")
    model = model_of(tokenizer, fixed_embeddings=fixed)
    before = model.encoder.token_embeddings.detach().clone()
    notes = load_vectors(model, str(source), tokenizer)
    table, first = model.encoder.token_embeddings, len(Rules().reserved())
    assert torch.equal(table[first + 1 : first + 3], torch.from_numpy(VECTORS[[3, 0]]))
    assert torch.equal(table[first], torch.zeros(6) if fixed else before[first])
    others = "have zeros" if fixed else "start with new vectors"
    assert notes == [f"2 of {tokenizer.vocab_size} tokens have a vector in {source}; the others {others}"]


def test_only_some_words_of_a_file(tmp_path: Path) -> None:
    path = vector_file(tmp_path, "word2vec")
    assert read_vectors(path, wanted={"smith", "iron", "fire"}).words == ["iron", "smith"]
    assert read_vectors(path, limit=3).words == WORDS[:3]
    assert read_vectors(path, limit=9).words == WORDS


def test_vectors_that_do_not_fit(tmp_path: Path) -> None:
    path = str(vector_file(tmp_path))
    with pytest.raises(
        ConfigError, match=r"has vectors of 6 numbers, the token table 8: write encoder.embedding_width=6"
    ):
        load_vectors(model_of(words("iron"), embedding_width=8), path, words("iron"))
    with pytest.raises(DataError, match=r"has none of the \d tokens of the vocabulary"):
        load_vectors(model_of(words("fire")), path, words("fire"))


def test_a_vocabulary_is_extended_by_words_that_its_tokenizer_finds(tmp_path: Path) -> None:
    """A lower-casing tokenizer never finds `Smith`."""
    from bertsmith.model_io.model_folder import open_model, save_model

    path, tokenizer = str(vector_file(tmp_path)), words("iron", "fire")
    model = model_of(tokenizer, fixed_embeddings=True)
    load_vectors(model, path, tokenizer)
    save_model(model, tokenizer, tmp_path / "model")
    result = extend_vocabulary(tmp_path / "model", path, tmp_path / "larger", limit=3)
    assert result == {"model": str(tmp_path / "larger"), "words": tokenizer.vocab_size + 1, "added": 1}
    larger, its_tokenizer, _ = open_model(tmp_path / "larger")
    assert its_tokenizer.tokens() == [*tokenizer.tokens(), "anvil"]
    assert torch.equal(larger.encoder.token_embeddings[-1], torch.from_numpy(VECTORS[1]))
    assert len(larger.encoder.target_embeddings) == tokenizer.vocab_size
    again = extend_vocabulary(tmp_path / "larger", path, tmp_path / "largest")
    assert again["added"] == 1, "smith"
