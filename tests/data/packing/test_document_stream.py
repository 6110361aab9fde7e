"""The tape: documents in one line, a closing token behind each, any stretch of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from data.packing.packing_fixtures import FIRST, SEPARATOR, Documents, make_shards, some_documents
from hypothesis import given, settings
from hypothesis import strategies as some

from bertsmith.data.packing.document_stream import Outline, Tape


def whole_tape(documents: Documents, closing: int | None) -> list[int]:
    found, token = [], FIRST
    for document in documents:
        found += range(token, token + sum(document))
        token += sum(document)
        found += [] if closing is None else [closing]
    return found


@pytest.mark.parametrize("closing", [SEPARATOR, None])
@settings(max_examples=30, deadline=None)
@given(
    documents=some.lists(some.lists(some.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=8),
    data=some.data(),
)
def test_any_stretch(closing: int | None, documents: list[list[int]], data: some.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder, "set"), documents, documents_per_part=data.draw(some.integers(1, 4)))
        tape = Tape(shards, Outline(shards), closing)
        expected = whole_tape(documents, closing)
        assert tape.length == len(expected)
        begins = data.draw(some.lists(some.integers(0, len(expected)), min_size=1, max_size=6))
        ends = [data.draw(some.integers(begin, len(expected))) for begin in begins]
        found = tape.read(np.array(begins), np.array(ends) - begins)
    spans = [expected[begin:end] for begin, end in zip(begins, ends, strict=True)]
    assert found.tokens.tolist() == [token for span in spans for token in span]
    assert found.closings.tolist() == [token == SEPARATOR for span in spans for token in span]


@pytest.mark.parametrize("closing", [SEPARATOR, None])
def test_sentences_on_the_tape(tmp_path: Path, closing: int | None) -> None:
    documents = some_documents(2, documents=20)
    shards = make_shards(tmp_path / "set", documents, documents_per_part=6)
    outline = Outline(shards)
    begins, ends = Tape(shards, outline, closing).sentences(outline)
    expected = whole_tape(documents, closing)
    spans = [expected[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    assert [len(span) for span in spans] == [length for document in documents for length in document]
    assert [token for span in spans for token in span] == whole_tape(documents, None)


def test_documents_without_a_token_do_not_count(tmp_path: Path) -> None:
    documents = [[], [3, 4], [], [], [2], [6], []]
    shards = make_shards(tmp_path / "set", documents, documents_per_part=3)
    assert shards.documents == 7
    outline = Outline(shards)
    assert outline.documents.tolist() == [0, 2, 3, 4]
    assert outline.document_tokens.tolist() == [0, 7, 9, 15]
    assert Tape(shards, outline, SEPARATOR).closings.tolist() == [7, 10, 17]


def test_the_outline_is_that_of_all_parts(tmp_path: Path) -> None:
    documents = some_documents(3, documents=30)
    shards = make_shards(tmp_path / "set", documents, documents_per_part=7)
    assert len(shards.parts) == 5
    outline = Outline(shards)
    lengths = [length for document in documents for length in document]
    assert np.diff(outline.sentences).tolist() == lengths
    assert np.diff(outline.documents).tolist() == [len(document) for document in documents]
    assert np.diff(outline.document_tokens).tolist() == [sum(document) for document in documents]
    assert outline.sentences.dtype == np.uint32
    assert not any("sentence_starts" in vars(part) for part in shards.parts), "nothing is kept twice"
    numbers = np.arange(len(lengths))
    assert outline.document_of(numbers).tolist() == np.repeat(np.arange(30), [len(one) for one in documents]).tolist()
    assert np.array_equal(outline.sentence_at(outline.sentences[:-1].astype(np.int64), "left"), numbers)
    assert np.array_equal(outline.sentence_at(outline.sentences[:-1].astype(np.int64), "right"), numbers + 1)
