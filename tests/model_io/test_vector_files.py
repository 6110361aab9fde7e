"""Files of word vectors: every format becomes the same model folder and comes back; damaged ones are refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from model_fixtures import small_bert_config
from model_io.folder_fixtures import tokenizer

import bertsmith
from bertsmith.errors import BertsmithError, DataError
from bertsmith.export.word_vectors import export_vectors
from bertsmith.model_io.importers import import_folder
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.model_io.vector_files import read_vectors, vector_chunks

WORDS = ["iron", "smith", "쇠", "w" * 200]
VECTORS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
FORMATS = {"word2vec": "v.txt", "word2vec-binary": "v.bin", "glove": "g.txt"}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("zipped", [False, True])
def test_every_format_becomes_the_same_model_and_comes_back(form: str, zipped: bool, tmp_path: Path) -> None:
    data = b"".join(vector_chunks(WORDS, VECTORS, form))
    source = tmp_path / (FORMATS[form] + ".gz" * zipped)
    source.write_bytes(gzip.compress(data) if zipped else data)
    assert import_folder(source, tmp_path / "m").notes == ()
    model = bertsmith.load(tmp_path / "m", device="cpu")
    assert np.array_equal(np.stack([one[1] for one in model.embed_all(WORDS).vectors]), VECTORS)
    facts = export_vectors(tmp_path / "m", tmp_path / "back", form=form)
    assert (tmp_path / "back").read_bytes() == data
    assert (facts["words"], facts["width"], facts["bytes"]) == (4, 5, len(data))


def test_special_tokens_repeated_words_and_odd_words(tmp_path: Path) -> None:
    lines = [b"iron 1 2", b"iron 3 4", b". . 5 6", b"\xff\xfe 7 8", b"<unk> 9 9", b"", b"iron_clad 1 1"]
    (tmp_path / "v.vec").write_bytes(b"6 2\n" + b"\r\n".join(lines))
    facts = import_folder(tmp_path / "v.vec", tmp_path / "m")
    assert [note.split()[0] for note in facts.notes] == ["1", "2", "1"], facts.notes
    model = bertsmith.load(tmp_path / "m", device="cpu")
    assert model.tokenizer.tokens()[4:] == ["iron", "iron_clad"]
    found = [one[1].tolist() for one in model.embed_all(["iron", "anvil"]).vectors]
    assert found == [[1, 2], [9, 9]]


def test_capital_letters_decide_whether_texts_are_lower_cased(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("Iron 1 2\niron 3 4\n")
    import_folder(tmp_path / "v.txt", tmp_path / "cased")
    found = bertsmith.load(tmp_path / "cased", device="cpu").embed_all(["Iron", "iron"]).vectors
    assert [one[1].tolist() for one in found] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"iron 1 2\nsmith 1 x\n", ":2: 'x' is not a finite number"),
        (b"iron 1 2\nsmith 1 nan\n", ":2: 'nan' is not a finite number"),
        (b"iron 1 2\nsmith 1\n", ":2: 1 numbers after the word, expected 2"),
        (b"3 2\niron 1 2\n", "has 1 words, its first line says 3"),
        (b"", "expected a word and its numbers"),
        (b"iron\n", "expected a word and its numbers"),
        (b"w" * (1 << 20), ":1: a line of more than 1,048,576 bytes"),
        (b"2 2\niron \0\0\0\0\0\0\0\0smith \0\0", "ends in word 2 of 2"),
        (b"1 1\niron \0\0\xc0\x7f", "word 1 has a number that is not finite"),
    ],
)
def test_errors_of_damaged_files_name_file_and_line(contents: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(contents)
    with pytest.raises(DataError) as error:
        read_vectors(tmp_path / "v")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_binary_model_of_fasttext_names_the_readable_file(zipped: bool, tmp_path: Path) -> None:
    version, settings = 12, np.arange(13, dtype="<i4").tobytes()
    data = np.array([793712314, version], "<i4").tobytes() + settings + b"</s>\0" + bytes(100)
    source = tmp_path / ("cc.en.5.bin" + ".gz" * zipped)
    source.write_bytes(gzip.compress(data) if zipped else data)
    with pytest.raises(DataError) as error:
        import_folder(source, tmp_path / "m")
    expected = f"{source} is fastText's binary model, which cannot be read: pass the .vec file that fastText writes"
    assert str(error.value).startswith(expected)


def test_only_word_vectors_are_exported(tmp_path: Path) -> None:
    words = tokenizer()
    save_model(Model.build(small_bert_config(vocab_size=words.vocab_size), []), words, tmp_path / "bert")
    with pytest.raises(BertsmithError, match="depend on the context"):
        export_vectors(tmp_path / "bert", tmp_path / "v", form="glove")
