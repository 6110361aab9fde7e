"""Writing a shard set so that it can be interrupted at any moment and goes on to the very same bytes.

Work units are gathered in memory and written in commits: the held-out file first, then the train file, whose rename
is the commit. What is in a commit depends on the units alone, so an interrupted build and a quiet one end alike.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from bertsmith import config
from bertsmith.data.shards.folder import (
    BUILDING,
    INDEX,
    SPLITS,
    TOKENIZER,
    file_facts,
    is_plain,
    leftovers,
    read_index,
    read_plan,
    remove_leftovers,
    shard_name,
    shards_in,
)
from bertsmith.data.shards.format import (
    FORMAT,
    EncodedDocuments,
    Header,
    ShardEntry,
    check_file,
    damaged,
    encode,
    entry_of,
    token_type,
)
from bertsmith.errors import BertsmithError, DataError
from bertsmith.system.durable import Disk, checksummed_json


class ShardBuilder:
    """Turns work units, given in order from `units_done` on, into a shard set; `with` it, the folder is locked."""

    def __init__(
        self,
        folder: str | Path,
        *,
        tokenizer_files: dict[str, bytes],
        fingerprint: str,
        vocab_size: int,
        settings: dict[str, Any],
        shard_tokens: int = 2**24,
        disk: Disk | None = None,
    ) -> None:
        if strange := [name for name in tokenizer_files if not is_plain(name)]:
            raise ValueError(f"no names for files of a tokenizer: {strange}")
        self.folder = Path(folder)
        self.units_done = 0
        self._disk = disk or Disk()
        self._dtype = token_type(vocab_size)
        self._tokenizer_files = tokenizer_files
        self._plan: dict[str, Any] = {
            "format": FORMAT,
            "fingerprint": fingerprint,
            "vocab_size": vocab_size,
            "shard_tokens": shard_tokens,
            "settings": json.loads(json.dumps(settings, allow_nan=False)),
            "tokenizer": [file_facts(name, data) for name, data in tokenizer_files.items()],
        }
        self._entries: list[ShardEntry] = []
        self._counts: dict[str, int] = {}
        self._documents = 0
        self._waiting: dict[str, list[EncodedDocuments]] = {split: [] for split in SPLITS}
        self._units_seen = 0
        self._active = False
        self._lock = ExitStack()

    def __enter__(self) -> ShardBuilder:
        self._disk.make_folder(self.folder)
        with ExitStack() as stack:
            stack.enter_context(self._disk.lock(self.folder))
            self._begin_or_resume()
            self._lock = stack.pop_all()
        self._active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._active = False
        self._lock.close()

    def _check_open(self) -> None:
        if not self._active:
            raise ValueError("a ShardBuilder takes work units between `with` and finish() only")

    def add(self, unit: int, pieces: dict[str, EncodedDocuments], counts: dict[str, int]) -> None:
        """Takes in one work unit; returns after a commit if one was due. `counts` are added to the totals."""
        self._check_open()
        if unit != self._units_seen:
            raise ValueError(f"work unit {unit} was added, unit {self._units_seen} is next")
        if unknown := pieces.keys() - set(SPLITS):
            raise ValueError(f"unknown splits {sorted(unknown)}, there are {', '.join(SPLITS)}")
        for one in pieces.values():
            one.check(self._plan["vocab_size"])
        self._units_seen += 1
        for split, one in pieces.items():
            self._waiting[split].append(one)
            self._documents += len(one.document_sentences)
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, 0) + count
        # by the fuller split and not by train alone, so that memory stays bounded however the text is split
        if max(sum(len(one.tokens) for one in every) for every in self._waiting.values()) >= self._plan["shard_tokens"]:
            self._commit()

    def finish(self, **facts: Any) -> dict[str, Any]:
        """Commits what is left, writes the index, and returns it. `facts` go into the index as they are."""
        self._check_open()
        if self._units_seen > self.units_done:
            self._commit()
        totals = {
            split: {
                name: sum(getattr(entry, name) for entry in self._entries if entry.split == split)
                for name in ("tokens", "sentences", "documents")
            }
            for split in SPLITS
        }
        index = {
            **self._plan,
            "dtype": self._dtype.name,
            "units": self.units_done,
            "counts": self._counts,
            "facts": facts,
            "splits": totals,
            "files": [asdict(entry) for entry in self._entries],
        }
        data = checksummed_json(index)
        self._disk.write_file(self.folder / INDEX, [data])
        self._disk.remove(self.folder / BUILDING)
        self._active = False
        return dict(json.loads(data))

    def _commit(self) -> None:
        """Held-out first; once the train file has its name, both count."""
        held_out = self._write("held-out", companion=None) if self._waits("held-out") else None
        train = self._write("train", companion=_companion(held_out) if held_out else None)
        self._entries += [train, held_out] if held_out else [train]
        self._waiting = {split: [] for split in SPLITS}
        self.units_done = self._units_seen

    def _waits(self, split: str) -> bool:
        return any(len(one.document_sentences) for one in self._waiting[split])

    def _write(self, split: str, *, companion: dict[str, Any] | None) -> ShardEntry:
        pieces = EncodedDocuments.joined(self._waiting[split], self._dtype)
        header = Header(
            split=split,
            part=self._part,
            fingerprint=self._plan["fingerprint"],
            dtype=self._dtype.name,
            tokens=len(pieces.tokens),
            sentences=len(pieces.sentence_lengths),
            documents=len(pieces.document_sentences),
            first_unit=self.units_done,
            last_unit=self._units_seen - 1,
            documents_consumed=self._documents,
            counts=self._counts,
            companion=companion,
        )
        name = shard_name(split, self._part)
        crc32, chunks = encode(header, pieces)
        written = self._disk.write_file(self.folder / name, chunks)
        return entry_of(header, name, written, crc32)

    @property
    def _part(self) -> int:
        return sum(entry.split == "train" for entry in self._entries)

    def _begin_or_resume(self) -> None:
        """Sees what is in the folder, removes what was not committed, and goes on from the last commit."""
        folder, disk = self.folder, self._disk
        resuming = (folder / BUILDING).exists()
        if not resuming and (folder / INDEX).exists():
            tokens = sum(split["tokens"] for split in read_index(folder)["splits"].values())
            raise BertsmithError(
                f"{folder} already holds a finished shard set ({tokens:,} tokens): "
                "choose another -o, or pass --overwrite"
            )
        if resuming:
            self._compare_plans(read_plan(folder / BUILDING))
        remove_leftovers(leftovers(folder, self._plan if resuming else None), disk)
        # names that a killed build gave may not be on the disk yet, and what follows relies on them
        disk.sync_folder(folder)
        if not resuming:
            disk.write_file(folder / BUILDING, [checksummed_json(self._plan)])
        self._copy_tokenizer()
        self._take_up_commits()

    def _compare_plans(self, before: dict[str, Any]) -> None:
        if changes := list(config.differences(before, self._plan | {"seal": before["seal"]})):
            more = f" (and {len(changes) - 3} more)" if len(changes) > 3 else ""
            raise BertsmithError(
                f"{self.folder} holds an unfinished shard set made otherwise: {'; '.join(changes[:3])}{more}: "
                "choose another -o, or pass --overwrite"
            )
        self._plan = {key: before[key] for key in before if key != "seal"}

    def _copy_tokenizer(self) -> None:
        there = self.folder / TOKENIZER
        self._disk.make_folder(there)
        for name, data in self._tokenizer_files.items():
            if not (there / name).is_file() or (there / name).read_bytes() != data:
                self._disk.write_file(there / name, [data])
        self._disk.sync_folder(there)

    def _take_up_commits(self) -> None:
        found = shards_in(self.folder)
        for part in sorted(set(found["held-out"]) - set(found["train"])):
            self._disk.remove(self.folder / shard_name("held-out", part))
        for part, number in enumerate(found["train"]):
            if part != number:
                raise DataError(f"{self.folder / shard_name('train', part)} is missing: pass --overwrite to start anew")
            header, entry = check_file(self.folder / shard_name("train", part))
            expected = (part, self._plan["fingerprint"], self._dtype.name, self.units_done)
            if (header.part, header.fingerprint, header.dtype, header.first_unit) != expected:
                raise damaged(self.folder / entry.name, "it does not go on where the shard before it ended")
            self._entries.append(entry)
            if header.companion is not None:
                _, held_out = check_file(self.folder / shard_name("held-out", part))
                if header.companion != _companion(held_out):
                    raise damaged(self.folder / held_out.name, f"it is not the one that {entry.name} was written with")
                self._entries.append(held_out)
            self.units_done = self._units_seen = header.last_unit + 1
            self._counts, self._documents = dict(header.counts), header.documents_consumed


def _companion(held_out: ShardEntry) -> dict[str, Any]:
    return {"name": held_out.name, "bytes": held_out.bytes, "sha256": held_out.sha256}
