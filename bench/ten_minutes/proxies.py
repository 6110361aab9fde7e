"""`proxies`: many short runs, each with one setting changed, and a table of their results.

Several runs compile concurrently and one trains at a time, so that the GPU does not wait for compilation. Finished runs
are skipped, so that the same call resumes an interrupted one.
"""

from __future__ import annotations

import math
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
from bench.ten_minutes.pretraining import BASE_RATE, GENERATOR, OWN_LOSS, REPLACED_TOKEN
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
    after: str = ""  # the variant whose model this one starts from, as a second stage
    share: float = 1.0  # of the minutes

    @property
    def changes(self) -> tuple[str, ...]:
        """All overrides of the recipe."""
        return (*self.common, *self.own)


@dataclass(frozen=True)
class Judge:
    """The tasks that variants are fine-tuned on, where their losses are not comparable."""

    tasks: tuple[str, ...] = ()
    tuning: tuple[str, ...] = ()  # [TASK:]SETTING=VALUE


def judge(file: Path) -> Judge:
    """The judge of a file; without tasks where it names none."""
    contents = _contents(file)
    return Judge(tuple(contents.get("judge", ())), tuple(contents.get("tuning", ())))


def variants(file: Path, only: Sequence[str] = ()) -> list[Variant]:
    """The variants of a file in its order: all, or those in `only` and the stages that they start from."""
    contents = _contents(file)
    known = contents.get("variants", {})
    if not known:
        raise ConfigError(f"{file} names no variants")
    for name in only:
        if name not in known:
            raise ConfigError(f"{file} has no variant {name}{did_you_mean(name, known)}")
    wanted = {*only, *(known[name].get("after", "") for name in only)} if only else known.keys()
    chosen: list[Variant] = []
    for name, variant in known.items():
        if name not in wanted:
            continue
        words = variant.get("recipe", contents.get("recipe", "")), contents.get("set", []), variant.get("set", [])
        stage = {key: variant[key] for key in ("after", "share") if key in variant}
        chosen.append(Variant(name, words[0], tuple(words[1]), tuple(words[2]), **stage))
        try:
            recipe_of(name, recipe=words[0], changes=chosen[-1].changes, minutes=1.0, seed=0)
        except ConfigError as error:
            raise ConfigError(f"{file}, {name}: {error}") from None
        if chosen[-1].after not in ("", *(one.name for one in chosen[:-1])):
            raise ConfigError(f"{file}, {name}: after={chosen[-1].after} is not a variant above it")
    return chosen


def _contents(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


def run_all(
    chosen: Sequence[Variant], output: Path, words: Sequence[str], *, together: int, minutes: float = 1.0
) -> None:
    """Calls `pretrain` for each variant without a result, `together` at a time, with the common arguments `words`.

    A second stage waits for the first. When this process is stopped, running variants save and exit.
    """
    Disk().make_folder(output)
    waiting = [variant for variant in chosen if not _has_result(variant.name, output)]
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: list[str] = []
    with ExitStack() as stack:
        stopper = stack.enter_context(StopSignal())
        stack.callback(_end, running.values())
        while waiting or running:
            if stopper.requested:
                raise StoppedError("stopped; finished work is kept: run the same command again to resume")
            ready = [variant for variant in waiting if not variant.after or _has_result(variant.after, output)]
            if not ready and not running:
                failed += [variant.name for variant in waiting]
                break
            for variant in ready[: together - len(running)]:
                waiting.remove(variant)
                log = stack.enter_context((output / f"{variant.name}.log").open("ab"))
                running[variant.name] = subprocess.Popen(
                    _words(variant, output, words, minutes), stdout=log, stderr=subprocess.STDOUT
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


def _has_result(name: str, output: Path) -> bool:
    return (output / name / results.RESULT).exists()


def _words(variant: Variant, output: Path, words: Sequence[str], minutes: float) -> list[str]:
    changes = repeated("--set", variant.changes)
    head = [sys.executable, "-m", "bench.ten_minutes", "pretrain", variant.name, "--recipe", variant.recipe, *changes]
    stage = ["--minutes", f"{minutes * variant.share:g}", *(["--after", variant.after] if variant.after else [])]
    return [*head, *stage, "-o", str(output), "--lock", str(output / LOCK_FILE), "--quiet", *words]


def _report(name: str, output: Path, status: int) -> bool:
    """Prints the outcome of a variant; returns whether it has a result."""
    result = results.read(output / name / results.RESULT)
    unit = "nats" if result is not None and OWN_LOSS in result["final"] else "nats per byte"
    outcome = f"no result, exit status {status}" if result is None else f"{_loss(result):.4f} {unit}"
    print(f"{name}: {outcome}", flush=True)
    return result is not None


def _loss(run: Mapping[str, Any]) -> float:
    """The held-out loss of the language model, of a generator, or of the recipe's own objectives; else infinite."""
    final: Mapping[str, float] = run["final"]
    return final.get(_loss_name(run), math.inf)


def _loss_name(run: Mapping[str, Any]) -> str:
    return next((name for name in (LOSS, GENERATOR + LOSS) if name in run["final"]), OWN_LOSS)


def table(chosen: Sequence[Variant], output: Path, tasks: Sequence[str] = ()) -> str:
    """Markdown table of the variants with a result; also written to proxies.md.

    The best comes first: by the mean of its scores on `tasks`, or by its loss where no task was scored.
    """
    runs = {variant.name: results.read(output / variant.name / results.RESULT) for variant in chosen}
    finished = {name: run for name, run in runs.items() if run is not None and math.isfinite(_loss(run))}
    if not finished:
        raise ConfigError(f"{output} has no result yet")
    scores = {name: _scores(name, output, tasks) for name in finished}
    scored = [task for task in tasks if any(task in found for found in scores.values())]
    first = finished[next(variant.name for variant in chosen if variant.name in finished)]
    heads = ["", "changed", "tokens", "tokens/s", "MFU", "nats/piece", "nats/byte", f"less than {first['name']}"]
    gains = any(REPLACED_TOKEN in run["final"] for run in finished.values())
    heads += [f"{first['name']}'s end at", "off the plateau", *(["above base rate"] if gains else [])]
    heads += [*scored, *(["mean"] if scored else [])]
    changed = {variant.name: _changed(variant, chosen[0]) for variant in chosen}
    order = sorted(finished, key=lambda name: (-_mean(scores[name], scored), _loss(finished[name])))
    rows = [
        [
            *_row(finished[name], first, changed[name]),
            *([_above_base_rate(finished[name]["final"])] if gains else []),
            *_score_cells(scores[name], scored),
        ]
        for name in order
    ]
    lines = [heads, ["---", "---", *["---:"] * (len(heads) - 2)], *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
    Disk().write_file(output / PAGE, [text.encode()])
    return text


def _scores(name: str, output: Path, tasks: Sequence[str]) -> dict[str, float]:
    """The main score of a variant by task, in percent, where it has one."""
    found = {task: results.read(results.scores_path(output, name, task)) for task in tasks}
    return {task: 100 * result["summary"]["mean"] for task, result in found.items() if result is not None}


def _mean(scores: Mapping[str, float], tasks: Sequence[str]) -> float:
    """Over all tasks; a variant that lacks one is behind all others."""
    return sum(scores.get(task, -math.inf) for task in tasks) / max(len(tasks), 1)


def _score_cells(scores: Mapping[str, float], tasks: Sequence[str]) -> list[str]:
    cells = [scores.get(task) for task in tasks]
    cells += [_mean(scores, tasks)] if tasks and None not in cells else [None] * bool(tasks)
    return ["–" if cell is None else f"{cell:.1f}" for cell in cells]


def _above_base_rate(final: Mapping[str, float]) -> str:
    """The accuracy of a discriminator, less that of always predicting the more frequent label."""
    return f"{100 * (final[REPLACED_TOKEN] - final[BASE_RATE]):+.2f}" if REPLACED_TOKEN in final else "–"


def _changed(variant: Variant, first: Variant) -> str:
    recipe = [variant.recipe] if variant.recipe != first.recipe else []
    stage = [f"after {variant.after}"] if variant.after else []
    return ", ".join([*stage, *recipe, *variant.own]) or "–"


def _row(run: Mapping[str, Any], first: Mapping[str, Any], changed: str) -> list[str]:
    loss, goal, name = _loss(run), _loss(first), _loss_name(run)
    reached = next((point["seconds"] for point in run["curve"] if point.get(name, goal + 1) <= goal), None)
    per_piece = run["final"][OWN_LOSS if name == OWN_LOSS else name.replace(LOSS, "nats_per_piece")]
    return [
        run["name"],
        changed,
        f"{run['tokens'] / 1e6:,.1f} M",
        f"{run['tokens_per_second'] / 1e3:,.0f} k",
        f"{run['share_of_peak']:.1%}",
        f"{per_piece:.4f}",
        "–" if name == OWN_LOSS else f"{loss:.4f}",
        f"{goal - loss:+.4f}",
        _seconds(reached),
        _seconds(run.get("off_plateau")),
    ]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
