"""Small models, runs and evaluations for the web page, and a browser that records external requests and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evaluation.evaluation_fixtures import mixed
from inference.predictor_fixtures import KINDS, random_model, reader, tokenizer
from reports.run_fixtures import RECIPE, RunBuilder, finished_run

from bertsmith.evaluation.output_files import write_evaluation
from bertsmith.inference.predictor import Predictor
from bertsmith.objectives import choose, classify, masked_lm, next_sentence

EVIL = "<img src=x onerror=alert(1)>"


def classifier() -> Predictor:
    """Random weights, with heads for the tasks that `reader` does not support."""
    heads = (masked_lm.Config(), next_sentence.Config(), classify.Config(labels=KINDS), choose.Config())
    return Predictor(random_model(*heads), tokenizer())


def models() -> dict[str, Predictor]:
    """Two models that together support every task."""
    return {"judge": classifier(), "reader": reader()}


def records(folder: Path) -> Path:
    """Three runs, one unfinished and with a hostile name, and two evaluations, one inside a run."""
    finished_run(folder / "forge" / "하나")
    finished_run(folder / "forge" / "two", recipe=RECIPE | {"seed": 7})
    begun = RunBuilder(folder / EVIL)
    begun.write("start", step=0, notes=[EVIL])
    begun.steps(1, 25)
    for name in ("forge/two/evaluation", "apart"):
        (folder / name).mkdir()
        write_evaluation(mixed(folder / name), folder / name)
    return folder


@contextmanager
def browsing(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens pages of a server; fails if one made an external request or logged an error.

    `expected` is part of an error message that is allowed. `hold` collects the requests to a path in a list.
    """
    problems: list[str] = []
    opened: list[Any] = []

    def go(path: str, *, expected: str = "", hold: tuple[str, list[Any]] | None = None, **options: Any) -> Any:
        page = browser.new_page(**options)
        page.set_default_timeout(15_000)
        opened.append(page)
        page.on(
            "console", lambda message: None if expected and expected in message.text else problems.append(message.text)
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on(
            "request", lambda request: None if request.url.startswith(f"{address}/") else problems.append(request.url)
        )
        if hold is not None:
            page.route(f"{address}{hold[0]}", lambda route: hold[1].append(route))
        page.goto(f"{address}{path}")
        return page

    yield go
    for page in opened:
        page.close()
    assert problems == []
