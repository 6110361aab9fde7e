"""Whole words: where they are cut, unknown words by shape, ULMFiT's marks, folders."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call
from hypothesis import example, given
from hypothesis import strategies as st

from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.folder_tokenizer import spelling
from bertsmith.tokenizers import training
from bertsmith.tokenizers.pretokenization import split_at_white_space, split_words
from bertsmith.tokenizers.special_tokens import stream_frame
from bertsmith.tokenizers.tokenizer import load
from bertsmith.tokenizers.words import Config, Marker, Words, add_markers, remove_markers, word_shape

TEXT = "The smith said no no no: NASA's state-of-the-art hammer cost 1,000.50 dollars!!! Sooo hot. " * 3
SETTINGS: list[dict[str, Any]] = [
    {},
    {"lowercase": False},
    {"unknowns": "classes"},
    {"marks": True},
    {"marks": True, "unknowns": "classes"},
    {"split": "whitespace", "lowercase": False, "unknowns": "classes"},
]


def learn(text: str = TEXT, vocab_size: int = 200, **settings: Any) -> Words:
    config = Config(**settings)
    return config.train(training.count_words([text], config.word_splitter()), vocab_size=vocab_size)


def tokens(tokenizer: Words, text: str) -> list[str]:
    return [tokenizer.id_to_token(number) for number in tokenizer.encode(text).ids.tolist()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the smith's hammer", "the smith 's hammer"),
        ("It isn't; l’été", "It isn 't ; l ’été"),
        ("'quoted' words' end", "' quoted ' words ' end"),
        ("state-of-the-art - or -not- x-", "state-of-the-art - or - not - x -"),
        ("1,000.50 10:30, 3.a 2, 3 v1.2", "1,000.50 10:30 , 3 . a 2 , 3 v1.2"),
        ("U.S.A. (end).", "U . S . A . ( end ) ."),
        ("서울-부산 1,000명", "서울-부산 1,000명"),
        ("हिन्दी e\u0301te\u0301", "हिन्दी e\u0301te\u0301"),
        ("<unk> </s> [MASK]", "< unk > < / s > [ MASK ]"),
        ("", ""),
    ],
)
def test_where_words_are_cut(text: str, words: str) -> None:
    found = split_words(text)
    assert [word.text for word in found] == words.split()
    assert all(text[word.begin : word.end] == word.text for word in found)


@pytest.mark.parametrize(
    "text", ["U.S. officials said Ms. Smith do n't pay $ 3.5% -- now", " a\x1cb\u00a0c\u3000\n\td ", "", "e\u0301 ` ''"]
)
def test_where_tokenized_texts_are_cut(text: str) -> None:
    found = split_at_white_space(text)
    assert [word.text for word in found] == text.split()
    assert all(text[word.begin : word.end] == word.text for word in found)
    tokenizer = learn(text + " a", split="whitespace", lowercase=False, min_count=1)
    assert tokens(tokenizer, text) == text.split()


def test_white_space_is_chosen_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("U.S. officials\n" * 3)
    settings = ("--kind", "words", "--vocab-size", "20", "--set", "split=whitespace")
    done = call("tokenizer", "train", tmp_path / "text.txt", "-o", tmp_path / "tokenizer", *settings)
    assert done.returncode == 0, done.stderr
    tokenizer = load(tmp_path / "tokenizer")
    assert tokenizer.splits_at_white_space
    assert tokenizer.tokens()[4:] == ["officials", "u.s."]


def test_given_words_are_one_token_each_whatever_they_contain() -> None:
    tokenizer = learn("U.S. pays", split="whitespace", min_count=1)
    text, spans = "The U.S.pays 1 000 ", [(0, 3), (4, 8), (8, 12), (13, 18), (18, 19)]
    encoded = tokenizer.encode_words(text, spans)
    assert [tokenizer.id_to_token(number) for number in encoded.ids.tolist()] == ["<unk>", "u.s.", "pays", "<unk>"]
    assert encoded.offsets.tolist() == [list(span) for span in spans[:-1]]  # white space has no token
    assert not learn().splits_at_white_space


def test_frequent_words_come_first_and_ties_by_spelling() -> None:
    counts = {"b": 3, "a": 3, "rare": 1, "c": 9}
    assert Config().train(dict(counts), vocab_size=100).tokens() == [
        "<pad>",
        "<unk>",
        "<s>",
        "</s>",
        "c",
        "a",
        "b",
    ]
    assert Config().train(dict(counts), vocab_size=6).tokens()[4:] == ["c", "a"]
    assert Config(min_count=1).train(dict(counts), vocab_size=100).tokens()[-1] == "rare"


def test_lower_case() -> None:
    assert tokens(learn(), "THE Smith") == ["the", "smith"]
    assert tokens(learn(lowercase=False), "THE Smith The smith") == ["<unk>", "<unk>", "The", "smith"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("1842", "number"),
        ("7,000.50", "number"),
        ("B2B", "digit"),
        ("Tokyo-based", "hyphen"),
        ("UNESCO", "capitals"),
        ("Seoul", "capital"),
        ("X", "capital"),
        ("smelting", "ing"),
        ("annealed", "ed"),
        ("coldly", "ly"),
        ("anvils", "s"),
        ("ring", None),
        ("iron", None),
        ("쇠", None),
    ],
)
def test_shapes_of_unknown_words(word: str, expected: str | None) -> None:
    assert word_shape(word) == expected
    token = f"<unk:{expected}>" if expected else "<unk>"
    assert tokens(learn(unknowns="classes"), word) == [token]
    assert tokens(learn(), word) == ["<unk>"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NASA said Hello to McDonald and I", "xxup nasa said xxmaj hello to mcdonald and i"),
        ("sooo hot!!!!", "s xxrep 3 o hot xxrep 4 !"),
        ("100000 www.", "100000 xxrep 3 w ."),
        ("no no no, yes yes", "xxwrep 3 no , yes yes"),
        ("Very Very Very", "xxwrep 3 xxmaj very"),
        ("- - - -", "- - - -"),
        ("no\nno\nno", "no no no"),
        ("III IV", "xxrep 3 i xxup iv"),
    ],
)
def test_marks(text: str, expected: str) -> None:
    found = [marked for line in text.split("\n") for marked in add_markers(line)]
    assert " ".join(token for marked in found for token in marked.tokens) == expected


@given(st.text(st.sampled_from("aaoOé²1_-.,'(  \n\t\x1c\u3000\u0301"), max_size=40))
@example("(no no no)")
@example("sooo ooo ooo")
@example("a\x1ca a a")
def test_chunks_have_the_marks_of_their_line(text: str) -> None:
    rules = Config(marks=True).rules
    assert [token for chunk in rules.chunker.chunks(text) for token in rules(chunk)] == list(rules(text))


@pytest.mark.parametrize("text", ["NASA said Hello to McDonald", "so hoooot !!!!", "Very Very Very no no no", "a B c"])
def test_marks_can_be_undone(text: str) -> None:
    written = [token for marked in add_markers(text) for token in marked.tokens]
    assert " ".join(remove_markers(written)).replace("h oooo t", "hoooot").lower() == text.lower()
    assert (
        " ".join(remove_markers(["xxup", "iron", "xxmaj", "smith", "xxwrep", "2", "xxmaj", "no"])) == "IRON Smith No No"
    )
    assert remove_markers(["xxrep"]) == [""]
    assert remove_markers(["xxwrep", "99999999", "no"]) == ["no"]


def test_marks_point_at_what_they_describe() -> None:
    tokenizer = learn(marks=True)
    text = "hot\nNASA said no  no no"
    encoded = tokenizer.encode(text)
    assert tokens(tokenizer, text) == ["hot", "xxup", "nasa", "said", "xxwrep", "3", "no"]
    spans = [text[begin:end] for begin, end in encoded.offsets.tolist()]
    assert spans == ["hot", "NASA", "NASA", "said", "no  no no", "no  no no", "no  no no"]
    assert encoded.words.tolist() == [0, 1, 1, 2, 3, 3, 3]
    assert tokenizer.decode(tokenizer.encode("NASA said Sooo").ids) == "NASA said s ooo"


def test_texts_that_spell_a_mark_do_not_become_one() -> None:
    tokenizer = learn(TEXT + " xxup xxup <unk:number> <unk:number> unk unk", marks=True, unknowns="classes")
    assert Marker.UP not in tokens(tokenizer, "xxup xxmaj")
    assert "<unk:number>" not in tokens(tokenizer, "<unk:number>")
    assert len(tokenizer.tokens()) == len(set(tokenizer.tokens()))


def test_the_unknown_tokens_of_word_shapes_are_special_tokens() -> None:
    tokenizer = learn(unknowns="classes")
    ids = tokenizer.encode("the red-hot 1,200 anvil").ids
    assert tokenizer.is_unknown(ids).tolist() == [False, True, True, True]
    assert tokenizer.unknown_ids <= tokenizer.special_ids
    assert tokenizer.decode(ids) == "the"


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_contract_of_tokenizers_holds_for_every_setting(settings: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = learn(**settings)
    tokenizer.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "special_tokens_map.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    draw = random.Random(2)
    alphabet = TEXT[:60] + " \n\n\x1c\x85\u2028İßΣ서울'’-.,!1 XX"
    texts = ["".join(draw.choices(alphabet, k=draw.randrange(30))) for _ in range(500)] + [TEXT]
    ids, counts = tokenizer.encode_ids(texts)
    encoded = tokenizer.encode_batch(texts)
    assert ids.tolist() == np.concatenate([one.ids for one in encoded]).tolist()
    assert counts.tolist() == list(map(len, encoded))
    for again in (load(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert again.fingerprint == tokenizer.fingerprint
        assert again.encode_ids(texts)[0].tolist() == ids.tolist()
    for text, one in zip(texts, encoded, strict=True):
        assert (np.diff(one.offsets[:, 0]) >= 0).all()
        assert (one.offsets[:, 0] < one.offsets[:, 1]).all()
        assert (one.offsets <= len(text)).all()


def test_a_tokenizer_adapted_to_an_encoder_survives_another_process() -> None:
    tokenizer = spelling(learn(), case=True, reads_ids=False)
    vars(tokenizer)["frame_ids"] = stream_frame(tokenizer.build_frame(), backward=True)
    again = pickle.loads(pickle.dumps(tokenizer))
    expected, found = tokenizer.encode("the Unseen Smith"), again.encode("the Unseen Smith")
    assert expected.characters is not None
    assert found.characters is not None
    assert found.characters.tolist() == expected.characters.tolist()
    assert again.frame_ids == tokenizer.frame_ids != learn().frame_ids
    assert (again.open_vocabulary, again.fingerprint) == (True, tokenizer.fingerprint)


def test_fingerprints_differ_by_settings() -> None:
    words = {"iron": 5, "rod": 4}
    settings: list[dict[str, Any]] = [{}, {"lowercase": False}, {"split": "whitespace"}]
    assert len({Config(**one).train(dict(words), vocab_size=50).fingerprint for one in settings}) == 3


def test_special_tokens_are_read_where_wanted() -> None:
    tokenizer = learn()
    text = "hot <s>hammer </s>"
    assert "<s>" not in tokens(tokenizer, text)
    encoded = tokenizer.encode(text, parse_special_tokens=True)
    assert [tokenizer.id_to_token(number) for number in encoded.ids.tolist()] == ["hot", "<s>", "hammer", "</s>"]
    assert [text[begin:end] for begin, end in encoded.offsets.tolist()] == ["hot", "<s>", "hammer", "</s>"]
    assert encoded.words.tolist() == [0, 1, 2, 3]


def test_what_cannot_be_learned() -> None:
    with pytest.raises(DataError, match=r"no words .* at least 5"):
        Config(min_count=5).train({"iron": 4}, vocab_size=50)
    with pytest.raises(ConfigError, match="4 tokens are reserved"):
        Config().train({"iron": 4}, vocab_size=4)
    for wrong in (
        {"min_count": 0},
        {"unknowns": "two"},
        {"split": "commas"},
        {"marks": True, "lowercase": False},
        {"marks": True, "split": "whitespace"},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Config(**wrong)  # type: ignore[arg-type]


def test_a_vocabulary_of_another_setting_is_refused(tmp_path: Path) -> None:
    learn().save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"marks": True}))
    with pytest.raises(DataError, match="must begin with <pad>"):
        load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"split": "commas"}))
    with pytest.raises(DataError, match="split='commas' must be one of punctuation, whitespace"):
        load(tmp_path)
