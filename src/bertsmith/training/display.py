"""A run under way, on standard error: from step 1 loss, tokens a second, share of the peak, memory, time left.

One live line on a terminal, or a picture of the curves above it where asked for; plain lines elsewhere.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

import torch

from bertsmith.reports import text_charts
from bertsmith.system.progress import format_duration
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.step import Step
from bertsmith.training.trainer import Trainer

LIVE_EVERY, PLAIN_EVERY = 0.5, 10.0  # seconds
NOTABLE_WAIT = 0.03  # of the time: from there on waiting for data is worth a word
HEIGHT, WIDTH = 10, 100  # of the picture, in characters
RECENT = 20.0  # seconds over which the speed is told


@dataclass
class Throughput:
    """Tokens and waiting over the last seconds, so that compilation at the start is soon forgotten."""

    marks: list[tuple[float, int, float]] = field(default_factory=list)  # (time, tokens so far, waited so far)

    def add(self, now: float, tokens: int, waited: float) -> None:
        _, before, seconds = self.marks[-1] if self.marks else (now, 0, 0.0)
        self.marks.append((now, before + tokens, seconds + waited))
        while len(self.marks) > 2 and now - self.marks[0][0] > RECENT:
            del self.marks[0]

    @property
    def speed(self) -> float:
        """Tokens a second; 0 until two steps are done."""
        span = self.marks[-1][0] - self.marks[0][0] if self.marks else 0.0
        return (self.marks[-1][1] - self.marks[0][1]) / span if span > 0 else 0.0

    @property
    def waiting(self) -> float:
        """The share of the time that went by waiting for data."""
        span = self.marks[-1][0] - self.marks[0][0] if self.marks else 0.0
        return (self.marks[-1][2] - self.marks[0][2]) / span if span > 0 else 0.0


class ProgressDisplay:
    """`show.step(step)` after every step; `show.note(text)` for a line that stays."""

    def __init__(
        self,
        trainer: Trainer,
        *,
        quiet: bool = False,
        picture: bool = False,
        flops: float = 0.0,
        peak: float = 0.0,
        stream: TextIO | None = None,
    ) -> None:
        """`flops` for one token there and back, `peak` of all devices in FLOP/s: where both are known, their share."""
        self.trainer, self.quiet, self.flops, self.peak = trainer, quiet, flops, peak
        self.stream = stream or sys.stderr
        self.live = not quiet and self.stream.isatty()
        self.picture = picture and self.live
        self.began, self.from_step, self.from_progress = (
            time.monotonic(),
            trainer.steps_done,
            self._gone(trainer.steps_done),
        )
        self.pace = Throughput()
        self._last, self._lines = 0.0, 0
        self._curves: dict[str, tuple[list[float], list[float]]] = {}

    def _gone(self, step: int) -> float:
        plan: TrainingPlan = self.trainer.plan
        return plan.progress(step, self.trainer.seconds)

    def step(self, step: Step, *, waited: float = 0.0) -> None:
        """Takes notice of a step; shows it if it is the first one or time to."""
        now = time.monotonic()
        self.pace.add(now, step.tokens, waited)
        if self.quiet:
            return
        if self.picture:
            for name, loss in step.scores.losses.items():
                steps, losses = self._curves.setdefault(name, ([], []))
                steps.append(step.number)
                losses.append(loss)
        if now - self._last >= (LIVE_EVERY if self.live else PLAIN_EVERY) or step.number <= self.from_step + 1:
            self._last = now
            self._draw([*self._chart(), self.line(step, now - self.began)])
        if len(self.pace.marks) == 1:  # the first step compiles, which says nothing of the others
            self.began, self.from_progress = now, self._gone(step.number)

    def line(self, step: Step, seconds: float) -> str:
        """One line for one step."""
        gone = self._gone(step.number)
        left = seconds * (1 - gone) / (gone - self.from_progress) if gone > self.from_progress else 0.0
        speed = self.pace.speed or step.tokens / max(seconds, 1e-9)
        parts = [
            f"step {step.number:,} ({gone:.0%})",
            " ".join(f"{name} {loss:.3f}" for name, loss in step.scores.losses.items()),
            f"lr {step.learning_rate:.1e}",
            f"{speed:,.0f} tokens/s",
        ]
        if self.flops and self.peak:
            parts.append(f"{speed * self.flops / self.peak:.0%} MFU")
        parts.append(f"{_memory(self.trainer.world.device) / 2**30:.1f} GiB")
        if self.pace.waiting > NOTABLE_WAIT:
            parts.append(f"waiting for data {self.pace.waiting:.0%}")
        return " · ".join([*parts, f"{format_duration(left)} left"])

    def note(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            self._clear()
            print(text, file=self.stream, flush=True)

    def close(self) -> None:
        """Takes the live part away."""
        self._clear()

    def _chart(self) -> list[str]:
        if not self.picture:
            return []
        smooth = {
            name: (steps, text_charts.smooth(losses, 0.9).tolist()) for name, (steps, losses) in self._curves.items()
        }
        return text_charts.chart(smooth, width=WIDTH, height=HEIGHT, title="training loss, smoothed", x_label="steps")

    def _draw(self, lines: list[str]) -> None:
        self._clear()
        if self.live:
            columns = shutil.get_terminal_size().columns  # a line that wraps could not be taken away again
            self.stream.write("\n".join(line[: columns - 1] for line in lines))
            self._lines = len(lines)
        else:
            self.stream.write(lines[-1] + "\n")
        self.stream.flush()

    def _clear(self) -> None:
        if self._lines:
            up = f"\x1b[{self._lines - 1}A" if self._lines > 1 else ""
            self.stream.write(f"\r{up}\x1b[J")
            self.stream.flush()
        self._lines = 0


def _memory(device: torch.device) -> int:
    """The most bytes that were in use until now: on the GPU where there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
