"""ULMFiT's text marks (fastai: text/core.py): capitals and repetitions said by words of their own.

`NASA` -> `xxup nasa`, `Smith` -> `xxmaj smith`, `sooo` -> `s xxrep 3 o`, `no no no` -> `xxwrep 3 no`. Knows no
vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from bertsmith.tokenizers.word_split import Word, split_words

# differs from the paper's code: digits are not counted, a number stays a number.
REPEATED = re.compile(r"([^\s\d])\1{2,}")
FEWEST = 3  # of the same word in a row to be said as one


class Mark(StrEnum):
    """A word that no text has: it says how the next one was written."""

    UP = "xxup"
    CAPITAL = "xxmaj"
    REPEATED = "xxrep"
    WORD_REPEATED = "xxwrep"


class Marked(NamedTuple):
    """What a stretch of a text is written as: marks, numbers and one word in lower case."""

    tokens: tuple[str, ...]
    begin: int
    end: int


def mark(line: str) -> Iterator[Marked]:
    """A line with its marks, in order."""
    words: list[Word] = []
    at = 0
    for match in REPEATED.finditer(line):
        words += _words(line, at, match.start())
        words.append(Word(match.group(), match.start(), match.end()))
        at = match.end()
    words += _words(line, at, len(line))
    for _, group in groupby(words, key=lambda word: word.text):
        same = list(group)
        if len(same) >= FEWEST and same[0].text.isalnum():
            tokens = (Mark.WORD_REPEATED, str(len(same)), *_spoken(same[0].text))
            yield Marked(tokens, same[0].begin, same[-1].end)
        else:
            for word in same:
                yield Marked(_spoken(word.text), word.begin, word.end)


def _words(line: str, begin: int, end: int) -> Iterator[Word]:
    for word in split_words(line[begin:end]):
        yield Word(word.text, begin + word.begin, begin + word.end)


def _spoken(word: str) -> tuple[str, ...]:
    lower = word.lower()
    if REPEATED.fullmatch(word):
        return Mark.REPEATED, str(len(word)), word[0].lower()
    if len(word) > 1 and word.isupper():
        return Mark.UP, lower
    if len(word) > 1 and word[0].isupper() and word[1:] == word[1:].lower():
        return Mark.CAPITAL, lower
    return (lower,)


def unmark(tokens: Iterable[str]) -> list[str]:
    """The words that marks were put to, as far as they say."""
    rest = iter(tokens)
    return [_written(token, rest) for token in rest]


def _written(token: str, rest: Iterator[str]) -> str:
    """One word; what a mark belongs to is taken from `rest`, and may be missing."""
    if token not in set(Mark):
        return token
    if token == Mark.UP:
        return _written(next(rest, ""), rest).upper()
    if token == Mark.CAPITAL:
        word = _written(next(rest, ""), rest)
        return word[:1].upper() + word[1:]
    number = next(rest, "")
    word = _written(next(rest, ""), rest)
    times = int(number) if number.isdecimal() and len(number) < 4 else 1
    return word * times if token == Mark.REPEATED else " ".join([word] * times)
