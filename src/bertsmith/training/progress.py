"""Progress of a run on standard error: one live line on a terminal, with a chart on request, and in a notebook; plain
lines elsewhere.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
import warnings
from dataclasses import dataclass, field
from typing import TextIO

import torch

from bertsmith.errors import SkippedWarning
from bertsmith.reports import text_charts
from bertsmith.system.progress import erase_line, fit_line, format_duration, is_live, is_notebook
from bertsmith.training.step import Step
from bertsmith.training.trainer import Trainer

LIVE_EVERY, PLAIN_EVERY = 0.5, 10.0  # seconds
MIN_WAIT = 0.03  # share of the time waiting for data from which on it is shown
HEIGHT, WIDTH = 10, 100  # of the chart, in characters
WINDOW = 20.0  # seconds over which throughput is averaged


@dataclass
class Throughput:
    """Throughput over the last seconds, so that compilation in the first step soon drops out."""

    marks: list[tuple[float, int, float]] = field(default_factory=list)  # (time, tokens so far, waited so far)

    def add(self, now: float, tokens: int, waited: float) -> None:
        _, before, seconds = self.marks[-1] if self.marks else (now, 0, 0.0)
        self.marks.append((now, before + tokens, seconds + waited))
        while len(self.marks) > 2 and now - self.marks[0][0] > WINDOW:
            del self.marks[0]

    def rates(self) -> tuple[float, float]:
        """Tokens per second, and the share of the time spent waiting for data; 0 until two steps are done."""
        if len(self.marks) < 2 or self.marks[-1][0] <= self.marks[0][0]:
            return 0.0, 0.0
        seconds, tokens, waited = (last - first for first, last in zip(self.marks[0], self.marks[-1], strict=True))
        return tokens / seconds, waited / seconds


class ProgressDisplay:
    """`display.step(step)` after every step; `display.note(text)` for a permanent line."""

    def __init__(
        self,
        trainer: Trainer,
        *,
        quiet: bool = False,
        chart: bool = False,
        flops: float = 0.0,
        peak: float = 0.0,
        stream: TextIO | None = None,
    ) -> None:
        """`flops` of one token, forward and backward, and `peak` FLOP/s of all devices give the MFU."""
        self.trainer, self.quiet, self.flops, self.peak = trainer, quiet, flops, peak
        self.stream = stream or sys.stderr
        self.live = not quiet and is_live(self.stream)
        self.chart = chart and self.live and not is_notebook(self.stream)
        self.began, self.from_step = time.monotonic(), trainer.steps_done
        self.from_progress = self._progress(trainer.steps_done)
        self.throughput = Throughput()
        self._last = 0.0
        self._shown: list[str] = []  # live lines
        self._curves: dict[str, tuple[list[float], list[float]]] = {}

    def _progress(self, step: int) -> float:
        return self.trainer.plan.progress(step, self.trainer.seconds)

    def step(self, step: Step, *, waited: float = 0.0) -> None:
        """Records a step; shows it if it is the first one or if it is time to."""
        now = time.monotonic()
        self.throughput.add(now, step.tokens, waited)
        if self.quiet:
            return
        if self.chart:
            for name, loss in step.scores.losses.items():
                steps, losses = self._curves.setdefault(name, ([], []))
                steps.append(step.number)
                losses.append(loss)
        if now - self._last >= (LIVE_EVERY if self.live else PLAIN_EVERY) or step.number <= self.from_step + 1:
            self._last = now
            self._draw([*self._chart(), self.line(step, now - self.began)])
        if len(self.throughput.marks) == 1:  # the first step compiles and is not representative
            self.began, self.from_progress = now, self._progress(step.number)

    def line(self, step: Step, seconds: float) -> str:
        progress = self._progress(step.number)
        done = progress - self.from_progress  # 0 at the first step of a run that is measured by the clock
        left = [f"{format_duration(seconds * (1 - progress) / done)} left"] if done > 0 else []
        speed, wait_share = self.throughput.rates()
        speed = speed or step.tokens / max(seconds, 1e-9)
        parts = [
            f"step {step.number:,} ({progress:.0%})",
            *left,
            " ".join(f"{name} {loss:.3f}" for name, loss in step.scores.losses.items()),
            f"{speed:,.0f} tokens/s",
        ]
        if wait_share > MIN_WAIT:
            parts.append(f"waiting for data {wait_share:.0%}")
        if self.flops and self.peak and self.trainer.world.device.type == "cuda":  # a CPU's peak is not stable
            parts.append(f"MFU {speed * self.flops / self.peak:.0%}")
        parts += [f"{_memory(self.trainer.world.device) / 2**30:.1f} GiB", f"lr {step.learning_rate:.1e}"]
        return fit_line(parts, live=self.live)

    def note(self, text: str) -> None:
        """Prints a permanent line."""
        if not self.quiet:
            self.close()
            print(text, file=self.stream, flush=True)

    def warn(self, text: str) -> None:
        """A permanent line about something that was skipped or lost, even if quiet."""
        self.close()
        warnings.warn(text, SkippedWarning, stacklevel=3)

    def _chart(self) -> list[str]:
        if not self.chart:
            return []
        curves = {name: (at, text_charts.smooth(losses, 0.9).tolist()) for name, (at, losses) in self._curves.items()}
        return text_charts.chart(curves, width=WIDTH, height=HEIGHT, title="training loss, smoothed", x_label="steps")

    def _draw(self, lines: list[str]) -> None:
        self.close()
        if self.live:
            columns = shutil.get_terminal_size().columns  # a wrapped line could not be removed again
            self._shown = [line[: columns - 1] for line in lines]
            self.stream.write("\n".join(self._shown))
        else:
            self.stream.write(lines[-1] + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Removes the live lines."""
        if self._shown:
            above = len(self._shown) - 1
            self.stream.write(f"\r\x1b[{above}A\x1b[J" if above else erase_line(self.stream, self._shown[0]))
            self.stream.flush()
        self._shown = []


def _memory(device: torch.device) -> int:
    """Peak memory so far: of the GPU where there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
