"""`whole`: the contest from text to table by one command, each part in a process of its own.

What is finished is not done again, so that a command that was stopped goes on with the same words.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.ten_minutes.contestants import OURS, RATES, SMALL, TABLE, TUNING, stages
from bench.ten_minutes.pretraining import POINTS
from bench.ten_minutes.tasks import GROUPS
from bench.ten_minutes.text import SHARDS
from bertsmith.errors import BertsmithError, StoppedError
from bertsmith.studies.ablations import FRESH
from bertsmith.training.signals import StopSignal

TEXT, CONTEST, BASELINE = "text", "contest", "baseline"
CONTEST_PROGRAM = "bench.ten_minutes"
PATIENCE = 0.2  # seconds between two looks at a part

Words = list[str]


@dataclass(frozen=True, kw_only=True)
class Whole:
    """What is contested."""

    corpus: tuple[Path, ...]
    data: Path  # of the tasks
    output: Path
    tasks: str = "english"  # or korean
    vocab_size: int = 32_768
    cased: bool = False
    minutes: float = 10.0
    set: Sequence[str] = ()  # in the recipes of ours
    seeds: int = 3
    jobs: int = 1  # fine-tunings at a time
    device: str = "auto"


def parts(whole: Whole) -> list[Words]:
    """The words of each part, in order."""
    text, contest = whole.output / TEXT, whole.output / CONTEST
    run = ["--data", text / SHARDS, "-o", contest, "--every", 60 * whole.minutes / POINTS, "--device", whole.device]
    trained = dict.fromkeys(stage for name in OURS for stage in stages(name))
    changes = repeated("--set", whole.set)
    ours = {name: ["--minutes", f"{TABLE[name].share * whole.minutes:g}", *changes] for name in trained}
    everybody = [*OURS, f"{OURS[0]}{FRESH}"]
    found: list[list[object]] = [
        [TEXT, *whole.corpus, "-o", text, "--vocab-size", whole.vocab_size, *["--cased"] * whole.cased],
        *(["pretrain", name, *run, *words] for name, words in ours.items()),
        [BASELINE, BASELINE, *run, "--minutes", whole.minutes],
        *(["tasks", *everybody, *tuned] for tuned in _tuned(whole)),
        *(["tasks", BASELINE, *tuned, "--own-code"] for tuned in _tuned(whole)),
        ["table", contest, "-o", whole.output, "--only", *everybody, BASELINE],
    ]
    return [[str(word) for word in words] for words in found]


def _tuned(whole: Whole) -> list[list[object]]:
    """The large tasks at rates that are given, the small ones at the best of some."""
    of_all: list[object] = [
        *("--data", whole.data, "-o", whole.output / CONTEST, "--seeds", whole.seeds, "--jobs", whole.jobs),
        *("--device", whole.device, *repeated("--set", TUNING[whole.tasks])),
    ]
    tasks = {small: [task for task in GROUPS[whole.tasks] if (task in SMALL) is small] for small in (False, True)}
    words = {small: repeated("-t", some) for small, some in tasks.items()}
    return [[*words[False], *of_all], [*words[True], *of_all, "--rates", RATES]]


def repeated(option: str, values: Iterable[str]) -> Words:
    """The option before each of the values."""
    return [word for value in values for word in (option, value)]


def in_a_process(words: Sequence[str], program: str = CONTEST_PROGRAM) -> int:
    """The exit status of one part, which is told to stop when this process is."""
    with StopSignal() as stopper:
        process = subprocess.Popen([sys.executable, "-m", program, *words])
        try:
            while process.poll() is None and not stopper.requested:
                time.sleep(PATIENCE)
        except KeyboardInterrupt:  # the same wish once more
            stopper.request()
    if stopper.requested:
        process.terminate()
        process.wait()
        return StoppedError.exit_code
    return process.returncode


def run_whole(whole: Whole, call: Callable[[Sequence[str]], int] = in_a_process) -> None:
    """All parts, until one fails."""
    run_parts(parts(whole), f"python -m {CONTEST_PROGRAM}", call)


def run_parts(parts: Sequence[Words], program: str, call: Callable[[Sequence[str]], int]) -> None:
    """Each by a call, which gives an exit status, until one fails; the words are printed behind the program's name."""
    for words in parts:
        print(f"$ {program} {' '.join(words)}", flush=True)
        status = call(words)
        if status == StoppedError.exit_code:
            raise StoppedError("stopped; finished work is kept: run the same command again to resume")
        if status:
            raise BertsmithError(f"{words[0]} ended with exit status {status}: run the same command again to resume")
