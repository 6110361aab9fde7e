"""Shard sets: round trips, random access, resumed builds, verification, and errors for invalid folders."""

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults.shard_fixtures import encoded_documents
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.data.shards import EncodedDocuments, ShardBuilder, Shards, reader, remove_shard_set, verify
from bertsmith.data.shards.format import token_type
from bertsmith.errors import BertsmithError, DataError

NOTHING = EncodedDocuments.concatenate([], np.uint16)
TOKENIZER = {"vocab.txt": b"[PAD]\n[UNK]\n", "tokenizer.json": b"{}"}


def builder(folder: Path, **changes: Any) -> ShardBuilder:
    options: dict[str, Any] = {
        "tokenizer_files": TOKENIZER,
        "fingerprint": "3f9a" * 16,
        "vocab_size": 1000,
        "settings": {"files": [{"name": "a.txt", "bytes": 12}], "lowercase": True},
        "shard_tokens": 100,
    }
    return ShardBuilder(folder, **(options | changes))


def some_pieces(seed: int, *, documents: int = 3, vocab_size: int = 1000) -> EncodedDocuments:
    chance = np.random.default_rng(seed)
    lengths = chance.integers(1, 20, (documents, 2))
    texts = [[chance.integers(0, vocab_size, length) for length in document] for document in lengths]
    return encoded_documents(texts, token_type(vocab_size))


def build(folder: Path, pieces: list[dict[str, EncodedDocuments]], **changes: Any) -> dict[str, Any]:
    with builder(folder, **changes) as open_builder:
        for unit in range(open_builder.units_done, len(pieces)):
            open_builder.add(unit, pieces[unit], {"documents": 3, "duplicates": unit})
        return open_builder.finish(note="done")


@pytest.fixture
def pieces() -> list[dict[str, EncodedDocuments]]:
    return [
        {"train": some_pieces(seed), **({"held-out": some_pieces(-seed % 97, documents=1)} if seed % 3 == 0 else {})}
        for seed in range(9)
    ]


def everything(shards: Shards) -> np.ndarray[Any, Any]:
    return shards.read(np.array([0]), np.array([shards.tokens]))


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_round_trip(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]], split: str) -> None:
    index = build(tmp_path / "set", pieces)
    whole = EncodedDocuments.concatenate([unit[split] for unit in pieces if split in unit], np.uint16)
    shards = Shards.open(tmp_path / "set", split, fingerprint="3f9a" * 16)
    assert len(shards.parts) > 2
    assert np.array_equal(everything(shards), whole.tokens)
    totals = {"tokens": shards.tokens, "sentences": shards.sentences, "documents": shards.documents}
    assert index["splits"][split] == totals
    lengths = np.concatenate([np.diff(part.sentence_starts) for part in shards.parts])
    assert np.array_equal(lengths, whole.sentence_lengths)
    sentences = np.concatenate([np.diff(part.document_starts) for part in shards.parts])
    assert np.array_equal(sentences, whole.document_sentences)
    for before, after in zip(shards.parts, shards.parts[1:], strict=False):
        assert after.token_base == before.token_base + before.tokens
        assert after.sentence_base == before.sentence_base + before.sentences
        assert after.document_base == before.document_base + before.documents


def test_the_index_carries_counts_facts_and_settings(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]]) -> None:
    index = build(tmp_path / "set", pieces)
    assert index["counts"] == {"documents": 27, "duplicates": 36}
    assert index["facts"] == {"note": "done"}
    assert index["settings"]["lowercase"] is True
    assert index == json.loads((tmp_path / "set" / "index.json").read_bytes()) == Shards.open(tmp_path / "set").index
    assert (tmp_path / "set" / "tokenizer" / "vocab.txt").read_bytes() == TOKENIZER["vocab.txt"]
    assert not (tmp_path / "set" / "building.json").exists()


def test_the_digest_depends_only_on_file_contents(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]]) -> None:
    here = build(tmp_path / "here", pieces)
    there = build(tmp_path / "there", pieces, settings={"files": [{"name": "elsewhere/a.txt", "bytes": 12}]})
    assert here["seal"] != there["seal"]  # which knows where the text lay
    digest = Shards.open(tmp_path / "here").digest
    assert Shards.open(tmp_path / "there", "held-out").digest == digest
    held_out = next(unit for unit in pieces if "held-out" in unit)
    changed = [unit | {"held-out": some_pieces(12)} if unit is held_out else unit for unit in pieces]
    build(tmp_path / "more", [*pieces, {"train": some_pieces(11)}])
    build(tmp_path / "none", [{"train": unit["train"]} for unit in pieces])
    build(tmp_path / "read", pieces, fingerprint="0c" * 32)
    build(tmp_path / "other", changed)
    assert len({digest, *(Shards.open(tmp_path / name).digest for name in ("more", "none", "read", "other"))}) == 5


def test_two_bytes_per_token(tmp_path: Path) -> None:
    tokens = np.arange(150_000, dtype=np.uint16) % 1000
    one = EncodedDocuments(tokens, np.full(10_000, 15, np.uint16), np.full(500, 20, np.uint32))
    build(tmp_path / "set", [{"train": one}], shard_tokens=2**24)
    assert (tmp_path / "set" / "train-00000.shard").stat().st_size / len(tokens) <= 2.2


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    one = some_pieces(1, vocab_size=70_000)
    build(tmp_path / "set", [{"train": one}], vocab_size=70_000)
    shards = Shards.open(tmp_path / "set")
    assert everything(shards).dtype == np.uint32
    assert np.array_equal(everything(shards), one.tokens)
    assert token_type(65_536) == np.uint16
    assert token_type(65_537) == np.uint32


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_spans_equal_those_of_one_array(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "spans"
    if not folder.exists():
        build(folder, [{"train": some_pieces(seed), "held-out": some_pieces(50 + seed)} for seed in range(12)])
    shards = Shards.open(folder, data.draw(st.sampled_from(["train", "held-out"])))
    tokens = everything(shards)
    ends = st.integers(0, shards.tokens)
    spans = data.draw(st.lists(st.tuples(ends, ends).map(sorted), max_size=30))
    starts = np.array([start for start, _ in spans], np.int64)
    lengths = np.array([end - start for start, end in spans], np.int64)
    expected = np.concatenate([tokens[:0], *(tokens[start:end] for start, end in spans)])
    assert np.array_equal(shards.read(starts, lengths), expected)


def test_spans_cross_parts_without_tokens(tmp_path: Path) -> None:
    units = [{"train": some_pieces(1)}, {"held-out": some_pieces(2)}, {"train": some_pieces(3)}]
    build(tmp_path / "set", units, shard_tokens=1)
    shards = Shards.open(tmp_path / "set")
    assert [part.tokens > 0 for part in shards.parts] == [True, False, True]
    expected = np.concatenate([units[0]["train"].tokens, units[2]["train"].tokens])
    assert np.array_equal(
        shards.read([0, shards.tokens, 3], [shards.tokens, 0, 70]), np.append(expected, expected[3:73])
    )
    assert len(shards.parts[1].sentence_starts) == 1


def test_spans_outside_are_rejected(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]]) -> None:
    build(tmp_path / "set", pieces)
    shards = Shards.open(tmp_path / "set")
    for start, length in ((-1, 2), (shards.tokens, 1), (3, -1)):
        with pytest.raises(IndexError, match="outside the"):
            shards.read([start], [length])


def test_no_documents_and_the_longest_sentence() -> None:
    one = encoded_documents([[[1, 2], [3]], [[4] * 65_535]], np.uint16)
    assert one.sentence_lengths.tolist() == [2, 1, 65_535]
    assert one.document_sentences.tolist() == [2, 1]
    one.check(5)
    NOTHING.check(5)


def test_an_empty_set(tmp_path: Path) -> None:
    build(tmp_path / "none", [])
    build(tmp_path / "empty", [{"train": NOTHING, "held-out": NOTHING}])
    assert sorted(path.name for path in (tmp_path / "empty").iterdir()) == [
        "index.json",
        "tokenizer",
        "train-00000.shard",
    ]
    for name in ("none", "empty"):
        for split in ("train", "held-out"):
            shards = Shards.open(tmp_path / name, split)
            assert (shards.tokens, shards.documents, len(shards.read([], []))) == (0, 0, 0)
        assert all(report.ok for report in verify(tmp_path / name))


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (EncodedDocuments(np.zeros(3, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.uint32)), "documents are"),
        (
            EncodedDocuments(np.zeros(3, np.uint16), np.array([2], np.uint16), np.array([1], np.uint32)),
            "add up to the 3 tokens",
        ),
        (
            EncodedDocuments(np.zeros(2, np.uint16), np.array([2], np.uint16), np.array([2], np.uint32)),
            "add up to the 1 sentences",
        ),
        (
            EncodedDocuments(np.array([1000], np.uint16), np.array([1], np.uint16), np.array([1], np.uint32)),
            "outside the vocabulary",
        ),
    ],
)
def test_inconsistent_documents_are_rejected(tmp_path: Path, one: EncodedDocuments, message: str) -> None:
    with builder(tmp_path / "set") as open_builder, pytest.raises(ValueError, match=message):
        open_builder.add(0, {"train": one}, {})


def test_units_must_be_added_in_order_and_before_finish(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside `with` and before finish"):
        builder(tmp_path / "set").add(0, {}, {})
    with builder(tmp_path / "set") as open_builder:
        with pytest.raises(ValueError, match="unit 0 is next"):
            open_builder.add(1, {}, {})
        with pytest.raises(ValueError, match="unknown splits"):
            open_builder.add(0, {"test": some_pieces(1)}, {})
        open_builder.finish()
        with pytest.raises(ValueError, match="inside `with` and before finish"):
            open_builder.add(0, {}, {})


def test_a_resumed_build_writes_the_same_bytes(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]]) -> None:
    build(tmp_path / "quiet", pieces)
    for stop in range(len(pieces)):
        with builder(tmp_path / "stopped") as open_builder:
            for unit in range(open_builder.units_done, stop):
                open_builder.add(unit, pieces[unit], {"documents": 3, "duplicates": unit})
        with pytest.raises(DataError, match="unfinished: run the same `bertsmith prepare` again"):
            Shards.open(tmp_path / "stopped")
    build(tmp_path / "stopped", pieces)
    quiet, stopped = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "quiet", tmp_path / "stopped")
    )
    assert quiet == stopped


def test_two_builders_at_once(tmp_path: Path) -> None:
    with (
        builder(tmp_path / "set"),
        pytest.raises(BertsmithError, match=r"another process is using .*set"),
        builder(tmp_path / "set"),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fingerprint": "81c2"}, r'fingerprint was ".*" and is now "81c2"'),
        ({"shard_tokens": 7}, "shard_tokens was 100 and is now 7"),
        ({"vocab_size": 70_000}, "vocab_size was 1000 and is now 70000"),
        (
            {"settings": {"files": [{"name": "a.txt", "bytes": 13}]}},
            r"settings.files\[0\].bytes was 12 and is now 13; ",
        ),
        ({"settings": {"lowercase": False}}, "settings.lowercase was true and is now false"),
        ({"tokenizer_files": {"vocab.txt": b"other"}}, "tokenizer was"),
    ],
)
def test_resuming_with_other_settings_is_rejected(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with builder(tmp_path / "set"):
        pass
    with pytest.raises(BertsmithError, match=rf"{message}.*choose another -o, or pass --overwrite"):
        builder(tmp_path / "set", **changes).__enter__()
    with builder(tmp_path / "set"):
        pass


def test_a_finished_set_is_not_extended(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]]) -> None:
    build(tmp_path / "set", pieces[:2])
    with pytest.raises(BertsmithError, match=r"already holds a finished shard set \(\d+ tokens\): choose another -o"):
        builder(tmp_path / "set").__enter__()
    remove_shard_set(tmp_path / "set")
    assert list((tmp_path / "set").iterdir()) == []
    build(tmp_path / "set", pieces)


@pytest.mark.parametrize("finished", [False, True])
def test_other_files_are_never_removed(
    tmp_path: Path, pieces: list[dict[str, EncodedDocuments]], finished: bool
) -> None:
    if finished:
        build(tmp_path, pieces)
    (tmp_path / "thesis.txt").write_text("years of work")
    before = {path.name for path in tmp_path.iterdir()}
    message = "not belong to a shard set" if finished else "neither empty nor a shard set"
    with pytest.raises(BertsmithError, match=rf"{message} \(thesis.txt\)"):
        remove_shard_set(tmp_path)
    with pytest.raises(BertsmithError, match=r"already holds" if finished else message):
        builder(tmp_path).__enter__()
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["tokenizer/vocab.txt", "train-00000.shard", "notes.partial", "tokenizer"])
def test_folders_with_other_files_are_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    for attempt in (lambda: builder(tmp_path).__enter__(), lambda: remove_shard_set(tmp_path)):
        with pytest.raises(BertsmithError, match="neither empty nor a shard set"):
            attempt()
    assert (tmp_path / name).read_text() == "mine"


def test_removing_nothing_is_fine(tmp_path: Path) -> None:
    remove_shard_set(tmp_path / "absent")
    remove_shard_set(tmp_path)


def test_another_tokenizer_is_rejected(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]]) -> None:
    build(tmp_path / "set", pieces)
    with pytest.raises(
        DataError, match=r"were written with tokenizer 3f9a3f9a3f9a… but this run uses 81c2: pass the tokenizer"
    ):
        Shards.open(tmp_path / "set", fingerprint="81c2")
    with pytest.raises(BertsmithError, match="is not a split"):
        Shards.open(tmp_path / "set", "test")
    with pytest.raises(DataError, match=r"is not a shard set, it has no index.json"):
        Shards.open(tmp_path)


def test_pickles_are_paths_and_detect_a_replaced_set(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]]) -> None:
    build(tmp_path / "set", pieces)
    shards = Shards.open(tmp_path / "set")
    pickled = pickle.dumps(shards)
    assert len(pickled) < 500
    assert np.array_equal(everything(pickle.loads(pickled)), everything(shards))
    remove_shard_set(tmp_path / "set")
    build(tmp_path / "set", pieces[:5])
    with pytest.raises(DataError, match="were replaced"):
        pickle.loads(pickled)


def test_open_files_are_bounded_and_threads_are_safe(
    tmp_path: Path, pieces: list[dict[str, EncodedDocuments]], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "set", pieces, shard_tokens=1)
    monkeypatch.setattr(reader, "OPEN_FILES", 2)
    shards = Shards.open(tmp_path / "set")
    tokens = everything(shards)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    starts = np.random.default_rng(0).integers(0, shards.tokens - 20, (200, 8))
    with ThreadPoolExecutor(4) as threads:
        rows = list(threads.map(lambda batch: shards.read(batch, np.full(8, 20)), starts))
    for batch, row in zip(starts, rows, strict=True):
        assert np.array_equal(row, np.concatenate([tokens[start : start + 20] for start in batch]))
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before + 2


def test_a_set_replaced_during_reading_is_detected(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]]) -> None:
    build(tmp_path / "set", pieces)
    shards = Shards.open(tmp_path / "set")
    remove_shard_set(tmp_path / "set")
    same_sizes = [
        {
            split: EncodedDocuments(one.tokens[::-1].copy(), one.sentence_lengths, one.document_sentences)
            for split, one in unit.items()
        }
        for unit in pieces
    ]
    build(tmp_path / "set", same_sizes)
    with pytest.raises(DataError, match=r"train-00000.shard is damaged: it is not the file in the index"):
        everything(shards)


def test_verify_reports_every_file(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]]) -> None:
    index = build(tmp_path / "set", pieces)
    reports = list(verify(tmp_path / "set"))
    assert reports[0].name == "index.json"
    assert {report.name for report in reports} == {
        path.relative_to(tmp_path / "set").as_posix() for path in (tmp_path / "set").rglob("*") if path.is_file()
    }
    assert all(report.ok and report.bytes for report in reports)
    assert sum(report.tokens for report in reports) == sum(split["tokens"] for split in index["splits"].values())


def test_verify_reports_every_kind_of_damage(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]]) -> None:
    build(tmp_path / "set", pieces)
    folder = tmp_path / "set"
    (folder / "train-00001.shard").unlink()
    os.rename(folder / "train-00002.shard", folder / "train-00007.shard")
    (folder / "tokenizer" / "vocab.txt").unlink()
    (folder / "train-00009.shard.partial").write_bytes(b"")
    wrong = {report.name: report.message for report in verify(folder) if not report.ok}
    assert wrong.keys() == {
        "train-00001.shard",
        "train-00002.shard",
        "train-00007.shard",
        "tokenizer/vocab.txt",
        "train-00009.shard.partial",
    }
    assert "is missing" in wrong["train-00001.shard"]
    with pytest.raises(DataError, match=r"train-00001.shard is missing: prepare these shards again"):
        Shards.open(folder)
    assert [report.ok for report in verify(tmp_path / "absent")] == [False]


def test_verify_of_an_unfinished_set(tmp_path: Path, pieces: list[dict[str, EncodedDocuments]]) -> None:
    with builder(tmp_path / "set") as open_builder:
        for unit in range(6):
            open_builder.add(unit, pieces[unit], {})
    reports = {report.name: report for report in verify(tmp_path / "set")}
    assert "unfinished" in reports.pop("index.json").message
    assert all(report.ok for report in reports.values())
    assert {"building.json", "train-00000.shard", "tokenizer/vocab.txt"} <= reports.keys()
