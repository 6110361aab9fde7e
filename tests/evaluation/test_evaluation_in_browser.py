"""The page in a real browser: cells show their examples, errors are sorted, keys work, and no requests are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser_fixtures import IN_A_BROWSER, PHONE, unfolded
from evaluation.evaluation_fixtures import made_evaluation, mixed

from bertsmith.evaluation.output_files import PAGE, write_evaluation
from bertsmith.tasks import regression
from bertsmith.tasks.task import Prediction

pytest.importorskip("playwright.sync_api")
pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("pages")
    write_evaluation(mixed(base), base / "labels")
    path = base / "numbers.csv"
    path.write_text("text,score\nred,1\nblue,2\nwhite,6\n", encoding="utf-8")
    task = regression.Config().build(files={"dev": path})
    numbers = made_evaluation(task, task.examples("dev"), [Prediction(value) for value in (1.5, 2.0, 3.0)])
    write_evaluation(numbers, base / "numbers")
    return {name: base / name / PAGE for name in ("labels", "numbers")}


def cells(page: Any, column: int) -> list[str]:
    return list(page.locator(f"#cases tbody td:nth-child({column})").all_text_contents())


def test_a_cell_shows_the_examples_behind_it(visit: Any) -> None:
    page = visit("labels")
    assert page.locator("#what").text_content() == "Errors"
    errors = len(cells(page, 1))
    button = page.get_by_role("button", name="copper predicted as iron")
    button.click()
    count = int(button.text_content())
    assert cells(page, 1) == ["copper"] * count
    assert cells(page, 2) == ["iron"] * count
    assert button.get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="back to the errors").click()
    assert len(cells(page, 1)) == errors
    assert page.evaluate("document.activeElement.id") == "what"


def test_arrow_keys_move_over_the_matrix(visit: Any) -> None:
    page = visit("labels")
    first = page.get_by_role("button", name="copper predicted as copper")
    first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#what").text_content().startswith("iron predicted as iron")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("copper predicted as copper")
    page.keyboard.press("Escape")
    assert page.locator("#what").text_content() == "Errors"


def test_errors_are_sorted(visit: Any) -> None:
    page = visit("labels")

    def probabilities() -> list[float]:
        return [float(text.removesuffix(" %")) for text in cells(page, 3)]

    assert probabilities() == sorted(probabilities(), reverse=True)
    assert len(set(probabilities())) > 5
    page.get_by_role("button", name="probability").click()
    assert probabilities() == sorted(probabilities())
    assert page.locator("#cases th").nth(2).get_attribute("aria-sort") == "ascending"
    page.get_by_role("button", name="true", exact=True).click()
    golds = cells(page, 1)
    assert golds == [gold for label in dict.fromkeys(golds) for gold in golds if gold == label]  # each label together
    assert len(set(golds)) > 2
    page.get_by_role("button", name="source").click()
    lines = [int(text.rpartition(":")[2]) for text in cells(page, 5)]
    assert lines == sorted(lines)


def test_regression_cases_are_sorted_by_error(visit: Any) -> None:
    page = visit("numbers")
    assert page.locator("#what").text_content() == "Errors"
    assert cells(page, 3) == ["3.00", "0.500"]
    assert page.locator("#confusion").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it(visit: Any, scheme: str, tmp_path: Path) -> None:
    page = visit("labels", viewport=PHONE, color_scheme=scheme)
    width, light, size = unfolded(page, tmp_path / "phone.png")
    assert width <= 390
    assert light == (scheme == "light")
    assert size > 20_000
