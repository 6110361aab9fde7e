"""Sentences one behind the other, for models that are asked nothing about pairs (P-RoBERTa §4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertsmith.data.packing.bin_packing import Seating
from bertsmith.data.packing.document_stream import Outline, Tape, Windows, cut_evenly, links, start_type, walk
from bertsmith.data.packing.packing import (
    Forms,
    Numbers,
    PackedBatch,
    Packing,
    Sheet,
    Texts,
    check_length,
    check_split,
    closing_id,
    lay_out,
    room_for,
)
from bertsmith.data.shards import Shards
from bertsmith.types import Frame


@dataclass(frozen=True, kw_only=True)
class Config:
    """FULL-SENTENCES, or DOC-SENTENCES where rows do not reach over documents."""

    across_documents: bool = True  # a text goes on with the next document behind a separator
    # differs from the paper: documents of one text do not see each other; true lets them (with across_documents)
    see_across: bool = False
    # differs from the paper: a sentence for which a row has no room left is cut there and goes on in another, since
    # moving it there as a whole leaves much padding (a tenth of all places at 128); true moves it
    whole_sentences: bool = False

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int) -> Packing:
        """See `packing.Settings`."""
        check_length(max_length)
        check_split(shards)
        outline = Outline(shards)
        tape = Tape(shards, outline, closing_id(frame) if self.across_documents else None)
        if self.across_documents and not self.whole_sentences:
            apart = not self.see_across and len(tape.closings) > 0
            return Windows(tape, frame, length=max_length, padding_id=padding_id, seed=seed, apart=apart)
        forms = Forms(frame)
        room = room_for(max_length, specials=int(forms.specials[0]), least=1)
        spans = self._cut(tape, outline, room)
        apart = self.across_documents and not self.see_across
        return FullSentences(
            tape, *spans, forms=forms, length=max_length, padding_id=padding_id, seed=seed, apart=apart
        )

    def _cut(self, tape: Tape, outline: Outline, room: int) -> tuple[Numbers, Numbers]:
        """Begins and ends of samples on the tape."""
        bounds = np.array([0, tape.length]) if self.across_documents else outline.document_tokens
        if not self.whole_sentences:
            starts = cut_evenly(bounds[:-1], bounds[1:], room)
            return starts, np.append(starts[1:], tape.length)
        sentence_begins, sentence_ends = tape.sentences(outline)

        def ahead(place: Numbers, chain: Numbers) -> Numbers:
            last = np.searchsorted(sentence_ends, np.minimum(place + room, limits[chain]), "right") - 1
            end: Numbers = np.where(last < 0, 0, sentence_ends[last])
            return np.where(end > place, end, place + room)

        begins, limits, _ = links(bounds[:-1], bounds[1:], size=room, sentences=sentence_begins)
        return walk(begins, limits, ahead, tape.closings)


class FullSentences(Packing):
    """Samples of a tape, framed as single texts; short ones share rows."""

    def __init__(
        self,
        tape: Tape,
        starts: Numbers,
        ends: Numbers,
        *,
        forms: Forms,
        length: int,
        padding_id: int,
        seed: int,
        apart: bool,
    ) -> None:
        self.max_length = length
        self._tape, self._forms = tape, forms
        self._starts, self._lengths = starts.astype(start_type(tape.length)), (ends - starts).astype(np.uint16)
        self._seating = Seating(ends - starts + forms.specials[0], length=length, seed=seed)
        self.rows_per_epoch, self.texts_per_row = self._seating.rows_per_epoch, self._seating.texts_per_row
        self.padding_fraction = self._seating.padding
        documents = 0
        if apart:
            first, last = (np.searchsorted(tape.closings, place) for place in (starts, ends))
            documents = min(length, self.texts_per_row * (1 + int((last - first).max())))
        self._sheet = Sheet(length, padding_id, self.texts_per_row, documents_per_row=documents)

    def rows(self, first: int, rows: int) -> PackedBatch:
        """See `Packing.take`."""
        row, epoch, sample = self._seating.seats(*self.epochs_and_rows(first, rows))
        starts, lengths = self._starts[sample].astype(np.int64), self._lengths[sample].astype(np.int64)
        stretch = self._tape.read(starts, lengths)
        single = np.zeros_like(row)
        texts = Texts(
            row=row,
            number=epoch * self._seating.samples + sample,
            form=single,
            sizes=self._forms.sizes(single, lengths, single),
            tokens=stretch.tokens,
            closings=stretch.closings,
        )
        return lay_out(texts, self._forms, self._sheet)
