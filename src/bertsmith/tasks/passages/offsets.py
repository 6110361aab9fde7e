"""Where an answer stands in its passage: what a file claims, checked."""

from __future__ import annotations

import re
from typing import Literal

from bertsmith.errors import DataError

Misplaced = Literal["refuse", "skip"]  # what to do with an answer that does not stand where the file says
SHOWN = 60  # characters of a text in a message


def place(passage: str, text: str, start: int) -> tuple[int, int] | None:
    """The first character and the one after the last of an answer, without white space round it; None if it is not so.

    As in the reference, white space may be written otherwise and the offset may point anywhere into the first word.
    """
    begin, end = start, start + len(text)
    if start < 0 or not text.strip():
        return None
    if passage[begin:end] != text:
        words = r"\s+".join(map(re.escape, text.split()))
        first = max(0, *(found.end() for found in re.finditer(r"\s", passage[:begin])), 0)
        after = re.compile(r"\s|$").search(passage, max(end - 1, begin))
        found = re.compile(words).search(passage, first, after.start() if after else len(passage))
        if found is None:
            return None
        begin, end = found.span()
    stretch = passage[begin:end]
    return begin + len(stretch) - len(stretch.lstrip()), end - len(stretch) + len(stretch.rstrip())


def wrong_place(source: str, passage: str, text: str, start: int | None) -> DataError:
    """What to say of an answer that does not stand where it should."""
    elsewhere = passage.find(text)
    advice = "or leave such questions out of the training with misplaced=skip"
    if start is None:
        return DataError(f"{source}: the answer {shown(text)} does not occur in its passage: mend the row, {advice}")
    found = shown(passage[max(start, 0) : max(start, 0) + len(text)])
    where = f"it begins at {elsewhere}" if elsewhere >= 0 else "it occurs nowhere in the passage"
    return DataError(
        f"{source}: the answer {shown(text)} should begin at character {start}, but there is {found}; {where}: "
        f"mend the file, {advice}"
    )


def shown(text: str) -> str:
    """A text in quotes, cut short."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
