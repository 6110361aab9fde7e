"""GPT-1's byte-pair encoding: its clean-up, its frames, its special tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertsmith.errors import ConfigError
from bertsmith.tokenizers import training
from bertsmith.tokenizers.bpe import BPE, Config, Splitter
from bertsmith.tokenizers.tokenizer import load

TEXT = "the old smith said: i don't know, it isn't mine... the smith's son - he knew!\n" * 4


def learned(size: int = 240) -> BPE:
    return Config().train(training.count_words([TEXT], Splitter()), vocab_size=size)


def words(text: str) -> list[str]:
    splitter = Splitter()
    return [word for unit in splitter.chunker.chunks(text) for word in splitter(unit)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The OLD Smith", "the old smith"),
        ("yes—no–maybe―so", "yes - no - maybe - so"),
        ("wait… what", "wait ... what"),
        ("it´s", "it 's"),
        ("one,two;three?!", "one , two ; three ? !"),
        ("((a))//b", "(( a )) // b"),
        ("don't can't I'm they're", "do n't ca n't i 'm they 're"),
        ("'quoted' o'clock", "' quoted ' o'clock"),
        ("3.5 U.S. end.", "3.5 u.s . end ."),
        ("a_b*c", "a _ b * c"),
        ("naïve Café", "naïve café"),
    ],
)
def test_texts_are_cleaned_as_in_gpt1(text: str, expected: str) -> None:
    assert words(text) == expected.split()


def test_special_tokens_come_last_and_unknown_first() -> None:
    tokenizer = learned()
    assert tokenizer.unknown_id == 0
    assert tokenizer.tokens()[-4:] == ["_start_", "_delimiter_", "_classify_", "<pad>"]
    assert tokenizer.vocab_size <= 240


def test_frames_look_like_gpt1s() -> None:
    tokenizer = learned()
    a, b = tokenizer.encode("the smith"), tokenizer.encode("the son")
    start, delimiter, classify = (tokenizer.token_to_id(token) for token in ("_start_", "_delimiter_", "_classify_"))
    assert tokenizer.frame(a, max_length=20).ids.tolist() == [start, *a.ids, classify]
    assert tokenizer.frame(a, b, max_length=20).ids.tolist() == [start, *a.ids, delimiter, *b.ids, classify]


def test_words_end_with_their_suffix() -> None:
    tokenizer = learned()
    pieces = [tokenizer.id_to_token(number) for number in tokenizer.encode("smiths").ids]
    assert "".join(pieces) == "smiths</w>"
    assert len(pieces) > 1
    assert [tokenizer.id_to_token(number) for number in tokenizer.encode("The smith").ids] == ["the</w>", "smith</w>"]
    assert tokenizer.encode("쇠").ids.tolist() == [0]


def test_openais_files_get_their_special_tokens(tmp_path: Path) -> None:
    tokenizer = learned()
    files = tokenizer.files()
    vocabulary = json.loads(files["vocab.json"])
    bare = {token: number for token, number in vocabulary.items() if number < len(vocabulary) - 4}
    (tmp_path / "vocab.json").write_text(json.dumps(bare))
    (tmp_path / "merges.txt").write_bytes(files["merges.txt"])
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "OpenAIGPTTokenizer"}')
    loaded = load(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(TEXT).ids.tolist() == tokenizer.encode(TEXT).ids.tolist()


def test_a_vocabulary_needs_room() -> None:
    with pytest.raises(ConfigError, match=r"vocab_size=150 is too small: .* at least 151"):
        learned(150)
    assert learned(151).vocab_size == 151
