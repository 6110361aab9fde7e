"""`books`: converts a folder of books, one text file each, to one JSON Lines file with one book per line.

Empty lines separate the paragraphs of a printed book, but end a document in other text files. Here the lines of a
paragraph are joined, and each paragraph is one line of its document.
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
    """Writes the books in the order of their names; returns their number."""
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
            text = path.read_text(encoding="latin-1")  # older files
        yield (json.dumps({"text": joined(text)}, ensure_ascii=False) + "\n").encode()


def joined(text: str) -> str:
    """One paragraph per line."""
    paragraphs = (" ".join(part.split()) for part in BLANK.split(text))
    return "\n".join(part for part in paragraphs if part)
