"""Fault campaigns on existing shards: flipped bytes and truncation, also while a reader has them open."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from faults.broken_disks import QuickDisk
from faults.shard_fixtures import UNITS, Outcome, build, builder, emptied, pieces_of

from bertsmith.data.shards import ShardBuilder, Shards, verify
from bertsmith.data.shards.format import ShardFile, Tokens
from bertsmith.errors import DataError


def small_set(folder: Path) -> Path:
    """A finished set of many small files."""
    build(emptied(folder), QuickDisk())
    return folder


def large_set(folder: Path) -> Path:
    """A finished set whose files have several blocks of 64 KiB each."""
    options = {
        "tokenizer_files": {},
        "fingerprint": "3f9a",
        "vocab_size": 500,
        "settings": {},
        "shard_tokens": 90_000,
    }
    with ShardBuilder(emptied(folder), **options, disk=QuickDisk()) as large:  # type: ignore[arg-type]
        for unit in range(4):
            large.add(unit, pieces_of(unit, sentences=5000), {})
        large.finish()
    return folder


def unfinished_set(folder: Path) -> Path:
    """A set with building.json, some commits and no index."""
    with builder(emptied(folder), QuickDisk()) as open_builder:
        for unit in range(UNITS - 1):
            open_builder.add(unit, pieces_of(unit), {})
    return folder


def detection_problem(folder: Path, name: str) -> str:
    """Problem if damage to a file is not detected by its readers: it must raise an error that names the file."""
    try:
        if name == "building.json":
            with builder(folder, QuickDisk()):
                return "the build went on"
        if name.startswith("tokenizer/"):
            return unverified(folder, name)  # only verify reads the copy
        shards = Shards.open(folder, "held-out" if name.startswith("held-out") else "train")
        part = next(part for part, path in zip(shards.parts, shards._reader.paths, strict=True) if path.name == name)
        shards.read([part.token_base], [part.tokens])
        assert len(part.sentence_starts)
        assert len(part.document_starts)
    except DataError as error:
        return "" if name in str(error) else f"the error does not name the file: {error}"
    except Exception as error:
        return f"not a named error: {error!r}"
    return "the damaged file was read without an error"


def unverified(folder: Path, name: str) -> str:
    wrong = [report.name for report in verify(folder) if not report.ok]
    return "" if name in wrong else f"verify does not name it, but {wrong}"


def flip_offsets(path: Path, chance: random.Random, masks: int) -> Iterator[tuple[int, int]]:
    """Offsets and masks to flip: every byte outside the data, and some bytes in each 4 KiB of shard data."""
    body, size = path.stat().st_size, path.stat().st_size
    if path.suffix == ".shard":
        body = ShardFile(path).read_head().body
    for offset in range(body):
        for number in range(masks):
            yield offset, 1 << chance.randrange(8) if number % 2 == 0 else chance.randrange(1, 256)
    for start in range(body, size, 4096):
        for _ in range(8):
            yield chance.randrange(start, min(size, start + 4096)), 1 << chance.randrange(8)


def flips(folder: Path, *, only: str | None = None, masks: int = 3, seed: int = 0, verify_every: int = 40) -> Outcome:
    """F5: one changed byte."""
    options = {"masks": masks, "seed": seed, "verify_every": verify_every}
    outcome, chance = Outcome("flips", only, options), random.Random(seed)
    for world in (small_set(folder / "small"), large_set(folder / "large"), unfinished_set(folder / "unfinished")):
        for path in sorted(path for path in world.rglob("*") if path.is_file()):
            name = path.relative_to(world).as_posix()
            if world.name == "unfinished" and name != "building.json":
                continue
            descriptor = os.open(path, os.O_RDWR)
            for number, (offset, mask) in enumerate(flip_offsets(path, chance, masks)):
                case = f"{world.name}/{name}:{offset}:{mask}"
                if outcome.wants(case):
                    with flipped(descriptor, offset, mask) as landed:
                        outcome.landed += landed
                        problem = detection_problem(world, name)
                        if not problem and number % verify_every == 0:
                            problem = unverified(world, name)
                    if problem:
                        outcome.fail(case, problem)
            os.close(descriptor)
    return outcome


@contextmanager
def flipped(descriptor: int, offset: int, mask: int) -> Iterator[bool]:
    """Changes one byte of the file; yields whether it did."""
    byte = os.pread(descriptor, 1, offset)
    os.pwrite(descriptor, bytes([byte[0] ^ mask]), offset)
    yield os.pread(descriptor, 1, offset) != byte
    os.pwrite(descriptor, byte, offset)


@contextmanager
def truncated(path: Path, length: int) -> Iterator[bool]:
    """Truncates the file to `length` in place; yields whether it did."""
    contents = path.read_bytes()
    os.truncate(path, length)
    yield path.stat().st_size == length
    with open(path, "r+b") as file:
        file.write(contents)


def truncations(folder: Path, *, only: str | None = None, count: int = 2000, seed: int = 0) -> Outcome:
    """F6: a truncated file; in the last tenth of the cases while a reader has it open and has read it before."""
    outcome, chance = Outcome("truncations", only, {"count": count, "seed": seed}), random.Random(seed)
    worlds = [small_set(folder / "small"), large_set(folder / "large"), unfinished_set(folder / "unfinished")]
    files = [(world, path) for world in worlds[:2] for path in sorted(world.rglob("*")) if path.is_file()]
    files.append((worlds[2], worlds[2] / "building.json"))
    for number in range(count - count // 10):
        world, path = files[number % len(files)]
        name, size = path.relative_to(world).as_posix(), path.stat().st_size
        length = chance.choice(
            [chance.randrange(size), chance.randrange(min(size, 700)), max(0, size - 1 - number % 70)]
        )
        case = f"{world.name}/{name}:{length}:{number}"
        if outcome.wants(case):
            with truncated(path, length) as landed:
                outcome.landed += landed
                if problem := detection_problem(world, name) or (unverified(world, name) if number % 10 == 0 else ""):
                    outcome.fail(case, problem)
    _truncate_while_open(outcome, worlds[1], count // 10, chance)
    return outcome


def _truncate_while_open(outcome: Outcome, world: Path, count: int, chance: random.Random) -> None:
    shards = Shards.open(world)
    tokens = shards.read([0], [shards.tokens])
    for number in range(count):
        offset = chance.randrange(len(shards.parts))
        part, path = shards.parts[offset], shards._reader.paths[offset]
        left = chance.randrange(part.tokens - 5)  # tokens that remain in the file; at least 5 are lost
        case = f"open/{path.name}:{left}:{number}"
        if outcome.wants(case):
            with truncated(path, int(shards._reader.bodies[offset]) + 2 * left) as landed:
                outcome.landed += landed
                if problem := _read_past_the_end(shards, tokens, part.token_base, left, path.name):
                    outcome.fail(case, problem)


def _read_past_the_end(shards: Shards, tokens: Tokens, base: int, left: int, name: str) -> str:
    if not np.array_equal(shards.read([base], [left]), tokens[base : base + left]):
        return "what is left was read wrongly"
    try:
        shards.read([base + max(0, left - 5)], [10])
    except DataError as error:
        return "" if name in str(error) else f"the error does not name the file: {error}"
    return "tokens were read beyond the end of the file"
