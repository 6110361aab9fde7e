"""BERT's WordPiece: Google's own test vectors, folders of other libraries, training."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers import training
from bertsmith.tokenizers.tokenizer import load
from bertsmith.tokenizers.wordpiece import Config, Splitter, WordPiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# bert: tokenization_test.py; the two tokens at the end are those that its toy vocabulary lacks.
GOOGLE = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ",", "[PAD]", "[MASK]"]
TEXT = (
    """The unwanted runner was running, and the running water ran; nobody wanted to run.
Wanting to win, he unwound the winding wire. Was it windy? It wasn't: the window was shut (twice).
Café owners, naïve or not, want running hot water: 24 hours a day, 365 days a year!
"""
    * 3
)
KOREAN = "서울은 대한민국의 수도이다. 한강이 서울을 가로지른다. BERT는 서울에서도 쓰인다.\n" * 3


def words(text: str, **rules: bool) -> list[str]:
    splitter = Splitter(**{"lowercase": True, "strip_accents": True, "chinese_spacing": True} | rules)
    return [word for unit in splitter.chunker.chunks(text) for word in splitter(unit)]


def pieces(tokenizer: WordPiece, text: str) -> list[str]:
    return [tokenizer.id_to_token(number) for number in tokenizer.encode(text).ids]


def learn(text: str, size: int = 200, **settings: object) -> WordPiece:
    config = Config(**settings)  # type: ignore[arg-type]
    return config.train(training.count_words([text], config.word_splitter()), vocab_size=size)


def test_google_full_tokenizer() -> None:
    tokenizer = WordPiece.build(GOOGLE)
    assert pieces(tokenizer, "UNwant\u00e9d,running") == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert tokenizer.encode("UNwant\u00e9d,running").ids.tolist() == [7, 4, 5, 10, 8, 9]
    assert tokenizer.encode_ids(["UNwant\u00e9d,running"])[0].tolist() == [7, 4, 5, 10, 8, 9]


def test_google_wordpiece_tokenizer() -> None:
    tokenizer = WordPiece.build(GOOGLE)
    assert pieces(tokenizer, "") == []
    assert pieces(tokenizer, "unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]
    assert pieces(tokenizer, "unwantedX running") == ["[UNK]", "runn", "##ing"]


def test_google_basic_tokenizer() -> None:
    assert words("ah\u535a\u63a8zz") == ["ah", "\u535a", "\u63a8", "zz"]
    assert words("ah\u535a\u63a8zz", chinese_spacing=False) == ["ah\u535a\u63a8zz"]
    mixed = " \tHeLLo!how  \n Are yoU?  "
    assert words(mixed) == ["hello", "!", "how", "are", "you", "?"]
    assert words("H\u00e9llo") == ["hello"]
    assert words(mixed, lowercase=False, strip_accents=False) == ["HeLLo", "!", "how", "Are", "yoU", "?"]


def test_google_character_classes() -> None:
    assert [words(f"a{space}b") for space in " \t\r\n\u00a0"] == [["a", "b"]] * 5
    assert [words(f"a{control}b") for control in "\u0005\ufffd\u0000\u200b"] == [["ab"]] * 4
    assert [words(f"a{sign}b") for sign in "-$`."] == [["a", sign, "b"] for sign in "-$`."]
    assert words("aAb") == ["aab"]


def test_long_words_are_unknown() -> None:
    tokenizer = WordPiece.build([*SPECIALS, "a", "##a"])
    assert len(tokenizer.encode("a" * 100)) == 100
    assert pieces(tokenizer, "a" * 101) == ["[UNK]"]


def test_a_vocabulary_file_alone_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join([*SPECIALS, "é", "e", "E"]).encode())
    assert WordPiece.from_vocabulary(path).encode("É e").ids.tolist() == [6, 6]
    assert WordPiece.from_vocabulary(path, lowercase=False).encode("E é").ids.tolist() == [7, 5]
    assert WordPiece.from_vocabulary(path, strip_accents=False).encode("É e").ids.tolist() == [5, 6]
    cased = load(tmp_path)
    assert cased.encode("E é É").ids.tolist() == [7, 5, 1]
    assert cased.notes == ("lowercase=false, as the vocabulary has capital letters",)
    path.write_text("\n".join([*SPECIALS, "서울", "e"]))
    korean = load(tmp_path)
    assert korean.encode("서울 E").ids.tolist() == [5, 6]
    (note,) = korean.notes
    assert note.startswith("lowercase=true, as the vocabulary has no capital letters; strip_accents=false")
    assert load(tmp_path, lowercase=False).encode("서울 E").ids.tolist() == [5, 1]


def test_errors_of_broken_vocabulary_files_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, "a", "b", "a"]))
    with pytest.raises(DataError, match=r"vocab\.txt: line 8 repeats 'a' of line 6"):
        WordPiece.from_vocabulary(path)
    path.write_text("[PAD]\n[UNK]\n[CLS]\na\n")
    with pytest.raises(DataError, match=r"vocab.txt: its 4 tokens do not include \[SEP\], \[MASK\]"):
        WordPiece.from_vocabulary(path)
    with pytest.raises(DataError, match="cannot be read"):
        WordPiece.from_vocabulary(tmp_path / "absent.txt")


@pytest.mark.parametrize(("stated", "expected"), [({}, True), ({"do_lower_case": False}, False)])
def test_old_folders_have_no_definition(tmp_path: Path, stated: dict[str, bool], expected: bool) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "a", "<m>"]))
    config = {"tokenizer_class": "BertTokenizer", "model_max_length": 64, "mask_token": {"content": "<m>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | stated))
    tokenizer = load(tmp_path)
    assert tokenizer.rules()["lowercase"] is expected
    assert tokenizer.rules()["strip_accents"] is expected
    assert (tokenizer.max_length, tokenizer.mask_id) == (64, 6)


def test_missing_settings_are_those_of_the_class_as_in_transformers(tmp_path: Path) -> None:
    learn(TEXT, lowercase=False).save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    silent = {key: settings[key] for key in settings if key not in ("do_lower_case", "strip_accents")}
    path.write_text(json.dumps(silent))
    tokenizer = load(tmp_path)
    assert tokenizer.rules()["lowercase"] is True
    assert "--cased" in tokenizer.notes[0]
    assert load(tmp_path, lowercase=False).rules()["lowercase"] is False
    path.write_text(json.dumps(silent | {"do_lower_case": True}))
    assert load(tmp_path).rules()["lowercase"] is True
    path.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}))
    assert load(tmp_path).rules()["lowercase"] is False


def test_other_rules_under_no_known_name_are_run_as_they_are(tmp_path: Path) -> None:
    learn(TEXT).save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    for changes in ({"pre_tokenizer": {"type": "Whitespace"}}, {"normalizer": {"type": "Lowercase"}}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(definition | changes))
        assert load(tmp_path).kind == "tokenizer.json"


def test_settings_for_transformers_are_never_left_open() -> None:
    settings = json.loads(learn(KOREAN).files()["tokenizer_config.json"])
    assert settings["tokenizer_class"] == "BertTokenizer"
    assert settings["do_lower_case"] is True
    assert settings["strip_accents"] is False
    assert settings["tokenize_chinese_chars"] is True
    assert settings["model_max_length"] == 512


def test_learned_vocabularies_begin_with_the_special_tokens() -> None:
    tokenizer = learn(TEXT)
    tokens = tokenizer.tokens()
    assert tokens[:5] == SPECIALS
    letters = [token for token in tokens if len(token) == 1]
    assert tokens[5 : 5 + len(letters)] == sorted(letters)
    continuing = [token for token in tokens if len(token) == 3 and token.startswith("##")]
    assert tokens[5 + len(letters) : 5 + len(letters) + len(continuing)] == sorted(continuing)
    assert len(letters) + len(continuing) + 5 < len(tokens) <= 200
    assert tokenizer.unknown_id not in tokenizer.encode(TEXT).ids


@pytest.mark.parametrize("lowercase", [True, False])
def test_vocabularies_are_those_of_the_tokenizers_library(lowercase: bool) -> None:
    text = TEXT + Path(argparse.__file__).read_text(encoding="utf-8")  # English of a kind that is on every machine
    ours = learn(text, size=1000, lowercase=lowercase, coverage=1.0)
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # Without its symbols named beforehand, the library numbers `##a` and breaks ties by the order of a hash table.
    symbols = [token for token in ours.tokens() if len(token.removeprefix("##")) == 1]
    trainer = trainers.WordPieceTrainer(
        vocab_size=1000, min_frequency=2, special_tokens=[*SPECIALS, *symbols], show_progress=False
    )
    backend.train_from_iterator([text], trainer)
    theirs = backend.get_vocab()
    assert sorted(theirs, key=lambda token: theirs[token]) == ours.tokens()
    assert len(theirs) == 1000


def test_lower_casing_strips_accents_unless_there_is_hangul() -> None:
    assert learn(TEXT).rules()["strip_accents"] is True
    assert learn(TEXT, lowercase=False).rules()["strip_accents"] is False
    assert learn(TEXT, strip_accents=False).rules()["strip_accents"] is False
    assert learn(TEXT, lowercase=False, strip_accents=True).rules()["strip_accents"] is True
    assert learn(TEXT + KOREAN).rules()["strip_accents"] is False
    with pytest.raises(ConfigError, match=r"strip_accents=true decomposes Hangul .* 50.0% of the words"):
        Config(strip_accents=True).train({"서울은": 5, "seoul": 5}, vocab_size=160)


def test_hangul_is_not_decomposed() -> None:
    tokenizer = learn(KOREAN)
    assert "서울" in "".join(pieces(tokenizer, "서울은"))
    assert tokenizer.decode(tokenizer.encode("서울은 수도이다").ids) == "서울은 수도이다"
    assert pieces(tokenizer, "뷁") == ["[UNK]"]


def test_a_little_hangul_among_stripped_text_is_unknown() -> None:
    counts = {"wanted": 5000, "naïve": 4000, "서울은": 5}
    tokenizer = Config(coverage=1.0).train(dict(counts), vocab_size=160)
    assert tokenizer.rules()["strip_accents"] is True
    assert pieces(tokenizer, "서울은") == ["[UNK]"]
    assert tokenizer.unknown_id not in tokenizer.encode("naive NAÏVE").ids


def test_the_alphabet_has_the_requested_coverage() -> None:
    counts = {"ααβ": 900, "γγδ": 99, "ε": 1}
    for coverage, expected in ((1.0, "αβγδε"), (0.9996, "αβγδ"), (0.95, "αβγ"), (0.5, "α")):
        kept = Config(coverage=coverage).train(dict(counts), vocab_size=160).tokens()
        assert "".join(token for token in kept if len(token) == 1 and not token.isascii()) == expected
    many = {chr(0x4E00 + number): 10 for number in range(300)}
    capped = Config(coverage=1.0).train(dict(many), vocab_size=109 + 90).tokens()
    assert [token for token in capped if "一" <= token < "龥"] == [chr(0x4E00 + number) for number in range(30)]


@pytest.mark.parametrize(
    ("settings", "size", "message"),
    [
        ({"coverage": 0.0}, 200, "coverage=0.0"),
        ({"coverage": 1.5}, 200, "coverage=1.5"),
        ({}, 8, "vocab_size=8 is too small"),
        ({"min_count": 0}, 100, "min_count=0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        learn(TEXT, size=size, **settings)
