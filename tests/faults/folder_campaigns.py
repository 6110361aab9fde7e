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

HEADROOM = 512 << 20  # allowed growth of the address space in bytes for a small model
MAX_GROWTH = 300 << 20  # bytes of memory in use
MAX_SECONDS = 60  # wall time, which depends on other programs
MAX_CPU_SECONDS = 5  # seconds of processor time


class FolderOutcome(Outcome):
    def fail(self, case: str, problem: str) -> None:
        options = "".join(f" {name}={value}" for name, value in self.options.items())
        replay = f"PYTHONPATH=src:tests python tests/faults/folder_campaigns.py {self.name} {case!r}{options}"
        self.failures.append(f"{self.name} {case}: {problem}\n  replay: {replay}")


def hostile(work: Path, *, only: str | None = None, cases: Collection[str] = tuple(CASES)) -> Outcome:
    """F7: every folder is rejected in one line that names it; no code runs, nothing is written."""
    outcome = FolderOutcome("hostile", only)
    good = foreign(emptied(work / "good") / "model")
    open_model(good)  # the valid folder opens; imports happen before the forks
    for case in cases:
        if outcome.wants(case):
            folder = emptied(work / "case")
            shutil.copytree(good, folder / "model")
            (folder / "outside").mkdir()
            CASES[case](folder / "model", folder / "outside")
            before = snapshot(folder / "outside"), sorted(os.listdir(folder))
            outcome.landed += 1
            if problem := _opening_problem(folder, case):
                outcome.fail(case, problem)
            if (snapshot(folder / "outside"), sorted(os.listdir(folder))) != before:
                outcome.fail(case, "something was written outside the folder")
    return outcome


def _opening_problem(folder: Path, case: str) -> str:
    """Problem with opening a folder in a subprocess with limited memory and time."""
    reply = folder.parent / "answer.json"
    reply.unlink(missing_ok=True)
    status, message = in_child(lambda: _open_in_child(folder, case, reply))
    if status:
        return f"the process ended with status {status}: {message}"
    problem = json.loads(reply.read_text())
    if problem["kind"] not in (DataError.__name__, ConfigError.__name__):
        return f"{problem['kind']}: {problem['message'][:300]}"
    if str(folder / "model") not in problem["message"]:
        return f"the folder is not named: {problem['message']}"
    if not problem["message"].isprintable() or len(problem["message"]) > 700:
        return f"not one line: {problem['message'][:700]!r}"
    if problem["growth"] > MAX_GROWTH:
        return f"{problem['growth']:,} bytes of memory were used"
    return ""


def _open_in_child(folder: Path, case: str, reply: Path) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(MAX_SECONDS)
    with open("/proc/self/statm", "rb") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + HEADROOM, size + HEADROOM))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kind, message = "opened", ""
    try:
        if case.startswith("import: "):
            importers.import_folder(folder / "model", folder / "result")
        else:
            folders.open_model(folder / "model")
    except Exception as error:
        kind, message = type(error).__name__, str(error)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) * 1024
    reply.write_text(json.dumps({"kind": kind, "message": message, "growth": growth}))


def flips(work: Path, *, only: str | None = None, spacing: int = 97, seed: int = 0) -> Outcome:
    """F5: one bit in one of every `spacing` bytes, more densely in checksums, config and header."""
    outcome, chance = FolderOutcome("flips", only, {"spacing": spacing, "seed": seed}), random.Random(seed)
    folder = model_folder(emptied(work / "flips") / "model")
    for path in sorted(folder.iterdir()):
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
                if problem := _detection_problem(folder, path):
                    outcome.fail(f"{path.name}:{offset}:{bit}", problem)
        path.write_bytes(data)
    if problem := _detection_problem(folder, None):
        outcome.fail("none", problem)
    return outcome


def _detection_problem(folder: Path, path: Path | None) -> str:
    """Problem if damage is not detected: an error must name the file, or a note for the model card."""
    try:
        _, _, facts = folders.open_model(folder)
    except DataError as error:
        return "" if path is not None and str(path) in str(error) else f"the wrong error: {error}"
    except Exception as error:
        return f"{error!r}"
    if path is None:
        return "" if not facts.notes else f"notes about nothing: {facts.notes}"
    if path.name == folders.CARD and any(str(path) in note for note in facts.notes):
        return ""
    return "the folder was opened without an error"


def truncations(work: Path, *, only: str | None = None, count: int = 150) -> Outcome:
    """F6: weights and config of a folder without checksums, truncated at `count` offsets each."""
    outcome = FolderOutcome("truncations", only, {"count": count})
    folder = foreign(emptied(work / "truncations") / "model")
    for name in (folders.WEIGHTS, folders.CONFIG, "tokenizer.json"):
        data = (folder / name).read_bytes()
        meant = data.rstrip()
        for size in sorted({len(meant) * number // count for number in range(count)}):
            if outcome.wants(f"{name}:{size}"):
                (folder / name).write_bytes(meant[:size])
                outcome.landed += 1
                if problem := _detection_problem(folder, folder / name):
                    outcome.fail(f"{name}:{size}", problem)
        (folder / name).write_bytes(data)
    return outcome


def main(name: str, case: str, *options: str) -> int:
    """Reruns one case, with the command printed by its failure."""
    campaign: Callable[..., Outcome] = {"hostile": hostile, "flips": flips, "truncations": truncations}[name]
    numbers = {option: int(value) for option, _, value in (text.partition("=") for text in options)}
    with tempfile.TemporaryDirectory() as work:
        outcome = campaign(Path(work), only=case, **numbers)
    print(outcome, *outcome.failures, sep="\n")
    return 1 if outcome.failures or not outcome.landed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
