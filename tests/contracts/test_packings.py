"""The contract of all packings. A new file in data/packing/ is tested here and needs its golden hashes."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.packing.packing_fixtures import (
    FIRST,
    FRAME,
    PADDING,
    fingerprint,
    fixed_documents,
    make_shards,
    same,
    some_documents,
    texts_of,
)

from bertsmith import config
from bertsmith.data.collate import cu_seqlens_of, from_packed
from bertsmith.data.packing.packing import FOLDER, PackedBatch, Packing
from bertsmith.data.shards import Shards
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.objectives.masked_lm import Config as MaskedLM
from bertsmith.objectives.objective import BuildContext
from bertsmith.types import IGNORE_INDEX, Vocabulary

# parallel reads pairs of texts, not documents: test_parallel.py
KINDS = [kind for kind in config.kinds(FOLDER) if kind != "parallel"]
LENGTH = 48
DOCUMENTS = [*some_documents(11, documents=120), [1], [300], [1, 200, 1], [2] * 300]
# Training data must never change: with another hash, existing runs could not be resumed.
GOLDEN = {
    "columns": "ca885a4f71a6b634",
    "full_sentences": "41cff6bb326a1f94",
    "full_sentences across_documents": "289d8905857e3248",
    "full_sentences attend_across_documents": "4edb1b1ba520b899",
    "full_sentences whole_sentences": "e7d04a7a2c1ef489",
    "full_sentences across_documents attend_across_documents whole_sentences": "dabd63c62716240e",
    "ordered_pairs": "f23fad450265b956",
    "ordered_pairs swapped": "ba4e11bd8af3a60e",
    "ordered_pairs short_sequences": "3d9d923ac51f0bcd",
    "pairs": "0e1f43430c2e336d",
    "pairs single_sentences": "d1b0d7aad7e60ddc",
    "pairs random_next": "e48ae704c5bf9134",
    "pairs short_sequences": "f1c230e31517f437",
    "stream": "4e9778127d2a9b76",
}


def other_settings(kind: str) -> list[dict[str, Any]]:
    """The defaults; then every boolean inverted and every share set to 0, one at a time; then all booleans."""
    fields = dataclasses.fields(config.find_kind(FOLDER, kind).Config)
    switches = [{item.name: not item.default} for item in fields if isinstance(item.default, bool)]
    shares = [{item.name: 0.0} for item in fields if isinstance(item.default, float)]
    every = {name: value for switch in switches for name, value in switch.items()}
    return [{}, *switches, *shares, *([every] if len(every) > 1 else [])]


CASES = [pytest.param(kind, change, id=f"{kind} {change}") for kind in KINDS for change in other_settings(kind)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return make_shards(tmp_path_factory.mktemp("packings") / "set", DOCUMENTS, documents_per_part=40)


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Documents of 1 to 40 sentences of 1 to 45 tokens, about half a million in all."""
    documents = some_documents(11, documents=1000, sentences=40, tokens=45)
    return make_shards(tmp_path_factory.mktemp("prose") / "set", documents)


def build(kind: str, change: dict[str, Any], shards: Shards, *, seed: int = 1, max_length: int = LENGTH) -> Packing:
    settings = config.find_kind(FOLDER, kind).Config(**change)
    return settings.build(shards, frame=FRAME, padding_id=PADDING, seed=seed, max_length=max_length)


def without_random_next(kind: str) -> dict[str, Any]:
    """Settings that keep the next text in place, for packings that would replace it by a random one."""
    names = {item.name for item in dataclasses.fields(config.find_kind(FOLDER, kind).Config)}
    return {"random_next": 0.0} if "random_next" in names else {}


def joined(batches: list[PackedBatch]) -> PackedBatch:
    """Concatenated batches."""
    indices = np.cumsum([0, *(batch.input_ids.size for batch in batches)]).tolist()
    fields = {name: np.concatenate([batch.arrays[name] for batch in batches]) for name in batches[0].arrays}
    fields["cls_positions"] = np.concatenate(
        [
            np.where(batch.cls_positions < 0, -1, batch.cls_positions + position)
            for batch, position in zip(batches, indices[:-1], strict=True)
        ]
    )
    begins = [
        batch.cu_seqlens[batch.cu_seqlens < batch.input_ids.size] + position
        for batch, position in zip(batches, indices, strict=False)
    ]
    fields["cu_seqlens"] = np.full(sum(len(batch.cu_seqlens) - 1 for batch in batches) + 1, indices[-1], np.int32)
    fields["cu_seqlens"][: sum(map(len, begins))] = np.concatenate(begins)
    labels = {name: np.concatenate([batch.labels[name] for batch in batches]) for name in batches[0].labels}
    tokens = sum(batch.tokens for batch in batches)
    return dataclasses.replace(batches[0], **fields, labels=labels, tokens=tokens)


@pytest.mark.parametrize(("kind", "change"), CASES)
class TestEveryPacking:
    def test_any_step_equals_the_one_reached_in_order(self, kind: str, change: dict[str, Any], shards: Shards) -> None:
        packing = build(kind, change, shards)
        rows = packing.rows_per_epoch // 3 + 1  # so that steps cross epoch boundaries
        whole = packing.rows(0, 7 * rows)
        assert same(joined([packing.batch(step, batch_size=rows) for step in range(7)]), whole)
        assert same(packing.batch(5, batch_size=rows), build(kind, change, shards).batch(5, batch_size=rows))
        epoch = packing.rows_per_epoch
        assert same(joined([packing.rows(0, epoch), packing.rows(epoch, epoch)]), packing.rows(0, 2 * epoch))

    @pytest.mark.parametrize("world", [2, 4])
    def test_the_rows_of_all_ranks_are_the_batch(
        self, kind: str, change: dict[str, Any], shards: Shards, world: int
    ) -> None:
        packing = build(kind, change, shards)
        for step in (0, 3, packing.rows_per_epoch // 16, 10**6):
            alone = packing.batch(step, batch_size=16)
            ranks = [packing.batch(step, batch_size=16, rank=rank, world_size=world) for rank in range(world)]
            assert {len(batch.input_ids) for batch in ranks} == {16 // world}
            assert same(joined(ranks), alone)

    def test_shapes_are_constant(self, kind: str, change: dict[str, Any], shards: Shards) -> None:
        packing = build(kind, change, shards)
        shapes = set()
        for step in range(60):
            batch = packing.batch(step, batch_size=24)
            arrays = {**batch.arrays, **batch.labels}
            shapes.add(
                (
                    *((name, values.shape, values.dtype) for name, values in arrays.items()),
                    batch.dense,
                    batch.max_seqlen,
                )
            )
        assert len(shapes) == 1
        assert batch.input_ids.shape == (24, LENGTH)
        assert len(batch.cls_positions) == 24 * packing.texts_per_row
        assert (batch.dense, batch.max_seqlen) == (packing.dense, LENGTH)

    def test_rows_are_well_formed(self, kind: str, change: dict[str, Any], shards: Shards) -> None:
        packing = build(kind, change, shards)
        batch = packing.rows(packing.rows_per_epoch - 20, 40)
        texts = texts_of(batch)
        assert {text.row for text in texts} == set(range(40))
        assert {text.turn for text in texts} <= set(range(1, packing.texts_per_row + 1))
        for text in texts:
            start = text.positions[0] if kind == "columns" else 0  # the rows of a column continue each other
            assert text.positions == list(range(start, start + len(text.ids)))
            assert text.special == [token < FIRST for token in text.ids]
            assert 0 not in text.documents
        apart = [{(text.row, number) for number in text.documents} for text in texts]
        assert sum(map(len, apart)) == len(set().union(*apart)), "no text attends to another"
        padding = batch.document_ids == 0
        assert (batch.input_ids[padding] == PADDING).all()
        assert batch.special_mask[padding].all()
        assert not batch.position_ids[padding].any()
        assert not batch.segment_ids[padding].any()
        assert (batch.sample_ids[padding] == -1).all()
        assert not padding[:, :-1][~padding[:, 1:]].any(), "padding is at the end of a row"
        assert batch.tokens == int((~padding).sum()) == sum(len(text.ids) for text in texts)
        assert (
            batch.cu_seqlens.tolist() == cu_seqlens_of(batch.document_ids, sequences=len(batch.cu_seqlens) - 1).tolist()
        )
        firsts = batch.cls_positions.reshape(40, packing.texts_per_row)
        result = [firsts[text.row, text.turn - 1] - LENGTH * text.row for text in texts]
        begins = [np.flatnonzero(batch.sample_ids[text.row] == text.sample)[0] for text in texts]
        assert result == begins
        assert (firsts >= 0).sum() == len(texts)
        for labels in batch.labels.values():
            assert (labels[batch.cls_positions < 0] == IGNORE_INDEX).all()

    def test_every_token_exactly_once(self, kind: str, change: dict[str, Any], shards: Shards) -> None:
        packing = build(kind, {**change, **without_random_next(kind)}, shards)
        batch = packing.rows(0, packing.rows_per_epoch)
        tokens = np.sort(batch.input_ids[~batch.special_mask]) - FIRST
        if packing.padding_fraction == 0:  # tokens that do not fill a row wait for the next epoch
            assert np.array_equal(tokens, np.arange(len(tokens)) if kind != "columns" else np.unique(tokens))
            assert shards.tokens - LENGTH < len(tokens) <= shards.tokens
        else:
            assert np.array_equal(tokens, np.arange(shards.tokens))
        assert abs(packing.padding_fraction - (1 - batch.tokens / batch.input_ids.size)) < 1e-12

    def test_sample_ids_are_unique(self, kind: str, change: dict[str, Any], shards: Shards) -> None:
        packing = build(kind, change, shards)
        batch = packing.rows(0, 3 * packing.rows_per_epoch)
        numbers = [text.sample for text in texts_of(batch)]
        assert sorted(numbers) == list(range(len(numbers)))

    def test_epochs_and_seeds_differ(self, kind: str, change: dict[str, Any], shards: Shards) -> None:
        packing, other = build(kind, change, shards), build(kind, change, shards, seed=2)
        first = packing.rows(0, packing.rows_per_epoch)
        assert (first.input_ids == packing.rows(packing.rows_per_epoch, packing.rows_per_epoch).input_ids).mean() < 0.3
        rows = min(packing.rows_per_epoch, other.rows_per_epoch)
        assert (first.input_ids[:rows] == other.rows(0, rows).input_ids).mean() < 0.3

    def test_a_late_step_is_as_fast_as_an_early_one(self, kind: str, change: dict[str, Any], shards: Shards) -> None:
        packing = build(kind, change, shards)
        begin = time.perf_counter()
        batch = packing.batch(10**6, batch_size=256)
        assert time.perf_counter() - begin < 1
        assert batch.sample_ids.max() > 256 * 10**6 // 2

    def test_masks_differ_between_epochs(self, kind: str, change: dict[str, Any], shards: Shards) -> None:
        packing = build(kind, {**change, **without_random_next(kind)}, shards)
        vocabulary = Vocabulary(size=shards.vocab_size, mask_id=3, special_ids=tuple(range(FIRST)))
        objective = MaskedLM().build(BuildContext(width=8, vocab_size=shards.vocab_size, vocabulary=vocabulary))
        corrupted = []
        for epoch in range(2):
            batch = from_packed(packing.rows(epoch * packing.rows_per_epoch, packing.rows_per_epoch))
            labelled = objective.corrupt(batch)
            labels = labelled.labels["masked_lm"]
            corrupted.append(set(labels[labels != IGNORE_INDEX].tolist()))
            assert torch.equal(labelled.input_ids[batch.special_mask], batch.input_ids[batch.special_mask])
        share = len(corrupted[0] & corrupted[1]) / len(corrupted[0])
        assert 0.1 < share < 0.2, "15 % of the tokens chosen once are chosen again"


@pytest.mark.parametrize(("kind", "change"), CASES)
def test_golden_hashes(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    packing = build(kind, change, make_shards(tmp_path / "set", fixed_documents(), documents_per_part=30), seed=1234)
    batches = [packing.batch(step, batch_size=16) for step in (0, 1, 5, 1000)]
    assert fingerprint(batches) == GOLDEN[" ".join([kind, *change])]


@pytest.mark.parametrize("length", [128, 512])
@pytest.mark.parametrize("kind", KINDS)
def test_little_padding(kind: str, length: int, prose: Shards) -> None:
    packing = build(kind, {}, prose, max_length=length)
    batch = packing.rows(0, packing.rows_per_epoch)
    most = (
        0.1 if (kind, length) == ("ordered_pairs", 128) else 0.02
    )  # it does not cut sentences: a cut would reveal the order
    assert 1 - batch.tokens / batch.input_ids.size < most
    assert packing.padding_fraction < most


def test_whole_sentences_cost_more_padding(prose: Shards) -> None:
    packing = build("full_sentences", {"whole_sentences": True}, prose, max_length=128)
    batch = packing.rows(0, packing.rows_per_epoch)
    assert 1 - batch.tokens / batch.input_ids.size > 0.05


@pytest.mark.parametrize("kind", KINDS)
class TestRefused:
    def test_an_empty_split(self, kind: str, shards: Shards) -> None:
        with pytest.raises(DataError, match=r"^the held-out split of .*set is empty: prepare it with more text$"):
            build(kind, {}, Shards.open(shards.folder, "held-out"))

    def test_an_unsupported_length(self, kind: str, shards: Shards) -> None:
        for length in (-1, 0, 1, 65_536):
            with pytest.raises(ConfigError, match=rf"^max_length={length} must be from 2 to 65,535$"):
                build(kind, {}, shards, max_length=length)

    def test_a_length_too_short_for_text(self, kind: str, shards: Shards) -> None:
        if kind in ("stream", "columns"):
            assert build(kind, {}, shards, max_length=2).rows_per_epoch > 1
            return
        with pytest.raises(
            ConfigError, match=r"^max_length=2 is too short for . special tokens and . of text: make it at least"
        ):
            build(kind, {}, shards, max_length=2)

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ({"batch_size": 10, "world_size": 4}, "^batch_size=10 is not a multiple of the 4 ranks$"),
            ({"batch_size": 0}, "^batch_size=0 is not a multiple of the 1 ranks$"),
            ({"batch_size": 8, "world_size": 2, "rank": 2}, "^step=0 of rank=2 with world_size=2: both count from 0$"),
            ({"batch_size": 8, "step": -1}, "^step=-1 of rank=0 with world_size=1: both count from 0$"),
        ],
    )
    def test_invalid_ranks_and_steps(self, kind: str, shards: Shards, how: dict[str, int], message: str) -> None:
        with pytest.raises(BertsmithError, match=message):
            build(kind, {}, shards).batch(**{"step": 0, **how})


def test_known_kinds() -> None:
    assert {"pairs", "ordered_pairs", "full_sentences", "stream", "columns"} <= set(KINDS)


def test_config_round_trip(shards: Shards) -> None:
    settings = config.find_kind(FOLDER, "pairs").Config(short_sequences=0.2)
    assert config.to_dict(settings) == {
        "kind": "pairs",
        "random_next": 0.5,
        "short_sequences": 0.2,
        "single_sentences": False,
    }
    assert config.from_dict(type(settings), config.to_dict(settings)) == settings


def test_a_tiny_corpus(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "set", [[3], [2, 2], [1]])
    packing = build("pairs", {"short_sequences": 0.0}, shards, max_length=512)
    assert packing.rows_per_epoch == 1
    assert packing.padding_fraction == 1 - (5 + 7 + 3) / 512
