"""Reads the gold files, in which ‖ stands where a sentence ends, and counts agreement with a splitter.

The passages were written for this purpose; `bench/sentences.py` uses them too.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

MARK = "‖"
DECISION = re.compile(r"[.!?…。][.!?…]*[\"'”’)\]]*(?:\[\d+\])*(?=‖|\s)")


def passages(language: str) -> list[str]:
    return (Path(__file__).parent / f"gold_{language}.txt").read_text(encoding="utf-8").splitlines()


def decisions(language: str) -> int:
    """How many places there are at which a sentence might end within a passage."""
    return sum(len(DECISION.findall(passage)) for passage in passages(language))


def ends(sentences: Iterable[str]) -> set[int]:
    """Where sentences end within a passage, counted in characters that are not white space."""
    places, place = [], 0
    for sentence in sentences:
        place += len("".join(sentence.split()))
        places.append(place)
    return set(places[:-1])


def agreement(language: str, split: Callable[[str], Iterable[str]]) -> tuple[int, int, int]:
    """(ends found, ends invented, ends missed)."""
    found = invented = missed = 0
    for passage in passages(language):
        true = ends(passage.split(MARK))
        guess = ends(split(passage.replace(MARK, "")))
        found += len(true & guess)
        invented += len(guess - true)
        missed += len(true - guess)
    return found, invented, missed
