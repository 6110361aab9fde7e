"""Writing shards so that an interrupted build resumes and produces the same bytes.

Work units are collected in memory and written in commits: the held-out file first, then the train file, whose rename is
the commit. The contents of a commit depend only on the units, so that interruptions do not change the result.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bertsmith.data.shards.folder as shard_set
from bertsmith import config
from bertsmith.data.shards.format import (
    EncodedDocuments,
    Header,
    ShardEntry,
    check_file,
    damaged_error,
    token_type,
    write_shard,
)
from bertsmith.data.shards.unknown_words import SPELLING
from bertsmith.errors import DataError
from bertsmith.system.durable import Disk, checksummed_json


class ShardBuilder:
    """Writes work units, added in order from `units_done` on, as a shard set; locks the folder inside `with`."""

    def __init__(
        self,
        folder: str | Path,
        *,
        tokenizer_files: dict[str, bytes],
        fingerprint: str,
        vocab_size: int,
        settings: dict[str, Any],
        shard_tokens: int = 2**24,
        training: dict[str, Any] | None = None,
        disk: Disk | None = None,
    ) -> None:
        if invalid := [name for name in tokenizer_files if not shard_set.is_plain(name)]:
            raise ValueError(f"invalid names of tokenizer files: {invalid}")
        self.folder = Path(folder)
        self.units_done = 0
        self._disk = disk or Disk()
        self._spelling = bool(settings.get(SPELLING))
        self._dtype = token_type(vocab_size, spelling=self._spelling)
        self._tokenizer_files = tokenizer_files
        self._training = training  # of a tokenizer that was trained for this set
        self._plan: dict[str, Any] = {
            "format": shard_set.INDEX_FORMAT,
            "fingerprint": fingerprint,
            "vocab_size": vocab_size,
            "shard_tokens": shard_tokens,
            "settings": json.loads(json.dumps(settings, allow_nan=False)),
            "tokenizer": [shard_set.file_entry(name, data) for name, data in tokenizer_files.items()],
        }
        self._entries: list[ShardEntry] = []
        self._counts: dict[str, int] = {}
        self._documents = 0
        self._pending: dict[str, list[EncodedDocuments]] = {split: [] for split in shard_set.SPLITS}
        self._units_added = 0
        self._active = self._is_new = False
        self._lock = ExitStack()

    def __enter__(self) -> ShardBuilder:
        self._is_new = not self.folder.exists()
        self._disk.make_folder(self.folder)
        with ExitStack() as stack:
            stack.enter_context(self._disk.lock(self.folder))
            self._begin_or_resume()
            self._lock = stack.pop_all()
        self._active = True
        return self

    def __exit__(self, *exception: object) -> None:
        self._active = False
        self._lock.close()

    def _check_open(self) -> None:
        if not self._active:
            raise ValueError("work units can be added only inside `with` and before finish()")

    def add(self, unit: int, splits: dict[str, EncodedDocuments], counts: dict[str, int]) -> None:
        """Adds one work unit, and commits if enough tokens are pending. `counts` are added to the totals."""
        self._check_open()
        if unit != self._units_added:
            raise ValueError(f"work unit {unit} was added, unit {self._units_added} is next")
        if unknown := splits.keys() - set(shard_set.SPLITS):
            raise ValueError(f"unknown splits {sorted(unknown)}, there are {', '.join(shard_set.SPLITS)}")
        for documents in splits.values():
            documents.check(self._plan["vocab_size"], spelling=self._spelling)
        self._units_added += 1
        for split, documents in splits.items():
            self._pending[split].append(documents)
            self._documents += len(documents.document_sentences)
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, 0) + count
        # by the larger split and not only by train, so that memory is bounded for any held-out fraction
        pending = max(sum(len(one.tokens) for one in every) for every in self._pending.values())
        if pending >= self._plan["shard_tokens"]:
            self._commit()

    @property
    def documents(self) -> int:
        """Documents of both splits so far."""
        return self._documents

    @property
    def counts(self) -> dict[str, int]:
        """The totals of the counts so far."""
        return dict(self._counts)

    def discard(self) -> None:
        """Removes everything that was written, and the folder if it is new."""
        self._check_open()
        self._active = False
        shard_set.remove_files(self.folder, self._disk)
        if self._is_new:
            self._disk.remove_folder(self.folder)

    def finish(self, **facts: Any) -> dict[str, Any]:
        """Commits the pending units, writes the index and returns it. The index contains `facts` unchanged."""
        self._check_open()
        if self._units_added > self.units_done:
            self._commit()
        totals = {
            split: {
                name: sum(getattr(entry, name) for entry in self._entries if entry.split == split)
                for name in ("tokens", "sentences", "documents")
            }
            for split in shard_set.SPLITS
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
        self._disk.write_file(self.folder / shard_set.INDEX, [data])
        self._disk.remove(self.folder / shard_set.BUILDING)
        self._active = False
        return dict(json.loads(data))

    def _commit(self) -> None:
        """Writes the held-out file first; the rename of the train file commits both."""
        has_held_out = any(len(one.document_sentences) for one in self._pending["held-out"])
        held_out = self._write("held-out", companion=None) if has_held_out else None
        train = self._write("train", companion=_companion(held_out) if held_out else None)
        self._entries += [train, held_out] if held_out else [train]
        self._pending = {split: [] for split in shard_set.SPLITS}
        self.units_done = self._units_added

    def _write(self, split: str, *, companion: dict[str, Any] | None) -> ShardEntry:
        documents = EncodedDocuments.concatenate(self._pending[split], self._dtype)
        part = sum(entry.split == "train" for entry in self._entries)
        header = Header(
            split=split,
            part=part,
            fingerprint=self._plan["fingerprint"],
            dtype=self._dtype.name,
            tokens=len(documents.tokens),
            sentences=len(documents.sentence_lengths),
            documents=len(documents.document_sentences),
            first_unit=self.units_done,
            last_unit=self._units_added - 1,
            documents_consumed=self._documents,
            counts=self._counts,
            companion=companion,
            unknown=documents.unknown.counts if documents.unknown else (),
            word_bytes=sum(len(word) for _, word in documents.unknown.words) if documents.unknown else 0,
        )
        return write_shard(self.folder / shard_set.shard_name(split, part), header, documents, self._disk)

    def _begin_or_resume(self) -> None:
        """Removes uncommitted files and resumes from the last commit."""
        folder, disk = self.folder, self._disk
        resuming = (folder / shard_set.BUILDING).exists()
        if not resuming and (folder / shard_set.INDEX).exists():
            raise shard_set.finished_set_error(folder)
        if resuming:
            self._compare_plans(shard_set.read_plan(folder / shard_set.BUILDING))
        shard_set.remove_leftovers(folder, self._plan if resuming else None, disk)
        # renames of a killed build may not be on the disk yet
        disk.sync_folder(folder)
        if not resuming:
            disk.write_file(folder / shard_set.BUILDING, [checksummed_json(self._plan)])
        self._copy_tokenizer()
        self._resume_commits()

    def _compare_plans(self, before: dict[str, Any]) -> None:
        if changes := list(config.differences(before, self._plan | {"seal": before["seal"]})):
            raise shard_set.other_settings_error(self.folder, changes)
        self._plan = {key: before[key] for key in before if key != "seal"}

    def _copy_tokenizer(self) -> None:
        folder = self.folder / shard_set.TOKENIZER
        self._disk.make_folder(folder)
        for name, data in self._tokenizer_files.items():
            if not (folder / name).is_file() or (folder / name).read_bytes() != data:
                self._disk.write_file(folder / name, [data])
        self._disk.sync_folder(folder)
        if self._training is not None and not (self.folder / shard_set.TRAINING).exists():
            self._disk.write_file(self.folder / shard_set.TRAINING, [checksummed_json(self._training)])

    def _resume_commits(self) -> None:
        parts = shard_set.shards_in(self.folder)
        for part in sorted(set(parts["held-out"]) - set(parts["train"])):
            self._disk.remove(self.folder / shard_set.shard_name("held-out", part))
        for part, number in enumerate(parts["train"]):
            if part != number:
                missing = self.folder / shard_set.shard_name("train", part)
                raise DataError(f"{missing} is missing: pass --overwrite to start again")
            header, entry = check_file(self.folder / shard_set.shard_name("train", part))
            expected = (part, self._plan["fingerprint"], self._dtype.name, self.units_done)
            if (header.part, header.fingerprint, header.dtype, header.first_unit) != expected:
                raise damaged_error(self.folder / entry.name, "it does not continue the shard before it")
            self._entries.append(entry)
            if header.companion is not None:
                _, held_out = check_file(self.folder / shard_set.shard_name("held-out", part))
                if header.companion != _companion(held_out):
                    raise damaged_error(self.folder / held_out.name, f"it does not belong to {entry.name}")
                self._entries.append(held_out)
            self.units_done = self._units_added = header.last_unit + 1
            self._counts, self._documents = dict(header.counts), header.documents_consumed


def _companion(held_out: ShardEntry) -> dict[str, Any]:
    return {"name": held_out.name, "bytes": held_out.bytes, "sha256": held_out.sha256}
