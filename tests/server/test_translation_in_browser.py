"""The translation task of the playground in a browser: translations, and the map of the attention to the source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browser_fixtures import IN_A_BROWSER
from inference.generation_fixtures import random_translator
from server.page_fixtures import EVIL, browsing

from bertsmith.inference.predictor import Predictor
from bertsmith.server.server import running

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = IN_A_BROWSER
SMALL = {"width": 360, "height": 640}
TEXT = f"the smith {EVIL}"


@pytest.fixture(scope="module")
def translator() -> Predictor:
    return random_translator()


@pytest.fixture
def visit(browser: Any, translator: Predictor) -> Iterator[Any]:
    with running({"mt": translator}) as address, browsing(browser, address) as go:
        yield go


def read_out(page: Any, *keys: str) -> str:
    page.locator(".map").focus()
    for key in keys:
        page.keyboard.press(key)
    return str(page.locator("#result output").text_content())


def test_translations_and_their_attention_to_the_source(visit: Any, translator: Predictor) -> None:
    page = visit("/playground", viewport=SMALL, color_scheme="dark")
    assert page.get_by_role("tab", selected=True).text_content() == "Translate"  # the only task of this model
    page.get_by_label("text", exact=True).fill(TEXT)
    page.get_by_label("translations").fill("3")
    page.keyboard.press("Control+Enter")
    expected = translator.translate(TEXT, n_best=3, attention=True)
    page.locator(".map").wait_for()
    shown = [one.strip() for one in page.locator("#result .bar .label").all_text_contents()]
    assert shown == [one["text"] for one in expected]
    scores = [float(text.removeprefix("score ")) for text in page.locator("#result .bar b").all_text_contents()]
    assert scores == pytest.approx([one["score"] for one in expected], abs=6e-4)
    for number, layer, head in ((0, None, None), (0, 2, None), (0, 2, 1), (2, 2, 1)):
        page.locator("#result .candidates button").nth(number).click()
        page.get_by_label("layer", exact=True).select_option(str(layer or 0))
        page.get_by_label("head", exact=True).select_option(str(head or 0))
        found = expected[number]["attention"]
        weight = 100 * found.select(layer, head)[1, 2]
        text = read_out(page, "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight")
        assert text.startswith(f"{found.target_tokens[1]} attends to {found.source_tokens[2]}: ")
        assert float(text.rpartition(": ")[2].removesuffix(" %")) == pytest.approx(weight, abs=0.06)
    assert page.evaluate("document.documentElement.scrollWidth") <= SMALL["width"]
    page.wait_for_timeout(350)
    again = visit(page.url[page.url.index("/playground") :], color_scheme="light")
    again.locator(".map").wait_for()
    assert (
        again.get_by_label("layer", exact=True).input_value(),
        again.get_by_label("head", exact=True).input_value(),
    ) == ("2", "1")
    assert again.locator(".map").get_attribute("aria-label").startswith("layer 2, head 1: attention of ")


def test_other_tasks_and_panels_name_the_model_that_they_need(visit: Any) -> None:
    page = visit("/playground")
    page.get_by_role("tab", name="Similarity").click()
    page.get_by_text("cannot do this").wait_for()
    page.get_by_role("link", name="Attention").click()
    page.get_by_text("None of these models returns attention weights.").wait_for()
