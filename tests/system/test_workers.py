"""Ordered maps over processes: order, bounds, failures that can be named, and the same over Ray."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from multiprocessing.util import Finalize
from pathlib import Path

import numpy as np
import pytest

from bertsmith.data.shards import Shards
from bertsmith.errors import ConfigError, DataError, StoppedError
from bertsmith.system.workers import GRACE, PREFETCH, FunctionWorkers, WorkerDied, ordered_map
from bertsmith.training.signals import StopSignal


def slow_first(unit: int) -> int:
    time.sleep(0.2 if unit == 0 else 0.0)
    return unit * unit


def fail_at_three(unit: int) -> int:
    if unit == 3:
        raise DataError("unit 3 is broken")
    return unit


def die_at_three(unit: int) -> int:
    if unit == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return unit


def hang_at_three(unit: int) -> int:
    if unit == 3:
        time.sleep(60)
    return unit


def tidy_up_at_the_end(unit: Path) -> int:
    """Writes a file when the worker exits normally; a terminated worker does not."""
    Finalize(None, unit.touch, exitpriority=0)
    return os.getpid()


def until_told(unit: Path) -> None:
    """Stops and saves at a signal, as a training run does, in spite of a second signal."""
    with StopSignal() as stopper:
        unit.with_suffix(".begun").write_text(str(os.getpid()))
        while not stopper.requested:
            time.sleep(0.01)
        time.sleep(0.5)
        unit.with_suffix(".saved").touch()
    raise StoppedError("saved")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_are_in_order(workers: int) -> None:
    assert list(ordered_map(slow_first, range(20), workers=workers)) == [unit * unit for unit in range(20)]


def test_the_number_of_submitted_units_is_bounded() -> None:
    taken = 0

    def units() -> Iterator[int]:
        nonlocal taken
        for unit in range(1000):
            taken += 1
            yield unit

    results = ordered_map(slow_first, units(), workers=2)
    next(results)
    assert taken <= 2 * PREFETCH + 1
    results.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_exceptions_of_workers_are_raised(workers: int) -> None:
    with pytest.raises(DataError, match="unit 3 is broken"):
        list(ordered_map(fail_at_three, range(6), workers=workers))


def test_workers_exit_normally_after_the_last_result(tmp_path: Path) -> None:
    """Libraries can then clean up: torch's compiler would otherwise leak semaphores."""
    units = [tmp_path / "one", tmp_path / "two"]
    with closing(ordered_map(tidy_up_at_the_end, units, workers=2)) as done:
        workers = {next(done) for _ in units}
    assert all(map(gone, workers))
    assert [unit for unit in units if not unit.exists()] == []


def test_a_killed_worker_is_reported() -> None:
    results = ordered_map(die_at_three, range(30), workers=2)
    with pytest.raises(StoppedError, match=r"a worker process was killed .* at work unit"):
        list(results)


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = (
        "import multiprocessing, os, signal, sys, time\n"
        "from bertsmith.system.workers import ordered_map\n"
        "results = ordered_map(time.sleep, [0] * 8, workers=2)\n"
        "next(results)\n"
        "names = [str(child.pid) for child in multiprocessing.active_children()]\n"
        "open(sys.argv[1], 'w').write(' '.join(names))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    output = tmp_path / "workers"
    subprocess.run([sys.executable, "-c", script, output], check=False)
    workers = [int(word) for word in output.read_text().split()]
    assert workers
    assert all(gone(worker) for worker in workers)


@pytest.mark.parametrize(
    ("number", "whom"), [(signal.SIGINT, "all"), (signal.SIGTERM, "all"), (signal.SIGTERM, "first")]
)
def test_an_interrupted_parent_ends_its_workers_after_they_save(
    number: signal.Signals, whom: str, tmp_path: Path
) -> None:
    script = (
        "import pathlib, signal, sys\n"
        "from bertsmith.system.workers import ordered_map\n"
        "from test_workers import until_told\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "    units = [pathlib.Path(sys.argv[1]) / str(number) for number in range(8)]\n"
        "    list(ordered_map(until_told, units, workers=2))\n"
    )
    (tmp_path / "script.py").write_text(script)
    words = [sys.executable, tmp_path / "script.py", tmp_path]
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    first = subprocess.Popen(
        words, env=os.environ | {"PYTHONPATH": paths}, start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            begun = list(tmp_path.glob("*.begun"))
            if len(begun) == 2 and all(path.read_text() for path in begun):
                break
            time.sleep(0.05)
        (os.killpg if whom == "all" else os.kill)(first.pid, number)
        assert first.wait(GRACE) == -signal.SIGINT or first.returncode == 1
        assert {path.stem for path in tmp_path.glob("*.begun")} == {"0", "1"}  # and none of the queued units
        assert {path.stem for path in tmp_path.glob("*.saved")} == {"0", "1"}
    finally:
        with suppress(ProcessLookupError):  # no worker is left
            os.killpg(first.pid, signal.SIGKILL)
    assert all(gone(int(path.read_text())) for path in begun)


def test_a_hung_worker_times_out() -> None:
    began = time.monotonic()
    assert list(ordered_map(hang_at_three, range(3), workers=2)) == [0, 1, 2]
    patience = max(2, round(3 * (time.monotonic() - began)))  # a busy machine takes long to start workers
    began = time.monotonic()
    with pytest.raises(StoppedError, match=f"no worker returned a result within {patience} s at work unit 3"):
        list(ordered_map(hang_at_three, range(6), workers=2, timeout=patience))
    assert time.monotonic() - began < patience + 18  # far from the minute that it hangs for


def own_process(unit: str) -> int:
    return os.getpid()


def test_a_single_unit_needs_no_worker() -> None:
    assert list(ordered_map(own_process, ["only"], workers=4)) == [os.getpid()]
    assert list(ordered_map(own_process, [], workers=4)) == []


UNGUARDED = """
import sys
from bertsmith.data import prepare, work_units
from bertsmith.errors import ConfigError
from bertsmith.system import workers

print("run", flush=True)
text, tokenizer, output = sys.argv[1:]
work_units.UNIT_CHARACTERS = 9000
prepare.prepare([text], output, tokenizer=tokenizer, held_out=0.1, workers=2, quiet=True)

def own(unit):
    return unit

for start in (lambda: list(workers.ordered_map(own, "ab", workers=2)), lambda: workers.FunctionWorkers(own, 1)):
    try:
        start()
    except ConfigError as error:
        print(error, flush=True)
"""


@pytest.mark.parametrize("entry", ["script.py", "-"])
def test_a_script_needs_no_main_guard(entry: str, tmp_path: Path, shards: Path) -> None:
    """Module-level code runs once although workers start; they cannot call a function of the script."""
    (tmp_path / "script.py").write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, entry, shards.parent / "text.txt", shards.parent / "t", "shards"],
        cwd=tmp_path,
        input=UNGUARDED if entry == "-" else "",
        capture_output=True,
        text=True,
        check=False,
    )
    error = "worker processes cannot import own from your script or notebook: define it in a module, and import it"
    assert (done.stderr, done.stdout.splitlines()) == ("", ["run", error, error])
    written, expected = Shards.open(tmp_path / "shards"), Shards.open(shards)
    assert np.array_equal(written.read([0], [written.tokens]), expected.read([0], [expected.tokens]))


def test_invalid_arguments() -> None:
    with pytest.raises(ConfigError, match="workers=0 must be at least 1"):
        ordered_map(slow_first, [], workers=0)
    with pytest.raises(ConfigError, match="engine=spark must be one of local, ray"):
        ordered_map(slow_first, [], engine="spark")


class Words:
    """State of a worker process."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def get(self, number: int, *, loud: bool = False) -> tuple[str, int]:
        print("standard output does not disturb results")
        if number >= len(self.words):
            raise DataError(f"there is no word {number}")
        return self.words[number].upper() if loud else self.words[number], os.getpid()

    def end(self) -> None:
        os._exit(3)


@pytest.fixture
def pool() -> Iterator[FunctionWorkers]:
    result = FunctionWorkers(Words(["iron", "쇠"]).get, 2)
    yield result
    result.close()


def test_functions_run_in_other_processes(pool: FunctionWorkers) -> None:
    with ThreadPoolExecutor(4) as threads:
        result = list(threads.map(lambda number: pool(number % 2, loud=number > 5), range(8)))
    assert [word for word, _ in result] == ["iron", "쇠"] * 3 + ["IRON", "쇠"]
    assert os.getpid() not in {process for _, process in result}


def test_closed_workers_raise(pool: FunctionWorkers) -> None:
    pool.close()
    for _ in range(3):
        with pytest.raises(WorkerDied):
            pool("take", 0)


def test_exceptions_are_raised_and_the_worker_survives(pool: FunctionWorkers) -> None:
    for _ in range(3):
        with pytest.raises(DataError, match="there is no word 7"):
            pool(7)
    assert pool(0)[0] == "iron"


def test_a_dead_worker_raises() -> None:
    pool = FunctionWorkers(Words([]).end, 1)
    for _ in range(2):
        with pytest.raises(WorkerDied):
            pool()
    pool.close()


def test_workers_end_with_garbage_collection() -> None:
    pool = FunctionWorkers(os.getpid, 1)
    process = pool._processes[0]
    assert process.poll() is None
    del pool
    gc.collect()
    assert process.poll() is not None


def test_function_workers_end_with_their_parent() -> None:
    script = (
        "import os, sys, signal\n"
        "from bertsmith.system.workers import FunctionWorkers\n"
        "pool = FunctionWorkers(os.getpid, 1)\n"
        "print(pool(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert gone(int(done.stdout))


def gone(process: int) -> bool:
    """Whether a process ends within 20 seconds."""
    there = Path(f"/proc/{process}/status")
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if "State:\tZ" in there.read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
