"""Cutting: chains walked all together give what a loop over one document at a time gives."""

from __future__ import annotations

import numpy as np
import pytest
from data.packing.packing_fixtures import some_documents
from hypothesis import given, settings
from hypothesis import strategies as some

from bertsmith.data.packing import document_stream
from bertsmith.data.packing.document_stream import count_up, cut_evenly, links, walk

LENGTHS = some.lists(some.integers(1, 40), min_size=1, max_size=12)


def test_count_up() -> None:
    assert count_up(np.array([3, 0, 1, 2])).tolist() == [0, 1, 2, 0, 0, 1]


def test_cut_evenly() -> None:
    assert cut_evenly(np.array([0, 7, 9]), np.array([7, 9, 18]), 3).tolist() == [0, 3, 6, 7, 9, 12, 15]


@settings(max_examples=100, deadline=None)
@given(documents=some.lists(LENGTHS, min_size=1, max_size=8), step=some.integers(1, 30))
def test_walking_all_chains_is_walking_each(documents: list[list[int]], step: int) -> None:
    ends = np.cumsum([sum(document) for document in documents])
    begins = ends - [sum(document) for document in documents]
    steps = step + np.arange(len(documents))
    starts, stops = walk(begins, ends, lambda place, chain: place + steps[chain])
    expected = [
        (place, min(place + steps[chain], end))
        for chain, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
        for place in range(begin, end, int(steps[chain]))
    ]
    assert list(zip(starts.tolist(), stops.tolist(), strict=True)) == expected


def test_closings_are_left_out_between_samples() -> None:
    starts, ends = walk(np.array([0]), np.array([13]), lambda place, chain: place + 3, np.array([3, 8, 12]))
    assert starts.tolist() == [0, 4, 7, 10]
    assert ends.tolist() == [3, 7, 10, 13]


@pytest.mark.parametrize("link", [1, 2, 7, 256])
def test_links_are_chains_that_begin_at_sentences(link: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_stream, "LINK", link)
    documents = [*some_documents(1, documents=40), [500], [1, 900, 1], [2] * 400]
    sentences = np.cumsum([0, *(length for document in documents for length in document)]).astype(np.uint32)
    ends = np.cumsum([sum(document) for document in documents])
    begins = ends - [sum(document) for document in documents]
    found, limits, chain = links(begins, ends, size=5, sentences=sentences)
    assert set(found.tolist()) <= set(sentences.tolist())
    assert np.array_equal(found[1:], limits[:-1])
    assert (found[0], limits[-1]) == (0, ends[-1])
    assert ((found >= begins[chain]) & (limits <= ends[chain]) & (found < limits)).all()
    assert set(begins.tolist()) <= set(found.tolist())
    assert (limits - found <= np.maximum(2 * link * 5, 900 + link * 5)).all()
    assert len(found) > len(begins) or link == 256
