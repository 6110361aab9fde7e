"""The page of a study: one file that makes no requests."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from bertsmith.reports import html

ASSETS = files("bertsmith.studies") / "assets"


def write_study_page(path: Path, *, heading: str, title: str, main: str) -> Path:
    """Writes the page of a study, whose main element is given as markup, and returns its path."""
    return html.write(path, html.render_page(ASSETS, "studies", heading=heading, title=title, main=main))
