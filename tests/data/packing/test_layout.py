"""`RowLayout.make_batch` returns the batch that framing and collating one text at a time returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from data.packing.packing_fixtures import BARE, DOUBLE, FRAME, PADDING

from bertsmith.data.collate import collate, from_packed
from bertsmith.data.packing.packing import FrameArrays, RowLayout, Texts
from bertsmith.tokenizers.special_tokens import end_token
from bertsmith.tokenizers.special_tokens import frame_texts as framed
from bertsmith.types import IGNORE_INDEX, Encoded, Frame

SIZES = [(5, 3), (9, 0), (1, 1), (20, 6), (4, 0), (2, 2), (7, 9), (1, 0)]


def encoded(tokens: list[int]) -> Encoded:
    size = len(tokens)
    return Encoded(np.array(tokens, np.int32), np.zeros((size, 2), np.int32), np.zeros(size, np.int32))


@pytest.mark.parametrize("frame", [FRAME, DOUBLE, BARE], ids=["bert", "roberta", "bare"])
def test_the_same_batch_as_framing_and_collating(frame: Frame) -> None:
    chance = np.random.default_rng(0)
    halves = [[chance.integers(10, 99, size).tolist() for size in sizes] for sizes in SIZES]
    rows = [framed(frame, encoded(a), encoded(b) if b else None, max_length=40) for a, b in halves]
    labels = [number % 2 for number in range(len(rows))]
    expected = collate(
        rows, length=40, padding_id=PADDING, pack=True, sample_ids=range(100, 108), labels={"next_sentence": labels}
    )
    line = np.repeat(np.arange(len(expected.input_ids)), expected.document_ids.amax(1))
    order = torch.argsort(
        expected.cls_positions
    ).numpy()  # collate numbers texts as rows came, here they go line by line
    tokens = np.array([token for number in order for half in halves[number] for token in half])
    texts = Texts(line, order + 100, np.array(SIZES)[order], tokens)
    most = int(expected.document_ids.max())
    layout = RowLayout(FrameArrays(frame), 40, PADDING, texts_per_row=most)
    result = layout.make_batch(texts, {"next_sentence": np.array(labels)[order]})
    actual = from_packed(result)
    for name in ("input_ids", "position_ids", "segment_ids", "document_ids", "special_mask", "sample_ids"):
        assert torch.equal(getattr(actual, name), getattr(expected, name)), name
        assert getattr(actual, name).dtype == getattr(expected, name).dtype, name
    real = actual.cls_positions >= 0
    assert actual.cls_positions[real].tolist() == sorted(expected.cls_positions.tolist())
    assert actual.cls_positions.shape == (len(expected.input_ids) * most,)
    assert actual.labels["next_sentence"][real].tolist() == expected.labels["next_sentence"][order].tolist()
    assert (actual.labels["next_sentence"][~real] == IGNORE_INDEX).all()
    assert actual.cu_seqlens.unique().tolist() == expected.cu_seqlens.unique().tolist()
    assert actual.cu_seqlens.shape == (len(expected.input_ids) * (most + 1) + 1,)
    assert result.tokens == int((expected.document_ids > 0).sum())
    assert (actual.max_seqlen, actual.dense, int(actual.epoch)) == (40, False, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_on_request() -> None:
    one = np.zeros(1, np.int64)
    packed = RowLayout(FrameArrays(FRAME), 8, PADDING).make_batch(Texts(one, one, np.array([[3, 0]]), np.arange(3)))
    assert from_packed(packed, pin=True).input_ids.is_pinned()
    assert not from_packed(packed).input_ids.is_pinned()


def test_the_end_token() -> None:
    assert (end_token(FRAME), end_token(BARE), end_token(Frame((7, "a", 8), (7, "a", 8, "b", 9)))) == (2, None, 8)
