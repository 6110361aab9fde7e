"""Resuming `pretrain` at step 1,000,000."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from faults.pretrain_fixtures import QUICK, RESUMABLE, Scene, newest, wait_for
from faults.pretrain_patches import digests
from faults.pretrain_process import ONE_THREAD
from faults.pretrain_ranks import rows_learned
from faults.shard_fixtures import emptied

from bertsmith import config
from bertsmith.data.collate import from_packed
from bertsmith.data.shards import Shards
from bertsmith.model_io.folder_tokenizer import vocabulary_of
from bertsmith.model_io.model import Model
from bertsmith.tokenizers.tokenizer import load
from bertsmith.training.checkpoints import Checkpoint, Checkpoints
from bertsmith.training.log import read_events
from bertsmith.training.recipe import Recipe

LATE_STEP = 1_000_000
LONG = (f"steps={LATE_STEP + 100}",)


def late_run(scene: Scene, run: Path) -> None:
    """A run folder whose newest checkpoint is at step 1,000,000; everything else is written by the command."""
    patch = ("signal_at", {"phase": "update-2", "number": signal.SIGTERM, "marker": str(scene.sent)})
    ended = scene.call(patch, run=run, changes=LONG)
    assert ended.status == RESUMABLE, ended.errors
    near = Checkpoint(run / "checkpoints" / "step-00000002")
    state = near.state()
    state = replace(state, progress={**state.progress, "step": LATE_STEP, "tokens": LATE_STEP * 200, "seconds": 1e5})
    files = {"recipe.json": near.read("recipe.json")}
    with Checkpoints(run, files=files, facts=near.facts) as checkpoints:
        checkpoints.save(state)


def seconds_to_first_step(scene: Scene, run: Path) -> tuple[float, float]:
    """Wall and CPU seconds from the start of a new interpreter until the next step is logged.

    The run is then stopped; its CPU time is that of the complete process.
    """
    events, before = run / "events.jsonl", len(read_events(run / "events.jsonl"))
    words = [str(word) for word in scene.words(run, *LONG)]
    spent, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "bertsmith", *words], env=os.environ | ONE_THREAD)
    try:
        wait_for(events, until=lambda path: any(e["kind"] == "step" for e in read_events(path)[before:]), seconds=60)
        seconds = time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    assert status == RESUMABLE
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, ended.ru_utime - spent.ru_utime + ended.ru_stime - spent.ru_stime


def rows_after(scene: Scene, run: Path) -> dict[int, list[str]]:
    """The rows of the next step, as read by the command."""
    record = emptied(scene.folder / "late")
    patches = [("record", {"folder": str(record)})]
    stop = ("signal_at", {"phase": f"update-{newest(run) + 1}", "number": signal.SIGTERM, "marker": str(scene.sent)})
    ended = scene.server.call(scene.words(run, *LONG), QUICK, *patches, stop)
    assert ended.status == RESUMABLE, ended.errors
    return rows_learned(record)


def rows_computed(scene: Scene, run: Path, step: int) -> list[str]:
    """The rows of a step, computed only from the recipe, the shards and the step number."""
    recipe, tokenizer = config.read_file(Recipe, run / "recipe.json"), load(scene.shards / "tokenizer")
    vocabulary, parts = vocabulary_of(tokenizer), recipe.objectives.values()
    model = Model.build(recipe.encoder, parts, vocabulary=vocabulary, seed=recipe.seed)
    frame, padding = tokenizer.frame_ids, tokenizer.padding_id
    packing = recipe.packing.build(
        Shards.open(scene.shards), frame=frame, padding_id=padding, seed=recipe.seed, max_length=recipe.max_length
    )
    first = (step - 1) * recipe.batch_size
    return digests(model.corrupt(from_packed(packing.rows(first, recipe.batch_size))))
