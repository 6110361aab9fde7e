"""Shards of words keep the spelling of words outside of the vocabulary; packings give it to encoders."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.data.collate import from_packed
from bertsmith.data.packing import columns, stream
from bertsmith.data.packing.spelled import COLUMNS, MULTIPLE, SpelledPacking
from bertsmith.data.prepare import prepare, preview
from bertsmith.data.shards import Shards, SpelledShards, verify
from bertsmith.errors import DataError
from bertsmith.model_io.folder_tokenizer import spelling, vocabulary_characters
from bertsmith.tokenizers.spelling import PADDING, spell
from bertsmith.tokenizers.words import Config, Words

pytestmark = pytest.mark.filterwarnings("ignore:.*unknown to this tokenizer")
TEXTS = [f"The smith heats Iron .\nZyzzyva{number % 40} eats 你好 and Quux{number} ." for number in range(60)]
TEXTS += [f"smith {'x' * 2000} {'x' * 2000}y", "heats \ud800 the"]


def tokenizer(**changes: Any) -> Words:
    counts = dict.fromkeys(["The", "smith", "heats", "Iron", ".", "and", "the", "zyzzyva"], 5)
    return Config(lowercase=False, unknowns="classes", **changes).train(counts, vocab_size=40)


def prepared(folder: Path, words: Words, **options: Any) -> Path:
    prepare(TEXTS, folder, tokenizer=words, held_out=0.1, quiet=True, workers=1, **options)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertsmith.data.work_units.UNIT_CHARACTERS", 300)  # several parts with tables of their own
        return prepared(tmp_path_factory.mktemp("spelled") / "set", tokenizer(), shard_tokens=150)


def read_words(shards: SpelledShards, words: Words) -> list[bytes]:
    """Every word of a split, as it was spelled."""
    keys = shards.read(0, shards.tokens).astype(np.int64)
    known = [token.encode() for token in words.tokens()]
    found = iter(shards.unknown_words(keys[keys >= shards.vocab_size] - shards.vocab_size))
    return [known[key] if key < shards.vocab_size else next(found) for key in keys.tolist()]


def test_no_spelling_is_lost(folder: Path) -> None:
    words, total = tokenizer(), []
    for split in ("train", "held-out"):
        total += read_words(SpelledShards.open(folder, split), words)
    expected = []
    for text in TEXTS:
        text = text.replace("\ud800", "\ufffd")
        expected += [text[begin:end].encode()[:1022] for begin, end in words.encode(text).offsets.tolist()]
    assert sorted(total) == sorted(expected)
    assert len(Shards.open(folder).parts) > 2
    assert all(report.ok for report in verify(folder))


def test_readers_of_ids_see_unknown_tokens(folder: Path) -> None:
    words, shards = tokenizer(), Shards.open(folder)
    tokens = shards.read(0, shards.tokens)
    assert tokens.max() < words.vocab_size
    spelled = SpelledShards.open(folder)
    keys = spelled.read(0, spelled.tokens).astype(np.int64)
    outside = keys >= words.vocab_size
    assert np.array_equal(tokens[~outside], keys[~outside])
    assert np.array_equal(tokens[outside], spelled.unknown_ids(keys[outside] - words.vocab_size))
    assert {words.id_to_token(int(number)) for number in tokens[outside]} == {"<unk>", "<unk:digit>", "<unk:s>"}
    assert np.array_equal(tokens[3:9], shards.read(3, 6))
    assert np.array_equal(pickle.loads(pickle.dumps(spelled)).read(0, 50), keys[:50])


def test_each_word_is_stored_once_per_part(folder: Path) -> None:
    for entry in Shards.open(folder).index["files"]:
        shards = Shards.open(folder, entry["split"])
        part = entry["part"]
        if part < len(shards.parts) and entry["split"] == "train":
            header = shards._reader.head(part).header
            assert header.words == entry["words"] == sum(count for _, count in header.unknown)
            numbers = shards._word_bases[part] + np.arange(header.words)
            found = list(zip(shards.unknown_ids(numbers).tolist(), shards.unknown_words(numbers), strict=True))
            assert found == sorted(set(found))


def test_the_same_bytes_whatever_the_cache_has_seen(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("bertsmith.data.work_units.UNIT_CHARACTERS", 300)
    monkeypatch.setattr("bertsmith.tokenizers.spelled_ids.MAX_WORDS", 3)
    words = tokenizer()
    words.spelled_ids(["Other words than those ."])
    again = prepared(tmp_path / "again", words, shard_tokens=150)
    assert Shards.open(again).digest == Shards.open(folder).digest


def test_a_damaged_table_is_an_error(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    victim = tmp_path / "train-00000.shard"
    data = bytearray(victim.read_bytes())
    data[-3] ^= 1
    victim.write_bytes(data)
    shards = SpelledShards.open(tmp_path)
    with pytest.raises(DataError, match=r"train-00000.shard is damaged: block 0"):
        read_words(shards, tokenizer())


def test_tokenizers_without_spelling_write_what_they_did(tmp_path: Path) -> None:
    marked = Config(marks=True).train(dict.fromkeys(["the", "smith"], 5), vocab_size=40)
    shards = Shards.open(prepared(tmp_path / "marked", marked))
    assert (shards.spelling, shards.index["dtype"]) == (False, "uint16")
    assert "unknown" not in (tmp_path / "marked" / "train-00000.shard").read_bytes()[:700].decode(errors="replace")


def test_a_preview_counts_unknown_words() -> None:
    found = preview(TEXTS, tokenizer=tokenizer())
    assert 0.2 < found["unknown_rate"] < 0.5


@pytest.mark.parametrize("kind", [columns, stream])
def test_packed_rows_have_the_characters_of_every_word(folder: Path, kind: Any) -> None:
    words, shards = tokenizer(), SpelledShards.open(folder)
    options: dict[str, Any] = {"frame": words.frame_ids, "padding_id": words.padding_id, "max_length": 10, "seed": 1}
    options |= {"columns": 4} if kind is columns else {}
    plain, inner = (kind.Config().build(each, **options) for each in (Shards.open(folder), shards))
    packing = SpelledPacking(inner, shards, vocabulary_characters(words, 50))
    assert len(packing.rows(0, 4).spellings) % MULTIPLE == 0
    batch, expected = from_packed(packing.rows(4, 4)), plain.rows(4, 4)
    assert np.array_equal(batch.input_ids.numpy(), expected.input_ids)
    if expected.next_ids is not None:
        assert np.array_equal(batch.next_ids.numpy(), expected.next_ids)
    keys = inner.rows(4, 4).input_ids
    found = batch.spellings[batch.spelling_ids].numpy()
    longest = int((batch.spellings != PADDING).sum(1).max())
    assert found.shape[-1] == -(-longest // COLUMNS) * COLUMNS < 50
    for key, row in zip(keys.ravel().tolist(), found.reshape(keys.size, -1), strict=True):
        if key == words.end_id:
            assert row[:4].tolist() == [258, 257, 259, PADDING]
        else:
            numbers = np.array([key - words.vocab_size])
            word = shards.unknown_words(numbers)[0].decode() if key >= words.vocab_size else words.id_to_token(key)
            own = spell([word], max_characters=50)[0]
            assert row[: len(own)].tolist() == own.tolist()
            assert (row[len(own) :] == PADDING).all()


def test_packed_words_are_spelled_as_texts_are(folder: Path) -> None:
    """Fine-tuning and pre-training read the same characters."""
    words = tokenizer()
    spelled = spelling(words).encode("Zyzzyva1 smith").characters
    assert spelled is not None
    shards = SpelledShards.open(folder)
    keys = shards.read(0, shards.tokens).astype(np.int64)
    table = shards.unknown_words(np.unique(keys[keys >= words.vocab_size]) - words.vocab_size)
    assert b"Zyzzyva1" in table
    assert bytes(spelled[0][1:9].astype(np.uint8)) == b"Zyzzyva1"
