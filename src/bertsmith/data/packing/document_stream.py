"""All documents of a split in one line, with a closing token behind each. Knows no rows.

A place of the tape is a token of the shards plus the number of closings before it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing import counter_random
from bertsmith.data.packing.packing import Forms, Numbers, PackedBatch, Packing, Sheet, Texts, lay_out, room_for
from bertsmith.data.shards import Part, Shards
from bertsmith.errors import DataError
from bertsmith.types import Frame


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


Starts = NDArray[np.integer[Any]]


class Outline:
    """S sentences and D documents; documents without a token do not count."""

    def __init__(self, shards: Shards) -> None:
        sentences = np.empty(shards.sentences + 1, start_type(shards.tokens))
        documents = np.empty(shards.documents + 1, start_type(shards.sentences))
        sentences[-1], documents[-1] = shards.tokens, shards.sentences
        for part in shards.parts:
            _enter(copy.copy(part), sentences, documents)  # a copy, so that what a part remembers goes with it
        self.sentences: Starts = sentences  # [S+1] first token of each sentence; last: all tokens
        self.documents: Starts = documents[np.append(np.diff(documents) > 0, True)]  # [D+1] first sentence; last: S

    @property
    def document_tokens(self) -> Numbers:
        """[D+1] first token of each document; last: all tokens."""
        return self.sentences[self.documents].astype(np.int64)

    def sentence_at(self, tokens: Numbers, side: Literal["left", "right"]) -> Numbers:
        """The number of the first sentence that begins at or after each token, or with `right` after it."""
        return np.searchsorted(self.sentences, tokens.astype(self.sentences.dtype), side)

    def sentence_end(self, tokens: Numbers) -> Numbers:
        """The last token at or before each one where a sentence ends and another begins."""
        return self.sentences[self.sentence_at(tokens, "right") - 1].astype(np.int64)

    def document_of(self, sentences: Numbers) -> Numbers:
        """The document of each sentence."""
        return np.searchsorted(self.documents, sentences.astype(self.documents.dtype), "right") - 1


def start_type(most: int) -> type[np.uint32 | np.int64]:
    """The smallest type for numbers up to `most`."""
    return np.uint32 if most < 1 << 32 else np.int64


def _enter(part: Part, sentences: Starts, documents: Starts) -> None:
    spans = slice(part.sentence_base, part.sentence_base + part.sentences)
    np.add(part.sentence_starts[:-1], np.int64(part.token_base), out=sentences[spans], casting="unsafe")
    spans = slice(part.document_base, part.document_base + part.documents)
    np.add(part.document_starts[:-1], np.int64(part.sentence_base), out=documents[spans], casting="unsafe")


LINK = 256  # samples, about: longer chains are cut into links of that many, for all to be walked at once

Ahead = Callable[[Numbers, Numbers], Numbers]  # (begins of samples, their chains) -> their ends


def count_up(counts: Numbers) -> Numbers:
    """0, 1, ... count-1 for each count, end to end."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def cut_evenly(begins: Numbers, limits: Numbers, size: int) -> Numbers:
    """Where samples begin when each chain is cut every `size` tokens."""
    counts = -(-(limits - begins) // size)
    return np.repeat(begins, counts) + size * count_up(counts)


def links(begins: Numbers, limits: Numbers, *, size: int, sentences: Starts) -> tuple[Numbers, Numbers, Numbers]:
    """Long chains as several that begin at sentences, about `LINK` samples of `size` each: begins, limits, old chain.

    Whoever joins a whole corpus into one document still opens it in seconds.
    """
    counts = -(-(limits - begins) // (LINK * size))
    chain = np.repeat(np.arange(len(begins)), counts)
    place = count_up(counts)
    rough = begins[chain] + LINK * size * place
    found = sentences[np.searchsorted(sentences, rough.astype(sentences.dtype), "right") - 1].astype(np.int64)
    found = np.where(place > 0, found, rough)
    ends = np.append(found[1:], 0)
    ends = np.where(place + 1 < counts[chain], ends, limits[chain])
    real = found < ends
    return found[real], ends[real], chain[real]


def walk(begins: Numbers, limits: Numbers, ahead: Ahead, closings: Numbers | None = None) -> tuple[Numbers, Numbers]:
    """Samples one behind the other from each begin to its limit: where they begin, and where they end, ascending.

    No sample begins with one of `closings` (places in ascending order): it is left out between two samples.
    """
    starts, ends = [begins[:0]], [begins[:0]]
    chain, place = np.arange(len(begins)), begins
    while len(chain):
        end = np.minimum(ahead(place, chain), limits[chain])
        starts.append(place)
        ends.append(end)
        place = end if closings is None else end + _among(end, closings)
        going = place < limits[chain]
        chain, place = chain[going], place[going]
    return np.sort(np.concatenate(starts)), np.sort(np.concatenate(ends))


def _among(places: Numbers, ascending: Numbers) -> Numbers:
    """1 where a place is among those, else 0."""
    return np.searchsorted(ascending, places, "right") - np.searchsorted(ascending, places, "left")


class Windows(Packing):
    """One text to a row, framed as a single one; no padding at all."""

    texts_per_row = 1
    padding_fraction = 0.0

    def __init__(
        self, tape: Tape, frame: Frame, *, length: int, padding_id: int, seed: int, apart: bool = False
    ) -> None:
        self.max_length, self.dense = length, not apart
        self._tape, self._forms = tape, Forms(frame)
        self._room = room_for(length, specials=int(self._forms.specials[0]), least=1)
        documents = tape.most_documents(self._room) if apart else 0
        self._sheet = Sheet(length, padding_id, self.texts_per_row, full=True, documents_per_row=documents)
        self._key = counter_random.stream(seed, "packing/windows")
        self.rows_per_epoch = tape.length // self._room
        if not self.rows_per_epoch:
            raise DataError(f"{tape.length:,} tokens do not fill one row of max_length={length}: make it shorter")

    def rows(self, first: int, rows: int) -> PackedBatch:
        """See `Packing.take`."""
        epoch, row = self.epochs_and_rows(first, rows)
        window = epoch * self.rows_per_epoch + counter_random.permute(
            row, self.rows_per_epoch, counter_random.mix(self._key, epoch)
        )
        starts = window * self._room % self._tape.length
        lengths = np.minimum(self._room, self._tape.length - starts)
        spans = np.stack([starts, np.zeros_like(starts)], axis=1), np.stack([lengths, self._room - lengths], axis=1)
        stretch = self._tape.read(*(span.ravel() for span in spans))  # what the end cuts off goes on at the begin
        single, nothing = np.zeros_like(row), np.zeros_like(row)
        sizes = self._forms.sizes(single, nothing + self._room, nothing)
        texts = Texts(np.arange(rows), window, single, sizes, stretch.tokens, stretch.closings)
        return lay_out(texts, self._forms, self._sheet)
