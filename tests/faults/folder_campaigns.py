"""Fault campaigns on model folders: hostile ones (F7), flipped bits (F5), truncated files (F6).

PYTHONPATH=src:tests python tests/faults/folder_campaigns.py hostile "a million tensors"    # one case again
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from faults.hostile_folders import CASES
from faults.shard_fixtures import Outcome, emptied, in_child, snapshot
from model_io.folder_fixtures import folder as model_folder
from model_io.folder_fixtures import foreign

from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io import importers
from bertsmith.model_io import model_folder as folders
from bertsmith.model_io.model_folder import open_model

HEADROOM = 512 << 20  # bytes of address space that opening a small model may take more
MOST_GROWTH = 300 << 20  # bytes of memory in use
MOST_SECONDS = 60  # on the clock, which other programs may slow down
MOST_WORK = 5  # seconds of processor time


class FolderOutcome(Outcome):
    def fail(self, case: str, problem: str) -> None:
        options = "".join(f" {name}={value}" for name, value in self.options.items())
        replay = f"PYTHONPATH=src:tests python tests/faults/folder_campaigns.py {self.name} {case!r}{options}"
        self.failures.append(f"{self.name} {case}: {problem}\n  replay: {replay}")


def hostile(work: Path, *, only: str | None = None, cases: Collection[str] = tuple(CASES)) -> Outcome:
    """F7: every folder is refused in one line that names it; nothing runs, nothing is written, little is used."""
    outcome = FolderOutcome("hostile", only)
    good = foreign(emptied(work / "good") / "model")
    open_model(good)  # it does open; and what is imported here need not be in every child
    for case in cases:
        if outcome.wants(case):
            place = emptied(work / "case")
            shutil.copytree(good, place / "model")
            (place / "outside").mkdir()
            CASES[case](place / "model", place / "outside")
            before = snapshot(place / "outside"), sorted(os.listdir(place))
            outcome.landed += 1
            if problem := _met(place, case):
                outcome.fail(case, problem)
            if (snapshot(place / "outside"), sorted(os.listdir(place))) != before:
                outcome.fail(case, "something was written outside the folder")
    return outcome


def _met(place: Path, case: str) -> str:
    """What is wrong with how a folder was met, by a process of its own with little memory and time."""
    answer = place.parent / "answer.json"
    answer.unlink(missing_ok=True)
    status, message = in_child(lambda: _open_in_child(place, case, answer))
    if status:
        return f"the process ended with status {status}: {message}"
    found = json.loads(answer.read_text())
    if found["kind"] not in (DataError.__name__, ConfigError.__name__):
        return f"{found['kind']}: {found['message'][:300]}"
    if str(place / "model") not in found["message"]:
        return f"the folder is not named: {found['message']}"
    if not found["message"].isprintable() or len(found["message"]) > 700:
        return f"not one line: {found['message'][:700]!r}"
    if found["growth"] > MOST_GROWTH:
        return f"{found['growth']:,} bytes of memory were used"
    return ""


def _open_in_child(place: Path, case: str, answer: Path) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(MOST_SECONDS)
    with open("/proc/self/statm", "rb") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + HEADROOM, size + HEADROOM))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_WORK, MOST_WORK))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kind, message = "opened", ""
    try:
        if case.startswith("import: "):
            importers.import_folder(place / "model", place / "result")
        else:
            folders.open_model(place / "model")
    except Exception as error:
        kind, message = type(error).__name__, str(error)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) * 1024
    answer.write_text(json.dumps({"kind": kind, "message": message, "growth": growth}))


def flips(work: Path, *, only: str | None = None, spacing: int = 97, seed: int = 0) -> Outcome:
    """F5: one bit in one of every `spacing` bytes, many times as densely in checksums, settings and header."""
    outcome, chance = FolderOutcome("flips", only, {"spacing": spacing, "seed": seed}), random.Random(seed)
    place = model_folder(emptied(work / "flips") / "model")
    for path in sorted(place.iterdir()):
        data = path.read_bytes()
        dense = 8 + int.from_bytes(data[:8], "little") if path.name == folders.WEIGHTS else 0
        step = 1 + spacing // 32 if path.name in (folders.CHECKSUMS, folders.CONFIG) else spacing
        for offset in [*range(0, dense, 1 + spacing // 16), *range(dense, len(data), step)]:
            bit = chance.randrange(8)
            if outcome.wants(f"{path.name}:{offset}:{bit}"):
                changed = bytearray(data)
                changed[offset] ^= 1 << bit
                path.write_bytes(changed)
                outcome.landed += path.read_bytes() != data
                if problem := _unnoticed(place, path):
                    outcome.fail(f"{path.name}:{offset}:{bit}", problem)
        path.write_bytes(data)
    if problem := _unnoticed(place, None):
        outcome.fail("none", problem)
    return outcome


def _unnoticed(place: Path, path: Path | None) -> str:
    """What is wrong with how damage is met: an error must name the file, or, for the card, a note."""
    try:
        _, _, facts = folders.open_model(place)
    except DataError as error:
        return "" if path is not None and str(path) in str(error) else f"the wrong error: {error}"
    except Exception as error:
        return f"{error!r}"
    if path is None:
        return "" if not facts.notes else f"notes about nothing: {facts.notes}"
    if path.name == folders.CARD and any(str(path) in note for note in facts.notes):
        return ""
    return "the folder opened as if nothing were wrong"


def truncations(work: Path, *, only: str | None = None, count: int = 150) -> Outcome:
    """F6: weights and settings of a folder without checksums, cut at `count` places each."""
    outcome = FolderOutcome("truncations", only, {"count": count})
    place = foreign(emptied(work / "truncations") / "model")
    for name in (folders.WEIGHTS, folders.CONFIG, "tokenizer.json"):
        data = (place / name).read_bytes()
        meant = data.rstrip()
        for size in sorted({len(meant) * number // count for number in range(count)}):
            if outcome.wants(f"{name}:{size}"):
                (place / name).write_bytes(meant[:size])
                outcome.landed += 1
                if problem := _unnoticed(place, place / name):
                    outcome.fail(f"{name}:{size}", problem)
        (place / name).write_bytes(data)
    return outcome


def main(name: str, case: str, *options: str) -> int:
    """Runs one case again, with the command that its failure printed."""
    campaign: Callable[..., Outcome] = {"hostile": hostile, "flips": flips, "truncations": truncations}[name]
    numbers = {option: int(value) for option, _, value in (text.partition("=") for text in options)}
    with tempfile.TemporaryDirectory() as work:
        outcome = campaign(Path(work), only=case, **numbers)
    print(outcome, *outcome.failures, sep="\n")
    return 1 if outcome.failures or not outcome.landed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
