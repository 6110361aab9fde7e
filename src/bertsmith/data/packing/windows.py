"""Rows that are all full: the tape is read round and round, in windows of equal size. Knows frames, no sentences.

The windows of a run follow each other without a gap: fewer tokens than one window holds, left at the end of an epoch,
are the first ones of the next. Within an epoch their order is a permutation. Each window is one text, whose documents
may be kept apart.
"""

from __future__ import annotations

import numpy as np

from bertsmith.data.packing import keyed
from bertsmith.data.packing.layout import Forms, Sheet, Texts, lay_out
from bertsmith.data.packing.packing import PackedBatch, Packing, room_for
from bertsmith.data.packing.tape import Tape
from bertsmith.errors import DataError
from bertsmith.types import Frame


class Windows(Packing):
    """One text to a row, framed as a single one; no padding at all."""

    texts_per_row = 1
    padding = 0.0

    def __init__(
        self, tape: Tape, frame: Frame, *, length: int, padding_id: int, seed: int, apart: bool = False
    ) -> None:
        self.length, self.full = length, not apart
        self._tape, self._forms = tape, Forms(frame)
        self._room = room_for(length, specials=int(self._forms.specials[0]), least=1)
        documents = tape.most_documents(self._room) if apart else 0
        self._sheet = Sheet(length, padding_id, self.texts_per_row, full=True, documents_per_row=documents)
        self._key = keyed.stream(seed, "packing/windows")
        self.rows_per_epoch = tape.length // self._room
        if not self.rows_per_epoch:
            raise DataError(f"{tape.length:,} tokens do not fill one row of length={length}: make it shorter")

    def take(self, first: int, rows: int) -> PackedBatch:
        """See `Packing.take`."""
        epoch, row = self.turns(first, rows)
        window = epoch * self.rows_per_epoch + keyed.permute(row, self.rows_per_epoch, keyed.mix(self._key, epoch))
        starts = window * self._room % self._tape.length
        lengths = np.minimum(self._room, self._tape.length - starts)
        spans = np.stack([starts, np.zeros_like(starts)], axis=1), np.stack([lengths, self._room - lengths], axis=1)
        stretch = self._tape.read(*(span.ravel() for span in spans))  # what the end cuts off goes on at the begin
        single, nothing = np.zeros_like(row), np.zeros_like(row)
        sizes = self._forms.sizes(single, nothing + self._room, nothing)
        texts = Texts(np.arange(rows), window, single, sizes, stretch.tokens, stretch.closings)
        return lay_out(texts, self._forms, self._sheet)
