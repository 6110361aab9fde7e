"""ELMo's characters against rows written out by hand from its definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.tokenizers.characters import Characters, Config
from bertsmith.tokenizers.pretokenization import split_words
from bertsmith.tokenizers.tokenizer import load

CHARACTERS = Characters()
START_ROW = [258, 256, 259] + [260] * 47
END_ROW = [258, 257, 259] + [260] * 47


def test_rows_by_hand() -> None:
    table = CHARACTERS.character_table(["The", "é", "쇠"])
    assert table.dtype == np.int32
    assert table.tolist() == [
        START_ROW,
        [258, 84, 104, 101, 259] + [260] * 45,
        [258, 0xC3, 0xA9, 259] + [260] * 46,
        [258, 0xEC, 0x87, 0xA0, 259] + [260] * 45,
        END_ROW,
    ]


def test_rows_without_frame_and_shifted() -> None:
    assert CHARACTERS.character_table("a b", framed=False).tolist() == [
        [258, 97, 259] + [260] * 47,
        [258, 98, 259] + [260] * 47,
    ]
    assert CHARACTERS.character_table(["a"], framed=False, shifted=True).tolist() == [[259, 98, 260] + [261] * 47]
    assert CHARACTERS.character_table([], framed=False).shape == (0, 50)
    assert CHARACTERS.character_table("").tolist() == [START_ROW, END_ROW]
    assert CHARACTERS.character_table([""], framed=False).tolist() == [[258, 259] + [260] * 48]


def test_long_words_keep_48_bytes() -> None:
    (row,) = CHARACTERS.character_table(["a" * 60], framed=False).tolist()
    assert row == [258] + [97] * 48 + [259]
    (row,) = CHARACTERS.character_table(["쇠" * 20 + "!"], framed=False).tolist()
    assert row == [258] + [0xEC, 0x87, 0xA0] * 16 + [259]
    (row,) = CHARACTERS.character_table(["ab" + "쇠" * 20], framed=False).tolist()  # truncated within a character
    assert row == [258, 97, 98] + [0xEC, 0x87, 0xA0] * 15 + [0xEC, 259]


def test_ids_by_hand() -> None:
    text = "Té 쇠"
    encoded = CHARACTERS.encode(text)
    assert encoded.ids.tolist() == [258, 84, 0xC3, 0xA9, 259, 258, 0xEC, 0x87, 0xA0, 259]
    assert encoded.words.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert encoded.offsets.tolist() == [
        *[[0, 0], [0, 1], [1, 2], [1, 2], [2, 2]],
        *[[3, 3], [3, 4], [3, 4], [3, 4], [4, 4]],
    ]


@given(st.text(max_size=80))
def test_ids_of_a_text_are_its_rows_without_padding(text: str) -> None:
    table = CHARACTERS.character_table(text, framed=False)
    assert CHARACTERS.encode(text).ids.tolist() == table[table != 260].tolist()


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=60)))
def test_given_words_are_spelled_as_they_are(words: list[str]) -> None:
    table = CHARACTERS.character_table(words)
    assert table.shape == (len(words) + 2, 50)
    for word, row in zip(words, table[1:-1].tolist(), strict=True):
        inner = word.encode()[:48]
        assert bytes(row[1 : 1 + len(inner)]) == inner
        assert (row[0], row[1 + len(inner)]) == (258, 259)
        assert set(row[2 + len(inner) :]) <= {260}


def test_frames() -> None:
    row = CHARACTERS.frame(CHARACTERS.encode("a"), CHARACTERS.encode("b"), max_length=20)
    assert row.ids.tolist() == [256, 258, 97, 259, 257, 258, 98, 259, 257]
    assert CHARACTERS.decode(row.ids) == "a b"
    assert CHARACTERS.decode(row.ids, skip_special_tokens=False) == "<bos> a <eos> b <eos>"


def test_decoding_takes_any_ids() -> None:
    assert CHARACTERS.decode(CHARACTERS.encode("대장장이는 쇠를").ids) == "대장장이는 쇠를"
    assert CHARACTERS.decode([0xEC, 0x87, 259, 259, 258]) == "\ufffd"
    with pytest.raises(BertsmithError, match="id 261 is outside"):
        CHARACTERS.decode([261])


def test_nothing_is_learned(tmp_path: Path) -> None:
    config = Config()
    assert config.word_splitter()("the smith's") == [word.text for word in split_words("the smith's")]
    tokenizer = config.train({"iron": 3}, vocab_size=1000)
    assert tokenizer.vocab_size == 261
    assert [tokenizer.id_to_token(number) for number in (0, 65, 255, 256, 260)] == [
        *["<0x00>", "<0x41>", "<0xFF>"],
        *["<bos>", "<pad>"],
    ]
    assert tokenizer.fingerprint == Characters(max_length=100).fingerprint
    with pytest.raises(ConfigError, match="vocab_size=260 is too small"):
        config.train({"iron": 3}, vocab_size=260)
    Characters(max_length=100).save(tmp_path)
    assert load(tmp_path).max_length == 100
