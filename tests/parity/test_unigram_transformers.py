"""A unigram folder gives the same ids in transformers, and folders that transformers writes give the same ids here."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bertsmith.tokenizers import training, unigram
from bertsmith.tokenizers.tokenizer import load
from bertsmith.tokenizers.unigram import Unigram

transformers = pytest.importorskip("transformers")

ENGLISH = (
    "The quick brown fox jumps over the lazy dog. Café owners in Zürich said that 1,000 people (or more) came, and 9, "
    'not 10, stayed. "It\'s a state-of-the-art machine", she said; the foxes were jumping over dogs – lazily. '
    "Prices rose from £20 to €35.50 in 2019, which nobody had expected. Naïve façades, jalapeño sauces and smörgåsbord."
)
KOREAN = (
    "서울은 대한민국의 수도이다. 한국어를 배우는 사람들이 늘고 있다. 1,000명이 넘는 학생들이 BERT 모델을 공부했다. "
    "그는 학교에 가서 책을 읽었다. 우리는 서울에서 만났고, 부산으로 갔다. 각하와 값, 밝은 빛은 아름답다."
)
STRANGE = [
    *"éüñÅßİıſΣςĳﬁ½①Ⅷ™ａ１　",  # what normalisation changes
    *"각값힣ㄱㅏ각ﾡ漢字かなカー",
    *"🙂👍🏽👨\u200d👩\u200d👧🇰🇷",
    *"\t\n\r\x00\x07\x0b\x0c\x1c\x1f\x7f\x85\xa0\u00ad\u200b\u200c\u2003\u2028\u3000\ufeff\ufffd",
    *"``''\"'`´’“”-–—()[]{}<>|\\/@#$%^&*_+=~,.;:!?",
    *"▁ \u0300\u0308\u0301\u1100\u1161\u11a8\u0915\u093e",
]


def learn(text: str, **settings: object) -> Unigram:
    config = unigram.Config(**settings)  # type: ignore[arg-type]
    words = training.count_words([text], config.word_splitter())
    return config.train({word: 10 * count for word, count in words.items()}, vocab_size=300)


def texts(number: int) -> list[str]:
    """Words of the training texts, spoiled with strange characters, between spaces of all kinds."""
    draw = random.Random(1)
    words = (ENGLISH + " " + KOREAN).split()
    found = []
    for _ in range(number):
        parts = []
        for _ in range(draw.randrange(12)):
            word = draw.choice([draw.choice(words), draw.choice(words).upper(), draw.choice(STRANGE)])
            place = draw.randrange(len(word) + 1)
            parts.append(word[:place] + draw.choice([*STRANGE, *[""] * 200]) + word[place:])
            parts.append(draw.choice([" ", " ", " ", "", "  ", "\u3000", "\n"]))
        found.append("".join(parts))
    return found


def ids_of(theirs: object, strings: list[str]) -> list[list[int]]:
    found = theirs(strings, add_special_tokens=False, split_special_tokens=True)  # type: ignore[operator]
    return [list(ids) for ids in found["input_ids"]]


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        pytest.param(ENGLISH, {}, id="English"),
        pytest.param(ENGLISH, {"lowercase": False}, id="English, cased"),
        pytest.param(ENGLISH, {"lowercase": False, "strip_accents": True}, id="English, cased, accents stripped"),
        pytest.param(ENGLISH, {"strip_accents": False}, id="English, accents kept"),
        pytest.param(KOREAN, {}, id="Korean"),
        pytest.param(KOREAN, {"lowercase": False}, id="Korean, cased"),
    ],
)
def test_same_ids(text: str, settings: dict[str, bool], tmp_path: Path) -> None:
    ours = learn(text, **settings)
    ours.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__.startswith("Albert")
    strings = [*texts(3000), ENGLISH, KOREAN, "", " "]
    for string, expected in zip(strings, ids_of(theirs, strings), strict=True):
        assert ours.encode(string).ids.tolist() == expected, repr(string)
    assert (theirs.pad_token_id, theirs.unk_token_id, theirs.mask_token_id) == (0, 1, ours.mask_id)
    assert theirs.model_max_length == ours.max_length


def test_hangul_survives(tmp_path: Path) -> None:
    learn(KOREAN).save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.decode(theirs("서울에서 만났고", add_special_tokens=False)["input_ids"]) == "서울에서 만났고"


def test_same_frame(tmp_path: Path) -> None:
    ours = learn(ENGLISH)
    ours.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    a, b = "The lazy dog came.", "Nobody stayed!"
    row = ours.frame(ours.encode(a), ours.encode(b), max_length=64)
    expected = theirs(a, b)
    assert row.ids.tolist() == list(expected["input_ids"])
    assert row.segment_ids.tolist() == list(expected["token_type_ids"])
    assert ours.frame(ours.encode(a), max_length=64).ids.tolist() == list(theirs(a)["input_ids"])


def test_their_folder_reads_back(tmp_path: Path) -> None:
    ours = learn(ENGLISH, lowercase=False)
    ours.save(tmp_path / "ours")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    again = load(tmp_path / "theirs")
    assert isinstance(again, Unigram)
    assert again.fingerprint == ours.fingerprint
    assert again.max_length == ours.max_length


def test_sentencepiece_folder(tmp_path: Path) -> None:
    """A folder with nothing but spiece.model gives the ids of transformers, and so does one that it has converted."""
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join([ENGLISH] * 20), encoding="utf-8")
    original = tmp_path / "original"
    original.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=str(lines),
        model_prefix=str(original / "spiece"),
        vocab_size=120,
        hard_vocab_limit=False,
        **{"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1},
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", "-"],
        minloglevel=2,
    )
    (original / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "AlbertTokenizer"}))
    theirs = transformers.AutoTokenizer.from_pretrained(original)
    theirs.save_pretrained(tmp_path / "converted")
    ours = load(tmp_path / "converted")
    assert load(original).fingerprint == ours.fingerprint
    strings = [text for text in texts(3000) if "[" not in text and "<" not in text]
    for text, expected in zip(strings, ids_of(theirs, strings), strict=True):
        assert ours.encode(text).ids.tolist() == expected, repr(text)
    flat, counts = ours.encode_ids(strings)
    assert flat.tolist() == [number for text in strings for number in ours.encode(text).ids.tolist()]
    assert counts.sum() == len(flat)
