"""Many texts as flat arrays of ids, offsets and words: what `encode_batch` gives, several times faster.

As in `units`, each unit is encoded once and looked up from then on; here with the places of its tokens, so that
whatever reads answers or tags out of texts can do so by array operations. T tokens, N texts, U units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.tokenizers.pretokenization import replace_surrogates
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded

Numbers = NDArray[np.int64]
GROUP = 512  # units that the backend gets as one text
WHITE = np.array([chr(code).isspace() for code in range(0x3002)])  # by code; none is beyond U+3000
LIMIT = 4_000_000  # tokens that are remembered: about 64 MB


class EncodedBatch(NamedTuple):
    """Encoded texts one after another."""

    ids: NDArray[np.int32]  # [T]
    offsets: NDArray[np.int32]  # [T, 2] in the characters of the text that the token is of
    words: NDArray[np.int32]  # [T] number of the word in its text
    lengths: Numbers  # [N] tokens of each text


class BatchEncoder:
    """A tokenizer and the units that it has met. Not for several threads at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._units = tokenizer.chunker()
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._ids, self._words = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self._offsets = np.zeros((0, 2), np.int32)
        self._sizes, self._lengths, self._counts = (np.zeros(0, np.int64) for _ in range(3))

    def __call__(self, texts: Sequence[str]) -> EncodedBatch:
        """The same ids, offsets and words as `Tokenizer.encode_batch`."""
        if len(self._ids) > LIMIT:
            self._forget()
        texts = [replace_surrogates(text) for text in texts]
        cut = [self._units.chunks(text) for text in texts]
        new = list(set[str]().union(*cut).difference(self._numbers))
        if new:
            self._learn(new)
        count = np.fromiter(map(len, cut), np.int64, len(cut))
        number = np.fromiter(map(self._numbers.__getitem__, chain.from_iterable(cut)), np.int64, int(count.sum()))
        lengths = self._lengths[number]
        begins = _begins(texts, lengths, count)
        if begins is None:
            found = [_found(text, units) for text, units in zip(texts, cut, strict=True)]
            begins = np.fromiter(chain.from_iterable(found), np.int64, len(number))
        return self._gathered(number, begins, count)

    def _gathered(self, number: Numbers, begins: Numbers, count: Numbers) -> EncodedBatch:
        """The tokens of units [U] that begin at these characters of their texts; `count` units a text [N]."""
        sizes, words = self._sizes[number], self._counts[number]
        starts = np.cumsum(self._sizes) - self._sizes
        source = np.arange(sizes.sum()) + np.repeat(starts[number] - (np.cumsum(sizes) - sizes), sizes)
        text_first = np.cumsum(count) - count  # [N] number of the first unit of each text
        tokens_before, words_before = (np.concatenate([[0], np.cumsum(each)]) for each in (sizes, words))
        word = words_before[:-1] - np.repeat(words_before[text_first], count)
        return EncodedBatch(
            ids=self._ids[source],
            offsets=self._offsets[source] + np.repeat(begins.astype(np.int32), sizes)[:, None],
            words=self._words[source] + np.repeat(word.astype(np.int32), sizes),
            lengths=tokens_before[text_first + count] - tokens_before[text_first],
        )

    def _learn(self, units: list[str]) -> None:
        found = [self._alone(units[begin : begin + GROUP]) for begin in range(0, len(units), GROUP)]
        self._numbers.update(zip(units, range(len(self._numbers), len(self._numbers) + len(units)), strict=True))
        self._ids = np.concatenate([self._ids, *(part.ids for part in found)])
        self._offsets = np.concatenate([self._offsets, *(part.offsets for part in found)])
        self._words = np.concatenate([self._words, *(part.words for part in found)])
        self._sizes = np.concatenate([self._sizes, *(part.lengths for part in found)])
        self._lengths = np.append(self._lengths, np.fromiter(map(len, units), np.int64, len(units)))
        last = np.append(self._words, 0)[np.cumsum(self._sizes) - 1]
        self._counts = np.where(self._sizes > 0, last + 1, 0)

    def _alone(self, units: list[str]) -> EncodedBatch:
        """Units as texts of their own. One text of them all takes less time, where it falls into these very units."""
        for between in (" ", ""):
            joined = between.join(units)
            if self._units.chunks(joined) == units:
                found = _torn(self.tokenizer.encode(joined), units, len(between))
                if found is not None:
                    return found
        encoded = self.tokenizer.encode_batch(units)
        return EncodedBatch(
            ids=np.concatenate([one.ids for one in encoded]),
            offsets=np.concatenate([one.offsets for one in encoded]),
            words=np.concatenate([one.words for one in encoded]),
            lengths=np.fromiter(map(len, encoded), np.int64, len(encoded)),
        )


def _torn(encoded: Encoded, units: list[str], gap: int) -> EncodedBatch | None:
    """The units of one text with `gap` characters between them; None where a token lies across their borders."""
    lengths = np.fromiter(map(len, units), np.int64, len(units))
    begins = np.cumsum(lengths + gap) - lengths - gap
    owner = np.searchsorted(begins, encoded.offsets[:, 0], "right") - 1
    if (encoded.offsets[:, 1] > (begins + lengths)[owner]).any():
        return None
    sizes = np.bincount(owner, minlength=len(units))
    firsts = (np.cumsum(sizes) - sizes)[owner]
    return EncodedBatch(
        ids=encoded.ids,
        offsets=encoded.offsets - begins[owner].astype(np.int32)[:, None],
        words=encoded.words - encoded.words[firsts],
        lengths=sizes,
    )


def _begins(texts: Sequence[str], lengths: Numbers, count: Numbers) -> Numbers | None:
    """The first character of each unit [U] in its text, where units are all that is not white space; else None."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
    black = np.flatnonzero(~WHITE[np.minimum(codes, len(WHITE) - 1)])
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    units_after = np.concatenate([[0], np.cumsum(lengths)])
    if not np.array_equal(np.searchsorted(black, ends), units_after[np.cumsum(count)]):
        return None
    first = np.concatenate([[0], ends[:-1]])
    found: Numbers = black[units_after[:-1]] - np.repeat(first, count)
    return found


def _found(text: str, units: Sequence[str]) -> Iterator[int]:
    """The first character of each unit, by looking for it."""
    place = 0
    for unit in units:
        place = text.index(unit, place)
        yield place
        place += len(unit)
