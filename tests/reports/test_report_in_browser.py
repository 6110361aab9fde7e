"""The report page in a real browser: curves, keys and buttons, a phone's width, no external requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser_fixtures import IN_A_BROWSER, PHONE, unfolded
from reports.run_fixtures import RECIPE, RunBuilder, finished_run

from bertsmith.reports.report_page import write_report
from bertsmith.reports.run_history import read_run

pytest.importorskip("playwright.sync_api")
pytestmark = IN_A_BROWSER
JUPYTERLAB = "main dl dt { float: left; width: 20%; clear: left }"  # as its style sheet has for outputs


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("pages")
    one = finished_run(base / "하나")
    two = RunBuilder(base / "<script>alert(1)</script>".replace("/", "\u2215"), recipe=RECIPE | {"seed": 1})
    two.write("start", step=0, notes=[])
    two.steps(1, 20)
    two.checkpoint(20)
    two.steps(21, 24)
    two.write("start", step=20, notes=["<img src=x onerror=alert(1)>"])
    two.write("step", step=21, loss=float("nan"), skipped=True, tokens=5, seconds=0.1)
    two.steps(22, 30)
    empty = RunBuilder(base / "empty").folder
    notebook = base / "notebook.html"
    notebook.write_text(f"<style>{JUPYTERLAB}</style><main>{read_run(one)._repr_html_()}</main>", encoding="utf-8")
    return {
        "notebook": notebook,
        "one": write_report([one], base / "one.html"),
        "two": write_report([one, two.folder], base / "two.html"),
        "empty": write_report([empty], base / "empty.html"),
    }


def path_of(page: Any) -> str:
    result: str = page.locator("svg.chart").first.locator("path.curve").last.get_attribute("d")
    return result


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def test_curves_axes_and_logarithm(visit: Any) -> None:
    page = visit("one")
    assert page.locator("svg.chart").count() == 7
    assert all(page.locator("svg.chart").nth(position).locator("path.curve").count() for position in range(7))
    assert page.get_by_text("unigram 7.25").count() == 1
    before = path_of(page)
    button(page, "log").click()
    assert button(page, "log").get_attribute("aria-pressed") == "true"
    assert path_of(page) != before
    button(page, "log").click()
    assert path_of(page) == before
    ends = {}
    for axis in ("tokens", "minutes", "steps"):
        button(page, axis).click()
        texts = page.locator("svg.chart").first.locator("text").all_text_contents()
        assert axis in texts
        ends[axis] = texts
    assert "20k" in ends["tokens"]
    assert "40" in ends["steps"]
    button(page, "held out").click()
    assert page.locator("svg.chart").first.locator("circle").count() == 0


def test_keys_and_pointer_read_values(visit: Any) -> None:
    page = visit("one")
    chart, output = page.locator("svg.chart").nth(1), page.locator("output").nth(1)
    assert "last" in output.text_content()
    chart.focus()
    assert output.get_attribute("aria-live") == "polite"
    page.keyboard.press("Home")
    assert "step 1" in output.text_content()
    assert "7.8537" in output.text_content()  # 5 + 3 exp(-1/20)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert "step 12" in output.text_content()
    assert "step 12" in page.locator("output").first.text_content()  # one cursor for all charts
    page.keyboard.press("Escape")
    assert "last" in output.text_content()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "perplexity" in output.text_content()
    assert "last" not in output.text_content()


def test_runs_can_be_toggled(visit: Any) -> None:
    page = visit("two")
    chart = page.locator("svg.chart").first
    both = chart.locator("path.curve").count()
    button(page, "하나").click()
    assert 0 < chart.locator("path.curve").count() < both
    button(page, "하나").click()
    assert chart.locator("path.curve").count() == both
    assert page.locator("svg.chart path.sign title").first.text_content()
    assert page.locator(".run h2").nth(1).text_content().startswith("<script>")


@pytest.mark.parametrize(("name", "scheme"), [("one", "light"), ("two", "dark")])
def test_the_page_fits_a_phone(visit: Any, name: str, scheme: str, tmp_path: Path) -> None:
    page = visit(name, viewport=PHONE, color_scheme=scheme)
    width, light, size = unfolded(page, tmp_path / "phone.png")
    assert width <= 390
    assert light == (scheme == "light")
    assert size > 20_000


def test_a_page_without_curves(visit: Any) -> None:
    page = visit("empty")
    assert page.locator("svg.chart").count() == 0
    assert page.get_by_role("heading", name="empty").count() == 1


def test_figures_in_a_notebook_do_not_overlap_their_names(visit: Any) -> None:
    page = visit("notebook")
    figures = page.locator(".figures > div")
    assert figures.count() == 4
    for position in range(figures.count()):
        name, value = (figures.nth(position).locator(tag).bounding_box() for tag in ("dt", "dd"))
        assert name["y"] + name["height"] <= value["y"]
