"""Fault campaigns while building shards: kill -9, power loss, and disk errors."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from faults.broken_disks import QuickDisk, QuickFailing
from faults.faulty_disks import SPACE, FailingDisk, Operation, RecordingDisk
from faults.power_loss import DiskState, power_loss_states
from faults.shard_fixtures import Outcome, build, differs, emptied, in_child, index_problem, oracle, read_all

from bertsmith.data.shards import remove_shard_set
from bertsmith.errors import BertsmithError, StorageError
from bertsmith.system.durable import Disk


def operations_of(folder: Path) -> list[Operation]:
    """Disk operations of one undisturbed build."""
    disk = RecordingDisk()
    build(emptied(folder), disk)
    return disk.operations


def kills(
    folder: Path,
    *,
    only: str | None = None,
    disk: Callable[..., FailingDisk] = FailingDisk,
    again: int = 0,
    seed: int = 0,
) -> Outcome:
    """F1, F2: SIGKILL before every change and half-way through every write; `again` times also during the resume."""
    outcome = Outcome("kills", only, {"again": again, "seed": seed})
    expected, work = oracle(folder / "oracle"), folder / "work"
    tokens = read_all(folder / "oracle")
    steps = disk(-1, "kill")
    build(emptied(work), steps)
    kinds = [operation.kind for operation in operations_of(folder / "recorded")]
    cases = [(number, False) for number in range(steps.done)]
    cases += [(number, True) for number in range(steps.done) if steps.done == len(kinds) and kinds[number] == "write"]
    for number, halfway in cases:
        case = f"{number}{'-halfway' if halfway else ''}"
        if outcome.wants(case):
            emptied(work)
            outcome.landed += _kill(work, disk(number, "kill", halfway=halfway))
            if problem := index_problem(work, tokens) or _resumed(work, expected):
                outcome.fail(case, problem)
    chance = random.Random(seed)
    for time in range(again):
        # not before the last sync, after which the second kill has nothing left to interrupt
        number, share = chance.randrange(steps.done - 1), chance.random()
        if outcome.wants(f"again-{time}"):
            emptied(work)
            first = _kill(work, disk(number, "kill"))
            count = _steps_of_resume(work, folder / "rehearsal")
            second = _kill(work, FailingDisk(int(share * count), "kill"))
            outcome.landed += first and second
            if problem := index_problem(work, tokens) or _resumed(work, expected):
                outcome.fail(f"again-{time}", f"kills at {number} and at {int(share * count)} of the resume: {problem}")
    return outcome


def removals(folder: Path, *, only: str | None = None) -> Outcome:
    """SIGKILL before every change by `remove_shard_set`; then the build is resumed if unfinished, or removed."""
    outcome = Outcome("removals", only)
    expected, work = oracle(folder / "oracle"), folder / "work"
    tokens, steps = read_all(folder / "oracle"), FailingDisk(-1, "kill")
    build(emptied(work), QuickDisk())
    remove_shard_set(work, disk=steps)
    for number in range(steps.done):
        for then in ("build", "remove"):
            if outcome.wants(f"{number}-{then}"):
                build(emptied(work), QuickDisk())
                killing = partial(remove_shard_set, work, disk=FailingDisk(number, "kill"))
                outcome.landed += in_child(killing)[0] == -signal.SIGKILL
                problem = index_problem(work, tokens)
                if then == "remove" or ((work / "index.json").exists() and not (work / "building.json").exists()):
                    remove_shard_set(work)
                    problem = problem or differs(work, {})
                if problem := problem or _resumed(work, expected):
                    outcome.fail(f"{number}-{then}", problem)
    return outcome


def _kill(folder: Path, disk: Disk) -> bool:
    return in_child(lambda: build(folder, disk))[0] == -signal.SIGKILL


def _steps_of_resume(folder: Path, rehearsal: Path) -> int:
    shutil.rmtree(rehearsal, ignore_errors=True)
    shutil.copytree(folder, rehearsal)
    disk = FailingDisk(-1, "kill")
    build(rehearsal, disk)
    return disk.done


def _resumed(folder: Path, expected: dict[str, bytes | None]) -> str:
    status, message = in_child(lambda: build(folder, Disk()))
    # killed after the last operation but before the acknowledgement
    if status and "already holds a finished" not in message:
        return f"the resume ended with {status}: {message}"
    difference = differs(folder, expected)
    return f"the resumed build differs in {difference}" if difference else ""


def power_losses(
    folder: Path,
    *,
    only: str | None = None,
    disk: Callable[[], RecordingDisk] = RecordingDisk,
    whole: bool = False,
    limit: int = 4096,
) -> Outcome:
    """F3: every state that a power loss can leave, from the last commit on or of the `whole` build."""
    outcome = Outcome("power_losses", only, {"whole": whole, "limit": limit})
    recorded, recorder = emptied(folder / "recorded"), disk()
    acknowledged: list[tuple[int, int]] = []
    build(recorded, recorder, progress=lambda units: acknowledged.append((len(recorder.operations), units)))
    commits = [at for at, units in acknowledged if units]
    first = 0 if whole else max(at for at in commits if at < commits[-1])
    states = power_loss_states(recorder.operations, recorded, first=first, limit=limit)
    _check_states(outcome, folder, states, acknowledged, len(recorder.operations), prefix="")
    return outcome


def power_losses_after_kills(folder: Path, *, only: str | None = None, every: int = 1) -> Outcome:
    """F3 after a kill: a build stops after every `every`-th operation, another resumes, and then the power is lost."""
    outcome = Outcome("power_losses_after_kills", only, {"every": every})
    for stop in range(1, len(operations_of(folder / "recorded")), every):
        recorded = emptied(folder / "recorded")
        stopping = StoppingDisk(stop)
        with suppress(StorageError):
            build(recorded, stopping)
        recorder, acknowledged = RecordingDisk(), [(0, 0)]
        recorder.operations = list(stopping.operations)
        finished = _resumes(recorded, recorder, acknowledged)
        states = power_loss_states(recorder.operations, recorded, first=stop)
        end = len(recorder.operations) if finished else -1
        _check_states(outcome, folder, states, acknowledged, end, prefix=f"{stop}-")
    return outcome


class StoppingDisk(RecordingDisk):
    """Stops after a number of operations, as if the process had been killed there."""

    def __init__(self, stop: int) -> None:
        super().__init__()
        self.stop = stop

    def _perform(self, operation: Operation, act: Callable[[], Any]) -> Any:
        self._stop_in_time()
        return super()._perform(operation, act)

    def _write(self, descriptor: int, path: Path, data: memoryview) -> int:
        self._stop_in_time()
        return super()._write(descriptor, path, data)

    def _stop_in_time(self) -> None:
        if len(self.operations) >= self.stop:
            raise OSError(errno.EIO, "stopped")


def _resumes(folder: Path, recorder: RecordingDisk, acknowledged: list[tuple[int, int]]) -> bool:
    """Whether the second build finished; the first may have left nothing to do without acknowledging it."""
    try:
        build(folder, recorder, progress=lambda units: acknowledged.append((len(recorder.operations), units)))
    except BertsmithError as error:
        if "already holds a finished" not in str(error):
            raise
        return False
    return True


def _check_states(
    outcome: Outcome,
    folder: Path,
    states: list[DiskState],
    acknowledged: list[tuple[int, int]],
    end: int,
    *,
    prefix: str,
) -> None:
    expected, work = oracle(folder / "oracle"), folder / "work"
    tokens = read_all(folder / "oracle")
    for number, state in enumerate(states):
        case = f"{prefix}{number}"
        if outcome.wants(case):
            state.materialise(emptied(work))
            outcome.landed += 1
            units = max((units for at, units in acknowledged if at <= state.after), default=0)
            problem = index_problem(work, tokens) or _state_problem(work, units, expected, finished=state.after == end)
            if problem:
                outcome.fail(case, f"power lost after operation {state.after}: {problem}")


def _state_problem(work: Path, units: int, expected: dict[str, bytes | None], *, finished: bool) -> str:
    """Acknowledged data must exist: all of it if the build was `finished`, else `units`, resumable."""
    if not finished and ((work / "building.json").exists() or not (work / "index.json").exists()):
        kept: list[int] = []
        try:
            build(work, QuickDisk(), progress=kept.append)
        except Exception as error:
            return f"the resume ended with {error!r}"
        if kept[0] < units:
            return f"{units} units were acknowledged, {kept[0]} are left"
    difference = differs(work, expected)
    return f"the build differs in {difference}" if difference else ""


def refusals(folder: Path, *, only: str | None = None) -> Outcome:
    """F4: no space and I/O error, once and permanently, at every operation, and short writes."""
    outcome = Outcome("refusals", only)
    expected, work = oracle(folder / "oracle"), folder / "work"
    for number, operation in enumerate(operations_of(folder / "recorded")):
        name = operation.path.relative_to(folder / "recorded").as_posix().removesuffix(".partial")
        for how in (
            "ENOSPC",
            "EIO",
            "ENOSPC-lasting",
            "EIO-lasting",
            *(["short"] if operation.kind == "write" else []),
        ):
            if outcome.wants(f"{number}-{how}"):
                emptied(work)
                disk = QuickFailing(number, how.removesuffix("-lasting"), lasting=how.endswith("-lasting"))  # type: ignore[arg-type]
                if problem := _refused(work, disk, name, operation.kind, expected):
                    outcome.fail(f"{number}-{how}", f"{operation.kind} {name}: {problem}")
                outcome.landed += disk.landed
    return outcome


def _refused(work: Path, disk: FailingDisk, name: str, kind: str, expected: dict[str, bytes | None]) -> str:
    try:
        build(work, disk)
        if disk.how != "short":
            return "the build continued without an error"
    except StorageError as error:
        reason = os.strerror(getattr(errno, disk.how, 0))
        wanted = f"{len(expected.get(name) or b''):,}" if kind == "write" and name in expected else ""
        space = f" needs {wanted} bytes" if wanted else SPACE
        if not re.match(rf"{reason}: .*{re.escape(str(work / name))}.*{space}", str(error)):
            return f"the message is {error}"
    shards = {path.name: path.read_bytes() for path in work.glob("*.shard")}
    if any(expected[name] != contents for name, contents in shards.items()):
        return "what was committed before has changed"
    if disk.how != "short":
        try:
            build(work, QuickDisk())
        except BertsmithError as error:
            if "already holds a finished" not in str(error):
                return f"the second attempt ended with {error!r}"
    difference = differs(work, expected)
    return f"after the second attempt it differs in {difference}" if difference else ""
