"""The spelling of words outside of the vocabulary: in a shard, their ids follow those of the vocabulary.

Id V + n of a shard is word n of its table, V being the vocabulary size. The table is sorted by the unknown token
that stands for a word in the vocabulary, then by bytes, so that the header needs one count for each unknown token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Word = tuple[int, bytes]  # the id of the unknown token that stands for it, and its UTF-8 bytes
SPELLING = "spelling"  # among the settings of a shard set: it has such words


@dataclass(frozen=True, slots=True)
class UnknownWords:
    """The words that ids from `base` on refer to."""

    base: int = 0  # the vocabulary size
    words: tuple[Word, ...] = ()

    @property
    def counts(self) -> list[tuple[int, int]]:
        """Each unknown token with its number of words, in the order of the table."""
        ids, counts = np.unique(np.array([number for number, _ in self.words], np.int64), return_counts=True)
        return list(zip(ids.tolist(), counts.tolist(), strict=True))

    def sections(self) -> tuple[bytes, bytes]:
        """Where the bytes of each word end, and the bytes of all words."""
        ends = np.cumsum([len(word) for _, word in self.words], dtype=np.int64)
        return ends.astype("<u4").tobytes(), b"".join(word for _, word in self.words)


def merge(
    tables: Sequence[UnknownWords], tokens: Sequence[NDArray[np.unsignedinteger[Any]]]
) -> tuple[UnknownWords, list[NDArray[np.unsignedinteger[Any]]]]:
    """One table of the words that occur in tokens with a table each, and the tokens with its ids."""
    base = max((table.base for table in tables), default=0)
    used: list[list[int]] = []
    for table, some in zip(tables, tokens, strict=True):
        used.append((np.unique(some[some >= base]) - base).tolist() if table.words else [])
    words = sorted({table.words[number] for table, numbers in zip(tables, used, strict=True) for number in numbers})
    number_of = {word: base + number for number, word in enumerate(words)}
    results = []
    for table, numbers, some in zip(tables, used, tokens, strict=True):
        if len(numbers):
            changed = np.zeros(len(table.words), some.dtype)
            changed[numbers] = [number_of[table.words[number]] for number in numbers]
            outside = some >= base
            some = some.copy()
            some[outside] = changed[some[outside] - base]
        results.append(some)
    return UnknownWords(base, tuple(words)), results


def unknown_ids(counts: Sequence[Sequence[int]], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The unknown token of each word by its number in the table with these `counts`."""
    ids, sizes = np.array(counts, np.int64).reshape(-1, 2).T
    result: NDArray[np.int64] = ids[np.searchsorted(np.cumsum(sizes), numbers, "right")]
    return result
