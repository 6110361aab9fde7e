"""GPT-1's byte-pair encoding: its clean-up, its frames, its special tokens."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.tokenizers import training
from bertsmith.tokenizers.bpe import BPE, Config, Splitter, WordSplitter
from bertsmith.tokenizers.gpt_words import align, gpt_words, standardize
from bertsmith.tokenizers.tokenizer import load

TEXT = "the old smith said: i don't know, it isn't mine... the smith's son - he knew!\n" * 4


KOREAN = "대장장이는 쇠를 달구어 망치로 두드린다.\n서울의 옛 대장간에는 망치 소리가 끊이지 않았다!\n"
SPACY = pytest.mark.skipif(not (find_spec("spacy") and find_spec("ftfy")), reason="needs bertsmith[gpt]")
SPLITTERS = ["pattern", "bert", pytest.param("spacy", marks=SPACY)]


def learned(size: int = 240, splitter: WordSplitter = "pattern", text: str = TEXT) -> BPE:
    config = Config(splitter=splitter)
    return config.train(training.count_words([text], config.word_splitter()), vocab_size=size)


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
        ("((a))//b!!", "( ( a ) ) // b ! !"),
        ("don't can't I'm they're", "do n't ca n't i 'm they 're"),
        ("'quoted' o'clock", "' quoted ' o'clock"),
        ("3.5 U.S. end.", "3.5 u.s. end ."),
        ("a_b*c", "a _ b * c"),
        ("“I cannot,” Mr. Smith’s dog said...then", '" i can not , " mr. smith \'s dog said ... then'),
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
    settings = {"tokenizer_class": "OpenAIGPTTokenizer", "splitter": "pattern"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    loaded = load(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(TEXT).ids.tolist() == tokenizer.encode(TEXT).ids.tolist()


def test_a_vocabulary_needs_room() -> None:
    with pytest.raises(ConfigError, match=r"vocab_size=150 is too small: .* at least 151"):
        learned(150)
    assert learned(151).vocab_size == 151


def test_standardized_texts_are_those_of_gpt1() -> None:
    assert standardize(" a—b…\t(c)\n\n  d;;e´ ") == "a - b... ( c ) \n d ;; e'"


@pytest.mark.parametrize(
    ("text", "changed", "parts"),
    [
        ("same", "same", ["s", "a", "m", "e"]),
        ("cafÃ© x", "café x", ["c", "a", "f", "Ã©", " ", "x"]),
        ("“ﬁn a\x00b", '"fin ab', ["“", "ﬁ", "ﬁ", "n", " ", "a", "b"]),
        ("“a” &lt; b&nbsp;c", '"a" < b c', ["“", "a", "”", " ", "&lt;", " ", "b", "&nbsp;", "c"]),
    ],
)
def test_changed_characters_keep_their_offsets(text: str, changed: str, parts: list[str]) -> None:
    begins, ends = align(text, changed, lambda sign: {"“": '"', "”": '"', "ﬁ": "fi"}.get(sign, sign))
    assert [text[begin:end] for begin, end in zip(begins, ends, strict=True)] == parts


@pytest.mark.parametrize("splitter", SPLITTERS)
def test_folders_keep_their_word_splitter(splitter: WordSplitter, tmp_path: Path) -> None:
    tokenizer = learned(splitter=splitter)
    tokenizer.save(tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded, BPE)
    assert loaded.splitter == splitter
    assert (loaded.fingerprint, loaded.files()) == (tokenizer.fingerprint, tokenizer.files())
    assert loaded.notes == ()
    if splitter == "bert":
        (tmp_path / "tokenizer.json").unlink()  # from vocab.json and merges.txt alone
        assert load(tmp_path).fingerprint == tokenizer.fingerprint


def test_word_splitters_give_different_fingerprints() -> None:
    assert learned().fingerprint != learned(splitter="bert").fingerprint


def test_an_unknown_word_splitter_is_refused(tmp_path: Path) -> None:
    learned(splitter="bert").save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"splitter": "nltk"}))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="splitter='nltk', expected pattern, spacy, bert"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="splitter='nltk' must be one of pattern, spacy, bert"):
        Config(splitter="nltk")  # type: ignore[arg-type]


def test_without_spacy_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)
    gpt_words.cache_clear()
    with pytest.raises(
        BertsmithError, match=r"^splitter=spacy needs the package ftfy: pip install 'bertsmith\[gpt\]'$"
    ):
        Config(splitter="spacy").word_splitter()
    for name, content in learned().vocabulary_files().items():
        (tmp_path / name).write_bytes(content)
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"tokenizer_class": "OpenAIGPTTokenizer"}')
    with pytest.raises(DataError, match=r"needs the package ftfy: pip install .*; or set \"splitter\": \"pattern\" in"):
        load(tmp_path)
    config.write_text('{"tokenizer_class": "OpenAIGPTTokenizer", "splitter": "spacy"}')
    with pytest.raises(DataError, match=r"splitter=spacy needs the package ftfy: pip install 'bertsmith\[gpt\]'$"):
        load(tmp_path)


@pytest.mark.parametrize("splitter", ["pattern", pytest.param("spacy", marks=SPACY)])
def test_korean_documents_survive_a_round_trip(splitter: WordSplitter) -> None:
    tokenizer = learned(500, splitter, KOREAN * 3)
    encoded = tokenizer.encode(KOREAN)
    assert tokenizer.unknown_id not in encoded.ids
    assert [*filter(str.strip, tokenizer.decode(encoded.ids).replace(" .", ".").replace(" !", "!").split())] == (
        KOREAN.split()
    )
    assert "".join(KOREAN[begin:end] for begin, end in encoded.offsets if KOREAN[begin] != "\n") == (
        "".join(KOREAN.split())
    )


def test_berts_words_are_refused_for_hangul() -> None:
    with pytest.raises(ConfigError, match="splitter=bert decomposes Hangul"):
        learned(500, "bert", KOREAN)


@SPACY
def test_line_ends_are_tokens_between_words() -> None:
    tokenizer = learned(splitter="spacy")
    text = "\n the smith \n\n knew\nit \n"
    encoded = tokenizer.encode(text)
    pieces = [tokenizer.id_to_token(number) for number in encoded.ids]
    assert pieces.count("\n</w>") == 2
    assert [text[begin:end] for begin, end in encoded.offsets[np.array(pieces) == "\n</w>"]] == ["\n", "\n"]
    assert tokenizer.encode_ids([text])[0].tolist() == encoded.ids.tolist()


@SPACY
def test_offsets_refer_to_the_text_before_its_repair() -> None:
    tokenizer = learned(splitter="spacy")
    text = "The doctorâ€™s “ﬁne” cafÃ© … İ &lt;b&gt;"
    encoded = tokenizer.encode(text)
    spans = {}
    for word, (begin, end) in zip(encoded.words, encoded.offsets, strict=True):
        spans[word] = (spans.get(word, (begin, end))[0], end)
    parts = ["The", "doctor", "â€™s", "“", "ﬁne", "”", "cafÃ©", "…", "İ", "&lt;", "b", "&gt;"]
    assert [text[begin:end] for begin, end in spans.values()] == parts
