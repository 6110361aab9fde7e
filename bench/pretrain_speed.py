"""Tokens a second of `bertsmith pretrain`, end to end with real shards: data, masks, steps, logs.

    python bench/pretrain_speed.py SHARDS RECIPE [SETTING=VALUE]...

Prints one line: real tokens a second over the second half of the steps, by the time stamps of the run's own log.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from bertsmith import recipes
from bertsmith.training.log import last_of_each_step, read_events
from bertsmith.training.pretrain import pretrain
from bertsmith.training.recipe import with_overrides


def main() -> None:
    shards, name, *changes = sys.argv[1:]
    quiet = ["eval_every=0", "save_every=1000000", "eval_rows=32", *changes]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        pretrain(with_overrides(recipes.find(name), quiet), shards, folder, quiet=True)
        steps = last_of_each_step(read_events(folder / "events.jsonl"), "step")
    half = steps[len(steps) // 2 :]
    seconds = half[-1]["time"] - half[0]["time"]
    tokens = sum(step["tokens"] for step in half[1:])
    rows = sum(step["rows"] for step in half[1:])
    waited = sum(step["data_seconds"] for step in half[1:]) / seconds
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    shown = f"{tokens / seconds / 1e3:9.1f} k tokens/s  {rows / seconds:8.1f} rows/s  {memory:6.1f} GiB"
    shown += f"  waiting for data {waited:.2%}"
    print(f"{name:<12} {shown}  last loss {steps[-1]['loss']:.3f}  {' '.join(changes)}", flush=True)


if __name__ == "__main__":
    main()
