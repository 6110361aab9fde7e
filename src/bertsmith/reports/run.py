"""A run as users see it in Python: its models, scores, history and curves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.reports.report_page import write_report
from bertsmith.reports.run_history import LAST, RunHistory, read_run
from bertsmith.reports.run_summary import summary

BEST = "best"


@dataclass(frozen=True)
class Plot:
    """The curves of a run as an HTML page; a notebook shows them."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        page = escape(self.path.read_text(encoding="utf-8"))
        return (
            f'<iframe srcdoc="{page}" style="width: 100%; height: 640px; border: 0" sandbox="allow-scripts"></iframe>'
        )


class Run(os.PathLike[str]):
    """A training run in its folder, running or finished; accepted wherever a model folder is.

    >>> run = Run("run")
    >>> run.state
    'finished'
    >>> run.best
    PosixPath('run/best')
    >>> run.steps
    20
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """`folder`: the output folder of a training command or function."""
        self.folder = Path(folder)
        read_run(self.folder)  # raises where it is not a run

    def __fspath__(self) -> str:
        return str(self.folder)

    def read(self) -> RunHistory:
        """Everything that the run has logged so far."""
        return read_run(self.folder)

    @property
    def best(self) -> Path:
        """The model folder of the best evaluation; the last model where nothing was evaluated."""
        best = self.folder / BEST
        return best if best.is_dir() else self.last

    @property
    def last(self) -> Path:
        """The model folder of the last step."""
        last = self.folder / LAST
        if not last.is_dir():
            raise DataError(f"{self.folder} has no finished model yet: call the function that started the run again")
        return last

    @property
    def state(self) -> str:
        """running, finished, stopped (it can resume) or unfinished."""
        return self.read().state

    @property
    def steps(self) -> int:
        """Optimizer steps taken so far."""
        return self.read().steps

    @property
    def scores(self) -> dict[str, float]:
        """The held-out metrics of the best evaluation; empty where nothing was evaluated."""
        return {name.removeprefix("score/"): value for name, value in self.read().best_held_out.items()}

    @property
    def history(self) -> Any:
        """The steps as rows of a pandas DataFrame; a list of dicts where pandas is not installed.

        Held-out metrics have the prefix `held_out/` and are missing at steps without an evaluation.
        """
        run = self.read()
        curves = {**run.curves, **{f"held_out/{name}": curve for name, curve in run.held_out.items()}}
        rows: dict[int, dict[str, Any]] = {}
        for name, curve in curves.items():
            for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
                rows.setdefault(int(step), {"step": int(step)})[name] = value
        ordered = [rows[step] for step in sorted(rows)]
        try:
            import pandas
        except ImportError:
            return ordered
        return pandas.DataFrame(ordered)

    def plot(self, output: str | os.PathLike[str] | None = None) -> Plot:
        """Writes the curves as a self-contained HTML page, by default report.html in the run folder."""
        return Plot(write_report([self.folder], Path(output) if output else self.folder / "report.html"))

    def summary(self) -> Mapping[str, Any]:
        """The figures of the run: state, steps, tokens, tokens/s, scores."""
        return summary(self.read())

    def __repr__(self) -> str:
        run = self.read()
        scores = "".join(f", {name}={value:.4g}" for name, value in list(self.scores.items())[:3])
        return f"Run({str(self.folder)!r}, {run.state}, steps={run.steps:,}{scores})"

    def _repr_html_(self) -> str:
        return self.read()._repr_html_()
