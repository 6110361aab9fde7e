"""A browser for the tests of HTML pages, and a way to visit the pages that a file of tests makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages_world import started, visiting


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as found:
        yield found


@pytest.fixture
def visit(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Opens one of `pages`, a fixture of the file, by its name."""
    with visiting(browser, pages) as go:
        yield go
