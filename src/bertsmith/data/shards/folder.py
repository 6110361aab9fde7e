"""The folder of a shard set: its file names and index, removal and verification.

A set is finished when it has an index and no `building.json`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.data.shards.format import ShardEntry, check_file
from bertsmith.errors import BertsmithError, DataError, StorageError
from bertsmith.system.durable import PARTIAL, Disk, checksummed_json, read_checksummed_json

SPLITS = ("train", "held-out")
INDEX_FORMAT = 2  # of building.json and index.json; the shard files have a format of their own
INDEX, BUILDING, TOKENIZER = "index.json", "building.json", "tokenizer"
TRAINING = "tokenizer_training.json"  # the settings of a tokenizer that `prepare` trained; written after its files
PLAN = ("format", "fingerprint", "vocab_size", "shard_tokens", "settings", "tokenizer")  # all of building.json
SHARD_NAME = re.compile(rf"({'|'.join(SPLITS)})-(\d{{5,}})\.shard")


def shard_name(split: str, part: int) -> str:
    return f"{split}-{part:05d}.shard"


def split_and_part(name: str) -> tuple[str, int] | None:
    """The inverse of `shard_name`; None for any other name."""
    match = SHARD_NAME.fullmatch(name)
    return (match[1], int(match[2])) if match and shard_name(match[1], int(match[2])) == name else None


def file_entry(name: str, data: bytes) -> dict[str, Any]:
    """The entry of a tokenizer file in building.json and the index."""
    return {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def read_plan(path: Path) -> dict[str, Any]:
    """building.json or the index, with checksum, format and file names checked."""
    plan = read_checksummed_json(path)
    if plan.get("format") != INDEX_FORMAT or not plan.keys() >= set(PLAN):
        raise DataError(
            f"{path} has format {plan.get('format')}, this version reads {INDEX_FORMAT}: run `bertsmith prepare` again"
        )
    invalid = [file["name"] for file in plan["tokenizer"] if not is_plain(file["name"])]
    invalid += [file["name"] for file in plan.get("files", []) if not split_and_part(file["name"])]
    if invalid:
        raise DataError(f"{path} lists files with invalid names: {', '.join(invalid)}")
    return plan


def is_plain(name: str) -> bool:
    """Whether a tokenizer file may have this name: without folder, not hidden, not partial."""
    return bool(name) and "/" not in name and not name.startswith(".") and PARTIAL not in name


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a finished set."""
    if not (folder / INDEX).exists():
        if (folder / BUILDING).exists():
            raise DataError(f"the shards in {folder} are unfinished: run the same `bertsmith prepare` again")
        found = f"is not a shard set, it has no {INDEX}" if folder.is_dir() else "does not exist"
        found = "is a file, not a shard set" if folder.is_file() else found
        corpus = folder if folder.is_file() else "CORPUS"
        raise DataError(f"{folder} {found}: make one with `bertsmith prepare {corpus} -o DIR`")
    return read_plan(folder / INDEX)


def remove_leftovers(folder: Path, plan: dict[str, Any] | None, disk: Disk) -> None:
    """Removes partial files of an interrupted build or removal; raises if the folder has files of anything else.

    `plan` is building.json or the index; without either, only a partial building.json belongs to a shard set.
    """
    expected = {
        INDEX,
        BUILDING,
        TRAINING,
        *(f"{TOKENIZER}/{file['name']}" for file in (plan or {"tokenizer": []})["tokenizer"]),
    }
    paths = list(folder.iterdir())
    inner = [path for path in paths if path.name.removesuffix(PARTIAL) == TOKENIZER and _is_folder(path)]
    if plan is not None:
        paths = [path for path in paths if path not in inner] + [path for below in inner for path in below.iterdir()]
    names = sorted(path.relative_to(folder).as_posix() for path in paths)
    foreign = []
    for name in names:
        complete = name.replace(PARTIAL, "")
        known = complete in expected or split_and_part(complete) if plan is not None else name == BUILDING + PARTIAL
        if not known or not (folder / name).is_file():
            foreign.append(name)
    if foreign:
        named = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
        what = "has files that do not belong to a shard set" if plan is not None else "is neither empty nor a shard set"
        raise BertsmithError(f"{folder} {what} ({named}): choose another -o")
    for name in names:
        if name.endswith(PARTIAL) and not name.startswith(TOKENIZER + PARTIAL):
            disk.remove(folder / name)
    for below in inner:
        if below.name != TOKENIZER:
            disk.remove_folder(below)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def shards_in(folder: Path) -> dict[str, list[int]]:
    """Numbers of the shard files of each split, ascending."""
    files = [file for path in folder.iterdir() if (file := split_and_part(path.name))]
    return {split: sorted(part for name, part in files if name == split) for split in SPLITS}


def finished_index(folder: Path, plan: dict[str, Any]) -> dict[str, Any] | None:
    """The index of a finished shard set with these values of its plan; None if the folder has another or none."""
    if not (folder / INDEX).exists() or (folder / BUILDING).exists():
        return None
    index = read_index(folder)
    same = all(index[key] == json.loads(json.dumps(value)) for key, value in plan.items())
    return index if same else None


def finished_set_error(folder: Path) -> BertsmithError:
    """The error of a build in the folder of another finished shard set."""
    tokens = sum(split["tokens"] for split in read_index(folder)["splits"].values())
    return BertsmithError(
        f"{folder} already holds a finished shard set ({tokens:,} tokens): choose another -o, or pass --overwrite"
    )


def other_settings_error(folder: Path, changes: list[str]) -> BertsmithError:
    """The error of a build in the folder of an unfinished shard set with other settings."""
    more = f" (and {len(changes) - 3} more)" if len(changes) > 3 else ""
    return BertsmithError(
        f"{folder} holds an unfinished shard set with other settings: {'; '.join(changes[:3])}{more}: "
        "choose another -o, or pass --overwrite"
    )


def remove_shard_set(folder: str | Path, *, disk: Disk | None = None) -> None:
    """Removes a finished or unfinished shard set from `folder`, for `--overwrite`; raises if it has other files.

    The set first becomes unfinished and then loses its commits from the last to the first: if interrupted at any
    moment, it can still be removed or resumed.
    """
    folder, disk = Path(folder), disk or Disk()
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    with disk.lock(folder):
        remove_files(folder, disk)


def remove_files(folder: Path, disk: Disk) -> None:
    """`remove_shard_set` from a folder that this process has locked."""
    plans = [folder / name for name in (BUILDING, INDEX) if (folder / name).exists()]
    plan = read_plan(plans[0]) if plans else None
    remove_leftovers(folder, plan, disk)
    if plan is not None and (folder / INDEX).exists():
        disk.write_file(folder / BUILDING, [checksummed_json({key: plan[key] for key in PLAN})])
        disk.remove(folder / INDEX)
    for split, parts in shards_in(folder).items():  # train first: a train file makes a commit
        for part in reversed(parts):
            disk.remove(folder / shard_name(split, part))
    if (folder / TRAINING).exists():
        disk.remove(folder / TRAINING)
    if _is_folder(folder / TOKENIZER):
        disk.remove_folder(folder / TOKENIZER)
    if (folder / BUILDING).exists():
        disk.remove(folder / BUILDING)


@dataclass(frozen=True, slots=True)
class FileReport:
    """The result of `verify` for one file."""

    name: str
    ok: bool
    message: str
    bytes: int = 0
    tokens: int = 0


def verify(folder: str | Path) -> Iterator[FileReport]:
    """Reads every byte of a shard set and yields a report per file, the index first."""
    folder = Path(folder)
    plans = {name: folder / name for name in (INDEX, BUILDING) if (folder / name).exists()}
    plan: dict[str, Any] | None = None
    if INDEX not in plans:
        state = "unfinished: run the same `bertsmith prepare` again" if BUILDING in plans else "this is not a shard set"
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
    existing = (
        {shard_name(split, part) for split, parts in shards_in(folder).items() for part in parts} if plans else set()
    )
    for name in sorted(listed.keys() | existing):
        yield _verify_shard(folder / name, listed.get(name), indexed=plan is not None and "files" in plan)
    for file in (plan or {"tokenizer": []})["tokenizer"]:
        yield _verify_tokenizer_file(folder / TOKENIZER / file["name"], file)
    if (folder / TRAINING).exists():
        yield _verify_json(folder / TRAINING)
    for path in sorted([*folder.glob(f"*{PARTIAL}"), *folder.glob(f"{TOKENIZER}/*{PARTIAL}")]):
        yield FileReport(str(path.relative_to(folder)), False, "left by an interrupted build")


def _verify_shard(path: Path, listed: ShardEntry | None, *, indexed: bool) -> FileReport:
    try:
        header, entry = check_file(path)
    except (DataError, StorageError) as error:
        return FileReport(path.name, False, str(error))
    if indexed and listed is None:
        return FileReport(path.name, False, f"not listed in {INDEX}", entry.bytes, entry.tokens)
    if listed is not None and entry != listed:
        return FileReport(path.name, False, f"not the file that {INDEX} lists", entry.bytes, entry.tokens)
    if path.name != shard_name(header.split, header.part):
        return FileReport(path.name, False, f"it is a renamed {shard_name(header.split, header.part)}", entry.bytes)
    return FileReport(path.name, True, "ok", entry.bytes, entry.tokens)


def _verify_json(path: Path) -> FileReport:
    try:
        read_checksummed_json(path)
    except (DataError, StorageError) as error:
        return FileReport(path.name, False, str(error))
    return FileReport(path.name, True, "ok", path.stat().st_size)


def damaged_tokenizer_files(folder: Path, plan: dict[str, Any] | None = None) -> list[Path]:
    """Files of the tokenizer that are not those listed in the plan, by default the index of a finished set."""
    files = (plan or read_index(folder))["tokenizer"]
    reports = {folder / TOKENIZER / file["name"]: file for file in files}
    return [path for path, file in reports.items() if not _verify_tokenizer_file(path, file).ok]


def _verify_tokenizer_file(path: Path, listed: dict[str, Any]) -> FileReport:
    name = f"{TOKENIZER}/{path.name}"
    try:
        data = path.read_bytes()
    except OSError as error:
        return FileReport(name, False, f"{error.strerror}: reading {path}")
    if file_entry(path.name, data) != listed:
        return FileReport(name, False, f"{path} is damaged: it differs from the file that was written", len(data))
    return FileReport(name, True, "ok", len(data))
