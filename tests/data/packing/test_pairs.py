"""Pairs: half are random, only the text reveals which, and no token is lost."""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import partial, reduce
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
    Documents,
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

from bertsmith.data.packing import bin_packing, document_stream, sentence_pairs
from bertsmith.data.packing.pairs import Config
from bertsmith.data.shards import Shards
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.objectives.next_sentence import FOLLOWS, RANDOM
from bertsmith.types import IGNORE_INDEX

build = partial(packing_fixtures.build, Config)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return make_shards(tmp_path_factory.mktemp("pairs") / "set", MIXED, documents_per_part=90)


@pytest.fixture(scope="module")
def many(shards: Shards) -> Pair:
    """The first 100,000 pairs of a run."""
    return first_pairs(build(shards))


class TestHundredThousandPairs:
    def test_half_of_the_pairs_follow(self, many: Pair) -> None:
        assert abs((many.label == FOLLOWS).mean() - 0.5) < 0.005
        assert set(many.label.tolist()) == {FOLLOWS, RANDOM}

    def test_segments_labelled_as_following_do_follow(self, many: Pair) -> None:
        follows = many.label == FOLLOWS
        assert np.array_equal(many.b_first[follows], many.a_last[follows] + 1)

    def test_random_segments_come_from_one_other_document(self, many: Pair) -> None:
        documents = TokenOwners.of(MIXED).documents
        random = many.label == RANDOM
        assert (documents[many.b_first] != documents[many.a_first])[random].all()
        assert np.array_equal(documents[many.b_first], documents[many.b_last])
        assert np.array_equal(documents[many.a_first], documents[many.a_last])

    def test_random_segments_come_from_the_whole_corpus(self, many: Pair) -> None:
        indices = TokenOwners.of(MIXED)
        starts = many.b_first[many.label == RANDOM]
        sentences = np.flatnonzero(indices.sentence_begins)[:-1]
        assert len(np.unique(starts)) > 0.9 * len(sentences)
        assert len(np.unique(indices.documents[starts])) > 0.97 * len(MIXED)

    def test_segments_are_split_at_a_sentence(self, many: Pair) -> None:
        assert TokenOwners.of(MIXED).sentence_begins[many.b_first].all()

    def test_neither_end_nor_length_reveals_the_label(self, many: Pair) -> None:
        begins = TokenOwners.of(MIXED).sentence_begins
        follows = many.label == FOLLOWS
        whole = begins[many.b_last + 1]
        assert 0.1 < whole.mean() < 0.9, "both kinds of end occur"
        assert abs(whole[follows].mean() - whole[~follows].mean()) < 0.01
        sizes = many.b_last - many.b_first + 1
        assert abs(sizes[follows].mean() - sizes[~follows].mean()) < 0.5
        assert abs(begins[many.a_first][follows].mean() - begins[many.a_first][~follows].mean()) < 0.01


def test_the_arrays_of_a_pair(shards: Shards) -> None:
    seen = Counter()
    begins = TokenOwners.of(MIXED).sentence_begins
    for text in texts_of(build(shards).batch(3, batch_size=200)):
        middle = text.ids.index(SEPARATOR)
        assert (text.ids[0], text.ids[-1]) == (START, SEPARATOR)
        assert text.positions == list(range(len(text.ids)))
        first = [token - FIRST for token in text.ids[1:middle]]
        second = [token - FIRST for token in text.ids[middle + 1 : -1]]
        assert first == list(range(first[0], first[0] + len(first)))
        seen[text.label] += 1
        if text.label == IGNORE_INDEX:
            assert not second
            assert not begins[first[0] + 1 : first[-1] + 1].any(), "a single text is a single sentence, or a piece"
            assert set(text.segments) == {0}
        else:
            assert second == list(range(second[0], second[0] + len(second)))
            assert text.segments == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert [position for position, special in enumerate(text.special) if special] == [
            position for position, token in enumerate(text.ids) if token < FIRST
        ]
    assert min(seen[label] for label in (FOLLOWS, RANDOM, IGNORE_INDEX)) > 5


@settings(max_examples=50, deadline=None)
@given(**ANY)
def test_every_token_once_per_epoch(
    documents: list[list[int]], length: int, parts: int, short_sequences: float, epoch: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder, "set"), documents, documents_per_part=parts)
        unreplaced = build(shards, max_length=length, short_sequences=short_sequences, random_next=0)
        texts = epoch_texts(unreplaced, epoch)
        assert sorted(token for text in texts for token in text.tokens) == list(range(shards.tokens))
        owner = TokenOwners.of(documents).documents
        assert all(len(set(owner[text.tokens].tolist())) == 1 for text in texts)
        if len(documents) < 2:
            return
        mixed = epoch_texts(build(shards, max_length=length, short_sequences=short_sequences), epoch)
    span = {text.sample: text.tokens for text in texts}
    assert sorted(text.sample for text in mixed) == sorted(span), "the cut does not depend on what follows"
    for text in mixed:
        tokens, kept = text.tokens, span[text.sample]
        if text.label != RANDOM:
            assert tokens == kept
        else:
            first = reduce(lambda count, token: count + (token == tokens[0] + count), tokens, 0)
            assert 0 < first < len(kept)
            assert len(tokens) <= len(kept)
            assert tokens[:first] == kept[:first]
            assert not set(owner[tokens[first:]].tolist()) & set(owner[kept].tolist())


def collected(lengths: list[int], begin: int, *, target: int, room: int) -> list[tuple[int, int]]:
    """Samples of a document, one sentence after the other: as bert: create_pretraining_data.py, but losing nothing."""
    ends, position, end = np.cumsum(lengths) + begin, begin, begin + sum(lengths)
    result = []
    while position < end:
        reached = next(int(stop) for stop in ends if stop - position >= min(target, end - position))
        result.append((position, min(reached, position + room)))
        position = result[-1][1]
    return result


def test_short_documents_are_cut_as_in_create_pretraining_data(tmp_path: Path) -> None:
    documents: Documents = some_documents(5, documents=1500, sentences=25, tokens=9)
    shards = make_shards(tmp_path / "set", documents)
    packing = build(shards, random_next=0, max_length=40)
    owner, room = TokenOwners.of(documents).documents, 37
    spans: dict[int, list[tuple[int, int]]] = {}
    for text in epoch_texts(packing):
        spans.setdefault(int(owner[text.tokens[0]]), []).append((text.tokens[0], text.tokens[-1] + 1))
    begins = np.cumsum([0, *map(sum, documents)]).tolist()
    targets = []
    for number, lengths in enumerate(documents):
        if sum(lengths) > 2 * room:
            fits = [
                target
                for target in range(2, room + 1)
                if collected(lengths, begins[number], target=target, room=room) == sorted(spans[number])
            ]
            assert fits, f"document {number}"
            targets.append(max(fits))
    assert len(targets) > 500
    assert 0.07 < np.mean(np.array(targets) < room) < 0.13
    assert len({target for target in targets if target < room}) > 20


def test_documents_of_many_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_stream, "SPAN_SAMPLES", 2)
    documents = some_documents(6, documents=20, sentences=60)
    packing = build(make_shards(tmp_path / "set", documents), random_next=0, short_sequences=1, max_length=40)
    spans = sorted((text.tokens[0], text.tokens[-1] + 1) for text in epoch_texts(packing))
    assert [first for first, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == sum(map(sum, documents))
    begins = TokenOwners.of(documents).sentence_begins
    assert all(begins[end] or end - first == 37 for first, end in spans)


def test_positions_above_32_bits_use_int64(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    small = build(shards)
    for module in (document_stream, sentence_pairs, bin_packing):
        monkeypatch.setattr(module, "start_type", lambda limit: np.int64)
    large = build(shards)
    assert (small._cuts.dtype, large._cuts.dtype) == (np.uint32, np.int64)
    assert all(same(small.batch(step, batch_size=40), large.batch(step, batch_size=40)) for step in range(5))


def test_the_split_is_uniform_and_drawn_anew_each_epoch(tmp_path: Path) -> None:
    packing = build(make_shards(tmp_path / "set", [[4] * 5, [3] * 6]), short_sequences=0)
    assert packing.rows_per_epoch == 1
    pairs = pairs_of(packing.rows(0, 4000))
    sizes = Counter((pairs.a_last - pairs.a_first + 1)[pairs.a_first == 0].tolist())
    assert sizes.keys() == {4, 8, 12, 16}
    assert all(abs(count - 1000) < 150 for count in sizes.values())
    assert len(set(pairs.sample.tolist())) == 8000


def test_a_document_of_one_sentence_has_no_label(tmp_path: Path) -> None:
    packing = build(make_shards(tmp_path / "set", [[7], [5], [9]]))
    batch = packing.batch(0, batch_size=1)
    assert set(batch.labels["next_sentence"].tolist()) == {IGNORE_INDEX}
    assert sorted(len(text.ids) for text in texts_of(batch)) == [7, 9, 11]


@pytest.mark.parametrize(("share", "labels"), [(0.0, {FOLLOWS}), (1.0, {RANDOM})])
def test_random_next_of_zero_and_one(shards: Shards, share: float, labels: set[int]) -> None:
    assert set(pairs_of(build(shards, random_next=share).batch(0, batch_size=100)).label.tolist()) == labels


def test_long_text_fills_its_rows(tmp_path: Path) -> None:
    documents = [[10] * 500, [15] * 400, [7] * 900]
    packing = build(make_shards(tmp_path / "set", documents), short_sequences=0)
    assert packing.padding_fraction < 0.01
    batch = packing.rows(0, packing.rows_per_epoch)
    assert batch.tokens / batch.input_ids.size > 0.98


def test_a_frame_with_two_separators(shards: Shards) -> None:
    for text in texts_of(build(shards, frame=DOUBLE).batch(0, batch_size=50)):
        separators = [position for position, token in enumerate(text.ids) if token == SEPARATOR]
        assert len(separators) == (1 if text.label == IGNORE_INDEX else 3)
        assert set(text.segments) == {0}
        assert len(separators) == 1 or separators[1] == separators[0] + 1


def test_refused(tmp_path: Path) -> None:
    single = make_shards(tmp_path / "single", [[5] * 40])
    with pytest.raises(DataError, match=r"train split of .*single has only one document.*random_next=0"):
        build(single)
    assert build(single, random_next=0).rows_per_epoch > 1
    for changes, message in (
        ({"random_next": 1.5}, "random_next=1.5 must be a fraction"),
        ({"short_sequences": -0.1}, "short_sequences=-0.1 must be a fraction"),
    ):
        with pytest.raises(ConfigError, match=message):
            Config(**changes)
    with pytest.raises(BertsmithError, match=r"max_length=4 is too short for 3 special tokens and 2 of text: .* 5"):
        build(single, max_length=4, random_next=0)


def test_single_sentences(shards: Shards) -> None:
    """Both texts of a pair that follows are one sentence each; only one that is too long for a row is cut."""
    indices = TokenOwners.of(MIXED)
    result = pairs_of(build(shards, single_sentences=True).rows(0, 4000))
    follows = result.label == FOLLOWS
    assert abs(follows.mean() - 0.5) < 0.02
    for first, last in ((result.a_first, result.a_last), (result.b_first, result.b_last)):
        inside = [indices.sentence_begins[one + 1 : end + 1].any() for one, end in zip(first, last, strict=True)]
        assert not np.any(np.array(inside)[follows]), "no sentence begins within"
    assert indices.sentence_begins[result.b_first].all()
    assert np.array_equal(result.b_first[follows], result.a_last[follows] + 1)
    documents = indices.documents
    assert (documents[result.a_first] != documents[result.b_first])[~follows].all()
