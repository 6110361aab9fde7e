"""Our ids, offsets, segments and folders against transformers' own tokenizers, on 20,000 strings.

Where Google's vocabularies are at hand (BERTSMITH_DATA, or ../shared/data beside the repository) they are used too.
"""

from __future__ import annotations

import lzma
import os
import random
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bertsmith.tokenizers import bpe, byte_bpe, training, wordpiece
from bertsmith.tokenizers.tokenizer import Tokenizer, TokenizerConfig, load

transformers = pytest.importorskip("transformers")

DATA = Path(os.environ.get("BERTSMITH_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
GOOGLE = DATA / "vocab"
STRINGS = 20_000  # for Google's vocabularies, or for learned ones where these are not at hand; the others get a quarter
ENGLISH = """The committee has not yet decided whether the new bridge will be opened before the winter.
Running water wasn't available; the villagers (about 1,200 of them) carried it from the river, 3.5 km away.
"Café owners are naïve," she said, "if they want to be paid in advance!" -- and nobody answered...
"""
KOREAN = """서울은 대한민국의 수도이자 최대 도시이다. 한강을 사이에 두고 강북과 강남으로 나뉜다.
위키백과는 누구나 편집할 수 있는 다국어 인터넷 백과사전이며, 2001년에 시작되었다(BERT보다 17년 먼저).
"""
KINDS_OF_CHARACTERS = [
    "abcdefghijklmnopqrstuvwxyzETAOIN",
    "0123456789.,:;!?'\"()[]{}<>-_/\\@#$%^&*+=~`|",
    "éèüñçåßøÀÉÎÕŞİıǅﬁŉΣσςЖж",
    "가각힣서울은대한민국ㄱㅏㅎ각ꥠힰﾡ",
    "漢字博推㐀𠀀𪜀豈丽々〆かなカナｶﾅ",
    "😀👍🏽👩‍🔧🇰🇷❤️©™",
    "\u0300\u0301\u0323\u20d0\u3099\u0e31ำ\u094d",
    "\x00\x01\x07\x08\x0b\x0c\x1c\x1f\x7f\x80\x85\x9f\ufffd\ue000\U000f0000\u0378",
    "\u200b\u200c\u200d\u200e\u2060\ufeff\xad\u180e\u061c",
    "\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\t\n\r",
    "–—―…‘’“”«»¿¡、。！？；，．·•†§¶",
    "مرحباשלוםไทยहिन्दी",
]
SPELLINGS = ["[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]", "[cls]", "[MASK", "##ing", "<s>", "</s>", "<mask>", "<pad>"]


def made_up(seed: int) -> Iterator[str]:
    """Hostile strings without end."""
    draw = random.Random(seed)
    real = (ENGLISH + KOREAN).split()
    while True:
        parts = []
        for _ in range(draw.randrange(1, 12)):
            kind = draw.randrange(10)
            if kind < 4:
                parts.append(draw.choice(real))
            elif kind < 8:
                parts.append("".join(draw.choices(draw.choice(KINDS_OF_CHARACTERS), k=draw.randrange(1, 9))))
            elif kind < 9:
                points = [draw.choice([draw.randrange(0x3000), draw.randrange(0xE000, 0x110000)]) for _ in range(3)]
                parts.append("".join(map(chr, points)))
            else:
                parts.append(draw.choice(SPELLINGS))
            parts.append(draw.choice([" ", " ", " ", "", "  "]))
        if draw.random() < 0.02:
            parts.append(draw.choice(["a", "é", "각", "ab", "12"]) * draw.randrange(45, 400))
        yield "".join(parts)


@cache
def strings() -> list[str]:
    """20,000 strings: real sentences where there are any, made-up ones for the rest."""
    real: list[str] = []
    for name in ("en-wiki-1", "ko-wiki"):
        path = DATA / "corpora" / f"{name}.txt.xz"
        if path.is_file():
            with lzma.open(path, "rt", encoding="utf-8") as lines:
                real += islice((line[:200] for line in lines if len(line) > 1), 3000)
    return real + list(islice(made_up(5), STRINGS - len(real)))


@cache
def vocabulary(*, cased: bool, google: bool) -> list[str]:
    if google:
        path = GOOGLE / ("bert-cased.txt" if cased else "bert-uncased.txt")
        if not path.is_file():
            pytest.skip(f"{path} is not here")
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    config = wordpiece.Config(lowercase=not cased)
    return config.train(training.count_words(strings()[::4], config.word_splitter()), vocab_size=3000).tokens()


def both(*, cased: bool, google: bool) -> tuple[Tokenizer, Any]:
    tokens = vocabulary(cased=cased, google=google)
    ids = {token: number for number, token in enumerate(tokens)}
    theirs = transformers.BertTokenizerFast(vocab=ids, do_lower_case=not cased)
    return wordpiece.WordPiece.build(tokens, lowercase=not cased), theirs


@pytest.mark.parametrize("google", [False, True], ids=["learned", "google"])
@pytest.mark.parametrize("cased", [False, True], ids=["uncased", "cased"])
def test_wordpiece_is_berts(cased: bool, google: bool) -> None:
    ours, theirs = both(cased=cased, google=google)
    texts = strings() if google == GOOGLE.is_dir() else strings()[::4]
    expected = theirs(texts, return_offsets_mapping=True, split_special_tokens=True)
    rows = [ours.frame(encoded, max_length=1 << 20) for encoded in ours.encode_batch(texts)]
    assert [row.ids.tolist() for row in rows] == expected["input_ids"]
    assert [row.segment_ids.tolist() for row in rows] == expected["token_type_ids"]
    assert [[tuple(pair) for pair in row.offsets.tolist()] for row in rows] == expected["offset_mapping"]
    ids, counts = ours.encode_ids(texts)
    assert counts.tolist() == [len(found) - 2 for found in expected["input_ids"]]
    assert ids.tolist() == [number for found in expected["input_ids"] for number in found[1:-1]]


@pytest.mark.parametrize("cased", [False, True], ids=["uncased", "cased"])
def test_pairs_are_berts(cased: bool) -> None:
    """Where both texts would be cut, transformers gives an odd place to the second unless the first is longer; Google
    and we give it to the first. Everything else is equal."""
    ours, theirs = both(cased=cased, google=False)
    draw = random.Random(11)
    differ = 0
    for length in (3, 4, 7, 16, 21, 64, 4096):
        firsts, seconds = (draw.choices(strings(), k=400) for _ in "ab")
        expected = theirs(
            firsts,
            seconds,
            truncation="longest_first",
            max_length=length,
            return_offsets_mapping=True,
            split_special_tokens=True,
        )
        room = length - 3
        for place, (a, b) in enumerate(zip(ours.encode_batch(firsts), ours.encode_batch(seconds), strict=True)):
            row = ours.frame(a, b, max_length=length)
            if room % 2 and room // 2 < len(a) <= len(b):
                differ += 1
                assert (
                    row.sequence_ids.tolist().count(0) == expected.sequence_ids(place).count(0) + 1 == (room + 1) // 2
                )
                continue
            assert row.ids.tolist() == expected["input_ids"][place]
            assert row.segment_ids.tolist() == expected["token_type_ids"][place]
            assert [tuple(pair) for pair in row.offsets.tolist()] == expected["offset_mapping"][place]
    assert differ > 100


FOLDERS: dict[str, tuple[TokenizerConfig, str]] = {
    "uncased": (wordpiece.Config(), ENGLISH),
    "cased": (wordpiece.Config(lowercase=False), ENGLISH),
    "korean": (wordpiece.Config(), KOREAN),
    "korean-cased": (wordpiece.Config(lowercase=False), KOREAN + ENGLISH),
    "no-chinese": (wordpiece.Config(chinese_spacing=False), KOREAN + "漢字 漢字 漢字"),
    "byte-english": (byte_bpe.Config(), ENGLISH),
    "byte-korean": (byte_bpe.Config(), KOREAN),
    "gpt": (bpe.Config(), ENGLISH + KOREAN),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_load_in_transformers(name: str, tmp_path: Path) -> None:
    config, text = FOLDERS[name]
    ours = config.train(training.count_words([text * 3], config.word_splitter()), vocab_size=500)
    ours.save(tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert len(theirs) == ours.vocab_size
    assert theirs.model_max_length == 512
    assert theirs.pad_token_id == ours.padding_id
    for first in [*ENGLISH.splitlines(), *KOREAN.splitlines(), "서울 [CLS] <s> <mask>", *islice(made_up(3), 300)]:
        encoded = ours.encode(first)
        for second in (None, "둘째 second"):
            pair = None if second is None else ours.encode(second)
            row = ours.frame(encoded, pair, max_length=4096)
            expected = theirs(first, second, return_offsets_mapping=True, split_special_tokens=True)
            assert row.ids.tolist() == expected["input_ids"]
            assert [tuple(place) for place in row.offsets.tolist()] == expected["offset_mapping"]
            if isinstance(ours, wordpiece.WordPiece):
                assert row.segment_ids.tolist() == expected["token_type_ids"]
        special = ours.encode(first, parse_special_tokens=True)
        assert special.ids.tolist() == theirs(first, add_special_tokens=False)["input_ids"]
    theirs.save_pretrained(tmp_path / "theirs")
    again = load(tmp_path / "theirs")
    assert again.fingerprint == ours.fingerprint
    assert again.files() == ours.files()


EDGES = ["", " ", "  ", " a", "a ", "  two  spaces ", "\n\nlines\r\n\tend ", "서울 서울 \u1100\u1161", "👩\u200d🔧 🇰🇷❤️"]
EDGES += ["it's we'll I'M", "<mask>", "a <mask> b", "a  <mask>b", "<s> </s><pad>", "\u3000\xa0\u200b", "1234567 3.5"]


def test_byte_bpe_is_robertas(tmp_path: Path) -> None:
    """From the whole folder, and from vocab.json and merges.txt alone: then transformers 5 has a mask like any mark."""
    config = byte_bpe.Config()
    text = ENGLISH + KOREAN + "".join(EDGES)
    ours = config.train(training.count_words([text] * 3, config.word_splitter()), vocab_size=600)
    ours.save(tmp_path / "whole")
    (tmp_path / "two").mkdir()
    for name, data in ours.vocabulary_files().items():
        (tmp_path / "two" / name).write_bytes(data)
    for folder in ("whole", "two"):
        theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path / folder)
        edges = [text for text in EDGES if folder == "whole" or "<mask>" not in text]
        for first in edges:
            row = ours.frame(ours.encode(first, parse_special_tokens=True), max_length=4096)
            found = theirs(first, return_offsets_mapping=True)
            assert row.ids.tolist() == found["input_ids"], first
            assert [tuple(place) for place in row.offsets.tolist()] == found["offset_mapping"], first
            for second in filter(None, edges):  # transformers takes an empty second text for none
                texts = (ours.encode(one, parse_special_tokens=True) for one in (first, second))
                row = ours.frame(*texts, max_length=4096)
                assert row.ids.tolist() == theirs(first, second)["input_ids"]
                assert not row.segment_ids.any()
        assert ours.id_to_token(ours.start_id) == theirs.cls_token == theirs.bos_token == "<s>"
    ids = ours.encode("iron strikes, 서울은", parse_special_tokens=True).ids
    begins = [ours.decode([number]) for number in ids if not ours.is_continuation()[number]]
    assert all(token.startswith(" ") for token in begins)
    assert len(begins) == 2
