"""torchrun's agent with two forked ranks, for test_elastic.py: `elastic_agent.py JOBS.json`.

A job is a command line, a number of restarts, and a fault injected into the trainer of a rank. The output of ranks is
written to files beside the jobs, the result of each job to a JSON file. Forking avoids importing torch in every rank.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # once, before the fork: needed by torch's DistributedDataParallel
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from bertsmith import cli
from bertsmith.errors import DataError
from bertsmith.training.pretrain import pretrain  # noqa: F401  # once, before ranks are forked
from bertsmith.training.trainer import Trainer


def inject_fault(fault: str, step: int) -> None:
    """Rank 1 is killed, stopped by a signal, or fails after some steps."""
    real = Trainer.__next__

    def struck(self: Trainer) -> Any:
        if self.steps_done == step and fault == "fails":
            raise DataError("the shards of rank 1 are damaged")
        if self.steps_done == step:
            os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGTERM}[fault])
        return real(self)

    Trainer.__next__ = struck  # type: ignore[method-assign]


def delay(step: int) -> None:
    """Delays a step of rank 0 so that the agent notices a death first."""
    real = Trainer.__next__

    def slow(self: Trainer) -> Any:
        if self.steps_done == step:
            time.sleep(3)
        return real(self)

    Trainer.__next__ = slow  # type: ignore[method-assign]


def rank(job: dict[str, Any], folder: str) -> None:
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for number, kind in ((1, "out"), (2, "err")):
        path = Path(folder) / f"{job['name']}.{attempt}.{os.environ['RANK']}.{kind}"
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    torch.set_num_threads(1)
    if job.get("fault") and attempt == 0 and os.environ["RANK"] == "1":
        inject_fault(job["fault"], job["step"])
    if job.get("late") and attempt == 0 and os.environ["RANK"] == "0":
        delay(job["step"])
    sys.argv = ["bertsmith", *job["words"]]
    status: Any = 1
    try:
        cli.main()
    except SystemExit as end:
        status = end.code
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        if status:
            os._exit(status)  # skips torch's error reports, which a command started by torchrun does not write


def launch(job: dict[str, Any], folder: str) -> dict[str, Any]:
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id=job["name"],
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=job.get("restarts", 0),
        monitor_interval=0.1,
        start_method="fork",
    )
    try:
        elastic_launch(config, rank)(job, folder)
    except ChildFailedError as error:
        return {"failed": {number: failure.exitcode for number, failure in error.failures.items()}}
    return {"failed": {}}


if __name__ == "__main__":
    jobs = Path(sys.argv[1])
    results = {job["name"]: launch(job, str(jobs.parent)) for job in json.loads(jobs.read_text())}
    (jobs.parent / "results.json").write_text(json.dumps(results))
