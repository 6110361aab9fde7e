"""The word table that vocabularies are learned from: counting work units, merging their tables within a limit.

A work unit is a few megabytes of text. Tables are the same whatever the number of workers. Knows no kind's rules: a
splitter brings them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from bertsmith.errors import ConfigError
from bertsmith.system.workers import ordered_map
from bertsmith.tokenizers.units import Units, without_surrogates

MAX_WORDS = 1_000_000  # in the table: under 0.8 GB in all while a vocabulary is learned from it
LONGEST = 256  # characters: a longer word is no word, and a table of them has no bound in memory
UNIT_SIZE = 4_000_000  # characters


class Splitter(Protocol):
    """How a kind turns text into the words that it learns from. Must be picklable: it travels to workers."""

    units: Units

    def __call__(self, unit: str, /) -> Sequence[str]:
        """The final words of one unit: normalised and split."""


def count_unit(text: str, splitter: Splitter) -> dict[str, int]:
    """Word -> occurrences in one work unit. Each distinct unit is split once."""
    words: dict[str, int] = {}
    for unit, count in Counter(splitter.units.of_lines(without_surrogates(text))).items():
        for word in splitter(unit):
            words[word] = words.get(word, 0) + count
    return {word: count for word, count in words.items() if len(word) <= LONGEST}


def merge(tables: Iterable[dict[str, int]], *, limit: int = MAX_WORDS) -> dict[str, int]:
    """One table from those of work units, in their order.

    Whenever it holds more than `limit` words, the rarest go: those with at most the smallest count that makes it fit
    into three quarters of the limit. What is rare until then and frequent later is counted from then on.
    """
    if limit < 1:
        raise ConfigError(f"max-words={limit}: the word table must hold at least one word")
    total: dict[str, int] = {}
    for table in tables:
        for word, count in table.items():
            total[word] = total.get(word, 0) + count
        if len(total) > limit:
            least = _cut_off(total, limit * 3 // 4)
            total = {word: count for word, count in total.items() if count > least}
    return total


def _cut_off(table: dict[str, int], most: int) -> int:
    """The smallest count such that at most `most` words have a greater one."""
    greater = len(table)
    for count, words in sorted(Counter(table.values()).items()):
        greater -= words
        if greater <= most:
            return count
    return 0


def count(
    texts: Iterable[str], splitter: Splitter, *, workers: int = 1, limit: int = MAX_WORDS, unit_size: int = UNIT_SIZE
) -> dict[str, int]:
    """The word table of any number of texts."""
    tables = ordered_map(partial(count_unit, splitter=splitter), work_units(texts, unit_size), workers=workers)
    return merge(tables, limit=limit)


def work_units(texts: Iterable[str], size: int = UNIT_SIZE) -> Iterator[str]:
    """Texts, one to a line, joined into units of about `size` characters."""
    held: list[str] = []
    characters = 0
    for text in texts:
        held.append(text)
        characters += len(text)
        if characters >= size:
            yield "\n".join(held)
            held, characters = [], 0
    if held:
        yield "\n".join(held)
