"""Fault campaigns on existing checkpoints: flipped bits (F5) and truncated files (F6)."""

from __future__ import annotations

import random
from pathlib import Path

from faults.broken_disks import QuickDisk
from faults.checkpoint_fixtures import EVERY, STEPS, CheckpointOutcome, equal, save_all, undisturbed
from faults.shard_fixtures import Outcome, emptied

from bertsmith.training.checkpoints import MANIFEST, OPTIMIZER, WEIGHTS, Checkpoints


def flips(folder: Path, *, only: str | None = None, spacing: int = 7, bits: int = 1, seed: int = 0) -> Outcome:
    """One bit in every byte of the manifest, in every third byte of headers, in every `spacing` bytes elsewhere."""
    outcome = CheckpointOutcome("flips", only, {"spacing": spacing, "bits": bits, "seed": seed})
    chance, newest = random.Random(seed), _newest(folder / "run")
    for path in sorted(newest.iterdir()):
        data = path.read_bytes()
        dense = 8 + int.from_bytes(data[:8], "little") if path.name in (WEIGHTS, OPTIMIZER) else 0
        offsets = [*range(0, dense, 3), *range(dense, len(data), spacing)]
        if path.name == MANIFEST:
            offsets = list(range(len(data)))
        for offset in offsets:
            for bit in chance.sample(range(8), bits):
                if outcome.wants(f"{path.name}:{offset}:{bit}"):
                    changed = bytearray(data)
                    changed[offset] ^= 1 << bit
                    path.write_bytes(changed)
                    outcome.landed += path.read_bytes() != data
                    if problem := _detection_problem(folder / "run", path):
                        outcome.fail(f"{path.name}:{offset}:{bit}", problem)
        path.write_bytes(data)
    if problem := _noticed_without_cause(folder / "run"):
        outcome.fail("none", problem)
    return outcome


def truncations(folder: Path, *, only: str | None = None, count: int = 30) -> Outcome:
    """Every file truncated at `count` offsets, emptied, extended by one byte, and removed."""
    outcome = CheckpointOutcome("truncations", only, {"count": count})
    newest = _newest(folder / "run")
    for path in sorted(newest.iterdir()):
        data = path.read_bytes()
        for size in [*sorted({len(data) * number // count for number in range(count)}), len(data) + 1, -1]:
            if outcome.wants(f"{path.name}:{size}"):
                path.write_bytes((data + b"\0")[: max(size, 0)])
                if size < 0:
                    path.unlink()
                outcome.landed += 1
                if problem := _detection_problem(folder / "run", path):
                    outcome.fail(f"{path.name}:{size}", problem)
        path.write_bytes(data)
    return outcome


def _newest(run: Path) -> Path:
    save_all(emptied(run), QuickDisk())
    return Checkpoints(run).all()[-1]


def _detection_problem(run: Path, path: Path) -> str:
    """Problem if damage to the newest checkpoint is not detected: it must be skipped by name for the previous one."""
    try:
        resumed = Checkpoints(run).resume()
    except Exception as error:
        return f"the damaged checkpoint was not skipped: {error!r}"
    if resumed.state is None or resumed.state.step != STEPS - EVERY:
        return "training resumed from the damaged checkpoint"
    if len(resumed.skipped) != 1 or not resumed.skipped[0].startswith(f"{path.parent.name} was skipped: "):
        return f"the skipped checkpoints were not named: {resumed.skipped}"
    if str(path) not in resumed.skipped[0]:
        return f"the file is not named: {resumed.skipped[0]}"
    return "" if equal(resumed.state, undisturbed()[1][STEPS - EVERY]) else "the one before it was read wrongly"


def _noticed_without_cause(run: Path) -> str:
    resumed = Checkpoints(run).resume()
    intact = resumed.state is not None and resumed.state.step == STEPS and not resumed.skipped
    return "" if intact else f"intact checkpoints are skipped: {resumed.skipped}"
