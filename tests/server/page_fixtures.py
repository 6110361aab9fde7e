"""A server with small models, runs and evaluations behind its page, and a browser that tells what a page asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evaluation.evaluating_world import mixed
from inference.predictor_fixtures import KINDS, random_model, reader, tokenizer
from reports.run_fixtures import RECIPE, RunBuilder, finished_run

from bertsmith.evaluation.output_files import write_evaluation
from bertsmith.inference.predictor import Predictor
from bertsmith.objectives import choose, classify, masked_lm, next_sentence

EVIL = "<img src=x onerror=alert(1)>"


def judge() -> Predictor:
    """Random weights, and a head for everything that the reader cannot do."""
    heads = (masked_lm.Config(), next_sentence.Config(), classify.Config(labels=KINDS), choose.Config())
    return Predictor(random_model(*heads), tokenizer())


def models() -> dict[str, Predictor]:
    """Two models that can do everything between them."""
    return {"judge": judge(), "reader": reader()}


def records(folder: Path) -> Path:
    """Three runs, one of them not yet over and one hostile, and two evaluations, one of them in a run."""
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
    """Opens pages of a server by their paths; afterwards nothing was asked of anybody else, and nothing complained.

    `expected` is what a page may complain of: answers that are no success are told by every browser. `hold` has the
    requests to some path wait in a list until they are let go.
    """
    told: list[str] = []
    opened: list[Any] = []

    def go(path: str, *, expected: str = "", hold: tuple[str, list[Any]] | None = None, **how: Any) -> Any:
        page = browser.new_page(**how)
        page.set_default_timeout(15_000)
        opened.append(page)
        page.on("console", lambda message: None if expected and expected in message.text else told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("dialog", lambda dialog: (told.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda asked: None if asked.url.startswith(f"{address}/") else told.append(asked.url))
        if hold is not None:
            page.route(f"{address}{hold[0]}", lambda route: hold[1].append(route))
        page.goto(f"{address}{path}")
        return page

    yield go
    for page in opened:
        page.close()
    assert told == []
