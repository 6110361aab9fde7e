"""Ordered pairs: half are swapped, both segments come from one document, and only the text reveals the label."""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from data.packing import packing_fixtures
from data.packing.packing_fixtures import (
    ANY,
    DOUBLE,
    FIRST,
    MIXED,
    SEPARATOR,
    START,
    Pair,
    TokenOwners,
    epoch_texts,
    first_pairs,
    make_shards,
    pairs_of,
    same,
    some_documents,
    texts_of,
)
from hypothesis import given, settings

from bertsmith.data.packing import document_stream, ordered_pairs
from bertsmith.data.packing.ordered_pairs import Config
from bertsmith.data.shards import Shards
from bertsmith.errors import ConfigError
from bertsmith.objectives.sentence_order import IN_ORDER, SWAPPED
from bertsmith.types import IGNORE_INDEX

build = partial(packing_fixtures.build, Config)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return make_shards(tmp_path_factory.mktemp("ordered") / "set", MIXED, documents_per_part=90)


@pytest.fixture(scope="module")
def many(shards: Shards) -> Pair:
    """The first 100,000 pairs of a run."""
    return first_pairs(build(shards))


def test_labels_are_those_of_the_objective() -> None:
    assert (IN_ORDER, SWAPPED) == (0, 1)


class TestHundredThousandPairs:
    def test_half_of_them_are_swapped(self, many: Pair) -> None:
        assert abs((many.label == SWAPPED).mean() - 0.5) < 0.005
        assert set(many.label.tolist()) == {IN_ORDER, SWAPPED}

    def test_the_segments_are_adjacent(self, many: Pair) -> None:
        swapped = many.label == SWAPPED
        assert np.array_equal(many.b_first[~swapped], many.a_last[~swapped] + 1)
        assert np.array_equal(many.a_first[swapped], many.b_last[swapped] + 1)

    def test_both_segments_come_from_one_document(self, many: Pair) -> None:
        documents = TokenOwners.of(MIXED).documents
        for positions in (many.a_last, many.b_first, many.b_last):
            assert np.array_equal(documents[positions], documents[many.a_first])

    def test_both_segments_are_complete_sentences(self, many: Pair) -> None:
        begins = TokenOwners.of(MIXED).sentence_begins
        for positions in (many.a_first, many.a_last + 1, many.b_first, many.b_last + 1):
            assert begins[positions].all()

    def test_lengths_do_not_reveal_the_order(self, many: Pair) -> None:
        swapped = many.label == SWAPPED
        longer = (many.a_last - many.a_first) - (many.b_last - many.b_first)
        assert abs(longer[swapped].mean() - longer[~swapped].mean()) < 0.5
        assert abs((longer[swapped] > 0).mean() - (longer[~swapped] > 0).mean()) < 0.01

    def test_a_sample_occurs_in_both_orders(self, shards: Shards) -> None:
        packing = build(shards)
        seen: dict[tuple[int, ...], Counter[int]] = {}
        for epoch in range(9):
            for text in epoch_texts(packing, epoch):
                if text.label != IGNORE_INDEX:
                    seen.setdefault(tuple(sorted(text.tokens)), Counter())[text.label] += 1
        assert all(sum(counts.values()) == 9 for counts in seen.values())
        assert np.mean([len(counts) == 2 for counts in seen.values()]) > 0.98


def test_the_arrays_of_a_pair(shards: Shards) -> None:
    seen = Counter()
    positions = TokenOwners.of(MIXED)
    for text in texts_of(build(shards).batch(3, batch_size=200)):
        middle = text.ids.index(SEPARATOR)
        assert (text.ids[0], text.ids[-1]) == (START, SEPARATOR)
        first = [token - FIRST for token in text.ids[1:middle]]
        second = [token - FIRST for token in text.ids[middle + 1 : -1]]
        seen[text.label] += 1
        assert first == list(range(first[0], first[0] + len(first)))
        if text.label == IGNORE_INDEX:
            assert not second
            assert not positions.sentence_begins[first[0] + 1 : first[-1] + 1].any(), "one sentence, or a piece"
        else:
            assert second == list(range(second[0], second[0] + len(second)))
            assert (second[0] == first[-1] + 1) == (text.label == IN_ORDER)
            assert text.segments == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert min(seen[label] for label in (IN_ORDER, SWAPPED, IGNORE_INDEX)) > 5


@settings(max_examples=50, deadline=None)
@given(**ANY)
def test_every_token_once_per_epoch_and_no_cut_sentences_in_pairs(
    documents: list[list[int]], length: int, parts: int, short_sequences: float, epoch: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder, "set"), documents, documents_per_part=parts)
        texts = epoch_texts(build(shards, max_length=length, short_sequences=short_sequences), epoch)
    assert sorted(token for text in texts for token in text.tokens) == list(range(shards.tokens))
    positions = TokenOwners.of(documents)
    for text in texts:
        begin, end = min(text.tokens), max(text.tokens) + 1
        assert len(set(positions.documents[text.tokens].tolist())) == 1
        inside = positions.sentence_begins[begin + 1 : end].any()
        assert inside == (text.label != IGNORE_INDEX)
        assert not inside or (positions.sentence_begins[begin] and positions.sentence_begins[end])


def collected(lengths: list[int], *, room: int) -> list[int]:
    """Sizes of a document's samples, one sentence after the other; a long sentence in pieces of its own."""
    sizes, size = [], 0
    for length in lengths:
        if size and size + length > room:
            sizes.append(size)
            size = 0
        if length <= room:
            size += length
            continue
        sizes += [room] * (length // room) + [length % room] * (length % room > 0)
    return [*sizes, *([size] if size else [])]


def test_samples_hold_as_many_complete_sentences_as_fit(shards: Shards) -> None:
    packing = build(shards, short_sequences=0)
    owner = TokenOwners.of(MIXED).documents
    sizes: dict[int, list[tuple[int, int]]] = {}
    for text in epoch_texts(packing):
        sizes.setdefault(int(owner[text.tokens[0]]), []).append((min(text.tokens), len(text.tokens)))
    ways = Counter()
    for number, lengths in enumerate(MIXED):
        result = [size for _, size in sorted(sizes[number])]
        ahead, back = collected(lengths, room=61), collected(lengths[::-1], room=61)[::-1]
        assert result in (ahead, back), number
        ways[result == ahead] += ahead != back
    assert min(ways.values()) > 50, "some documents are divided from the begin, some from the end"


def test_some_documents_have_shorter_samples(shards: Shards) -> None:
    packing = build(shards, short_sequences=1)
    means = [
        np.mean([len(text.tokens) for text in epoch_texts(one)]) for one in (packing, build(shards, short_sequences=0))
    ]
    assert means[0] < 0.7 * means[1]


def test_documents_of_many_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_stream, "SPAN_SAMPLES", 2)
    documents = some_documents(6, documents=20, sentences=60)
    packing = build(make_shards(tmp_path / "set", documents), max_length=40)
    begins = TokenOwners.of(documents).sentence_begins
    spans = sorted((min(text.tokens), max(text.tokens) + 1) for text in epoch_texts(packing))
    assert [first for first, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert all(begins[first] and begins[end] for first, end in spans)


def test_a_step_is_a_function_of_shards_seed_and_number(shards: Shards) -> None:
    one, other = build(shards), build(shards)
    other.batch(3, batch_size=16)
    assert same(one.batch(900, batch_size=16), other.batch(900, batch_size=16))
    assert not same(one.batch(900, batch_size=16), build(shards, seed=8).batch(900, batch_size=16))


def test_a_single_document_is_enough(tmp_path: Path) -> None:
    packing = build(make_shards(tmp_path / "set", [[5] * 40]))
    assert set(packing.rows(0, 40).labels["sentence_order"].tolist()) >= {IN_ORDER, SWAPPED}


@pytest.mark.parametrize(("share", "labels"), [(0.0, {IN_ORDER}), (1.0, {SWAPPED})])
def test_swapped_of_zero_and_one(shards: Shards, share: float, labels: set[int]) -> None:
    assert set(pairs_of(build(shards, swapped=share).batch(0, batch_size=100)).label.tolist()) == labels


def test_a_frame_with_two_separators(shards: Shards) -> None:
    for text in texts_of(build(shards, frame=DOUBLE).batch(0, batch_size=50)):
        assert text.ids.count(SEPARATOR) == (1 if text.label == IGNORE_INDEX else 3)


def test_refused() -> None:
    for changes, message in (
        ({"swapped": 1.5}, "swapped=1.5 must be a fraction"),
        ({"short_sequences": -0.1}, "short_sequences=-0.1 must be a fraction"),
    ):
        with pytest.raises(ConfigError, match=message):
            ordered_pairs.Config(**changes)
