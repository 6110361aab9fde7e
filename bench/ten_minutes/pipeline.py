"""`pipeline`: the benchmark from text to table in one command, each part in its own process.

Finished parts are skipped, so that the same command resumes a stopped one.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.ten_minutes.contestants import DEFAULT_CONTESTANTS, SMALL_TASK_RATES, SMALL_TASKS, TABLE, TUNING, stages
from bench.ten_minutes.pretraining import POINTS
from bench.ten_minutes.tasks import GROUPS
from bench.ten_minutes.text import SHARDS
from bertsmith.errors import BertsmithError, StoppedError
from bertsmith.studies.ablations import FRESH
from bertsmith.training.signals import StopSignal

TEXT, CONTEST, BASELINE = "text", "contest", "baseline"
CONTEST_PROGRAM = "bench.ten_minutes"
PATIENCE = 0.2  # seconds between polls

Arguments = list[str]


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """Settings of the pipeline."""

    corpus: tuple[Path, ...]
    data: Path  # of the tasks
    output: Path
    tasks: str = "english"  # or korean
    vocab_size: int = 32_768
    cased: bool = False
    minutes: float = 10.0
    set: Sequence[str] = ()  # overrides of bertsmith's recipes
    seeds: int = 3
    jobs: int = 1  # concurrent fine-tuning runs
    device: str = "auto"


def parts(config: PipelineConfig) -> list[Arguments]:
    """Arguments of each part, in order."""
    text, contest = config.output / TEXT, config.output / CONTEST
    run = [
        "--data",
        text / SHARDS,
        "-o",
        contest,
        "--every",
        60 * config.minutes / POINTS,
        "--device",
        config.device,
    ]
    trained = dict.fromkeys(stage for name in DEFAULT_CONTESTANTS for stage in stages(name))
    changes = repeated("--set", config.set)
    stage_arguments = {name: ["--minutes", f"{TABLE[name].share * config.minutes:g}", *changes] for name in trained}
    contestants = [*DEFAULT_CONTESTANTS, f"{DEFAULT_CONTESTANTS[0]}{FRESH}"]
    calls: list[list[object]] = [
        [TEXT, *config.corpus, "-o", text, "--vocab-size", config.vocab_size, *["--cased"] * config.cased],
        *(["pretrain", name, *run, *arguments] for name, arguments in stage_arguments.items()),
        [BASELINE, BASELINE, *run, "--minutes", config.minutes],
        *(["tasks", *contestants, *tuned] for tuned in _tuned(config)),
        *(["tasks", BASELINE, *tuned, "--transformers"] for tuned in _tuned(config)),
        ["table", contest, "-o", config.output, "--only", *contestants, BASELINE],
    ]
    return [[str(argument) for argument in arguments] for arguments in calls]


def _tuned(config: PipelineConfig) -> list[list[object]]:
    """Arguments of `tasks`: fixed learning rates for large tasks, a sweep for small ones."""
    common: list[object] = [
        *("--data", config.data, "-o", config.output / CONTEST, "--seeds", config.seeds, "--jobs", config.jobs),
        *("--device", config.device, *repeated("--set", TUNING[config.tasks])),
    ]
    tasks = {
        small: [task for task in GROUPS[config.tasks] if (task in SMALL_TASKS) is small] for small in (False, True)
    }
    arguments = {small: repeated("-t", names) for small, names in tasks.items()}
    return [[*arguments[False], *common], [*arguments[True], *common, "--rates", SMALL_TASK_RATES]]


def repeated(option: str, values: Iterable[str]) -> Arguments:
    """The option repeated before each value."""
    return [argument for value in values for argument in (option, value)]


def run_subprocess(arguments: Sequence[str], program: str = CONTEST_PROGRAM) -> int:
    """Runs one part and returns its exit status; stops it when this process is stopped."""
    with StopSignal() as stopper:
        process = subprocess.Popen([sys.executable, "-m", program, *arguments])
        try:
            while process.poll() is None and not stopper.requested:
                time.sleep(PATIENCE)
        except KeyboardInterrupt:  # also a stop request
            stopper.request()
    if stopper.requested:
        process.terminate()
        process.wait()
        return StoppedError.exit_code
    return process.returncode


def run_pipeline(config: PipelineConfig, call: Callable[[Sequence[str]], int] = run_subprocess) -> None:
    """Runs all parts until one fails."""
    run_parts(parts(config), f"python -m {CONTEST_PROGRAM}", call)


def run_parts(parts: Sequence[Arguments], program: str, call: Callable[[Sequence[str]], int]) -> None:
    """Prints and runs each part until one has a nonzero exit status."""
    for arguments in parts:
        print(f"$ {program} {' '.join(arguments)}", flush=True)
        status = call(arguments)
        if status == StoppedError.exit_code:
            raise StoppedError("stopped; finished work is kept: run the same command again to resume")
        if status:
            raise BertsmithError(
                f"{arguments[0]} ended with exit status {status}: run the same command again to resume"
            )
