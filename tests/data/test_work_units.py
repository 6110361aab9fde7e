"""Document hashes and held-out splits never change and depend only on the text."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.data.work_units import HashSet, document_hash, is_held_out
from bertsmith.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0xB4B2797457A0A6E4),
        ("The sea was calm.", 0x7C422651CD1F35B5),
        ("바다는 잔잔했다.", 0xEBE09896C6B922B1),
        ("lone \ud800 surrogate", 0xB0B29415710FFB6C),
    ],
)
def test_the_hash_never_changes(text: str, expected: int) -> None:
    assert document_hash(text) == expected


@given(st.text())
def test_only_white_space_is_normalised(text: str) -> None:
    assert document_hash(f"\n {text}\t\t") == document_hash(text.strip(" \t\n\v\f\r"))
    assert document_hash(text + "x") != document_hash(text)
    assert document_hash(f"a \n\n\t b{text}") == document_hash(f"a b{text}")
    assert document_hash(f"ab{text}") != document_hash(f"a b{text}")


def test_the_split_never_changes() -> None:
    assert [value for value in range(800) if is_held_out(value, 0.01)] == [154, 278, 280, 370, 392, 636, 748]
    assert [value for value in range(500) if is_held_out(value, 0.01, seed=7)] == [46, 159, 194, 318, 341]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_the_held_out_fraction_within_four_sigma(share: float) -> None:
    draws = 20_000
    held_out = sum(is_held_out(document_hash(f"document {number}"), share) for number in range(draws))
    assert abs(held_out - draws * share) < 4 * math.sqrt(draws * share * (1 - share))


def test_a_larger_fraction_includes_a_smaller_one_and_seeds_differ() -> None:
    values = [document_hash(f"document {number}") for number in range(5000)]
    small = {value for value in values if is_held_out(value, 0.05)}
    assert small < {value for value in values if is_held_out(value, 0.1)}
    assert small != {value for value in values if is_held_out(value, 0.05, seed=1)}
    assert not any(is_held_out(value, 0.0) for value in values)
    assert all(is_held_out(value, 1.0) for value in [*values, 2**64 - 1, 0])


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_the_fraction_is_between_0_and_1(share: float) -> None:
    with pytest.raises(ConfigError, match="held_out="):
        is_held_out(1, share)


def test_a_hash_set_is_a_set() -> None:
    draw = random.Random(1)
    values = [draw.choice([draw.getrandbits(64), draw.randint(1, 1000), 2**64 - 1]) for _ in range(20_000)]
    seen, known = HashSet(), set[int]()
    for value in values:
        assert seen.add(value) == (value not in known)
        known.add(value)
    assert len(seen) == len(known)


def test_a_hash_set_takes_at_most_24_bytes_per_document() -> None:
    seen, draw = HashSet(), random.Random(2)
    for _ in range(50_000):
        seen.add(draw.getrandbits(64))
    assert memoryview(seen._slots).nbytes <= 24 * len(seen)
