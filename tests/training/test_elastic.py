"""`pretrain` under torchrun: killed ranks are restarted without loss; failures are reported in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from bertsmith import cli
from bertsmith.errors import ConfigError, DataError, PeerLostError
from bertsmith.training.checkpoints import Checkpoints
from bertsmith.training.log import last_of_each_step, read_events

pytestmark = pytest.mark.xdist_group("elastic")  # in one worker process, so that the runs are shared

TESTS = Path(__file__).resolve().parent
SMALL = ["encoder.width=32", "encoder.heads=2", "encoder.layers=2", "max_length=32", "batch_size=16"]
SMALL += ["micro_batch_size=8", "eval_every=0", "eval_rows=16", "learning_rate=3e-3", "warmup=0.17"]
SHORT = ["steps=12", "save_every=4"]
LONG = ["steps=400", "save_every=20"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}


def losses(folder: Path) -> list[str]:
    events = last_of_each_step(read_events(folder / "events.jsonl"), "step")
    return [float(event["loss"]).hex() for event in events]


def starts(folder: Path) -> list[int]:
    """The first step of each attempt."""
    return [event["step"] for event in read_events(folder / "events.jsonl") if event["kind"] == "start"]


class Agent:
    """The folder of the jobs and the result of each."""

    def __init__(self, folder: Path, results: dict[str, Any]) -> None:
        self.folder, self.results = folder, results

    def output_lines(self, name: str, attempt: int, rank: int, kind: str = "err") -> list[str]:
        """Output lines of a rank, without progress and warnings of torch."""
        lines = (self.folder / f"{name}.{attempt}.{rank}.{kind}").read_text().splitlines()
        return [line for line in lines if line.startswith("run ") or "bertsmith: " in line or "Traceback" in line]


@pytest.fixture(scope="module")
def agent(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Agent:
    folder = tmp_path_factory.mktemp("agent")

    def words(name: str, *changes: str) -> list[str]:
        return ["pretrain", "bert/tiny", "-d", str(shards), "-o", str(folder / name), *SMALL, *SHORT, *changes]

    jobs = [
        {"name": "uninterrupted", "words": words("uninterrupted")},
        {"name": "killed", "words": words("killed"), "restarts": 1, "fault": "killed", "step": 6},
        {"name": "late", "words": words("late"), "restarts": 1, "fault": "killed", "step": 6, "late": True},
        {"name": "stopped", "words": words("stopped"), "restarts": 1, "fault": "stopped", "step": 5},
        {"name": "fails", "words": words("fails"), "fault": "fails", "step": 5},
        {"name": "split", "words": words("split", "compute.fsdp=true", "compute.activation_checkpointing=true")},
        {"name": "alike", "words": words("alike", "learning_rate=-1")},
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, str(TESTS / "elastic_agent.py"), str(folder / "jobs.json")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return Agent(folder, json.loads((folder / "results.json").read_text()))


def test_after_a_restart_of_a_killed_rank_nothing_is_lost(agent: Agent) -> None:
    """Rank 1 is killed after step 6; both resume from step 4 and end with the bits of an undisturbed run."""
    uninterrupted, killed = agent.folder / "uninterrupted", agent.folder / "killed"
    assert agent.results["uninterrupted"]["failed"] == agent.results["killed"]["failed"] == {}
    assert starts(uninterrupted) == [0]
    assert starts(killed) == [0, 4]
    assert len(losses(killed)) == 12
    assert losses(killed) == losses(uninterrupted)
    models = [(folder / "last" / "model.safetensors").read_bytes() for folder in (uninterrupted, killed)]
    assert models[0] == models[1]
    assert agent.output_lines("killed", 0, 0) == [], "a rank that lost its peer is ended before it reports an error"


def test_a_rank_ended_before_it_notices_a_death_is_silent(agent: Agent) -> None:
    """The agent's signal comes in the middle of a step; the resulting error is not reported."""
    late = agent.folder / "late"
    assert agent.results["late"]["failed"] == {}
    assert starts(late) == [0, 4]
    assert losses(late) == losses(agent.folder / "uninterrupted")
    assert agent.output_lines("late", 0, 0) == []


@pytest.mark.parametrize("when", ["in a finally block", "while its message is formatted", "while it waits"])
@pytest.mark.parametrize(("rank", "kind"), [("0", PeerLostError), ("1", PeerLostError), ("1", DataError)])
def test_a_rank_ended_while_its_error_propagates_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, kind: type[Exception], when: str
) -> None:
    """After another rank has failed, torchrun's signal is neither an interrupt nor reported, whenever it comes."""

    def send_signal(moment: str) -> None:
        if moment == when:
            os.kill(os.getpid(), signal.SIGTERM)

    class Failure(kind):  # type: ignore[misc, valid-type]
        def __str__(self) -> str:
            send_signal("while its message is formatted")
            return "this rank cannot continue"

    def fail(**given: object) -> None:
        try:
            raise Failure("this rank cannot continue")
        finally:
            send_signal("in a finally block")

    def wait(seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        send_signal("while it waits")
        sleep(seconds)

    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(cli, "command", lambda *_: fail)
    monkeypatch.setattr(cli, "_received", [])
    monkeypatch.setattr(time, "sleep", wait)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == kind.exit_code  # type: ignore[attr-defined]
    assert capsys.readouterr().err == ""


def test_a_rank_that_is_not_ended_reports_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**given: object) -> None:
        raise PeerLostError("another rank has ended")

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(cli, "command", lambda *_: fail)
    monkeypatch.setattr(cli, "_received", [])
    monkeypatch.setattr(cli, "LOST_SECONDS", 0.1)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "bertsmith: rank 1: another rank has ended\n"


def test_only_rank_0_prints_the_result(agent: Agent) -> None:
    assert len(agent.output_lines("uninterrupted", 0, 0, "out")) == 1
    assert agent.output_lines("uninterrupted", 0, 1, "out") == []


def test_a_run_with_fsdp_equals_one_without(agent: Agent) -> None:
    """`compute.fsdp`, from the command to the model folder."""
    uninterrupted, split = agent.folder / "uninterrupted", agent.folder / "split"
    assert agent.results["split"]["failed"] == {}
    sharded, expected = ([float.fromhex(loss) for loss in losses(folder)] for folder in (split, uninterrupted))
    assert sharded == pytest.approx(expected, rel=1e-6)
    assert losses(split) != losses(uninterrupted), "the norm is summed in another order: otherwise nothing was split"
    actual, expected = (load_file(folder / "last" / "model.safetensors") for folder in (split, uninterrupted))
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        assert float((tensor - expected[name]).abs().max()) < (1e-2 if name.endswith("key.bias") else 1e-4), name


def test_stopped_ranks_save_and_count_as_failed(agent: Agent) -> None:
    """A signal to a rank, not to torchrun: all ranks stop together with 75, and torchrun restarts them."""
    (line,) = agent.output_lines("stopped", 0, 0)
    assert "stopped after step 6, which is saved" in line
    assert agent.output_lines("stopped", 0, 1) == []
    assert starts(agent.folder / "stopped") == [0, 6]
    assert losses(agent.folder / "stopped") == losses(agent.folder / "uninterrupted")


def test_a_rank_that_fails_alone_reports_it_alone(agent: Agent) -> None:
    assert agent.results["fails"]["failed"] == {"1": DataError.exit_code}
    assert agent.output_lines("fails", 0, 1) == ["bertsmith: rank 1: the shards of rank 1 are damaged"]
    assert agent.output_lines("fails", 0, 0) == []


def test_a_common_error_is_reported_once(agent: Agent) -> None:
    assert agent.results["alike"]["failed"] == {"0": ConfigError.exit_code}
    (line,) = agent.output_lines("alike", 0, 0)
    assert "learning_rate=-1 must be at least 0" in line
    assert agent.output_lines("alike", 0, 1) == []


@pytest.fixture
def torchrun(shards: Path) -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    begun: list[subprocess.Popen[str]] = []

    def begin(folder: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += ["--max-restarts", "3", "-m", "bertsmith", "pretrain", "bert/tiny", "-d", str(shards)]
        begun.append(
            subprocess.Popen(
                [*command, "-o", str(folder), *SMALL, *LONG], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
            )
        )
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.wait()


def wait_for_step(folder: Path, step: int) -> None:
    limit = time.monotonic() + 120
    while not any(event["kind"] == "step" and event["step"] >= step for event in read_events(folder / "events.jsonl")):
        assert time.monotonic() < limit
        time.sleep(0.05)


def rank_of(agent: subprocess.Popen[str], rank: int) -> int:
    """The process of a rank."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            child = f"\nPPid:\t{agent.pid}\n" in (path / "status").read_text()
            if child and f"RANK={rank}".encode() in (path / "environ").read_bytes().split(b"\0"):
                return int(path.name)
        except OSError:  # exited meanwhile
            continue
    raise AssertionError(f"there is no rank {rank}")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds ranks in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_restarts_after_a_killed_rank(
    torchrun: Callable[[Path], subprocess.Popen[str]], tmp_path: Path, rank: int
) -> None:
    uninterrupted = torchrun(tmp_path / "uninterrupted")
    assert uninterrupted.wait(timeout=300) == 0
    struck = torchrun(tmp_path / "struck")
    wait_for_step(tmp_path / "struck", 50)
    os.kill(rank_of(struck, rank), signal.SIGKILL)
    assert struck.wait(timeout=300) == 0
    first, second = starts(tmp_path / "struck")
    assert first == 0
    assert 40 <= second < 400
    assert losses(tmp_path / "struck") == losses(tmp_path / "uninterrupted")


@pytest.mark.slow
def test_a_stopped_torchrun_restarts_nothing(torchrun: Callable[[Path], subprocess.Popen[str]], tmp_path: Path) -> None:
    stopped = torchrun(tmp_path / "run")
    wait_for_step(tmp_path / "run", 50)
    stopped.send_signal(signal.SIGTERM)
    _, output_lines = stopped.communicate(timeout=120)
    assert stopped.returncode != 0
    assert output_lines.count("which is saved: the same command resumes from there") == 1
    assert starts(tmp_path / "run") == [0]
    steps = last_of_each_step(read_events(tmp_path / "run" / "events.jsonl"), "step")
    with Checkpoints(tmp_path / "run") as checkpoints:  # and the folder is unlocked
        state = checkpoints.resume().state
    assert state is not None
    assert state.step == steps[-1]["step"], "not a step was lost"
    assert torchrun(tmp_path / "run").wait(timeout=300) == 0
    assert starts(tmp_path / "run") == [0, state.step]
