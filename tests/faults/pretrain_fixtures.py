"""A small `pretrain` run, its expected result, and the invariants after a fault and at the end."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from faults.pretrain_process import Ended, Patch, Server
from faults.shard_fixtures import Outcome, emptied

from bertsmith.data import prepare as verbs
from bertsmith.errors import BertsmithError
from bertsmith.tokenizers.wordpiece import Config
from bertsmith.training.checkpoints import OPTIMIZER, WEIGHTS, Checkpoint, Checkpoints
from bertsmith.training.log import last_of_each_step, read_events

STEPS, EVERY = 10, 3  # checkpoints after 3, 6 and 9 steps and at the end; evaluation after 4 and 8 and at the end
SMALL = [
    "encoder.width=32",
    "encoder.heads=2",
    "encoder.layers=1",
    "max_length=32",
    "micro_batch_size=4",
    "batch_size=8",
]
SMALL += [f"steps={STEPS}", "warmup=0.2", "learning_rate=2e-2", "eval_every=4", "eval_rows=8"]
MODEL = "model.safetensors"
QUICK: Patch = ("quick_start", {})
RESUMABLE = 75  # exit status of a run stopped by a signal


@dataclass
class PretrainOutcome(Outcome):
    """Also counts the kinds of faults."""

    options: dict[str, int | str] = field(default_factory=dict)  # type: ignore[assignment]
    kinds: Counter[str] = field(default_factory=Counter)

    def land(self, kind: str, landed: bool = True) -> None:
        self.landed += landed
        self.kinds[kind] += landed

    def fail(self, case: str, problem: str) -> None:
        options = "".join(f" {name}={value}" for name, value in self.options.items() if value != "")
        replay = f"PYTHONPATH=src:tests python tests/faults/replay_pretrain.py {self.name} {case}{options}"
        self.failures.append(f"{self.name} {case}: {problem}\n  replay: {replay}")

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return f"{super().__str__()} ({kinds})"


@dataclass(frozen=True)
class Oracle:
    """An undisturbed run: numbers as hex floats, files as bytes, checkpoints as checksums."""

    losses: list[str]
    evaluations: list[str]
    models: dict[str, bytes]
    states: dict[int, tuple[str, str]]  # after each step: sha256 of weights and optimizer state
    seconds: float  # of CPU time
    first_step: float  # seconds until it was logged


class Scene:
    """`with Scene(folder) as scene:` a fork server, shards, and the oracle of the run under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = Server(folder / "said")
        self.shards = make_shards(folder / "data")
        self.run = folder / "run"
        self.sent = folder / "sent"  # created by a fault when it lands
        self.server.ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    def words(self, run: Path | None = None, *changes: str, every: int = EVERY) -> list[object]:
        """The command, the same to start and to resume."""
        found: list[object] = ["pretrain", "bert/tiny", "--data", self.shards, "--output", run or self.run]
        return [*found, "--device", "cpu", "--quiet", *SMALL, f"save_every={every}", *changes]

    def call(self, *patches: Patch, run: Path | None = None, changes: tuple[str, ...] = (), limit: int = 0) -> Ended:
        return self.server.call(self.words(run, *changes), QUICK, *patches, limit=limit)

    @cached_property
    def oracle(self) -> Oracle:
        """With a checkpoint after every step, which does not change the results."""
        run, began = emptied(self.folder / "oracle"), time.time()
        ended = self.server.call(self.words(run, "keep_checkpoints=99", every=1), QUICK)
        assert ended.status == 0, ended.errors
        first = next(event for event in read_events(run / "events.jsonl") if event["kind"] == "step")
        states = {int(path.name.removeprefix("step-")): _sums(path) for path in (run / "checkpoints").iterdir()}
        assert sorted(states)[-STEPS:] == list(range(1, STEPS + 1))
        models = {name: (run / name / MODEL).read_bytes() for name in ("best", "last")}
        assert models["best"] != models["last"], "a run that is best at its end would not show a lost best"
        share = (first["time"] - began) / (time.time() - began)
        losses, scores = numbers(run, "step"), numbers(run, "evaluation")
        return Oracle(losses, scores, models, states, seconds=ended.busy, first_step=ended.busy * share)

    @cached_property
    def changes(self) -> int:
        """Number of disk operations of an undisturbed run."""
        path = self.folder / "changes"
        ended = self.call(("count_changes", {"path": str(path)}), run=emptied(self.folder / "counted"))
        assert ended.status == 0, ended.errors
        return len(path.read_bytes())

    def state_problem(self, run: Path | None = None) -> str:
        """Problem with a run folder after a fault, read-only; empty if it can be resumed.

        No acknowledged checkpoint is lost, at most one interval is lost, and no wrong byte is accepted.
        """
        run = run or self.run
        checkpoints, events = Checkpoints(run), read_events(run / "events.jsonl")
        try:
            resumed = checkpoints.resume()
        except BertsmithError as error:
            return f"no checkpoint can be resumed from: {error}"
        if resumed.skipped:
            return f"a checkpoint has its final name but is incomplete: {resumed.skipped[0]}"
        newest = resumed.state.step if resumed.state is not None else 0
        logged = max((event["step"] for event in events if event["kind"] == "step"), default=0)
        saved = max((event["step"] for event in events if event["kind"] == "checkpoint"), default=0)
        if newest < saved or logged - newest > EVERY:
            return f"step {logged} was logged and step {saved} acknowledged, but the newest checkpoint is of {newest}"
        if newest and _sums(checkpoints.all()[-1]) != self.oracle.states[newest]:
            return f"the state of step {newest} is not that of the undisturbed run"
        return ""

    def differs_at_the_end(self, *patches: Patch, run: Path | None = None) -> str:
        """Resumes to the end: same bits as the undisturbed run, no leftover files."""
        run = run or self.run
        ended = self.call(*patches, run=run)
        if ended.status != 0:
            return f"the resumed run ended with status {ended.status}: {ended.errors[-300:].strip()}"
        return self.differs(run)

    def differs(self, run: Path) -> str:
        """Differences of a finished run folder from the undisturbed one."""
        if numbers(run, "step") != self.oracle.losses:
            return f"the losses are {numbers(run, 'step')}, not {self.oracle.losses}"
        if numbers(run, "evaluation") != self.oracle.evaluations:
            return f"the held-out losses are {numbers(run, 'evaluation')}, not {self.oracle.evaluations}"
        for name, expected in self.oracle.models.items():
            if (run / name / MODEL).read_bytes() != expected:
                return f"{name}/{MODEL} is another one"
        leftovers = [path.name for path in run.rglob("*") if path.name.endswith((".partial", ".retired"))]
        steps = [path.name for path in Checkpoints(run).all()]
        if leftovers or len(steps) != 2 or steps[-1] != f"step-{STEPS:08}":
            return f"left over: {leftovers}; checkpoints: {steps}"
        return ""

    def fresh(self) -> Path:
        """The run folder before the run."""
        shutil.rmtree(self.run, ignore_errors=True)
        self.sent.unlink(missing_ok=True)
        return self.run


def numbers(run: Path, kind: str) -> list[str]:
    """Losses of all steps or evaluations, without repeated ones."""
    return [float(event["loss"]).hex() for event in last_of_each_step(read_events(run / "events.jsonl"), kind)]


def newest(run: Path) -> int:
    """The step of the newest valid checkpoint; 0 if there is none."""
    state = Checkpoints(run).resume().state
    return state.step if state is not None else 0


def wait_for(path: Path, *, seconds: float = 30.0, until: Callable[[Path], bool] = Path.exists) -> None:
    deadline = time.monotonic() + seconds
    while not until(path):
        assert time.monotonic() < deadline, f"{path} did not come within {seconds} seconds"
        time.sleep(0.002)


def make_shards(base: Path) -> Path:
    """Shards of a few hundred sentences of a small synthetic language."""
    base.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    line = "the smith heats iron and strikes an anvil while fire burns 쇠를 두드린다"
    words = line.split()
    texts = [" ".join(" ".join(draw.choices(words, k=7)) + "." for _ in range(6)) for _ in range(200)]
    text = base / "text.txt"
    text.write_text("\n\n".join(texts), encoding="utf-8")
    verbs.train_tokenizer([text], base / "t", settings=Config(), vocab_size=160, workers=1, quiet=True)
    verbs.prepare([text], base / "shards", tokenizer=base / "t", held_out=0.1, workers=1, quiet=True)
    return base / "shards"


def _sums(folder: Path) -> tuple[str, str]:
    files: dict[str, Any] = Checkpoint(folder).files
    return files[WEIGHTS].sha256, files[OPTIMIZER].sha256
