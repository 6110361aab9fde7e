"""Texts cut into units whose ids do not depend on their neighbours: what makes counting and encoding fast.

Every kind's rules are local to such units (white-space delimited words, mostly), and a corpus repeats them endlessly:
a unit is counted, normalised or encoded once and looked up from then on. Knows nothing of any one kind's rules.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

Ids = NDArray[np.uint16] | NDArray[np.uint32]

LONGEST_KEPT = 64  # characters: longer units hardly come again, and would fill the memory
GROUP = 512  # units that the backend gets as one text
SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """`text` with each lone surrogate, which no UTF-8 can hold, as U+FFFD: the same number of characters."""
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


def encode_chunks(backend: tokenizers.Tokenizer, units: list[str]) -> list[list[int]]:
    """The ids of each unit. They are handed over as words of fewer texts, which takes a third less time."""
    found: list[list[int]] = []
    groups = [units[begin : begin + GROUP] for begin in range(0, len(units), GROUP)]
    encodings = backend.encode_batch(groups, is_pretokenized=True, add_special_tokens=False)
    for group, encoding in zip(groups, encodings, strict=True):
        sizes = np.bincount(np.array(encoding.word_ids, np.int64), minlength=len(group))
        ids, ends = encoding.ids, np.cumsum(sizes).tolist()
        found += [ids[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    return found


@dataclass(frozen=True)
class Chunker:
    """How a kind cuts a text into units: the ids of a text must be the ids of its units, one after another.

    The functions must be module-level, for units travel to worker processes.
    """

    split: Callable[[str], list[str]] = str.split
    irregular: re.Pattern[str] | None = None  # a text in which this is found is not cut at all

    def chunks(self, text: str) -> list[str]:
        """The units of one text."""
        if self.irregular is not None and self.irregular.search(text):
            return [text]
        return self.split(text)

    def chunks_of_lines(self, text: str) -> Iterable[str]:
        """The units of a text of many lines: only its irregular lines stay whole."""
        if self.irregular is None or not self.irregular.search(text):
            return self.split(text)
        return chain.from_iterable(self.chunks(line) for line in text.split("\n"))


class ChunkCache:
    """Texts to flat ids by remembering each unit's ids. Threads may share one."""

    def __init__(
        self,
        encode: Callable[[list[str]], Iterable[Sequence[int]]],
        units: Chunker,
        *,
        id_type: np.dtype[Any],
        limit: int,
    ) -> None:
        self.encode = encode  # texts -> the ids of each, exact and slow
        self.units = units
        self.id_type = id_type
        self.limit = limit
        self.tables: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})  # recent, older; at most `limit` in each

    def __call__(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """Ids of all texts, one after another [T], and how many each text has [texts]."""
        recent, older = self.tables
        if len(recent) > self.limit:
            recent, older = self.tables = ({}, recent)  # new ones: another thread may be using those of before
        cut = [self.units.chunks(text) for text in texts]
        new = set().union(*cut).difference(recent)
        long = self._learn(new, recent, older) if new else {}
        parts = []
        for units in cut:
            if long and not long.keys().isdisjoint(units):
                parts.append(b"".join([long[unit] if unit in long else recent[unit] for unit in units]))
            else:
                parts.append(b"".join(map(recent.__getitem__, units)))
        counts = np.fromiter(map(len, parts), np.int64, len(parts)) // self.id_type.itemsize
        return np.frombuffer(b"".join(parts), self.id_type), counts

    def _learn(self, new: set[str], recent: dict[str, bytes], older: dict[str, bytes]) -> dict[str, bytes]:
        """Puts units into `recent`, from `older` or encoded; gives back those too long to be remembered."""
        kept = [unit for unit in new if unit in older]
        recent.update((unit, older[unit]) for unit in kept)
        unknown = list(new.difference(kept))
        long: dict[str, bytes] = {}
        for unit, ids in zip(unknown, self.encode(list(map(replace_surrogates, unknown))), strict=True):
            (recent if len(unit) <= LONGEST_KEPT else long)[unit] = array(self.id_type.char, ids).tobytes()
        return long


# Python's split() takes these for white space, the rule below does not.
WHITESPACE_CHUNKER = Chunker(str.split, irregular=re.compile("[\x1c-\x1f]"))
BERT_PRETOKENIZER = pre_tokenizers.BertPreTokenizer()


class Word(NamedTuple):
    """A word as it stands in a text, from `begin` to `end`."""

    text: str
    begin: int
    end: int


def split_words(text: str) -> list[Word]:
    """Words at white space and punctuation as in BERT, but `state-of-the-art`, `1,000.5` and `'s` are one word each."""
    words: list[Word] = []
    for piece, (begin, end) in BERT_PRETOKENIZER.pre_tokenize_str(text):
        if len(words) > 1 and words[-2].end == words[-1].begin and words[-1].end == begin:
            taken = _taken(words[-2].text, words[-1].text, piece)
            if taken:
                begin = words[-taken].begin
                del words[-taken:]
        words.append(Word(text[begin:end], begin, end))
    return words


def _taken(before: str, sign: str, piece: str) -> int:
    """How many of the two words right before `piece` belong to it."""
    if sign == "-" and before[-1].isalnum() and piece[0].isalnum():
        return 2
    if sign in {".", ",", ":"} and before[-1].isdecimal() and piece[0].isdecimal():
        return 2
    # The rest of a shortened word, with its apostrophe: isn 't, it 's.
    return int(sign in {"'", "’"} and before[-1].isalpha() and piece[0].isalpha())
