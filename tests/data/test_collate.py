"""Rows into batches: every field, padding, packing, constant shapes, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from model_world import random_rows

from bertsmith.data.collate import bounds, collate, in_one_line
from bertsmith.errors import BertsmithError
from bertsmith.types import NOT_ASKED


def test_padded() -> None:
    rows = random_rows([5, 8, 3])
    batch = collate(rows, length=8, padding_id=9, epoch=4, samples=[70, 80, 90], labels={"next_sentence": [1, 0, 1]})
    assert batch.ids.shape == (3, 8)
    assert batch.ids[0].tolist() == [*rows[0].ids, 9, 9, 9]
    assert batch.positions[0].tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    assert batch.segments[0].tolist() == [*rows[0].segments, 0, 0, 0]
    assert batch.document.tolist() == [[1] * 5 + [0] * 3, [1] * 8, [1] * 3 + [0] * 5]
    assert batch.special[2].tolist() == [True, False, True, True, True, True, True, True]
    assert batch.samples[0].tolist() == [70] * 5 + [-1] * 3
    assert batch.bounds.tolist() == [0, 5, 8, 16, 19, 24, 24]
    assert batch.firsts.tolist() == [0, 8, 16]
    assert batch.labels["next_sentence"].tolist() == [1, 0, 1]
    assert int(batch.epoch) == 4
    assert (batch.longest, batch.full) == (8, False)
    types = {batch.ids.dtype, batch.positions.dtype, batch.segments.dtype, batch.samples.dtype, batch.firsts.dtype}
    assert types == {torch.int64}
    assert (batch.document.dtype, batch.bounds.dtype, batch.special.dtype) == (torch.int32, torch.int32, torch.bool)


def test_packed_into_the_first_line_with_room() -> None:
    rows = random_rows([5, 6, 3, 4])
    batch = collate(rows, length=10, pack=True)
    assert batch.document.tolist() == [[1] * 5 + [2] * 3 + [0] * 2, [1] * 6 + [2] * 4]
    assert batch.firsts.tolist() == [0, 10, 5, 16]
    assert batch.bounds.tolist() == [0, 5, 8, 10, 16, 20, 20]
    assert batch.positions[1].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    for row, first in zip(rows, batch.firsts.tolist(), strict=True):
        assert batch.ids.flatten()[first : first + len(row)].tolist() == row.ids.tolist()


def test_in_one_line_without_padding() -> None:
    rows = random_rows([3, 3, 5, 3])
    batch = in_one_line(rows, places={"tag": [[0], [], [1, 4], [2]]})
    assert batch.ids.shape == (1, 14)
    assert batch.ids[0].tolist() == [number for row in rows for number in row.ids]
    assert batch.document[0].tolist() == [1] * 3 + [2] * 3 + [3] * 5 + [4] * 3
    assert batch.positions[0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2]
    assert batch.runs == ((2, 3), (1, 5), (1, 3))
    assert batch.firsts.tolist() == [0, 3, 6, 11]
    assert batch.places["tag"].tolist() == [0, 7, 10, 13]
    assert (batch.longest, batch.full) == (5, False)
    assert batch.to("cpu").runs == batch.runs


def test_full_rows_are_known_as_such() -> None:
    assert collate(random_rows([7, 7]), length=7).full
    assert not collate(random_rows([7, 7]), length=7, shape=(3, 3)).full
    assert not collate(random_rows([3, 4]), length=7, pack=True).full, "two texts see each other in no dense kernel"


def test_filled_up_to_a_constant_shape() -> None:
    batch = collate(random_rows([5, 8]), length=8, shape=(4, 6), labels={"next_sentence": [0, 1]})
    assert batch.ids.shape == (4, 8)
    assert batch.firsts.tolist() == [0, 8, -1, -1, -1, -1]
    assert batch.labels["next_sentence"].tolist() == [0, 1] + [NOT_ASKED] * 4
    assert batch.bounds.tolist() == [0, 5, 8, 16, 24, 32, 32, 32, 32, 32, 32]
    assert (batch.document[2:] == 0).all()
    assert batch.special[2:].all()


@settings(max_examples=60, deadline=None)
@given(lengths=some.lists(some.integers(2, 12), min_size=1, max_size=20), pack=some.booleans())
def test_every_token_is_there_once(lengths: list[int], pack: bool) -> None:
    rows = random_rows(lengths)
    batch = collate(rows, length=12, pack=pack)
    assert int((batch.document != 0).sum()) == sum(lengths)
    flat, document = batch.ids.flatten(), batch.document.flatten()
    for number, (row, first) in enumerate(zip(rows, batch.firsts.tolist(), strict=True)):
        at = slice(first, first + len(row))
        assert flat[at].tolist() == row.ids.tolist()
        assert batch.samples.flatten()[at].unique().tolist() == [number]
        assert len(document[at].unique()) == 1
        assert first in batch.bounds.tolist()
        assert first + len(row) in batch.bounds.tolist()
    assert len(batch.bounds) == len(batch.ids) + len(rows) + 1
    assert (batch.bounds.diff() >= 0).all()


def test_bounds_tell_rows_apart_that_have_equal_numbers() -> None:
    document = np.array([[1, 1, 2], [2, 2, 2], [0, 0, 0]])
    assert bounds(document, sequences=5).tolist() == [0, 2, 3, 6, 9, 9]


def test_to_and_replace() -> None:
    batch = collate(random_rows([5, 8]), length=8, labels={"next_sentence": [0, 1]})
    moved = batch.to("meta")
    assert {moved.ids.device.type, moved.epoch.device.type, moved.labels["next_sentence"].device.type} == {"meta"}
    assert moved.longest == 8
    assert batch.ids.device.type == "cpu"
    assert batch.replace(longest=9).longest == 9


def test_labels_of_each_kind() -> None:
    labels = {"classify": [3, 1], "regress": [0.5, math.nan], "span": [[1, 2], [0, 0]]}
    batch = collate(random_rows([5, 8]), length=8, shape=(3, 4), labels=labels)
    assert batch.labels["classify"].tolist() == [3, 1, NOT_ASKED, NOT_ASKED]
    assert batch.labels["regress"].dtype == torch.float32
    assert batch.labels["regress"][0] == 0.5
    assert batch.labels["regress"][1:].isnan().all()
    assert batch.labels["span"].tolist() == [[1, 2], [0, 0], [NOT_ASKED] * 2, [NOT_ASKED] * 2]
    assert batch.labels["span"].dtype == torch.int64


def test_places_that_are_read_follow_their_rows() -> None:
    rows, places, labels = random_rows([5, 8, 3]), [[1, 3], [], [2]], [[7, 8], [], [9]]
    batch = collate(rows, length=8, pack=True, places={"tag": places}, labels={"tag": labels})
    assert batch.places["tag"].tolist() == [1, 3, 5 + 2], "the third row sits behind the first"
    assert batch.labels["tag"].tolist() == [7, 8, 9]
    filled = collate(rows, length=8, pack=True, places={"tag": places}, labels={"tag": labels}, shape=(2, 3, 5))
    assert filled.places["tag"].tolist() == [1, 3, 7, 0, 0]
    assert filled.labels["tag"].tolist() == [7, 8, 9, NOT_ASKED, NOT_ASKED]
    roomy = collate(rows, length=8, places={"tag": places}, shape=(4, 3))
    assert roomy.places["tag"].shape == (32,)
    assert roomy.places["tag"][:3].tolist() == [1, 3, 18]
    assert roomy.labels == {}


@pytest.mark.parametrize(
    ("lengths", "how", "message"),
    [
        ([4, 4], {"length": 8, "places": {"tag": [[1]]}}, "places of tag for 1 of 2 rows"),
        ([4, 6], {"length": 8, "places": {"tag": [[1], [2, 6]]}}, "tag reads place 6 of row 1, which has 6 tokens"),
        ([4], {"length": 8, "places": {"tag": [[1, 2]]}, "labels": {"tag": [[1]]}}, "labels of tag are not as many"),
        ([4], {"length": 8, "places": {"tag": [[1, 2]]}, "shape": (1, 1, 1)}, "tag reads 2 places, more than the 1"),
        ([4, 4], {"length": 8, "labels": {"regress": [0.5]}}, "1 regress for 2 rows"),
        ([4, 9, 3], {"length": 8}, "row 1 has 9 tokens but lines only 8"),
        ([], {"length": 8}, "at least one row"),
        ([4, 4], {"length": 8, "shape": (1, 2)}, "need 2 lines and 2 texts, more than"),
        ([4, 4], {"length": 8, "labels": {"next_sentence": [1]}}, "1 next_sentence for 2 rows"),
        ([4, 4], {"length": 8, "samples": [1, 2, 3]}, "3 samples for 2 rows"),
    ],
)
def test_refused(lengths: list[int], how: dict[str, object], message: str) -> None:
    with pytest.raises(BertsmithError, match=message):
        collate(random_rows(lengths), **how)  # type: ignore[arg-type]
