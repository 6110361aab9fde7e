"""For tests of HTML pages: a parser, and a real browser that records requests, messages and dialogs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PHONE = {"width": 390, "height": 844}
IN_A_BROWSER = [  # marks of a file of tests
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.xdist_group("browser"),
]


class Reader(HTMLParser):
    """Elements with their attributes, and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag in ("script", "style"):
            self.inside[-1] += data


def embedded(text: str) -> dict[str, Any]:
    """The JSON data that a page embeds."""
    result = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert result
    data: dict[str, Any] = json.loads(result[1])
    return data


@contextmanager
def running_browser() -> Iterator[Any]:
    """A headless chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def open_pages(browser: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Opens pages by name; fails if a page made a request, logged a message or opened a dialog."""
    problems: list[str] = []
    opened: list[Any] = []

    def open_page(name: str, **options: Any) -> Any:
        page = browser.new_page(**options)
        opened.append(page)
        own = pages[name].resolve().as_uri()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: None if request.url == own else problems.append(request.url))
        page.goto(own)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert problems == []


def unfolded(page: Any, picture: Path) -> tuple[int, bool, int]:
    """Opens all details of a page; returns its width, whether its background is light, and the size of a screenshot."""
    for details in page.locator("summary").all():
        details.click()
    width = page.evaluate("document.documentElement.scrollWidth")
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, color.removeprefix("rgb(").removesuffix(")").split(","))) > 384
    page.screenshot(path=picture, full_page=True)
    return width, light, picture.stat().st_size


def check_phone_and_screen(page: Path, folder: Path) -> None:
    """Asserts that a page with charts fits a phone in the dark and a screen in the light, with legible text."""
    with running_browser() as browser, open_pages(browser, {"page": page}) as opened:
        for width, scheme in ((PHONE["width"], "dark"), (1280, "light")):
            one = opened("page", viewport={"width": width, "height": 800}, color_scheme=scheme)
            assert one.locator("figure svg text").first.bounding_box()["height"] > 10
            found, light, size = unfolded(one, folder / f"{width}.png")
            assert (found, light) == (width, scheme == "light")
            assert size > 10_000
