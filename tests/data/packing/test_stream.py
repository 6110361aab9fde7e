"""The stream packing: windows of the repeated corpus, always full."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from data.packing.packing_fixtures import BARE, FIRST, FRAME, PADDING, SEPARATOR, make_shards, some_documents
from hypothesis import given, settings
from hypothesis import strategies as some

from bertsmith.data.packing.document_stream import WindowPacking
from bertsmith.data.packing.stream import Config
from bertsmith.data.shards import Shards
from bertsmith.errors import DataError
from bertsmith.types import Frame


def build(shards: Shards, *, length: int, frame: Frame = FRAME) -> WindowPacking:
    return Config().build(shards, frame=frame, padding_id=PADDING, seed=5, max_length=length)


@settings(max_examples=60, deadline=None)
@given(
    documents=some.lists(some.lists(some.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=7),
    data=some.data(),
    frame=some.sampled_from([FRAME, BARE]),
)
def test_windows_cover_the_repeated_corpus(documents: list[list[int]], data: some.DataObject, frame: Frame) -> None:
    tape, token = [], FIRST
    for document in documents:
        tape += [*range(token, token + sum(document)), *([SEPARATOR] if frame is FRAME else [])]
        token += sum(document)
    length = data.draw(some.integers(2, max(2, len(tape))))
    if length > len(tape):
        return
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder, "set"), documents, documents_per_part=data.draw(some.integers(1, 7)))
        packing = build(shards, length=length, frame=frame)
        rows = 3 * packing.rows_per_epoch
        batch = packing.rows(0, rows)
    assert packing.rows_per_epoch == len(tape) // length
    order = np.argsort(batch.sample_ids[:, 0])
    assert sorted(batch.sample_ids[:, 0].tolist()) == list(range(rows))
    assert batch.input_ids[order].ravel().tolist() == (tape * (rows * length // len(tape) + 1))[: rows * length]
    epochs = np.split(batch.sample_ids[:, 0], 3)
    assert all(set(part // packing.rows_per_epoch) == {number} for number, part in enumerate(epochs))


def test_every_row_is_full_and_its_documents_do_not_attend_to_each_other(tmp_path: Path) -> None:
    documents = some_documents(1, documents=80)
    packing = build(make_shards(tmp_path / "set", documents), length=50)
    batch = packing.batch(2, batch_size=20)
    assert (batch.dense, packing.dense, packing.padding_fraction, packing.texts_per_row) == (False, False, 0, 1)
    assert np.array_equal(batch.special_mask, batch.input_ids == SEPARATOR)
    earlier = np.cumsum(batch.special_mask, axis=1) - batch.special_mask  # documents that ended before a token
    assert np.array_equal(batch.document_ids, 1 + earlier)
    assert (batch.document_ids.max(axis=1) > 1).any()
    assert batch.position_ids.tolist() == [list(range(50))] * 20
    changes = np.flatnonzero(np.diff(batch.document_ids.ravel(), prepend=0) != 0)
    assert np.unique(batch.cu_seqlens).tolist() == sorted({*changes.tolist(), *range(0, 1001, 50)})
    assert batch.cls_positions.tolist() == list(range(0, 1000, 50))
    assert batch.tokens == 1000


def test_rows_are_shuffled(tmp_path: Path) -> None:
    packing = build(make_shards(tmp_path / "set", some_documents(1, documents=80)), length=10)
    first, second = (packing.rows(at, packing.rows_per_epoch).sample_ids[:, 0] for at in (0, packing.rows_per_epoch))
    assert (np.diff(first) == 1).mean() < 0.02
    assert (first == second - packing.rows_per_epoch).mean() < 0.02


def test_too_little_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"13 tokens do not fill one row of max_length=14: lower it"):
        build(make_shards(tmp_path / "set", [[5, 5], [1]]), length=14)
