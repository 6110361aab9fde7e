"""Samples of documents, each split at a sentence into two texts; short ones share rows. Knows no question of them."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing import counter_random
from bertsmith.data.packing.bin_packing import Seating
from bertsmith.data.packing.document_stream import Outline, start_type
from bertsmith.data.packing.packing import Forms, Numbers, PackedBatch, Packing, Sheet, Texts, lay_out, room_for
from bertsmith.data.shards import Shards
from bertsmith.types import Frame


class Halves(NamedTuple):
    """The texts of a batch. N texts; those with an empty second half are single."""

    starts: Numbers  # [N, 2] first token of each half
    lengths: Numbers  # [N, 2]
    labels: Numbers  # [N] 0 where the second half stands right behind the first in the shards, 1 where it does not

    def spans(self) -> tuple[Numbers, Numbers]:
        """Where to read the tokens, and how many: both halves at once where the second follows."""
        follows = (self.labels != 1)[:, None]
        lengths = np.where(follows, self.lengths.sum(1, keepdims=True) * [1, 0], self.lengths)
        return self.starts.ravel(), lengths.ravel()


class Split(NamedTuple):
    """Where samples of a batch are split, by tokens; N samples."""

    start: Numbers  # [N] first token
    middle: Numbers  # [N] first token of the second half; the end where there is none
    end: Numbers  # [N] behind the last token
    pair: NDArray[np.bool_]  # [N] there is a second half
    first: Numbers  # [N] the first sentence that begins behind the start
    last: Numbers  # [N] the first one that begins at or behind the end


class HalvedTexts(Packing):
    """A kind says how documents are cut into samples, and what becomes of their two halves."""

    question: ClassVar[str]  # the objective that the labels are for
    kind: ClassVar[str]  # part of the key of every number drawn

    def __init__(
        self,
        shards: Shards,
        outline: Outline,
        *,
        frame: Frame,
        length: int,
        shorter: float,
        padding_id: int,
        seed: int,
    ) -> None:
        self.max_length = length
        self._shards, self._outline, self._forms, self._seed = shards, outline, Forms(frame), seed
        cuts = self._cut(room_for(length, specials=int(self._forms.specials[1]), least=2), shorter)
        pair = outline.sentence_at(cuts[1:], "left") > outline.sentence_at(cuts[:-1], "right")
        self._cuts = cuts.astype(start_type(shards.tokens))  # [samples + 1] first token of each; last: all tokens
        sizes = np.diff(cuts) + self._forms.specials[pair.astype(np.int64)]
        self._seating = Seating(sizes, length=length, seed=seed)
        self.rows_per_epoch, self.texts_per_row = self._seating.rows_per_epoch, self._seating.texts_per_row
        self.padding_fraction = self._seating.padding
        self._sheet = Sheet(length, padding_id, self.texts_per_row)

    def rows(self, first: int, rows: int) -> PackedBatch:
        """See `Packing.take`."""
        row, epoch, sample = self._seating.seats(*self.epochs_and_rows(first, rows))
        number = epoch * self._seating.samples + sample
        halves = self._halves(self._split(sample, number), number)
        form = (halves.lengths[:, 1] > 0).astype(np.int64)
        texts = Texts(
            row=row,
            number=number,
            form=form,
            sizes=self._forms.sizes(form, *halves.lengths.T),
            tokens=self._shards.read(*halves.spans()),
        )
        return lay_out(texts, self._forms, self._sheet, {self.question: halves.labels})

    def _cut(self, room: int, shorter: float) -> Numbers:
        """Where samples of at most `room` tokens begin, and the end of all; some documents have smaller ones."""
        raise NotImplementedError

    def _halves(self, split: Split, number: Numbers) -> Halves:
        """What stands in the two halves of samples, by number: another every epoch."""
        raise NotImplementedError

    def _split(self, sample: Numbers, number: Numbers) -> Split:
        """Where samples are split, by number: at any of the sentences that begin within."""
        outline = self._outline
        start, end = (self._cuts[place].astype(np.int64) for place in (sample, sample + 1))
        first, last = outline.sentence_at(start, "right"), outline.sentence_at(end, "left")
        pair = first < last
        chosen = first + counter_random.below(self._draw("split", number), np.maximum(last - first, 1))
        return Split(start, np.where(pair, outline.sentences[chosen].astype(np.int64), end), end, pair, first, last)

    def _smaller(self, room: int, shorter: float) -> tuple[NDArray[np.bool_], Numbers]:
        """[D] which documents are cut into samples of some smaller size; and [D] that size, whether or not they are.

        "To minimize the mismatch between pre-training and fine-tuning" (bert: create_pretraining_data.py).
        """
        document = np.arange(len(self._outline.documents) - 1)
        short = counter_random.happens(self._draw("short", document), shorter)
        return short, 2 + counter_random.below(self._draw("target", document), room - 1)

    def _draw(self, purpose: str, number: Numbers) -> counter_random.Mixed:
        return counter_random.mix(counter_random.stream(self._seed, f"{self.kind}/{purpose}"), number)
