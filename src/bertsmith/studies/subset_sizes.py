"""Sizes of training subsets: numbers of examples, percentages of all training examples, or all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from bertsmith.errors import ConfigError

Size = int | str  # 100, "1%" or "all"
ALL = "all"
EXAMPLE = "100,1%,all"
PERCENTAGE = re.compile(r"(\d+|\d*\.\d+)%", re.ASCII)


def parse_sizes(text: str) -> list[Size]:
    """The sizes of `100,1%,all`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError(f"--sizes is empty: expected numbers or percentages of training examples, such as {EXAMPLE}")
    return [_parse_size(word) for word in words]


def _parse_size(word: str) -> Size:
    digits = word.replace("_", "")
    if digits.isascii() and digits.isdigit():
        return int(digits)
    if word != ALL and not PERCENTAGE.fullmatch(word):
        raise _unknown(word)
    return word


def _unknown(size: object) -> ConfigError:
    expected = f"expected a number or a percentage of training examples, or all, such as {EXAMPLE}"
    return ConfigError(f"--sizes {str(size)[:40]}: {expected}")


def resolve_sizes(sizes: Sequence[Size], total: int) -> dict[int, str | None]:
    """The number of examples of each size, in ascending order, with the percentage if it was given as one.

    Percentages are rounded down. Equal sizes are merged.
    """
    if not sizes:
        raise ConfigError(f"no sizes: pass numbers or percentages of training examples, such as {EXAMPLE}")
    counts: dict[int, list[str]] = {}
    for size in sizes:
        percentages = counts.setdefault(_count(size, total), [])
        if isinstance(size, str) and size != ALL and size not in percentages:
            percentages.append(size)
    return {count: ", ".join(counts[count]) or None for count in sorted(counts)}


def _count(size: Size, total: int) -> int:
    if size == ALL:
        return total
    if isinstance(size, str) and PERCENTAGE.fullmatch(size):
        share = Fraction(size.removesuffix("%")) / 100
        if share > 1:
            raise ConfigError(f"--sizes {size}: a percentage of the training examples is at most 100%")
        if not (count := int(share * total)):
            raise ConfigError(f"--sizes {size}: {size} of {total:,} training examples is less than one example")
        return count
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise _unknown(size)
    if size > total:
        raise ConfigError(f"--sizes {size}: there are {total:,} training examples: for all, write all")
    return size
