"""The page of the study: one file that makes no requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write_page(table: Any, path: Path) -> None:
    pass
