"""Synthetic run folders: events as the training log writes them, without any training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from bertsmith.training.log import EventLog

RECIPE = {
    "name": "made/up",
    "encoder": {"kind": "bert", "layers": 2},
    "objectives": {"guess_lm": {}, "next_sentence": {}},
    "steps": 40,
    "learning_rate": 0.001,
    "minutes": 0.0,
    "seed": 0,
}


def step_facts(step: int, **changes: Any) -> dict[str, Any]:
    """A step's event: falling losses, learning rate, tokens and seconds."""
    words, pairs = 5.0 + 3.0 * math.exp(-step / 20), 0.7 - 0.002 * step
    facts = {
        "step": step,
        "loss": words + pairs,
        "loss/guess_lm": words,
        "loss/next_sentence": pairs,
        "accuracy/next_sentence": 0.5 + step / 1000,
        "count/guess_lm": 100,
        "gradient_norm": 1.0 + 1 / step,
        "learning_rate": 1e-3 / step,
        "rows": 8,
        "tokens": 500,
        "seconds": 0.25,
        "skipped": False,
    }
    return facts | changes


class RunBuilder:
    """Builds a run folder event by event, one second apart."""

    def __init__(self, folder: Path, *, recipe: dict[str, Any] | None = None) -> None:
        self.folder, self.now = folder, 1_700_000_000.0
        folder.mkdir(parents=True)
        (folder / "checkpoints").mkdir()
        (folder / "recipe.json").write_text(json.dumps(recipe or RECIPE), encoding="utf-8")

    def write(self, kind: str, **facts: Any) -> None:
        self.now += 1.0
        with EventLog(self.folder / "events.jsonl", clock=lambda: self.now) as log:
            log.write(kind, **facts)

    def steps(self, first: int, last: int, **changes: Any) -> None:
        for step in range(first, last + 1):
            self.write("step", **step_facts(step, **changes))

    def evaluation(self, step: int, loss: float) -> None:
        numbers = {"loss": loss + 0.7, "loss/guess_lm": loss, "loss/next_sentence": 0.7, "accuracy/next_sentence": 0.6}
        self.write("evaluation", step=step, **numbers)

    def checkpoint(self, step: int) -> None:
        (self.folder / "checkpoints" / f"step-{step:08}").mkdir(exist_ok=True)
        self.write("checkpoint", step=step)


def finished_run(folder: Path, *, recipe: dict[str, Any] | None = None) -> Path:
    """A finished run of forty steps with evaluations and checkpoints."""
    built = RunBuilder(folder, recipe=recipe)
    built.write("start", step=0, notes=[])
    chance = {"chance": {"next_sentence": 0.5}, "chance_loss": {"next_sentence": math.log(2)}}
    built.write("facts", step=0, parameters=12_345, device="cpu", unigram={"guess_lm": 7.25}, **chance, padding=0.04)
    for begin in (1, 11, 21, 31):
        built.steps(begin, begin + 9)
        built.evaluation(begin + 9, 6.0 - begin / 20 if begin < 31 else 5.5)
        built.checkpoint(begin + 9)
    built.write("finish", step=40, steps=40, tokens=20_000, seconds=10.0, loss=6.2)
    return folder


def long_log(path: Path, steps: int, *, odd: tuple[int, ...] = ()) -> None:
    """Writes the step events of a long run; at the steps `odd` the loss is not finite."""
    template = json.dumps({"kind": "step", "time": 1.5, **step_facts(7)})
    head, tail = template.split('"step": 7, "loss": ')
    rest = tail[tail.index(",") :]
    losses = (4 + 6 / (1 + step / steps * 20) + (step * 7919 % 1000) / 2000 for step in range(1, steps + 1))
    lines = [f'{head}"step": {step}, "loss": {loss:.6f}{rest}' for step, loss in enumerate(losses, start=1)]
    for step in odd:
        lines[step - 1] = f'{head}"step": {step}, "loss": "nan"{rest}'
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
