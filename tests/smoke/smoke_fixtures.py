"""Fixtures of end-to-end tests: a small text, small sizes, successful commands, a task."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from command_line import Done, call
from threads import threads

from bertsmith.training.log import last_of_each_step, read_events

LINE = "the smith heats iron and strikes an anvil while fire burns 쇠를 두드린다"
ACCENTED = f"{LINE} café"
STEPS, HALF = 16, 8  # steps of a run, and up to its first checkpoint
SMALL = [
    "encoder.width=32",
    "encoder.heads=2",
    "encoder.initializer_range=0.1",
    "encoder.max_positions=64",
    "batch_size=16",
    "micro_batch_size=8",
    f"steps={STEPS}",
    f"warmup={4 / STEPS}",
    f"save_every={HALF}",
    "eval_every=8",
    "eval_rows=16",
]


def succeed(*words: object) -> Done:
    """The result of a command that must succeed."""
    result = call(*words)
    assert result.returncode == 0, result.stderr
    return result


def done(*words: object) -> Any:
    """The JSON output of a command that must succeed."""
    return json.loads(succeed(*words, "--json").stdout)


def write_text(
    base: Path, line: str = LINE, *, between: str = "\n", documents: int = 120, sentences: int = 8, words: int = 5
) -> Path:
    """Writes documents of random sentences from the words of a line."""
    draw, known = random.Random(0), line.split()
    texts = [
        between.join(" ".join(draw.choices(known, k=words)) + "." for _ in range(sentences)) for _ in range(documents)
    ]
    (base / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    return base / "text.txt"


def make_shards(base: Path, text: Path, *tokenizer: object) -> None:
    """Shards of the text, with a tokenizer trained on it by these command line arguments."""
    alone = ["--workers", 1]
    done("tokenizer", "train", text, "-o", base / "t", *tokenizer, *alone)
    done("prepare", text, "-t", base / "t", "-o", base / "shards", "--held-out", 0.1, *alone)


def run_arguments(base: Path, name: str) -> list[object]:
    """A run of that name on the shards, for `pretrain`."""
    return ["-d", base / "shards", "-o", base / name, "--device", "cpu"]


def pretrain(base: Path, name: str, recipe: str, *settings: str) -> None:
    """A complete run of that name on the shards, which `check` has found possible."""
    succeed("check", recipe, *run_arguments(base, name), *settings)
    assert done("pretrain", recipe, *run_arguments(base, name), *settings)["steps"] == STEPS


@contextmanager
def workspace_of(
    base: Path, recipe: str, *settings: str, tokenizer: list[object], line: str = LINE, between: str = "\n"
) -> Iterator[Path]:
    """Text, tokenizer, shards and a pre-training run in one folder, in one thread."""
    with threads(1):
        make_shards(base, write_text(base, line, between=between), *tokenizer)
        pretrain(base, "run", recipe, *settings)
        yield base


def resume(base: Path, name: str) -> None:
    """A run of that name resumed from the first checkpoint of `run`."""
    middle = min((base / "run" / "checkpoints").iterdir())
    assert int(middle.name.removeprefix("step-")) == HALF
    done("pretrain", base / "run" / "recipe.json", *run_arguments(base, name), "--resume", middle)


def steps(run: Path) -> list[dict[str, Any]]:
    """The step events of a run."""
    return last_of_each_step(read_events(run / "events.jsonl"), "step")


def metals(base: Path) -> list[object]:
    """A task for `finetune`: which metal occurs in the text?"""
    draw = random.Random(1)
    for name, count in (("train", 128), ("dev", 32)):
        rows = []
        for _ in range(count):
            metal = draw.choice(("iron", "anvil"))
            rows.append({"text": f"{metal} the smith strikes {metal} and {metal}", "label": metal})
        (base / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["-t", "classification", "--train", base / "train.jsonl", "--dev", base / "dev.jsonl"]
