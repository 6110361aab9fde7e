"""Full sentences: across documents or within, cut at the end of a row or whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from data.packing.packing_fixtures import (
    BARE,
    FIRST,
    FRAME,
    PADDING,
    SEPARATOR,
    START,
    TokenOwners,
    make_shards,
    some_documents,
    texts_of,
)
from hypothesis import given, settings
from hypothesis import strategies as some

from bertsmith.data.packing import document_stream
from bertsmith.data.packing.full_sentences import Config
from bertsmith.data.packing.packing import Packing
from bertsmith.data.shards import Shards
from bertsmith.types import Frame


def build(shards: Shards, *, length: int, frame: Frame = FRAME, **changes: bool) -> Packing:
    return Config(**changes).build(shards, frame=frame, padding_id=PADDING, seed=3, max_length=length)


def bodies(packing: Packing) -> list[list[int]]:
    """The texts of the first epoch without their frame, in the order of the corpus; -1 for separators between."""
    result = []
    for text in texts_of(packing.rows(0, packing.rows_per_epoch)):
        assert (text.ids[0], text.ids[-1]) == (START, SEPARATOR)
        assert set(text.segments) == {0}
        assert text.special == [token < FIRST for token in text.ids]
        result.append([-1 if token == SEPARATOR else token - FIRST for token in text.ids[1:-1]])
    return sorted(result, key=lambda body: next(token for token in body if token >= 0))


def filled(documents: list[list[int]], room: int) -> list[list[int]]:
    """Sentence after sentence into a row while it fits (P-RoBERTa §4.2); longer ones are cut."""
    rows: list[list[int]] = [[]]
    token = 0
    for document in documents:
        for number, length in enumerate(document):
            sentence = list(range(token, token + length))
            token += length
            between = [-1] if number == 0 and rows[-1] else []
            if len(rows[-1]) + len(between) + length > room:
                rows, between = [*rows, []], []
            rows[-1] += between
            while sentence:
                if len(rows[-1]) == room:
                    rows.append([])
                piece = sentence[: room - len(rows[-1])] if len(sentence) > room else sentence
                if len(rows[-1]) + len(piece) > room:
                    rows.append([])
                    continue
                rows[-1] += piece
                sentence = sentence[len(piece) :]
    return [row for row in rows if row]


TINY = some.lists(some.lists(some.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(documents=TINY, length=some.integers(11, 30), parts=some.integers(1, 7))
def test_whole_sentences_across_documents(documents: list[list[int]], length: int, parts: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder, "set"), documents, documents_per_part=parts)
        result = bodies(build(shards, length=length, whole_sentences=True))
    assert result == filled(documents, length - 2)


@settings(max_examples=60, deadline=None)
@given(documents=TINY, length=some.integers(3, 30), parts=some.integers(1, 7), whole=some.booleans())
def test_within_documents(documents: list[list[int]], length: int, parts: int, whole: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder, "set"), documents, documents_per_part=parts)
        result = bodies(build(shards, length=length, across_documents=False, whole_sentences=whole))
    assert [token for body in result for token in body] == list(range(shards.tokens)), "every token once, no separator"
    positions, room = TokenOwners.of(documents), length - 2
    for body, after in zip(result, [*result[1:], [shards.tokens]], strict=True):
        assert len(set(positions.documents[body].tolist())) == 1
        last_of_document = after[0] == shards.tokens or positions.documents[after[0]] != positions.documents[body[0]]
        if not whole:
            assert len(body) == room or last_of_document
        elif not positions.sentence_begins[after[0]]:
            assert len(body) == room, "only a sentence longer than a row is cut"
            assert not positions.sentence_begins[body[1:]].any()
        elif not last_of_document:
            next_end = next(
                position for position in range(after[0] + 1, shards.tokens + 1) if positions.sentence_begins[position]
            )
            assert next_end - body[0] > room, "the next sentence would not have fitted"


def test_long_spans_are_cut_as_short_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = some_documents(4, documents=60, tokens=9)
    shards = make_shards(tmp_path / "set", documents)
    plain = bodies(build(shards, length=24, whole_sentences=True))
    monkeypatch.setattr(document_stream, "SPAN_SAMPLES", 3)
    linked = bodies(build(shards, length=24, whole_sentences=True))
    begins = TokenOwners.of(documents).sentence_begins
    for result in (plain, linked):
        assert [token for body in result for token in body if token >= 0] == list(range(shards.tokens))
        assert all(body[0] >= 0 and body[-1] >= 0 for body in result), "separators are between documents only"
        assert all(begins[body[0]] and begins[body[-1] + 1] for body in result)
    assert plain == filled(documents, 22)
    assert len(plain) < len(linked) < 1.4 * len(plain)


def test_across_documents_rows_are_full(tmp_path: Path) -> None:
    documents = some_documents(4, documents=60)
    shards = make_shards(tmp_path / "set", documents)
    packing = build(shards, length=32, attend_across_documents=True)
    assert packing.dense
    assert not build(shards, length=32).dense
    assert packing.padding_fraction == 0
    stream = [
        token
        for number, document in enumerate(documents)
        for token in [
            *range(sum(map(sum, documents[:number])), sum(map(sum, documents[: number + 1]))),
            -1,
        ]
    ]
    result = bodies(packing)
    assert packing.rows_per_epoch == len(result) == len(stream) // 30
    assert [token for body in result for token in body] == stream[: 30 * len(result)]


def test_a_tokenizer_without_special_tokens(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "set", [[5, 6], [7]])
    packing = build(shards, length=6, frame=BARE)
    assert packing.rows_per_epoch == 3
    ids = packing.rows(0, 3).input_ids.ravel()
    assert sorted(ids.tolist()) == list(range(FIRST, FIRST + 18))


@settings(max_examples=40, deadline=None)
@given(documents=TINY, length=some.integers(11, 30), parts=some.integers(1, 7), whole=some.booleans())
def test_documents_of_a_text_do_not_attend_to_each_other(
    documents: list[list[int]], length: int, parts: int, whole: bool
) -> None:
    """Only the attention differs; by default documents do not attend to each other."""
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder, "set"), documents, documents_per_part=parts)
        if not whole and shards.tokens + len(documents) < length - 2:
            return  # less than one row
        apart, across = (
            build(shards, length=length, whole_sentences=whole, attend_across_documents=see).rows(0, 12)
            for see in (False, True)
        )
    for name in ("input_ids", "position_ids", "segment_ids", "special_mask", "sample_ids", "cls_positions"):
        assert np.array_equal(getattr(apart, name), getattr(across, name))
    owners = TokenOwners.of(documents).documents
    for text, other in zip(texts_of(apart), texts_of(across), strict=True):
        assert len(set(other.documents)) == 1
        whose: dict[int, set[int]] = {}
        for token, special, number in zip(text.ids, text.special, text.documents, strict=True):
            whose.setdefault(number, set()).update([] if special else [int(owners[token - FIRST])])
        assert all(len(result) <= 1 for result in whose.values())
        last = [token for token, special in zip(text.ids, text.special, strict=True) if not special][-1:]
        assert not last or text.documents[-1] == text.documents[text.ids.index(last[0])] or text.ids[-2] == SEPARATOR
        separators = sum(token == SEPARATOR for token in text.ids[1:-2])  # one at the very end ends nothing
        assert len(whose) == 1 + separators
