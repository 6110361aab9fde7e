"""Packing of pairs: sides aligned, every pair once per epoch, a pure function of its arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data.packing.packing_fixtures import FIRST, FRAME, PADDING, SEPARATOR, START, fingerprint, make_shards, texts_of

from bertsmith.data.collate import from_packed
from bertsmith.data.packing.packing import PackedBatch
from bertsmith.data.packing.parallel import Config, ParallelPacking
from bertsmith.data.shards import Shards
from bertsmith.errors import ConfigError, DataError, SkippedWarning
from bertsmith.tokenizers.special_tokens import source_frame, target_frame
from bertsmith.types import Frame

LENGTH = 32
DRAW = np.random.default_rng(3)
PAIRS = [
    [int(one), int(other)] for one, other in zip(DRAW.integers(1, 25, 300), DRAW.integers(1, 25, 300), strict=True)
]
BEGINS = np.cumsum([0, *np.ravel(PAIRS)])  # of the sentences, in tokens of the split


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return make_shards(tmp_path_factory.mktemp("pairs") / "s", PAIRS, documents_per_part=90, settings={"parallel": {}})


def build(shards: Shards, *, seed: int = 1, max_length: int = LENGTH) -> ParallelPacking:
    packing = Config().build(shards, frame=FRAME, padding_id=PADDING, seed=seed, max_length=max_length)
    assert isinstance(packing, ParallelPacking)
    return packing


def sides(batch: PackedBatch) -> tuple[PackedBatch, PackedBatch]:
    assert batch.target is not None
    return batch, batch.target


def both(batch: PackedBatch) -> list[str]:
    return [fingerprint([side]) for side in sides(batch)]


def test_a_row_has_the_same_pairs_on_both_sides_in_the_same_order(shards: Shards) -> None:
    packing = build(shards)
    source, target = sides(packing.rows(0, packing.rows_per_epoch))
    assert source.input_ids.shape == target.input_ids.shape == (packing.rows_per_epoch, LENGTH)
    seen = []
    for one, other in zip(texts_of(source), texts_of(target), strict=True):
        assert (one.row, one.turn, one.sample, one.documents[0]) == (
            other.row,
            other.turn,
            other.sample,
            other.documents[0],
        )
        assert one.positions == list(range(len(one.ids)))
        assert one.ids[-1] == SEPARATOR
        assert other.ids[0] == START
        pair = int(np.searchsorted(BEGINS, one.tokens[0])) // 2
        assert one.tokens == list(range(BEGINS[2 * pair], BEGINS[2 * pair + 1]))
        assert other.tokens == list(range(BEGINS[2 * pair + 1], BEGINS[2 * pair + 2]))
        seen.append(pair)
    assert sorted(seen) == list(range(len(PAIRS)))


def test_epochs_seeds_and_sample_ids(shards: Shards) -> None:
    packing = build(shards)
    rows = packing.rows_per_epoch
    samples = [text.sample for text in texts_of(packing.rows(0, 2 * rows))]
    assert sorted(samples) == list(range(2 * len(PAIRS)))
    first = packing.rows(0, rows).input_ids
    assert (first == packing.rows(rows, rows).input_ids).mean() < 0.4
    assert (first == build(shards, seed=2).rows(0, rows).input_ids).mean() < 0.4


def test_any_step_and_any_rank_is_made_alone(shards: Shards) -> None:
    packing = build(shards)
    for step in (0, 5, 10**6):
        whole = packing.batch(step, batch_size=8)
        assert both(build(shards).batch(step, batch_size=8)) == both(whole)
        parts = [packing.batch(step, batch_size=8, rank=rank, world_size=2) for rank in range(2)]
        for side in (0, 1):
            ids = np.concatenate([sides(part)[side].input_ids for part in parts])
            assert np.array_equal(ids, sides(whole)[side].input_ids)
    shapes = {
        tuple(
            (name, array.shape)
            for side in sides(packing.batch(step, batch_size=8))
            for name, array in side.arrays.items()
        )
        for step in range(20)
    }
    assert len(shapes) == 1


def test_training_data_never_changes(tmp_path: Path) -> None:
    pairs = [[(7 * number) % 23 + 1, (5 * number) % 19 + 1] for number in range(100)]
    packing = build(make_shards(tmp_path / "s", pairs, settings={"parallel": {}}), seed=1234)
    found = [both(packing.batch(step, batch_size=16)) for step in (0, 1, 1000)]
    assert found == GOLDEN


GOLDEN = [
    ["73d0490eb3fb99a6", "f031c406945fe7f7"],
    ["6552cef3d7c063bc", "90492ce9c509dd20"],
    ["b1fb2aa74b28e1ab", "8f57778a7e4016ef"],
]


def test_padding_is_that_of_both_sides(shards: Shards) -> None:
    packing = build(shards)
    batch = packing.rows(0, packing.rows_per_epoch)
    assert batch.all_tokens == sum(map(sum, PAIRS)) + 2 * len(PAIRS)
    assert batch.size == 2 * packing.rows_per_epoch * LENGTH
    assert packing.padding_fraction == pytest.approx(1 - batch.all_tokens / batch.size)
    tensors = from_packed(batch)
    assert tensors.target is not None
    assert int(tensors.count_tokens()) == batch.all_tokens
    assert np.array_equal(tensors.target.input_ids.numpy(), sides(batch)[1].input_ids)


def test_pairs_too_long_for_a_row_are_left_out_with_a_warning(shards: Shards) -> None:
    long = sum(max(pair) + 1 > 20 for pair in PAIRS)
    message = (
        rf"^{long} of 300 pairs of the train split of .* are longer than max_length=20 and are not used: the longest"
    )
    with pytest.warns(SkippedWarning, match=message):
        packing = build(shards, max_length=20)
    assert len(texts_of(packing.rows(0, packing.rows_per_epoch))) == 300 - long


def test_refused_shards_and_tokenizers(shards: Shards, tmp_path: Path) -> None:
    documents = make_shards(tmp_path / "documents", [[3, 4]])
    with pytest.raises(DataError, match=r"has documents, not pairs of texts: prepare it with --parallel$"):
        build(documents)
    with pytest.raises(DataError, match=r"^the held-out split of .* is empty"):
        build(Shards.open(shards.folder, "held-out"))
    with pytest.raises(ConfigError, match=r"^max_length=2 is too short for 1 special tokens and 2 of text"):
        build(shards, max_length=2)
    long = make_shards(tmp_path / "long", [[30, 40]], settings={"parallel": {}})
    with pytest.raises(DataError, match=r"is too long for max_length=32: write max_length=41$"):
        build(long)
    with pytest.raises(DataError, match=r"^translation needs a tokenizer with an end token: "):
        Config().build(shards, frame=Frame(("a",), ("a", "b")), padding_id=0, seed=0, max_length=32)


def test_frames_of_source_and_target() -> None:
    assert source_frame(FRAME).single == ("a", SEPARATOR)
    assert target_frame(FRAME).single == (START, "a")
    assert target_frame(Frame(("a", 9), ("a", "b", 9))).single == (9, "a"), "without a start token, the end token"
    assert FIRST > SEPARATOR
