"""The contract of every tokenizer kind in `bertsmith.tokenizers`."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from bertsmith.errors import BertsmithError, DataError
from bertsmith.tokenizers import training
from bertsmith.tokenizers.batch_encoding import BatchEncoder
from bertsmith.tokenizers.tokenizer import Tokenizer, kind, kinds, load

CORPUS = (
    """
The smith heats the iron until it glows, then the hammer falls, and the anvil rings.
A smith who knows iron knows when to strike: not too early, not too late, not too hard.
In the old town the smiths worked by the river; their hammers were heard on the other bank.
Iron that cools too quickly becomes hard and breaks, and iron that cools slowly stays soft.
She bought two knives, three hinges and a lock, and paid the smith with silver in 1842.
대장장이는 쇠를 달구어 망치로 두드린다. 쇠는 달구어졌을 때 두드려야 한다.
서울의 옛 대장간에는 망치 소리가 끊이지 않았다. 대장장이의 손은 거칠고 단단하다.
쇠가 빨리 식으면 단단해지지만 쉽게 부러지고, 천천히 식으면 부드럽다.
그는 은으로 값을 치르고 칼 두 자루와 자물쇠 하나를 샀다.
"""
    * 4
)

TEXTS = [
    "",
    " ",
    "the smith heats the iron",
    "The Smith's hammer (1842) fell, twice!",
    "서울의 대장장이는 쇠를 두드린다.",
    "  two  spaces, a\ttab\nand lines\r\n ",
    "unseen words: zyzzyva, naïve café, Straße, İstanbul, ΣΊΣΥΦΟΣ",
    "漢字 かな カナ ไทย हिन्दी عربى",
    "emoji 👩‍🔧🔨 and\u200bzero\u200dwidth, soft\xadhyphen, \ufeffmark",
    "controls \x00\x01\x0b\x0c\x1c\x1d\x1e\x1f\x7f\x85 and \u2028 lines \u2029",
    "e\u0301 \u0301x 각 ᄀ",
    "long " + "iron" * 60 + " word",
]


@cache
def learned(name: str, seed: int | None = None) -> Tokenizer:
    config = kind(name).config()
    counts = training.count_words(CORPUS.splitlines(), config.word_splitter())
    items = list(counts.items())
    if seed is not None:
        random.Random(seed).shuffle(items)
    return config.train(dict(items), vocab_size=700)


@pytest.fixture(params=kinds())
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return learned(request.param)


def test_the_order_of_counts_changes_nothing(tokenizer: Tokenizer) -> None:
    for seed in (1, 2):
        assert learned(tokenizer.kind, seed).files() == tokenizer.files()


def test_a_saved_folder_loads_as_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "new" / "folder")
    loaded = load(tmp_path / "new" / "folder")
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert re.fullmatch("[0-9a-f]{16}", loaded.fingerprint)
    assert loaded.files() == tokenizer.files()
    for text in TEXTS:
        assert_same(loaded.encode(text), tokenizer.encode(text))


def test_damaged_folders_are_refused_or_read_but_never_crash(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    draw = random.Random(3)
    refused = 0
    for name, content in tokenizer.files().items():
        for _ in range(12):
            position = draw.randrange(len(content))
            damages = [
                content[:position],
                content[:position] + b"}" + content[position + 1 :],
                content.replace(b"0", b'"x"', 3),
            ]
            (tmp_path / name).write_bytes(draw.choice([*damages, b"", b"{}", b"[]", b"\xff"]))
            try:
                load(tmp_path).encode("the smith")
            except DataError as error:
                refused += str(tmp_path) in str(error)
        (tmp_path / name).write_bytes(content)
    assert refused > 5


def test_a_pickled_tokenizer_is_the_same(tokenizer: Tokenizer) -> None:
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint == tokenizer.fingerprint
    text = f"the {tokenizer.special_tokens.padding} iron"
    assert_same(copy.encode(text), tokenizer.encode(text))


def test_vocabulary_ids_and_tokens_agree(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.tokens()
    assert len(tokens) == len(set(tokens)) == tokenizer.vocab_size <= 700
    assert [tokenizer.token_to_id(token) for token in tokens] == list(range(len(tokens)))
    assert [tokenizer.id_to_token(number) for number in range(len(tokens))] == tokens
    assert tokenizer.token_to_id("no such token in any vocabulary") is None
    for outside in (-1, len(tokens)):
        with pytest.raises(BertsmithError, match=f"id {outside} is outside"):
            tokenizer.id_to_token(outside)


def test_special_tokens_have_their_roles(tokenizer: Tokenizer) -> None:
    roles = tokenizer.special_tokens.roles()
    for role, token in roles.items():
        assert getattr(tokenizer, f"{role}_id") == tokenizer.token_to_id(token)
        assert tokenizer.token_to_id(token) in tokenizer.special_ids
    assert tokenizer.padding_id != tokenizer.unknown_id
    for role in {"start", "separator", "end", "mask"} - set(roles):
        with pytest.raises(BertsmithError, match=f"no {role} token"):
            getattr(tokenizer, f"{role}_id")


def test_spellings_of_special_tokens_in_a_text_are_text(tokenizer: Tokenizer) -> None:
    for token in tokenizer.special_tokens.tokens():
        text = f"the {token} iron{token}"
        plain = set(tokenizer.encode(text).ids.tolist())
        assert not plain & (tokenizer.special_ids - {tokenizer.unknown_id})
        if token != tokenizer.special_tokens.unknown:
            ids, _ = tokenizer.encode_ids([text])
            assert not set(ids.tolist()) & (tokenizer.special_ids - {tokenizer.unknown_id})
        read = tokenizer.encode(text, parse_special_tokens=True).ids.tolist()
        assert read.count(tokenizer.token_to_id(token)) == 2


def test_the_fast_path_gives_the_ids_of_the_slow_one(tokenizer: Tokenizer) -> None:
    noise = random.Random(7)
    alphabet = "".join(TEXTS) + CORPUS[:300] + "'’\u00a0\u3000   "
    texts = TEXTS + ["".join(noise.choices(alphabet, k=noise.randrange(40))) for _ in range(1500)]
    spaces = [chr(point) for point in range(0x110000) if chr(point).isspace()]
    texts += [f"iron{space}rod {space}{space}s{space}" for space in [*spaces, "\u180e", "\u200b"]]
    for _ in range(2):
        ids, counts = tokenizer.encode_ids(texts)
        assert ids.dtype == tokenizer.id_dtype == np.uint16
        slow = tokenizer.encode_batch(texts)
        assert counts.tolist() == [len(encoded) for encoded in slow]
        assert ids.tolist() == np.concatenate([encoded.ids for encoded in slow]).tolist()
    for text, encoded in zip(texts[:200], slow, strict=False):
        assert_same(tokenizer.encode(text), encoded)


def test_no_texts_have_no_ids(tokenizer: Tokenizer) -> None:
    ids, counts = tokenizer.encode_ids([])
    assert (len(ids), len(counts)) == (0, 0)
    assert tokenizer.encode_batch([]) == []


def test_offsets_point_at_the_text(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        encoded = tokenizer.encode(text)
        begins, ends = encoded.offsets[:, 0], encoded.offsets[:, 1]
        assert (begins >= 0).all()
        assert (begins <= ends).all()
        assert (ends <= len(text)).all()
        assert (np.diff(begins) >= 0).all()
        assert encoded.offsets.shape == (len(encoded), 2)
    text = "the smith  heats 서울의 iron"
    encoded = tokenizer.encode(text)
    for word in set(encoded.words.tolist()):
        positions = encoded.offsets[encoded.words == word]
        assert text[positions[:, 0].min() : positions[:, 1].max()].strip() in {"", *text.split()}
    covered = {position for begin, end in encoded.offsets.tolist() for position in range(begin, end)}
    assert {position for position, character in enumerate(text) if character != " "} <= covered


def test_words_are_counted_from_0(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        words = tokenizer.encode(text).words
        assert words[:1].tolist() in ([], [0])
        assert set(np.diff(words).tolist()) <= {0, 1}


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    broken, mended = "iron \ud83d and\udc00 rod", "iron \ufffd and\ufffd rod"
    assert_same(tokenizer.encode(broken), tokenizer.encode(mended))
    assert_same(tokenizer.encode_batch([broken])[0], tokenizer.encode(mended))
    assert tokenizer.encode_ids([broken])[0].tolist() == tokenizer.encode_ids([mended])[0].tolist()


def test_frames_hold_both_texts(tokenizer: Tokenizer) -> None:
    a, b = tokenizer.encode("the smith heats the iron"), tokenizer.encode("쇠는 단단하다 and cold")
    for layout, texts in ((tokenizer.frame_ids.single, (a,)), (tokenizer.frame_ids.pair, (a, b))):
        row = tokenizer.frame(*texts, max_length=200)
        expected = [
            id_ for part in layout for id_ in ([part] if isinstance(part, int) else texts["ab".index(part)].ids)
        ]
        assert row.ids.tolist() == expected
        assert row.truncated == (0, 0)
        for side, text in enumerate(texts):
            here = row.sequence_ids == side
            assert row.ids[here].tolist() == text.ids.tolist()
            assert row.offsets[here].tolist() == text.offsets.tolist()
            assert row.words[here].tolist() == text.words.tolist()
        special = row.sequence_ids == -1
        assert not row.offsets[special].any()
        assert (row.words[special] == -1).all()
        assert len(row.segment_ids) == len(row.ids) == len(row)


def test_frames_are_truncated_to_the_length(tokenizer: Tokenizer) -> None:
    a, b = tokenizer.encode("the smith heats the iron " * 3), tokenizer.encode("쇠는 단단하다 and cold")
    whole = len(tokenizer.frame(a, b, max_length=500))
    for length in range(whole - len(a) - len(b), whole + 1):
        row = tokenizer.frame(a, b, max_length=length)
        assert len(row) == length
        assert sum(row.truncated) == whole - length
        assert row.ids[row.sequence_ids == 0].tolist() == a.ids[: len(a) - row.truncated[0]].tolist()
        assert row.ids[row.sequence_ids == 1].tolist() == b.ids[: len(b) - row.truncated[1]].tolist()
    specials = whole - len(a) - len(b)
    with pytest.raises(BertsmithError, match=f"max_length={specials - 1} is too short for {specials}"):
        tokenizer.frame(a, b, max_length=specials - 1)


def test_simple_text_round_trips(tokenizer: Tokenizer) -> None:
    text = "the smith heats the iron"
    row = tokenizer.frame(tokenizer.encode(text), max_length=200)
    assert tokenizer.decode(row.ids) == text
    shown = tokenizer.decode(row.ids, skip_special_tokens=False)
    assert all(tokenizer.id_to_token(part) in shown for part in tokenizer.frame_ids.single if isinstance(part, int))
    with pytest.raises(BertsmithError, match="is outside"):
        tokenizer.decode([tokenizer.vocab_size])


def test_threads_share_a_tokenizer(tokenizer: Tokenizer) -> None:
    shared = pickle.loads(pickle.dumps(tokenizer))
    shared._cache.limit = 20  # so that caches change during the threads
    texts = [f"{text} {number}" for text in TEXTS for number in range(8)]
    expected = [tokenizer.encode_ids([text])[0].tolist() for text in texts]
    marked = f"the {tokenizer.special_tokens.padding} iron"

    def work(seed: int) -> bool:
        order = random.Random(seed).sample(range(len(texts)), len(texts))
        right = [shared.encode_ids([texts[position]])[0].tolist() == expected[position] for position in order]
        slow = [shared.encode(texts[position]).ids.tolist() == expected[position] for position in order[:30]]
        read = shared.encode(marked, parse_special_tokens=seed % 2 == 0).ids.tolist()
        return all(right) and all(slow) and (tokenizer.padding_id in read) == (seed % 2 == 0)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


CASED = {"lowercase": False}
SPELLING = [*((name, {}) for name in kinds() if name != "words"), ("wordpiece", CASED), ("unigram", CASED)]


@pytest.mark.parametrize(("name", "settings"), SPELLING)
def test_every_ascii_character_is_known_after_training_on_a_small_corpus(name: str, settings: dict[str, bool]) -> None:
    config = kind(name).config(**settings)
    counts = training.count_words(["쇠를 두드린다", "iron"] * 9, config.word_splitter())
    small = config.train(dict(counts), vocab_size=320)
    signs = [text for sign in training.ASCII for text in (sign, f"a{sign}7", f"{sign}{sign}")]
    assert [text for text in signs if small.unknown_id in small.encode(text).ids.tolist()] == []
    assert small.files() == config.train(dict(reversed(counts.items())), vocab_size=320).files()


@pytest.mark.parametrize("name", kinds())
def test_an_empty_training_text_is_an_error(name: str) -> None:
    learn: Callable[..., Tokenizer] = kind(name).config().train
    with pytest.raises(BertsmithError, match="no words"):
        learn({}, vocab_size=700)


def assert_same(one: object, other: object) -> None:
    for field in ("ids", "offsets", "words"):
        assert getattr(one, field).tolist() == getattr(other, field).tolist()


def test_flat_arrays_equal_encode_batch(tokenizer: Tokenizer) -> None:
    encode = BatchEncoder(tokenizer)
    lines = CORPUS.splitlines()[:12]
    chance = random.Random(0)
    mixed = ["".join(chance.choices("".join(TEXTS) + " \n", k=60)) for _ in range(60)]
    for texts in ([*TEXTS, *lines], lines[::-1], TEXTS[4:], mixed, [" ".join(TEXTS)], [""], [" \n "], ["a\ud800b"]):
        result, expected = encode(texts), tokenizer.encode_batch(texts)
        assert result.lengths.tolist() == [len(one) for one in expected]
        assert np.array_equal(result.ids, np.concatenate([one.ids for one in expected]))
        assert np.array_equal(result.offsets, np.concatenate([one.offsets for one in expected]))
        assert np.array_equal(result.words, np.concatenate([one.words for one in expected]))
