"""The document index, cutting into samples, and the stream of all documents."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from data.packing.packing_fixtures import FIRST, SEPARATOR, Documents, make_shards, some_documents
from hypothesis import given, settings
from hypothesis import strategies as some

from bertsmith.data.packing import document_stream
from bertsmith.data.packing.document_stream import DocumentIndex, DocumentStream, cut_evenly, cut_spans, split_spans
from bertsmith.data.packing.packing import ranges

LENGTHS = some.lists(some.integers(1, 40), min_size=1, max_size=12)


def whole_stream(documents: Documents, end_token: int | None) -> list[int]:
    result, token = [], FIRST
    for document in documents:
        result += range(token, token + sum(document))
        token += sum(document)
        result += [] if end_token is None else [end_token]
    return result


@pytest.mark.parametrize("end_token", [SEPARATOR, None])
@settings(max_examples=30, deadline=None)
@given(
    documents=some.lists(some.lists(some.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=8),
    data=some.data(),
)
def test_any_spans_of_the_stream(end_token: int | None, documents: list[list[int]], data: some.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder, "set"), documents, documents_per_part=data.draw(some.integers(1, 4)))
        stream = DocumentStream(shards, DocumentIndex(shards), end_token)
        expected = whole_stream(documents, end_token)
        assert stream.length == len(expected)
        starts = data.draw(some.lists(some.integers(0, len(expected)), min_size=1, max_size=6))
        ends = [data.draw(some.integers(start, len(expected))) for start in starts]
        tokens, is_end = stream.read(np.array(starts), np.array(ends) - starts)
    spans = [expected[start:end] for start, end in zip(starts, ends, strict=True)]
    assert tokens.tolist() == [token for span in spans for token in span]
    assert is_end.tolist() == [token == SEPARATOR for span in spans for token in span]


@pytest.mark.parametrize("end_token", [SEPARATOR, None])
def test_sentences_of_the_stream(tmp_path: Path, end_token: int | None) -> None:
    documents = some_documents(2, documents=20)
    shards = make_shards(tmp_path / "set", documents, documents_per_part=6)
    index = DocumentIndex(shards)
    starts, ends = DocumentStream(shards, index, end_token).sentences(index)
    expected = whole_stream(documents, end_token)
    spans = [expected[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    assert [len(span) for span in spans] == [length for document in documents for length in document]
    assert [token for span in spans for token in span] == whole_stream(documents, None)


def test_documents_without_tokens_are_left_out(tmp_path: Path) -> None:
    documents = [[], [3, 4], [], [], [2], [6], []]
    shards = make_shards(tmp_path / "set", documents, documents_per_part=3)
    assert shards.documents == 7
    index = DocumentIndex(shards)
    assert index.documents.tolist() == [0, 2, 3, 4]
    assert index.document_tokens.tolist() == [0, 7, 9, 15]
    assert DocumentStream(shards, index, SEPARATOR).end_positions.tolist() == [7, 10, 17]


def test_the_index_covers_all_parts(tmp_path: Path) -> None:
    documents = some_documents(3, documents=30)
    shards = make_shards(tmp_path / "set", documents, documents_per_part=7)
    assert len(shards.parts) == 5
    index = DocumentIndex(shards)
    lengths = [length for document in documents for length in document]
    assert np.diff(index.sentences).tolist() == lengths
    assert np.diff(index.documents).tolist() == [len(document) for document in documents]
    assert np.diff(index.document_tokens).tolist() == [sum(document) for document in documents]
    assert index.sentences.dtype == np.uint32
    assert not any("sentence_starts" in vars(part) for part in shards.parts), "the parts keep no copy"
    numbers = np.arange(len(lengths))
    assert index.document_of(numbers).tolist() == np.repeat(np.arange(30), [len(one) for one in documents]).tolist()
    assert np.array_equal(index.sentence_at(index.sentences[:-1].astype(np.int64), "left"), numbers)
    assert np.array_equal(index.sentence_at(index.sentences[:-1].astype(np.int64), "right"), numbers + 1)


def test_ranges() -> None:
    assert ranges(np.array([3, 0, 1, 2])).tolist() == [0, 1, 2, 0, 0, 1]


def test_cut_evenly() -> None:
    assert cut_evenly(np.array([0, 7, 9]), np.array([7, 9, 18]), 3).tolist() == [0, 3, 6, 7, 9, 12, 15]


@settings(max_examples=100, deadline=None)
@given(documents=some.lists(LENGTHS, min_size=1, max_size=8), step=some.integers(1, 30))
def test_spans_cut_in_parallel_equal_spans_cut_one_by_one(documents: list[list[int]], step: int) -> None:
    ends = np.cumsum([sum(document) for document in documents])
    starts = ends - [sum(document) for document in documents]
    steps = step + np.arange(len(documents))
    sample_starts, sample_ends = cut_spans(starts, ends, lambda position, span: position + steps[span])
    expected = [
        (position, min(position + steps[span], end))
        for span, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
        for position in range(start, end, int(steps[span]))
    ]
    assert list(zip(sample_starts.tolist(), sample_ends.tolist(), strict=True)) == expected


def test_end_tokens_between_samples_are_skipped() -> None:
    starts, ends = cut_spans(np.array([0]), np.array([13]), lambda position, span: position + 3, np.array([3, 8, 12]))
    assert starts.tolist() == [0, 4, 7, 10]
    assert ends.tolist() == [3, 7, 10, 13]


@pytest.mark.parametrize("samples", [1, 2, 7, 256])
def test_long_spans_are_split_at_sentences(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_stream, "SPAN_SAMPLES", samples)
    documents = [*some_documents(1, documents=40), [500], [1, 900, 1], [2] * 400]
    sentences = np.cumsum([0, *(length for document in documents for length in document)]).astype(np.uint32)
    ends = np.cumsum([sum(document) for document in documents])
    starts = ends - [sum(document) for document in documents]
    new_starts, new_ends, span = split_spans(starts, ends, length=5, sentences=sentences)
    assert set(new_starts.tolist()) <= set(sentences.tolist())
    assert np.array_equal(new_starts[1:], new_ends[:-1])
    assert (new_starts[0], new_ends[-1]) == (0, ends[-1])
    assert ((new_starts >= starts[span]) & (new_ends <= ends[span]) & (new_starts < new_ends)).all()
    assert set(starts.tolist()) <= set(new_starts.tolist())
    assert (new_ends - new_starts <= np.maximum(2 * samples * 5, 900 + samples * 5)).all()
    assert len(new_starts) > len(starts) or samples == 256
