"""Collating: every field, padding, packing, constant shapes, and invalid arguments."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from model_fixtures import random_rows

from bertsmith.data.collate import collate, collate_unpadded, cu_seqlens_of
from bertsmith.errors import BertsmithError
from bertsmith.model_io.folder_tokenizer import spelling
from bertsmith.tokenizers.words import Rules, Words
from bertsmith.types import IGNORE_INDEX


def test_padded() -> None:
    rows = random_rows([5, 8, 3])
    batch = collate(rows, length=8, padding_id=9, epoch=4, sample_ids=[70, 80, 90], labels={"next_sentence": [1, 0, 1]})
    assert batch.input_ids.shape == (3, 8)
    assert batch.input_ids[0].tolist() == [*rows[0].ids, 9, 9, 9]
    assert batch.position_ids[0].tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    assert batch.segment_ids[0].tolist() == [*rows[0].segment_ids, 0, 0, 0]
    assert batch.document_ids.tolist() == [[1] * 5 + [0] * 3, [1] * 8, [1] * 3 + [0] * 5]
    assert batch.special_mask[2].tolist() == [True, False, True, True, True, True, True, True]
    assert batch.sample_ids[0].tolist() == [70] * 5 + [-1] * 3
    assert batch.cu_seqlens.tolist() == [0, 5, 8, 16, 19, 24, 24]
    assert batch.cls_positions.tolist() == [0, 8, 16]
    assert batch.labels["next_sentence"].tolist() == [1, 0, 1]
    assert int(batch.epoch) == 4
    assert (batch.max_seqlen, batch.dense) == (8, False)
    types = {
        batch.input_ids.dtype,
        batch.position_ids.dtype,
        batch.segment_ids.dtype,
        batch.sample_ids.dtype,
        batch.cls_positions.dtype,
    }
    assert types == {torch.int64}
    assert (batch.document_ids.dtype, batch.cu_seqlens.dtype, batch.special_mask.dtype) == (
        torch.int32,
        torch.int32,
        torch.bool,
    )


def test_packing_is_first_fit() -> None:
    rows = random_rows([5, 6, 3, 4])
    batch = collate(rows, length=10, pack=True)
    assert batch.document_ids.tolist() == [[1] * 5 + [2] * 3 + [0] * 2, [1] * 6 + [2] * 4]
    assert batch.cls_positions.tolist() == [0, 10, 5, 16]
    assert batch.cu_seqlens.tolist() == [0, 5, 8, 10, 16, 20, 20]
    assert batch.position_ids[1].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    for row, first in zip(rows, batch.cls_positions.tolist(), strict=True):
        assert batch.input_ids.flatten()[first : first + len(row)].tolist() == row.ids.tolist()


def test_collate_unpadded() -> None:
    rows = random_rows([3, 3, 5, 3])
    batch = collate_unpadded(rows, indices={"tag": [[0], [], [1, 4], [2]]})
    assert batch.input_ids.shape == (1, 14)
    assert batch.input_ids[0].tolist() == [number for row in rows for number in row.ids]
    assert batch.document_ids[0].tolist() == [1] * 3 + [2] * 3 + [3] * 5 + [4] * 3
    assert batch.position_ids[0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2]
    assert batch.equal_length_runs == ((2, 3), (1, 5), (1, 3))
    assert batch.cls_positions.tolist() == [0, 3, 6, 11]
    assert batch.indices["tag"].tolist() == [0, 7, 10, 13]
    assert (batch.max_seqlen, batch.dense) == (5, False)
    assert batch.to("cpu").equal_length_runs == batch.equal_length_runs


def test_dense_batches() -> None:
    assert collate(random_rows([7, 7]), length=7).dense
    assert not collate(random_rows([7, 7]), length=7, shape=(3, 3)).dense
    assert not collate(random_rows([3, 4]), length=7, pack=True).dense, (
        "a dense kernel would let two texts attend to each other"
    )


def test_batches_are_filled_up_to_a_constant_shape() -> None:
    batch = collate(random_rows([5, 8]), length=8, shape=(4, 6), labels={"next_sentence": [0, 1]})
    assert batch.input_ids.shape == (4, 8)
    assert batch.cls_positions.tolist() == [0, 8, -1, -1, -1, -1]
    assert batch.labels["next_sentence"].tolist() == [0, 1] + [IGNORE_INDEX] * 4
    assert batch.cu_seqlens.tolist() == [0, 5, 8, 16, 24, 32, 32, 32, 32, 32, 32]
    assert (batch.document_ids[2:] == 0).all()
    assert batch.special_mask[2:].all()


@settings(max_examples=60, deadline=None)
@given(lengths=some.lists(some.integers(2, 12), min_size=1, max_size=20), pack=some.booleans())
def test_every_token_exactly_once(lengths: list[int], pack: bool) -> None:
    rows = random_rows(lengths)
    batch = collate(rows, length=12, pack=pack)
    assert int((batch.document_ids != 0).sum()) == sum(lengths)
    flat, document = batch.input_ids.flatten(), batch.document_ids.flatten()
    for number, (row, first) in enumerate(zip(rows, batch.cls_positions.tolist(), strict=True)):
        at = slice(first, first + len(row))
        assert flat[at].tolist() == row.ids.tolist()
        assert batch.sample_ids.flatten()[at].unique().tolist() == [number]
        assert len(document[at].unique()) == 1
        assert first in batch.cu_seqlens.tolist()
        assert first + len(row) in batch.cu_seqlens.tolist()
    assert len(batch.cu_seqlens) == len(batch.input_ids) + len(rows) + 1
    assert (batch.cu_seqlens.diff() >= 0).all()


def test_cu_seqlens_separate_rows_with_equal_document_ids() -> None:
    document = np.array([[1, 1, 2], [2, 2, 2], [0, 0, 0]])
    assert cu_seqlens_of(document, sequences=5).tolist() == [0, 2, 3, 6, 9, 9]


def test_to_and_replace() -> None:
    batch = collate(random_rows([5, 8]), length=8, labels={"next_sentence": [0, 1]})
    moved = batch.to("meta")
    assert {moved.input_ids.device.type, moved.epoch.device.type, moved.labels["next_sentence"].device.type} == {"meta"}
    assert moved.max_seqlen == 8
    assert batch.input_ids.device.type == "cpu"
    assert batch.replace(max_seqlen=9).max_seqlen == 9


def test_labels_of_each_type() -> None:
    labels = {"classify": [3, 1], "regress": [0.5, math.nan], "span": [[1, 2], [0, 0]]}
    batch = collate(random_rows([5, 8]), length=8, shape=(3, 4), labels=labels)
    assert batch.labels["classify"].tolist() == [3, 1, IGNORE_INDEX, IGNORE_INDEX]
    assert batch.labels["regress"].dtype == torch.float32
    assert batch.labels["regress"][0] == 0.5
    assert batch.labels["regress"][1:].isnan().all()
    assert batch.labels["span"].tolist() == [[1, 2], [0, 0], [IGNORE_INDEX] * 2, [IGNORE_INDEX] * 2]
    assert batch.labels["span"].dtype == torch.int64


def test_indices_and_their_labels() -> None:
    rows, positions, labels = random_rows([5, 8, 3]), [[1, 3], [], [2]], [[7, 8], [], [9]]
    batch = collate(rows, length=8, pack=True, indices={"tag": positions}, labels={"tag": labels})
    assert batch.indices["tag"].tolist() == [1, 3, 5 + 2], "the third text follows the first in its row"
    assert batch.labels["tag"].tolist() == [7, 8, 9]
    filled = collate(rows, length=8, pack=True, indices={"tag": positions}, labels={"tag": labels}, shape=(2, 3, 5))
    assert filled.indices["tag"].tolist() == [1, 3, 7, 0, 0]
    assert filled.labels["tag"].tolist() == [7, 8, 9, IGNORE_INDEX, IGNORE_INDEX]
    roomy = collate(rows, length=8, indices={"tag": positions}, shape=(4, 3))
    assert roomy.indices["tag"].shape == (32,)
    assert roomy.indices["tag"][:3].tolist() == [1, 3, 18]
    assert roomy.labels == {}


@pytest.mark.parametrize(
    ("lengths", "how", "message"),
    [
        ([4, 4], {"length": 8, "indices": {"tag": [[1]]}}, "indices of tag for 1 of 2 rows"),
        ([4, 6], {"length": 8, "indices": {"tag": [[1], [2, 6]]}}, "tag reads token 6 of row 1, which has 6 tokens"),
        ([4], {"length": 8, "indices": {"tag": [[1, 2]]}, "labels": {"tag": [[1]]}}, "the labels of tag do not match"),
        ([4], {"length": 8, "indices": {"tag": [[1, 2]]}, "shape": (1, 1, 1)}, "tag reads 2 tokens, more than the 1"),
        ([4, 4], {"length": 8, "labels": {"regress": [0.5]}}, "1 regress for 2 rows"),
        ([4, 9, 3], {"length": 8}, "row 1 has 9 tokens, more than length=8"),
        ([], {"length": 8}, "at least one row"),
        ([4, 4], {"length": 8, "shape": (1, 2)}, "2 batch rows and 2 texts are more than"),
        ([4, 4], {"length": 8, "labels": {"next_sentence": [1]}}, "1 next_sentence for 2 rows"),
        ([4, 4], {"length": 8, "sample_ids": [1, 2, 3]}, "3 sample_ids for 2 rows"),
    ],
)
def test_invalid_arguments(lengths: list[int], how: dict[str, object], message: str) -> None:
    with pytest.raises(BertsmithError, match=message):
        collate(random_rows(lengths), **how)  # type: ignore[arg-type]


def test_characters_are_those_of_each_token() -> None:
    rules = Rules()
    tokenizer = spelling(Words([*rules.reserved(), "iron"], word_rules=rules))
    texts = ["Iron 쇠", "a " + "b" * 200]
    rows = [tokenizer.frame(one, max_length=9) for one in tokenizer.encode_batch(texts)]
    batch = collate(rows, length=5)
    assert batch.characters is not None
    assert batch.characters.shape == (2, 5, 202)
    begin, end = ([258, mark, 259] for mark in (256, 257))
    words = [[begin, spelled("iron"), spelled("쇠"), end, []], [begin, spelled("a"), spelled("b" * 200), end, []]]
    for row, expected in zip(batch.characters.tolist(), words, strict=True):
        assert row == [[*word, *[260] * (202 - len(word))] for word in expected]
    assert batch.map(lambda tensor: tensor + 1).characters is not None
    (row,) = random_rows([5])
    assert collate([replace(row, characters=None)], length=5).characters is None


def spelled(word: str) -> list[int]:
    return [258, *word.encode(), 259]
