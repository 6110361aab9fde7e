"""A small shard build, its expected bytes, forked processes, and counts of faults."""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from faults.broken_disks import QuickDisk
from numpy.typing import DTypeLike

from bertsmith.data.shards import EncodedDocuments, ShardBuilder, Shards, verify
from bertsmith.system.durable import Disk

UNITS = 10
VOCABULARY = 500
TOKENIZER = {"tokenizer.json": b'{"model": "WordPiece"}' * 3, "vocab.txt": b"[PAD]\n[UNK]\nthe\n"}


@dataclass
class Outcome:
    """How a campaign went. It is valid only if `landed == requested`."""

    name: str
    only: str | None = None  # only this case, for a replay
    options: dict[str, int] = field(default_factory=dict)  # arguments of the campaign
    requested: int = 0
    landed: int = 0
    failures: list[str] = field(default_factory=list)

    def wants(self, case: str) -> bool:
        wanted = self.only in (None, case)
        self.requested += wanted
        return wanted

    def fail(self, case: str, problem: str) -> None:
        options = "".join(f" {name}={value}" for name, value in self.options.items())
        replay = f"PYTHONPATH=src:tests python tests/faults/replay_shards.py {self.name} {case}{options}"
        self.failures.append(f"{self.name} {case}: {problem}\n  replay: {replay}")

    def __str__(self) -> str:
        counts = f"{self.landed} of {self.requested} faults landed, {len(self.failures)} failures"
        return f"{self.name} {self.options}: {counts}"


def encoded_documents(documents: Iterable[Iterable[Sequence[int]]], dtype: DTypeLike) -> EncodedDocuments:
    """From the ids of each sentence of each document."""
    sentences = [[np.asarray(sentence, dtype) for sentence in document] for document in documents]
    flat = [sentence for document in sentences for sentence in document]
    lengths = np.array([len(sentence) for sentence in flat], np.uint16)
    return EncodedDocuments(np.concatenate(flat), lengths, np.array([len(one) for one in sentences], np.uint32))


@cache
def pieces_of(unit: int, sentences: int = 4) -> dict[str, EncodedDocuments]:
    """Deterministic documents of work unit `unit`. Every third has held-out text, one has only held-out text."""
    chance = np.random.default_rng(unit)

    def some(documents: int) -> EncodedDocuments:
        texts = [
            [chance.integers(0, VOCABULARY, chance.integers(2, 12)) for _ in range(sentences)] for _ in range(documents)
        ]
        return encoded_documents(texts, np.uint16)

    pieces = {} if unit == 4 else {"train": some(2)}
    return pieces | ({"held-out": some(1)} if unit % 3 == 1 else {})


def builder(folder: Path, disk: Disk) -> ShardBuilder:
    return ShardBuilder(
        folder,
        tokenizer_files=TOKENIZER,
        fingerprint="3f9a",
        vocab_size=VOCABULARY,
        settings={"files": ["a.txt"], "lowercase": True},
        shard_tokens=140,
        disk=disk,
    )


def build(folder: Path, disk: Disk, *, progress: Callable[[int], None] = lambda units: None) -> None:
    """Starts or resumes a build to its end. `progress` gets the number of acknowledged units, first after opening."""
    with builder(folder, disk) as open_builder:
        progress(open_builder.units_done)
        for unit in range(open_builder.units_done, UNITS):
            open_builder.add(unit, pieces_of(unit), {"documents": 3, "characters": 7 * unit})
            progress(open_builder.units_done)
        open_builder.finish(note="the end")


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """All files and folders below a path, with contents."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def oracle(folder: Path) -> dict[str, bytes | None]:
    """Files of an undisturbed build, created in `folder` if missing."""
    if not folder.exists():
        build(folder, QuickDisk())
    return snapshot(folder)


def differs(folder: Path, expected: dict[str, bytes | None]) -> str:
    """Names of missing, extra or different files compared with the oracle; empty if equal."""
    found = snapshot(folder)
    return ", ".join(
        sorted(name for name in found.keys() | expected.keys() if found.get(name, 0) != expected.get(name, 0))
    )


def read_all(folder: Path) -> dict[str, tuple[bytes, ...]]:
    """Everything that a reader returns for a finished set."""
    found: dict[str, tuple[bytes, ...]] = {}
    for split in ("train", "held-out"):
        shards = Shards.open(folder, split)
        starts = [array.tobytes() for part in shards.parts for array in (part.sentence_starts, part.document_starts)]
        found[split] = (shards.read([0], [shards.tokens]).tobytes(), *starts)
    return found


def index_problem(folder: Path, expected: dict[str, tuple[bytes, ...]]) -> str:
    """If there is an index, the set must be complete: the problem, or nothing."""
    if not (folder / "index.json").exists():
        return ""
    try:
        if read_all(folder) != expected:
            return "a reader was given wrong tokens"
    except Exception as error:
        return f"there is an index, but reading gives {error!r}"
    wrong = [report.name for report in verify(folder) if not report.ok]
    wrong = [
        name for name in wrong if name != "building.json" and not name.endswith(".partial")
    ]  # leftover files are allowed
    return f"there is an index, but verify refuses {wrong}" if wrong else ""


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def in_child(action: Callable[[], None]) -> tuple[int, str]:
    """Runs `action` in a forked process: its exit status, negative for a signal, and its error if it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 0
        try:
            action()
        except BaseException:
            os.write(writing, traceback.format_exc().splitlines()[-1].encode()[:4000])
            status = 1
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        message = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), message
