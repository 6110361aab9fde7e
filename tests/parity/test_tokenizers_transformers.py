"""Ids, offsets, segments and folders equal those of transformers' tokenizers on 20,000 strings.

Where Google's vocabularies are available (BERTSMITH_DATA, or ../shared/data beside the repository) they are used too.
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
STRINGS = (
    20_000  # for Google's vocabularies, or for trained ones where these are not available; the others get a quarter
)
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


def adversarial_strings(seed: int) -> Iterator[str]:
    """An infinite stream of adversarial strings."""
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
    """20,000 strings: real sentences where available, generated ones for the rest."""
    real: list[str] = []
    for name in ("en-wiki-1", "ko-wiki"):
        path = DATA / "corpora" / f"{name}.txt.xz"
        if path.is_file():
            with lzma.open(path, "rt", encoding="utf-8") as lines:
                real += islice((line[:200] for line in lines if len(line) > 1), 3000)
    return real + list(islice(adversarial_strings(5), STRINGS - len(real)))


@cache
def vocabulary(*, cased: bool, google: bool) -> list[str]:
    if google:
        path = GOOGLE / ("bert-cased.txt" if cased else "bert-uncased.txt")
        if not path.is_file():
            pytest.skip(f"{path} does not exist")
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    config = wordpiece.Config(lowercase=not cased)
    return config.train(training.count_words(strings()[::4], config.word_splitter()), vocab_size=3000).tokens()


def tokenizer_pair(*, cased: bool, google: bool) -> tuple[Tokenizer, Any]:
    tokens = vocabulary(cased=cased, google=google)
    ids = {token: number for number, token in enumerate(tokens)}
    reference = transformers.BertTokenizerFast(vocab=ids, do_lower_case=not cased)
    return wordpiece.WordPiece.build(tokens, lowercase=not cased), reference


@pytest.mark.parametrize("google", [False, True], ids=["learned", "google"])
@pytest.mark.parametrize("cased", [False, True], ids=["uncased", "cased"])
def test_wordpiece_equals_bert_tokenizer(cased: bool, google: bool) -> None:
    tokenizer, reference = tokenizer_pair(cased=cased, google=google)
    texts = strings() if google == GOOGLE.is_dir() else strings()[::4]
    expected = reference(texts, return_offsets_mapping=True, split_special_tokens=True)
    rows = [tokenizer.frame(encoded, max_length=1 << 20) for encoded in tokenizer.encode_batch(texts)]
    assert [row.ids.tolist() for row in rows] == expected["input_ids"]
    assert [row.segment_ids.tolist() for row in rows] == expected["token_type_ids"]
    assert [[tuple(pair) for pair in row.offsets.tolist()] for row in rows] == expected["offset_mapping"]
    ids, counts = tokenizer.encode_ids(texts)
    assert counts.tolist() == [len(result) - 2 for result in expected["input_ids"]]
    assert ids.tolist() == [number for result in expected["input_ids"] for number in result[1:-1]]


@pytest.mark.parametrize("cased", [False, True], ids=["uncased", "cased"])
def test_pairs_equal_bert_tokenizer_except_for_odd_truncation(cased: bool) -> None:
    """If both texts are truncated to an odd total, transformers gives the odd token to the second text unless the first
    is longer; Google and bertsmith give it to the first. Everything else is equal."""
    tokenizer, reference = tokenizer_pair(cased=cased, google=False)
    draw = random.Random(11)
    differing = 0
    for length in (3, 4, 7, 16, 21, 64, 4096):
        firsts, seconds = (draw.choices(strings(), k=400) for _ in "ab")
        expected = reference(
            firsts,
            seconds,
            truncation="longest_first",
            max_length=length,
            return_offsets_mapping=True,
            split_special_tokens=True,
        )
        room = length - 3
        for index, (a, b) in enumerate(
            zip(tokenizer.encode_batch(firsts), tokenizer.encode_batch(seconds), strict=True)
        ):
            row = tokenizer.frame(a, b, max_length=length)
            if room % 2 and room // 2 < len(a) <= len(b):
                differing += 1
                assert (
                    row.sequence_ids.tolist().count(0) == expected.sequence_ids(index).count(0) + 1 == (room + 1) // 2
                )
                continue
            assert row.ids.tolist() == expected["input_ids"][index]
            assert row.segment_ids.tolist() == expected["token_type_ids"][index]
            assert [tuple(pair) for pair in row.offsets.tolist()] == expected["offset_mapping"][index]
    assert differing > 100


FOLDERS: dict[str, tuple[TokenizerConfig, str]] = {
    "uncased": (wordpiece.Config(), ENGLISH),
    "cased": (wordpiece.Config(lowercase=False), ENGLISH),
    "korean": (wordpiece.Config(), KOREAN),
    "korean-cased": (wordpiece.Config(lowercase=False), KOREAN + ENGLISH),
    "no-chinese": (wordpiece.Config(chinese_spacing=False), KOREAN + "漢字 漢字 漢字"),
    "byte-english": (byte_bpe.Config(), ENGLISH),
    "byte-korean": (byte_bpe.Config(), KOREAN),
    "gpt": (bpe.Config(), ENGLISH + KOREAN),
    "gpt-bert": (bpe.Config(splitter="bert"), ENGLISH),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_load_in_transformers(name: str, tmp_path: Path) -> None:
    config, text = FOLDERS[name]
    tokenizer = config.train(training.count_words([text * 3], config.word_splitter()), vocab_size=500)
    tokenizer.save(tmp_path / "bertsmith")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "bertsmith")
    assert len(reference) == tokenizer.vocab_size
    assert reference.model_max_length == 512
    assert reference.pad_token_id == tokenizer.padding_id
    for first in [
        *ENGLISH.splitlines(),
        *KOREAN.splitlines(),
        "서울 [CLS] <s> <mask>",
        *islice(adversarial_strings(3), 300),
    ]:
        encoded = tokenizer.encode(first)
        for second in (None, "둘째 second"):
            pair = None if second is None else tokenizer.encode(second)
            row = tokenizer.frame(encoded, pair, max_length=4096)
            expected = reference(first, second, return_offsets_mapping=True, split_special_tokens=True)
            assert row.ids.tolist() == expected["input_ids"]
            assert [tuple(index) for index in row.offsets.tolist()] == expected["offset_mapping"]
            if isinstance(tokenizer, wordpiece.WordPiece):
                assert row.segment_ids.tolist() == expected["token_type_ids"]
        special = tokenizer.encode(first, parse_special_tokens=True)
        assert special.ids.tolist() == reference(first, add_special_tokens=False)["input_ids"]
    reference.save_pretrained(tmp_path / "transformers")
    reloaded = load(tmp_path / "transformers")
    assert reloaded.fingerprint == tokenizer.fingerprint
    assert reloaded.files() == tokenizer.files()


EDGES = ["", " ", "  ", " a", "a ", "  two  spaces ", "\n\nlines\r\n\tend ", "서울 서울 \u1100\u1161", "👩\u200d🔧 🇰🇷❤️"]
EDGES += ["it's we'll I'M", "<mask>", "a <mask> b", "a  <mask>b", "<s> </s><pad>", "\u3000\xa0\u200b", "1234567 3.5"]


def test_byte_bpe_equals_roberta_tokenizer(tmp_path: Path) -> None:
    """From the complete folder, and from vocab.json and merges.txt alone, without texts that contain a mask token."""
    config = byte_bpe.Config()
    text = ENGLISH + KOREAN + "".join(EDGES)
    tokenizer = config.train(training.count_words([text] * 3, config.word_splitter()), vocab_size=600)
    tokenizer.save(tmp_path / "complete")
    (tmp_path / "vocabulary").mkdir()
    for name, data in tokenizer.vocabulary_files().items():
        (tmp_path / "vocabulary" / name).write_bytes(data)
    for folder in ("complete", "vocabulary"):
        reference = transformers.RobertaTokenizer.from_pretrained(tmp_path / folder)
        edges = [text for text in EDGES if folder == "complete" or "<mask>" not in text]
        for first in edges:
            row = tokenizer.frame(tokenizer.encode(first, parse_special_tokens=True), max_length=4096)
            result = reference(first, return_offsets_mapping=True)
            assert row.ids.tolist() == result["input_ids"], first
            assert [tuple(index) for index in row.offsets.tolist()] == result["offset_mapping"], first
            for second in filter(None, edges):  # transformers treats an empty second text as absent
                texts = (tokenizer.encode(one, parse_special_tokens=True) for one in (first, second))
                row = tokenizer.frame(*texts, max_length=4096)
                assert row.ids.tolist() == reference(first, second)["input_ids"]
                assert not row.segment_ids.any()
        assert tokenizer.id_to_token(tokenizer.start_id) == reference.cls_token == reference.bos_token == "<s>"
    ids = tokenizer.encode("iron strikes, 서울은", parse_special_tokens=True).ids
    word_starts = [tokenizer.decode([number]) for number in ids if not tokenizer.is_continuation()[number]]
    assert all(token.startswith(" ") for token in word_starts)
    assert len(word_starts) == 2
