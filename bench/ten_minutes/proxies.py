"""`proxies`: many short runs, each with one thing changed, and a table of what that gave.

Several compile at the same time, one learns at a time: a GPU does not wait for a compiler. What is finished is not done
again, so that a call that was cut short goes on with the same words.
"""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ten_minutes import results
from bench.ten_minutes.contestants import recipe_of
from bench.ten_minutes.whole import repeated
from bertsmith.config import did_you_mean
from bertsmith.errors import BertsmithError, ConfigError, StoppedError
from bertsmith.system.durable import Disk
from bertsmith.training.signals import StopSignal

TURN, PAGE = "turn", "proxies.md"
LOSS = "nats_per_byte"
PATIENCE = 0.2  # seconds between two looks at who is through


@dataclass(frozen=True)
class Variant:
    """A short run."""

    name: str
    recipe: str
    common: tuple[str, ...]
    own: tuple[str, ...]  # after the common ones

    @property
    def changes(self) -> tuple[str, ...]:
        """What is changed in the recipe."""
        return (*self.common, *self.own)


def variants(file: Path, only: Sequence[str] = ()) -> list[Variant]:
    """What a file says, or of that what is named, in the file's order."""
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    known = told.get("variants", {})
    if not known:
        raise ConfigError(f"{file} names no variants")
    for name in only:
        if name not in known:
            raise ConfigError(f"{file} has no variant {name}{did_you_mean(name, known)}")
    found = []
    for name, one in known.items():
        if not only or name in only:
            words = one.get("recipe", told.get("recipe", "")), told.get("set", []), one.get("set", [])
            found.append(Variant(name, words[0], tuple(words[1]), tuple(words[2])))
            try:
                recipe_of(name, recipe=words[0], changes=found[-1].changes, minutes=1.0, seed=0)
            except ConfigError as error:
                raise ConfigError(f"{file}, {name}: {error}") from None
    return found


def run_all(given: Sequence[Variant], output: Path, words: Sequence[str], *, together: int) -> None:
    """Calls `pretrain` for each that has no result, `together` at a time; `words` are what all of them are told.

    When this process is told to stop, those under way save and end.
    """
    Disk().make_folder(output)
    waiting = [one for one in given if not (output / one.name / results.RESULT).exists()]
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: list[str] = []
    with ExitStack() as stack:
        stopper = stack.enter_context(StopSignal())
        stack.callback(_end, running.values())
        while waiting or running:
            if stopper.requested:
                raise StoppedError("stopped; finished work is kept: run the same command again to resume")
            while waiting and len(running) < together:
                one = waiting.pop(0)
                log = stack.enter_context((output / f"{one.name}.log").open("ab"))
                running[one.name] = subprocess.Popen(_words(one, output, words), stdout=log, stderr=subprocess.STDOUT)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    failed += [] if _tell(name, output, process.returncode) else [name]
            time.sleep(PATIENCE)
    if failed:
        raise BertsmithError(f"no result of {', '.join(failed)}: see their .log in {output}")


def _end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Those that are under way save, and end."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def _words(one: Variant, output: Path, words: Sequence[str]) -> list[str]:
    changes = repeated("--set", one.changes)
    head = [sys.executable, "-m", "bench.ten_minutes", "pretrain", one.name, "--recipe", one.recipe, *changes]
    return [*head, "-o", str(output), "--turn", str(output / TURN), "--quiet", *words]


def _tell(name: str, output: Path, status: int) -> bool:
    """Says what became of one; whether it has a result."""
    found = results.read(output / name / results.RESULT)
    told = f"no result, exit status {status}" if found is None else f"{found['final'][LOSS]:.4f} nats per byte"
    print(f"{name}: {told}", flush=True)
    return found is not None


def table(given: Sequence[Variant], output: Path) -> str:
    """Who has a result, the best first, as Markdown; also in proxies.md."""
    found = {one.name: results.read(output / one.name / results.RESULT) for one in given}
    there = {name: run for name, run in found.items() if run is not None and LOSS in run["final"]}
    if not there:
        raise ConfigError(f"{output} has no result yet")
    first = there[next(one.name for one in given if one.name in there)]
    heads = ["", "changed", "tokens", "tokens/s", "of peak", "nats/piece", "nats/byte", f"less than {first['name']}"]
    heads += [f"{first['name']}'s end at", "off the plateau"]
    changed = {one.name: _changed(one, given[0]) for one in given}
    rows = [
        _row(run, first, changed[name]) for name, run in sorted(there.items(), key=lambda pair: pair[1]["final"][LOSS])
    ]
    lines = [heads, ["---", "---", *["---:"] * (len(heads) - 2)], *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
    Disk().write_file(output / PAGE, [text.encode()])
    return text


def _changed(one: Variant, first: Variant) -> str:
    recipe = [one.recipe] if one.recipe != first.recipe else []
    return ", ".join([*recipe, *one.own]) or "–"


def _row(run: Mapping[str, Any], first: Mapping[str, Any], changed: str) -> list[str]:
    final, goal = run["final"], first["final"][LOSS]
    reached = next((point["seconds"] for point in run["curve"] if point.get(LOSS, goal + 1) <= goal), None)
    return [
        run["name"],
        changed,
        f"{run['tokens'] / 1e6:,.1f} M",
        f"{run['tokens_per_second'] / 1e3:,.0f} k",
        f"{run['share_of_peak']:.1%}",
        f"{final['nats_per_piece']:.4f}",
        f"{final[LOSS]:.4f}",
        f"{goal - final[LOSS]:+.4f}",
        _seconds(reached),
        _seconds(run.get("off_plateau")),
    ]


def _seconds(found: float | None) -> str:
    return "–" if found is None else f"{found:.1f} s"
