"""The folder of a shard set: which names belong to it, its index, taking it apart, and verifying it.

A set is finished when it has an index and no `building.json`. Knows files by name and entry, not their tokens.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.data.shards.format import FORMAT, ShardEntry, check_file
from bertsmith.errors import BertsmithError, DataError, StorageError
from bertsmith.system.durable import PARTIAL, Disk, checksummed_json, read_checksummed_json

SPLITS = ("train", "held-out")
INDEX, BUILDING, TOKENIZER = "index.json", "building.json", "tokenizer"
PLAN = ("format", "fingerprint", "vocab_size", "shard_tokens", "settings", "tokenizer")  # all of building.json
SHARD_NAME = re.compile(rf"({'|'.join(SPLITS)})-(\d{{5,}})\.shard")


def shard_name(split: str, part: int) -> str:
    return f"{split}-{part:05d}.shard"


def split_and_part(name: str) -> tuple[str, int] | None:
    """The inverse of `shard_name`; None if this is the name of something else."""
    match = SHARD_NAME.fullmatch(name)
    return (match[1], int(match[2])) if match and shard_name(match[1], int(match[2])) == name else None


def file_facts(name: str, data: bytes) -> dict[str, Any]:
    """A file of the tokenizer as building.json and the index list it."""
    return {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def read_plan(path: Path) -> dict[str, Any]:
    """building.json or the index: sealed, of a format that this version reads, and with names that stay inside."""
    plan = read_checksummed_json(path)
    if plan.get("format") != FORMAT or not plan.keys() >= set(PLAN):
        raise DataError(f"{path} has format {plan.get('format')}, this bertsmith reads {FORMAT}: prepare again")
    strange = [file["name"] for file in plan["tokenizer"] if not is_plain(file["name"])]
    strange += [file["name"] for file in plan.get("files", []) if not split_and_part(file["name"])]
    if strange:
        raise DataError(f"{path} lists files that no shard set has: {', '.join(strange)}")
    return plan


def is_plain(name: str) -> bool:
    """Whether a file of the tokenizer may have this name: it stays in its folder and is not taken for a leftover."""
    return bool(name) and "/" not in name and not name.startswith(".") and PARTIAL not in name


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a finished set."""
    if not (folder / INDEX).exists():
        if (folder / BUILDING).exists():
            raise DataError(f"the shards in {folder} are unfinished: run the same `bertsmith prepare` again")
        raise DataError(f"{folder} is no shard set, it has no {INDEX}: make one with `bertsmith prepare`")
    return read_plan(folder / INDEX)


def leftovers(folder: Path, plan: dict[str, Any] | None) -> list[Path]:
    """What an interrupted build or removal left unfinished; raises if there is anything that is not ours at all.

    `plan` is what building.json or the index says; without either, only an unfinished building.json can be ours.
    """
    ours = {INDEX, BUILDING, *(f"{TOKENIZER}/{file['name']}" for file in (plan or {"tokenizer": []})["tokenizer"])}
    paths = list(folder.iterdir())
    inner = [path for path in paths if path.name.removesuffix(PARTIAL) == TOKENIZER and _is_folder(path)]
    if plan is not None:
        paths = [path for path in paths if path not in inner] + [path for below in inner for path in below.iterdir()]
    names = sorted(path.relative_to(folder).as_posix() for path in paths)
    foreign = []
    for name in names:
        whole = name.replace(PARTIAL, "")
        known = whole in ours or split_and_part(whole) if plan is not None else name == BUILDING + PARTIAL
        if not known or not (folder / name).is_file():
            foreign.append(name)
    if foreign:
        named = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
        what = "holds what is not part of a shard set" if plan is not None else "is neither empty nor a shard set"
        raise BertsmithError(f"{folder} {what} ({named}): choose another -o")
    inside = [name for name in names if name.endswith(PARTIAL) and not name.startswith(TOKENIZER + PARTIAL)]
    return [folder / name for name in inside] + [below for below in inner if below.name != TOKENIZER]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def remove_leftovers(paths: list[Path], disk: Disk) -> None:
    for path in paths:
        (disk.remove_folder if path.is_dir() else disk.remove)(path)


def shards_in(folder: Path) -> dict[str, list[int]]:
    """Numbers of the shard files of each split, ascending."""
    found = [place for path in folder.iterdir() if (place := split_and_part(path.name))]
    return {split: sorted(part for name, part in found if name == split) for split in SPLITS}


def remove_shard_set(folder: str | Path, *, disk: Disk | None = None) -> None:
    """Empties `folder` of a shard set, finished or not, for `--overwrite`; removes nothing if other files are in it.

    The set first becomes an unfinished one and then loses its last commit, its last but one, …: interrupted at any
    moment, it can still be taken apart, or built on.
    """
    folder, disk = Path(folder), disk or Disk()
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    with disk.lock(folder):
        plans = [folder / name for name in (BUILDING, INDEX) if (folder / name).exists()]
        plan = read_plan(plans[0]) if plans else None
        unfinished = leftovers(folder, plan)
        remove_leftovers(unfinished, disk)
        if plan is not None and (folder / INDEX).exists():
            disk.write_file(folder / BUILDING, [checksummed_json({key: plan[key] for key in PLAN})])
            disk.remove(folder / INDEX)
        for split, parts in shards_in(folder).items():  # train first: those files are what makes a commit
            for part in reversed(parts):
                disk.remove(folder / shard_name(split, part))
        if _is_folder(folder / TOKENIZER):
            disk.remove_folder(folder / TOKENIZER)
        if (folder / BUILDING).exists():
            disk.remove(folder / BUILDING)


@dataclass(frozen=True, slots=True)
class FileReport:
    """What `verify` found out about one file."""

    name: str
    ok: bool
    message: str
    bytes: int = 0
    tokens: int = 0


def verify(folder: str | Path) -> Iterator[FileReport]:
    """Reads every byte of a shard set and reports on each of its files, the index first."""
    folder = Path(folder)
    plans = {name: folder / name for name in (INDEX, BUILDING) if (folder / name).exists()}
    plan: dict[str, Any] | None = None
    if INDEX not in plans:
        state = "unfinished: run the same `bertsmith prepare` again" if BUILDING in plans else "this is no shard set"
        yield FileReport(INDEX, False, f"missing, {state}")
    for name, path in plans.items():
        try:
            contents = read_plan(path)
            plan = plan or contents
            note = "left by an interrupted build: run the same `bertsmith prepare` again"
            ok = name == INDEX or INDEX not in plans
            yield FileReport(name, ok, "ok" if ok else note, path.stat().st_size)
        except (DataError, StorageError) as error:
            yield FileReport(name, False, str(error))
    listed = {entry["name"]: ShardEntry(**entry) for entry in (plan or {}).get("files", [])}
    found = (
        {shard_name(split, part) for split, parts in shards_in(folder).items() for part in parts} if plans else set()
    )
    for name in sorted(listed.keys() | found):
        yield _verified_shard(folder / name, listed.get(name), indexed=plan is not None and "files" in plan)
    for file in (plan or {"tokenizer": []})["tokenizer"]:
        yield _verified_copy(folder / TOKENIZER / file["name"], file)
    for path in sorted([*folder.glob(f"*{PARTIAL}"), *folder.glob(f"{TOKENIZER}/*{PARTIAL}")]):
        yield FileReport(str(path.relative_to(folder)), False, "left by an interrupted build")


def _verified_shard(path: Path, listed: ShardEntry | None, *, indexed: bool) -> FileReport:
    try:
        header, entry = check_file(path)
    except (DataError, StorageError) as error:
        return FileReport(path.name, False, str(error))
    if indexed and listed is None:
        return FileReport(path.name, False, f"not listed in {INDEX}", entry.bytes, entry.tokens)
    if listed is not None and entry != listed:
        return FileReport(path.name, False, f"not the file that {INDEX} lists", entry.bytes, entry.tokens)
    if path.name != shard_name(header.split, header.part):
        return FileReport(path.name, False, f"it is {shard_name(header.split, header.part)}, renamed", entry.bytes)
    return FileReport(path.name, True, "ok", entry.bytes, entry.tokens)


def _verified_copy(path: Path, listed: dict[str, Any]) -> FileReport:
    name = f"{TOKENIZER}/{path.name}"
    try:
        data = path.read_bytes()
    except OSError as error:
        return FileReport(name, False, f"{error.strerror}: reading {path}")
    if file_facts(path.name, data) != listed:
        return FileReport(name, False, f"{path} is damaged: it is not the file that was written", len(data))
    return FileReport(name, True, "ok", len(data))
