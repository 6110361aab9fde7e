"""`books`: a folder of books, one text file each, becomes one JSON Lines file with a book a line.

A paragraph of a printed book is broken into lines and stands between empty ones, which elsewhere end a document: here
its lines are joined, and a paragraph is a line of its document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from bertsmith.errors import DataError
from bertsmith.system.durable import Disk

BLANK = re.compile(r"\n\s*\n")


def write_books(folder: Path, output: Path) -> int:
    """How many books there were; in the order of their names."""
    paths = sorted(folder.glob("*.txt"))
    if not paths:
        raise DataError(f"{folder} holds no .txt file")
    Disk().make_folder(output.parent)
    Disk().write_file(output, _lines(paths))
    return len(paths)


def _lines(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            text = path.read_text(encoding="latin-1")  # what old ones are in
        yield (json.dumps({"text": joined(text)}, ensure_ascii=False) + "\n").encode()


def joined(text: str) -> str:
    """One paragraph a line."""
    paragraphs = (" ".join(part.split()) for part in BLANK.split(text))
    return "\n".join(part for part in paragraphs if part)
