"""`proxies`: many short runs, each with one setting changed, and a table of their results.

Several runs compile concurrently and one trains at a time, so that the GPU does not wait for compilation. Finished runs
are skipped, so that the same call resumes an interrupted one.
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
from bench.ten_minutes.pipeline import repeated
from bertsmith.config import did_you_mean
from bertsmith.errors import BertsmithError, ConfigError, StoppedError
from bertsmith.system.durable import Disk
from bertsmith.training.signals import StopSignal

LOCK_FILE, PAGE = "lock", "proxies.md"
LOSS = "nats_per_byte"
PATIENCE = 0.2  # seconds between polls


@dataclass(frozen=True)
class Variant:
    """A short run."""

    name: str
    recipe: str
    common: tuple[str, ...]
    own: tuple[str, ...]  # after the common ones

    @property
    def changes(self) -> tuple[str, ...]:
        """All overrides of the recipe."""
        return (*self.common, *self.own)


def variants(file: Path, only: Sequence[str] = ()) -> list[Variant]:
    """The variants of a file, all or those in `only`, in the file's order."""
    try:
        contents = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    known = contents.get("variants", {})
    if not known:
        raise ConfigError(f"{file} names no variants")
    for name in only:
        if name not in known:
            raise ConfigError(f"{file} has no variant {name}{did_you_mean(name, known)}")
    chosen = []
    for name, variant in known.items():
        if not only or name in only:
            words = variant.get("recipe", contents.get("recipe", "")), contents.get("set", []), variant.get("set", [])
            chosen.append(Variant(name, words[0], tuple(words[1]), tuple(words[2])))
            try:
                recipe_of(name, recipe=words[0], changes=chosen[-1].changes, minutes=1.0, seed=0)
            except ConfigError as error:
                raise ConfigError(f"{file}, {name}: {error}") from None
    return chosen


def run_all(chosen: Sequence[Variant], output: Path, words: Sequence[str], *, together: int) -> None:
    """Calls `pretrain` for each variant without a result, `together` at a time, with the common arguments `words`.

    When this process is stopped, running variants save and exit.
    """
    Disk().make_folder(output)
    waiting = [variant for variant in chosen if not (output / variant.name / results.RESULT).exists()]
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: list[str] = []
    with ExitStack() as stack:
        stopper = stack.enter_context(StopSignal())
        stack.callback(_end, running.values())
        while waiting or running:
            if stopper.requested:
                raise StoppedError("stopped; finished work is kept: run the same command again to resume")
            while waiting and len(running) < together:
                variant = waiting.pop(0)
                log = stack.enter_context((output / f"{variant.name}.log").open("ab"))
                running[variant.name] = subprocess.Popen(
                    _words(variant, output, words), stdout=log, stderr=subprocess.STDOUT
                )
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    failed += [] if _report(name, output, process.returncode) else [name]
            time.sleep(PATIENCE)
    if failed:
        raise BertsmithError(f"no result of {', '.join(failed)}: see their .log in {output}")


def _end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Stops running variants, which save and exit."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def _words(variant: Variant, output: Path, words: Sequence[str]) -> list[str]:
    changes = repeated("--set", variant.changes)
    head = [sys.executable, "-m", "bench.ten_minutes", "pretrain", variant.name, "--recipe", variant.recipe, *changes]
    return [*head, "-o", str(output), "--lock", str(output / LOCK_FILE), "--quiet", *words]


def _report(name: str, output: Path, status: int) -> bool:
    """Prints the outcome of a variant; returns whether it has a result."""
    result = results.read(output / name / results.RESULT)
    outcome = f"no result, exit status {status}" if result is None else f"{result['final'][LOSS]:.4f} nats per byte"
    print(f"{name}: {outcome}", flush=True)
    return result is not None


def table(chosen: Sequence[Variant], output: Path) -> str:
    """Markdown table of the variants with a result, best first; also written to proxies.md."""
    runs = {variant.name: results.read(output / variant.name / results.RESULT) for variant in chosen}
    finished = {name: run for name, run in runs.items() if run is not None and LOSS in run["final"]}
    if not finished:
        raise ConfigError(f"{output} has no result yet")
    first = finished[next(variant.name for variant in chosen if variant.name in finished)]
    heads = ["", "changed", "tokens", "tokens/s", "MFU", "nats/piece", "nats/byte", f"less than {first['name']}"]
    heads += [f"{first['name']}'s end at", "off the plateau"]
    changed = {variant.name: _changed(variant, chosen[0]) for variant in chosen}
    rows = [
        _row(run, first, changed[name])
        for name, run in sorted(finished.items(), key=lambda pair: pair[1]["final"][LOSS])
    ]
    lines = [heads, ["---", "---", *["---:"] * (len(heads) - 2)], *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
    Disk().write_file(output / PAGE, [text.encode()])
    return text


def _changed(variant: Variant, first: Variant) -> str:
    recipe = [variant.recipe] if variant.recipe != first.recipe else []
    return ", ".join([*recipe, *variant.own]) or "–"


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


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
