"""Entities are decoded as by seqeval, leniently and strictly; schemes are detected and converted."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval import scheme as oracle
from seqeval.metrics.sequence_labeling import get_entities

from bertsmith.errors import ConfigError, DataError
from bertsmith.metrics import sequence_labelling
from bertsmith.metrics.sequence_labelling import SCHEMES, Entity, Scheme

LETTERS = {"IOB1": "BI", "IOB2": "BI", "IOBES": "BIES", "BILOU": "BILU"}


def every(scheme: Scheme) -> Iterator[list[str]]:
    """Every sequence of up to five tags (four for schemes of many letters) of two types, valid or not."""
    pool = ["O", *(f"{letter}-{kind}" for letter in LETTERS[scheme] for kind in "AB")]
    for length in range(6 if len(pool) < 6 else 5):
        yield from map(list, itertools.product(pool, repeat=length))


def odd(scheme: Scheme) -> Iterator[list[str]]:
    """Longer sequences with types that are hard to read: with hyphens, in another script, or none."""
    draw = random.Random(scheme)
    pool = ["O", "O", *(letter + kind for letter in LETTERS[scheme] for kind in ("-PER", "-X-Y", "-인물", ""))]
    for _ in range(1000):
        yield [draw.choice(pool) for _ in range(draw.randint(5, 14))]


def valid(scheme: Scheme) -> st.SearchStrategy[list[str]]:
    """Valid tags of random entities."""
    entity = st.tuples(st.sampled_from(["A", "B"]), st.integers(0, 2), st.integers(1, 3))

    def spelt(drawn: list[tuple[str, int, int]]) -> list[str]:
        result, position = [], 0
        for kind, gap, length in drawn:
            result.append(Entity(kind, position + gap, position + gap + length))
            position += gap + length
        return sequence_labelling.entities_to_tags(result, words=position + 1, scheme=scheme)

    return st.lists(entity, max_size=6).map(spelt)


@pytest.mark.parametrize("scheme", ["IOB2", "IOBES"])
def test_lenient_decoding_equals_seqeval(scheme: Scheme) -> None:
    for drawn in itertools.chain(every(scheme), odd(scheme)):
        assert [
            (kind, begin, end - 1) for kind, begin, end in sequence_labelling.tags_to_entities(drawn)
        ] == get_entities(drawn)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_strict_decoding_equals_seqeval(scheme: Scheme) -> None:
    for drawn in itertools.chain(every(scheme), odd(scheme)):
        expected = oracle.Tokens(drawn, getattr(oracle, scheme)).entities
        assert sequence_labelling.tags_to_entities(drawn, scheme=scheme) == [
            (each.tag, each.start, each.end) for each in expected
        ]


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_valid_tags_decode_alike_and_round_trip_between_schemes(scheme: Scheme, data: st.DataObject) -> None:
    drawn = data.draw(valid(scheme))
    assert not sequence_labelling.scheme_violations(drawn, scheme=scheme)
    assert sequence_labelling.tags_to_entities(drawn) == sequence_labelling.tags_to_entities(drawn, scheme=scheme)
    for other in SCHEMES:
        rotated = sequence_labelling.convert_tags(drawn, to=other)
        assert not sequence_labelling.scheme_violations(rotated, scheme=other)
        assert sequence_labelling.tags_to_entities(rotated, scheme=other) == sequence_labelling.tags_to_entities(drawn)
        assert sequence_labelling.convert_tags(rotated, to=scheme) == drawn
    assert sequence_labelling.detect_scheme([drawn]) == (
        scheme if sequence_labelling.tags_to_entities(drawn) else "IOB2"
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_violations_are_found_exactly_where_decoding_changes_the_tags(scheme: Scheme) -> None:
    for drawn in every(scheme):
        assert bool(sequence_labelling.scheme_violations(drawn, scheme=scheme)) == (
            sequence_labelling.convert_tags(drawn, to=scheme) != drawn
        )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_transitions_are_allowed_exactly_where_tags_are_valid(scheme: Scheme) -> None:
    labels = ["O", *(f"{letter}-{kind}" for letter in LETTERS[scheme] for kind in "AB")]
    found = sequence_labelling.allowed_transitions(labels, scheme)
    assert found is not None
    start, pairs, end = found
    for drawn in (one for one in every(scheme) if 0 < len(one) < 5):
        path = [labels.index(tag) for tag in drawn]
        allowed = start[path[0]] and end[path[-1]] and all(pairs[a, b] for a, b in itertools.pairwise(path))
        assert allowed == (sequence_labelling.convert_tags(drawn, to=scheme) == drawn)
    detected = sequence_labelling.allowed_transitions(labels)
    assert detected is not None
    same = all(np.array_equal(a, b) for a, b in zip(detected, found, strict=True))
    assert same == (scheme != "IOB1"), "labels B and I alone are IOB2"


def test_labels_of_no_scheme_have_no_constraints() -> None:
    for labels in (["NOUN", "VERB"], ["O", "NN"], ["O"], ["B-A", "I-A", "S-A", "O"]):
        assert sequence_labelling.allowed_transitions(labels) is None
    _, pairs, _ = sequence_labelling.allowed_transitions(["B_PER", "I_PER", "O"]) or pytest.fail("these are tags")
    assert pairs.tolist() == [[True, True, True], [True, True, True], [True, False, True]]
    with pytest.raises(ConfigError, match="the labels NOUN, VERB are not tags of IOB2"):
        sequence_labelling.allowed_transitions(["NOUN", "VERB"], "IOB2")
    with pytest.raises(ConfigError, match="the labels O, S-A are not tags of IOB1"):
        sequence_labelling.allowed_transitions(["O", "S-A"], "IOB1")


@pytest.mark.parametrize(
    ("sentence", "lenient", "strict"),
    [
        ("O I-PER I-PER O", [("PER", 1, 3)], []),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)], [("PER", 0, 1)]),
        ("B-A B-A I-A", [("A", 0, 1), ("A", 1, 3)], [("A", 0, 1), ("A", 1, 3)]),
        ("I I O B", [("_", 0, 2), ("_", 3, 4)], [("_", 3, 4)]),
    ],
)
def test_examples(sentence: str, lenient: list[Entity], strict: list[Entity]) -> None:
    assert sequence_labelling.tags_to_entities(sentence.split()) == lenient
    assert sequence_labelling.tags_to_entities(sentence.split(), scheme="IOB2") == strict


def test_other_letters_for_end_and_single_are_read_too() -> None:
    assert sequence_labelling.tags_to_entities(["B-A", "I-A", "L-A", "U-B"]) == [("A", 0, 3), ("B", 3, 4)]
    assert sequence_labelling.convert_tags(["B-A", "L-A", "U-B"], to="IOBES") == ["B-A", "E-A", "S-B"]


@pytest.mark.parametrize(
    ("scheme", "sentence", "fault"),
    [
        ("IOB2", "O I-A", (1, "I-A does not continue an entity")),
        ("IOB1", "O B-A", (1, "B-A does not follow an entity of its type: IOB1 entities begin with I")),
        ("IOBES", "B-A O", (0, "B-A is followed by O")),
        ("IOBES", "S-A B-A", (1, "B-A is followed by nothing")),
        ("IOBES", "O E-A", (1, "E-A does not continue an entity")),
        ("BILOU", "O E-A", (1, "E-A does not exist in BILOU")),
    ],
)
def test_violations_are_named(scheme: Scheme, sentence: str, fault: tuple[int, str]) -> None:
    assert sequence_labelling.scheme_violations(sentence.split(), scheme=scheme)[0] == fault


def test_tags_of_no_scheme_are_an_error() -> None:
    with pytest.raises(DataError, match=r"not IOB2 \(sentence 1, word 1: I-A does.*not IOB1 \(sentence 2, word 2: B-A"):
        sequence_labelling.detect_scheme([["I-A", "O"], ["O", "B-A"]])
    with pytest.raises(DataError, match=r"not IOBES \(sentence 1, word 2: L-B does not exist in IOBES"):
        sequence_labelling.detect_scheme([["S-A", "L-B"]])


@pytest.mark.parametrize("tag", ["", "X-PER", "PER", "O-PER", "b-PER", "BPER", "-", "B_PER"])
def test_invalid_tags_are_an_error(tag: str) -> None:
    with pytest.raises(DataError, match="word 2 has the tag"):
        sequence_labelling.tags_to_entities(["O", tag])
    with pytest.raises(DataError, match="word 2 has the tag"):
        sequence_labelling.tags_to_entities(["O", tag], scheme="IOB2")


def test_other_mistakes() -> None:
    with pytest.raises(DataError, match="E-A', which does not exist in IOB2"):
        sequence_labelling.tags_to_entities(["E-A"], scheme="IOB2")
    with pytest.raises(ConfigError, match="'BIOES' is not a tagging scheme"):
        sequence_labelling.tags_to_entities(["O"], scheme="BIOES")
    with pytest.raises(DataError, match="is a string"):
        sequence_labelling.tags_to_entities("O O")
    with pytest.raises(DataError, match="overlaps"):
        sequence_labelling.entities_to_tags([Entity("A", 0, 2), Entity("A", 1, 3)], words=3, scheme="IOB2")


@pytest.fixture(autouse=True)
def _quiet() -> object:
    """seqeval warns about bare tags."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
