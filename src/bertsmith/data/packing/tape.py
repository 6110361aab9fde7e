"""All documents of a split in one line, with a closing token behind each. Knows no rows.

A place of the tape is a token of the shards plus the number of closings before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing.cutting import count_up
from bertsmith.data.packing.outline import Outline
from bertsmith.data.packing.packing import Numbers
from bertsmith.data.shards import Shards


class Stretch(NamedTuple):
    """Tokens of the tape."""

    tokens: NDArray[np.int32]  # [T]
    closings: NDArray[np.bool_]  # [T]


class Tape:
    """D documents; with `closing` None they follow each other with nothing between."""

    def __init__(self, shards: Shards, outline: Outline, closing: int | None) -> None:
        ends = outline.document_tokens[1:]
        self._shards, self._closing = shards, closing
        self.closings: Numbers = ends[:0] if closing is None else ends + np.arange(len(ends))  # [D] their places
        self.length = shards.tokens + len(self.closings)

    def sentences(self, outline: Outline) -> tuple[Numbers, Numbers]:
        """[S] the first place of each sentence, and [S] the place behind it, where its document's closing may be."""
        begins, ends = (some.astype(np.int64) for some in (outline.sentences[:-1], outline.sentences[1:]))
        if self._closing is not None:
            before = np.repeat(np.arange(len(self.closings)), outline.documents[1:] - outline.documents[:-1])
            begins, ends = begins + before, ends + before
        return begins, ends

    def most_documents(self, room: int) -> int:
        """The most documents that any `room` places hold, where the tape goes round."""
        places = np.concatenate([self.closings, self.closings + self.length])
        first = np.arange(len(self.closings))
        within = np.searchsorted(places, places[first] + room - 2, "right") - first  # a closing at the end ends nothing
        return 1 + int(within.max(initial=0))

    def read(self, starts: Numbers, lengths: Numbers) -> Stretch:
        """The stretches of these places, end to end."""
        first, last = (np.searchsorted(self.closings, place) for place in (starts, starts + lengths))
        passed = last - first
        tokens = self._shards.read(starts - first, lengths - passed).astype(np.int32)
        closings = np.zeros(int(lengths.sum()), np.bool_)
        if self._closing is None:
            return Stretch(tokens, closings)
        numbers = np.repeat(first, passed) + count_up(passed)
        closings[np.repeat(np.cumsum(lengths) - lengths - starts, passed) + self.closings[numbers]] = True
        found = np.full(len(closings), self._closing, np.int32)
        found[~closings] = tokens
        return Stretch(found, closings)
