"""Reads the gold files, in which ‖ marks the end of a sentence, and counts the agreement with a splitter.

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
    """The number of possible sentence ends within the passages."""
    return sum(len(DECISION.findall(passage)) for passage in passages(language))


def ends(sentences: Iterable[str]) -> set[int]:
    """Ends of sentences within a passage, in characters that are not white space."""
    offsets, offset = [], 0
    for sentence in sentences:
        offset += len("".join(sentence.split()))
        offsets.append(offset)
    return set(offsets[:-1])


def agreement(language: str, split: Callable[[str], Iterable[str]]) -> tuple[int, int, int]:
    """True positives, false positives and false negatives."""
    correct = spurious = missed = 0
    for passage in passages(language):
        true = ends(passage.split(MARK))
        predicted = ends(split(passage.replace(MARK, "")))
        correct += len(true & predicted)
        spurious += len(predicted - true)
        missed += len(true - predicted)
    return correct, spurious, missed
