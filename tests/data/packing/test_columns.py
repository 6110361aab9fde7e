"""Columns: rows continue each other, every token has the token that is read next, and lengths can be random."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from data.packing.packing_fixtures import BARE, FIRST, FRAME, PADDING, SEPARATOR, START, make_shards, some_documents

from bertsmith.data.packing.columns import Columns, Config
from bertsmith.data.shards import Shards
from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers.special_tokens import frame_texts, stream_frame
from bertsmith.types import Encoded

COLUMNS, LENGTH = 6, 20


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return make_shards(tmp_path_factory.mktemp("columns") / "set", some_documents(11, documents=80))


def build(shards: Shards, *, mean_length: int = 0, columns: int = COLUMNS, backward: bool = False) -> Columns:
    options = {"frame": FRAME, "padding_id": PADDING, "seed": 3, "max_length": LENGTH}
    return Config(mean_length=mean_length).build(shards, **options, columns=columns, backward=backward)


def column_texts(packing: Columns, epoch: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The tokens of each column in the order of reading, and the tokens that are read after each window."""
    steps = [packing.batch(epoch * packing.windows + number, batch_size=COLUMNS) for number in range(packing.windows)]
    return [np.concatenate([step.input_ids[one] for step in steps]) for one in range(COLUMNS)], [
        step.next_ids for step in steps
    ]


@pytest.mark.parametrize("mean_length", [0, 12])
def test_each_row_continues_the_row_of_the_step_before(shards: Shards, mean_length: int) -> None:
    packing = build(shards, mean_length=mean_length)
    stream = packing._stream.read(np.array([0]), np.array([packing._stream.length]))[0]
    endless = np.tile(stream, 3).tolist()
    texts, next_ids = column_texts(packing)
    place = 0
    for text in texts:
        wanted = text.tolist()
        place = next(index for index in range(len(stream)) if endless[index : index + len(wanted)] == wanted)
    assert place >= 0
    positions = [packing.batch(number, batch_size=COLUMNS).position_ids[:, 0] for number in range(packing.windows)]
    lengths = [packing.batch(number, batch_size=COLUMNS).input_ids.shape[1] for number in range(packing.windows)]
    assert np.array_equal(np.stack(positions), np.repeat(np.cumsum([0, *lengths[:-1]])[:, None], COLUMNS, axis=1))
    begins = np.cumsum(lengths)
    for number, following in enumerate(next_ids[:-1]):
        assert following.tolist() == [text[begins[number]] for text in texts]


def test_backward_columns_are_read_from_their_ends(shards: Shards) -> None:
    ahead, back = build(shards), build(shards, backward=True)
    windows = ahead.windows
    for number in range(windows):
        one, other = ahead.batch(number, batch_size=COLUMNS), back.batch(windows - 1 - number, batch_size=COLUMNS)
        assert np.array_equal(one.input_ids, other.input_ids)
        assert (other.position_ids[:, 0] == (windows - 1 - number) * LENGTH).all()
    before = [back.batch(number, batch_size=COLUMNS) for number in range(windows)]
    for one, after in pairwise(before):
        assert one.next_ids is not None
        assert one.next_ids.tolist() == after.input_ids[:, -1].tolist()


def test_backward_columns_of_random_lengths_are_the_forward_ones_reversed(shards: Shards) -> None:
    ahead, back = (build(shards, mean_length=12, backward=backward) for backward in (False, True))
    texts, _ = column_texts(ahead)
    steps = [back.batch(number, batch_size=COLUMNS) for number in range(back.windows)]
    lengths = [step.input_ids.shape[1] for step in steps]
    assert len(set(lengths)) > 3
    for column, text in enumerate(texts):
        read = np.concatenate([step.input_ids[column, ::-1] for step in steps])
        assert read.tolist() == text[::-1].tolist()
        after = [int(step.next_ids[column]) for step in steps[:-1]]
        assert after == [int(step.input_ids[column, -1]) for step in steps[1:]]
        assert [int(step.position_ids[column, 0]) for step in steps] == [0, *np.cumsum(lengths)[:-1]]


@pytest.mark.parametrize("backward", [False, True])
def test_a_framed_pair_of_texts_occurs_in_the_stream(tmp_path: Path, backward: bool) -> None:
    """The end token is before each text in the order of reading, and the start token is nowhere."""
    documents = [[3], [4, 2], [5], [7]]
    packing = build(make_shards(tmp_path / "set", documents), columns=1, backward=backward, mean_length=5)
    stream = packing._stream.read(np.array([0]), np.array([packing._stream.length]))[0]
    ids = np.arange(FIRST, FIRST + 9, dtype=np.int32)
    texts = [Encoded(one, np.zeros((len(one), 2), np.int32), one) for one in np.split(ids, [3])]
    row = frame_texts(stream_frame(FRAME, backward=backward), *texts, max_length=20)
    read, stream = (one[::-1].tolist() if backward else one.tolist() for one in (row.ids, np.tile(stream, 2)))
    assert read[0] == SEPARATOR
    assert len(read) == 9 + 2
    assert any(stream[index : index + len(read)] == read for index in range(len(stream)))
    assert START not in stream
    assert stream_frame(BARE, backward=backward) == BARE  # nothing is between documents without an end token


def test_every_epoch_starts_its_columns_anew_and_elsewhere(shards: Shards) -> None:
    packing = build(shards)
    first, second = (packing.batch(epoch * packing.windows, batch_size=COLUMNS) for epoch in (0, 1))
    assert not first.position_ids[:, 0].any()
    assert not second.position_ids[:, 0].any()
    assert not np.array_equal(first.input_ids, second.input_ids)


def test_random_lengths_are_those_of_the_paper(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "set", some_documents(5, documents=400, sentences=20, tokens=40))
    packing = Config(mean_length=70).build(
        shards, frame=FRAME, padding_id=PADDING, seed=1, max_length=95, columns=1, backward=False
    )
    lengths = np.concatenate([packing._lengths(epoch) for epoch in range(5000 // packing.windows + 1)])
    halves = lengths < 52
    assert 0.035 < halves.mean() < 0.065
    assert abs(lengths[~halves].mean() - 69.5) < 0.5, "truncated to whole tokens"
    assert abs(lengths[halves].mean() - 34.5) < 1.5
    assert 4.7 < lengths[~halves].std() < 5.3
    assert lengths.min() >= 5
    assert lengths.max() <= 95
    factors = [packing.learning_rate_factor(step) for step in range(packing.windows)]
    assert factors == [length / 70 for length in packing._lengths(0).tolist()]
    assert build(shards).learning_rate_factor(3) == 1.0


def test_mistakes_are_named(shards: Shards) -> None:
    with pytest.raises(DataError, match=r"do not fill a step of 100000 rows \(batch_size\), which needs 2,000,000"):
        build(shards, columns=100_000)
    with pytest.raises(ConfigError, match=r"packing\.mean_length=30 must be from 5 to max_length=20, or 0"):
        build(shards, mean_length=30)
