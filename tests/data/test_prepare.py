"""`prepare` end to end: same bytes for any number of workers, after kills, on Ray; exact tokens; splits."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults.faulty_disks import FailingDisk

from bertsmith.data import prepare as run
from bertsmith.data import work_units
from bertsmith.data.corpus import ReadOptions
from bertsmith.data.sentences import split_sentences
from bertsmith.data.shards import Shards
from bertsmith.errors import BertsmithError, DataError, StorageError
from bertsmith.tokenizers.tokenizer import load
from bertsmith.tokenizers.wordpiece import Config

TEXT = "forge hammer iron anvil bellows fire water steel smith strikes heats cools 대장간 망치 쇠를 두드린다"
WORDS = TEXT.split()


def make_corpus(path: Path, *, documents: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    texts = []
    for _ in range(documents):
        sentences = [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) + "." for _ in range(draw.randint(1, 9))]
        texts.append(" ".join(sentence.capitalize() for sentence in sentences))
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return texts


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    base = tmp_path_factory.mktemp("prepare")
    texts = make_corpus(base / "corpus.txt", documents=3000)
    run.train_tokenizer(
        [base / "corpus.txt"], base / "tokenizer", settings=Config(), vocab_size=160, workers=1, quiet=True
    )
    return {"base": base, "corpus": base / "corpus.txt", "tokenizer": base / "tokenizer", "texts": texts}


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_units, "UNIT_CHARACTERS", 20_000)


def prepare(world: dict[str, Any], output: Path, **options: Any) -> dict[str, Any]:
    settings = {"shard_tokens": 20_000, "workers": 1, "quiet": True, "held_out": 0.05} | options
    return run.prepare([world["corpus"]], output, tokenizer=world["tokenizer"], **settings)


def test_every_token_once_and_in_order(world: dict[str, Any], tmp_path: Path) -> None:
    prepare(world, tmp_path / "shards", held_out=0.0)
    shards, tokenizer = Shards.open(tmp_path / "shards"), load(world["tokenizer"])
    assert len(shards.parts) > 3
    expected = [tokenizer.encode(sentence).ids for text in world["texts"] for sentence in split_sentences(text)]
    assert shards.documents == len(world["texts"])
    assert shards.sentences == len(expected)
    assert np.array_equal(shards.read(0, shards.tokens), np.concatenate(expected))
    lengths = np.concatenate([np.diff(part.sentence_starts.astype(np.int64)) for part in shards.parts])
    assert lengths.tolist() == [len(one) for one in expected]
    per_document = np.concatenate([np.diff(part.document_starts.astype(np.int64)) for part in shards.parts])
    assert per_document.tolist() == [len(split_sentences(text)) for text in world["texts"]]


def test_the_same_bytes_for_any_number_of_workers(world: dict[str, Any], tmp_path: Path) -> None:
    for workers in (1, 2, 3):
        prepare(world, tmp_path / str(workers), workers=workers)
    assert digest(tmp_path / "1") == digest(tmp_path / "2") == digest(tmp_path / "3")


@pytest.mark.slow
def test_ray_writes_the_same_bytes(world: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    prepare(world, tmp_path / "local", limit=300)
    prepare(world, tmp_path / "ray", limit=300, workers=2, engine="ray")
    assert digest(tmp_path / "local") == digest(tmp_path / "ray")


def test_splits_are_disjoint_and_complete(world: dict[str, Any], tmp_path: Path) -> None:
    prepare(world, tmp_path / "shards", held_out=0.2)
    train, held = Shards.open(tmp_path / "shards"), Shards.open(tmp_path / "shards", "held-out")
    assert train.documents + held.documents == len(world["texts"])
    assert 0.15 < held.documents / len(world["texts"]) < 0.25


def test_duplicates_are_dropped_on_request_also_after_a_resume(world: dict[str, Any], tmp_path: Path) -> None:
    twice = tmp_path / "twice.txt"
    twice.write_text((world["corpus"].read_text(encoding="utf-8") + "\n") * 2, encoding="utf-8")
    options = {"tokenizer": world["tokenizer"], "unique": True, "workers": 1, "quiet": True, "shard_tokens": 20_000}
    index = run.prepare([twice], tmp_path / "once", **options)
    distinct = len({" ".join(text.split()) for text in world["texts"]})
    result = Shards.open(tmp_path / "once").documents + Shards.open(tmp_path / "once", "held-out").documents
    assert result == distinct
    assert index["counts"]["duplicates"] == 2 * len(world["texts"]) - distinct
    with pytest.raises(StorageError):
        run.prepare([twice], tmp_path / "resumed", **options, disk=FailingDisk(fail_at=60, how="ENOSPC"))
    assert list((tmp_path / "resumed").glob("train-*.shard")), "the fault came before the first commit"
    run.prepare([twice], tmp_path / "resumed", **options)
    assert digest(tmp_path / "once") == digest(tmp_path / "resumed")


def test_a_build_killed_at_random_times_resumes_to_the_same_bytes(world: dict[str, Any], tmp_path: Path) -> None:
    """kill -9 on the real command with its workers; the seed is fixed so that failures are reproducible."""
    script = (
        "from bertsmith.data import prepare as run, work_units; import sys\n"
        "work_units.UNIT_CHARACTERS = 5_000\n"
        "if __name__ == '__main__':\n"
        "    options = dict(workers=2, quiet=True, shard_tokens=8_000)\n"
        "    run.prepare([sys.argv[1]], sys.argv[3], tokenizer=sys.argv[2], **options)\n"
    )
    program = tmp_path / "program.py"
    program.write_text(script, encoding="utf-8")

    def start(output: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(program), str(world["corpus"]), str(world["tokenizer"]), str(output)]
        return subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)

    began = time.monotonic()
    whole = start(tmp_path / "whole")
    assert whole.wait(timeout=120) == 0
    seconds = time.monotonic() - began
    draw, landed, goal = random.Random(7), 0, 4
    for attempt in range(4 * goal):
        output = tmp_path / f"killed-{attempt}"
        process = start(output)
        pause = draw.uniform(0.3, 1.0) * seconds
        time.sleep(pause)
        if process.poll() is not None:
            seconds = pause  # the first one may have been slow
            continue
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        landed += 1
        assert not (output / "index.json").exists() or digest(output) == digest(tmp_path / "whole")
        repeated = start(output)
        _, message = repeated.communicate(timeout=120)
        done_before = b"already holds a finished shard set" in message
        assert repeated.returncode == 0 or done_before, message.decode()
        assert digest(output) == digest(tmp_path / "whole"), f"attempt {attempt} of seed 7"
        if landed == goal:
            break
    assert landed == goal, f"only {landed} of {goal} kills landed"


@pytest.mark.parametrize("workers", [1, 2])
def test_invalid_folders_and_settings_are_rejected(world: dict[str, Any], tmp_path: Path, workers: int) -> None:
    output = tmp_path / "shards"
    prepare(world, output, limit=50, workers=workers)
    with pytest.raises(BertsmithError, match="already holds a finished shard set"):
        prepare(world, output, limit=51)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.doc").write_text("years of work")
    with pytest.raises(BertsmithError, match=r"thesis\.doc"):
        prepare(world, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.doc").read_text() == "years of work"


def test_a_finished_corpus_is_not_prepared_again(world: dict[str, Any], tmp_path: Path) -> None:
    first = prepare(world, tmp_path / "shards", limit=50)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").rglob("*")}
    assert prepare(world, tmp_path / "shards", limit=50) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").rglob("*")} == times


def test_resuming_with_other_settings_is_rejected(world: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        prepare(world, tmp_path / "shards", disk=FailingDisk(fail_at=60, how="ENOSPC"))
    with pytest.raises(BertsmithError, match="held_out"):
        prepare(world, tmp_path / "shards", held_out=0.3)
    prepare(world, tmp_path / "shards")


def test_an_empty_corpus_writes_nothing(world: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n  \n")
    with pytest.raises(DataError, match="no text"):
        run.prepare([tmp_path / "empty.txt"], tmp_path / "shards", tokenizer=world["tokenizer"], quiet=True)
    assert not (tmp_path / "shards").exists()


def test_a_bad_line_is_named_and_nothing_is_lost(world: dict[str, Any], tmp_path: Path) -> None:
    """The error is late in the corpus; after it is fixed, the build resumes from its commits."""
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in world["texts"]]
    path = tmp_path / "corpus.jsonl"
    good = "\n".join(lines) + "\n"
    bad = good.replace(lines[2500], '{"text": "broken' + " " * (len(lines[2500].encode()) - 16), 1)
    path.write_text(bad, encoding="utf-8")
    options = {
        "tokenizer": world["tokenizer"],
        "workers": 1,
        "quiet": True,
        "shard_tokens": 20_000,
        "read_options": ReadOptions(),
    }
    with pytest.raises(DataError, match=r"corpus\.jsonl:2501"):
        run.prepare([path], tmp_path / "shards", **options)
    before = digest(tmp_path / "shards")
    assert any(name.startswith("train-") for name in before)
    assert len(bad.encode()) == len(good.encode())
    path.write_text(good, encoding="utf-8")
    run.prepare([path], tmp_path / "shards", **options)
    after = digest(tmp_path / "shards")
    assert all(after[name] == value for name, value in before.items() if name.startswith("train-"))
    run.prepare([path], tmp_path / "fresh", **options)
    assert after == digest(tmp_path / "fresh")


def test_another_tokenizer_at_the_same_path_is_detected(tmp_path: Path) -> None:
    """One process prepares the same folder twice, with a retrained tokenizer in between."""
    from bertsmith.data.shards import remove_shard_set

    result = []
    for text in ("iron and fire make steel. ", "물과 바람이 쇠를 식힌다. "):
        (tmp_path / "text.txt").write_text(text * 50, encoding="utf-8")
        if (tmp_path / "tokenizer").exists():
            remove_shard_set(tmp_path / "shards")
            for path in (tmp_path / "tokenizer").iterdir():
                path.unlink()
        options = {"vocab_size": 160, "workers": 1, "quiet": True}
        run.train_tokenizer([tmp_path / "text.txt"], tmp_path / "tokenizer", settings=Config(), **options)
        where = {"tokenizer": tmp_path / "tokenizer", "workers": 1, "quiet": True, "held_out": 0.0}
        run.prepare([tmp_path / "text.txt"], tmp_path / "shards", **where)
        shards = Shards.open(tmp_path / "shards")
        result.append(load(tmp_path / "tokenizer").decode(shards.read(0, shards.tokens)))
    assert "iron and fire" in result[0]
    assert "물과 바람이" in result[1]
