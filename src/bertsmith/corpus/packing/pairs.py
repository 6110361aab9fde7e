"""Two texts, of which the second may follow the first or not (P-BERT §3.1, A.2; bert: create_pretraining_data.py)."""

# differs from the paper: nothing is written ten times and nothing is thrown away. What Google's code would truncate
# begins the next sample, so every token is in one sample an epoch; where the first text ends and what follows it is
# drawn anew each epoch. A sample of one sentence is a single text of which nothing is asked, where Google's code gives
# it a random second one, so that 58 % instead of half are random. A random second text comes from all sentences alike,
# not from all documents alike.

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertsmith.corpus.packing import keyed, random_next
from bertsmith.corpus.packing.cutting import cut_evenly, links, walk
from bertsmith.corpus.packing.layout import Forms, Sheet, Texts, lay_out
from bertsmith.corpus.packing.outline import Outline, start_type
from bertsmith.corpus.packing.packing import (
    Numbers,
    PackedBatch,
    Packing,
    check_length,
    check_share,
    check_split,
    room_for,
)
from bertsmith.corpus.packing.seating import Seating
from bertsmith.corpus.shards import Shards
from bertsmith.errors import DataError
from bertsmith.types import NOT_ASKED, Frame

FOLLOWS, RANDOM = 0, 1  # the labels of next_sentence


@dataclass(frozen=True, kw_only=True)
class Config:
    """Rows of sentence pairs."""

    length: int = 512  # places in a row, special tokens included
    random_next: float = 0.5  # share of pairs whose second text comes from another document
    shorter: float = 0.1  # share of documents that are cut into samples of some smaller size

    def __post_init__(self) -> None:
        check_length(self.length)
        check_share("random_next", self.random_next)
        check_share("shorter", self.shorter)

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int) -> Pairs:
        """See `packing.Settings`."""
        check_split(shards)
        outline = Outline(shards)
        if self.random_next and len(outline.documents) < 3:
            raise DataError(
                f"the {shards.split} split of {shards.folder} has only one document, so no second text can come from "
                "another: prepare more text (is there a blank line between documents?), or set random_next=0"
            )
        return Pairs(self, shards, outline, frame=frame, padding_id=padding_id, seed=seed)


class _Halves(NamedTuple):
    """The texts of a batch. N texts; those with an empty second half are single."""

    starts: Numbers  # [N, 2] first token of each half
    lengths: Numbers  # [N, 2]
    labels: Numbers  # [N]

    def spans(self) -> tuple[Numbers, Numbers]:
        """Where to read the tokens, and how many: both halves at once where the second follows."""
        follows = (self.labels != RANDOM)[:, None]
        lengths = np.where(follows, self.lengths.sum(1, keepdims=True) * [1, 0], self.lengths)
        return self.starts.ravel(), lengths.ravel()


class Pairs(Packing):
    """Samples of whole documents, each split at a sentence; short ones share rows."""

    def __init__(
        self, config: Config, shards: Shards, outline: Outline, *, frame: Frame, padding_id: int, seed: int
    ) -> None:
        self.length = config.length
        self._config, self._shards, self._outline, self._forms = config, shards, outline, Forms(frame)
        self._keys = {name: keyed.stream(seed, f"pairs/{name}") for name in ("short", "target", "split", "next", "b")}
        cuts = self._cut(room_for(self.length, specials=int(self._forms.specials[1]), least=2))
        pair = outline.sentence_at(cuts[1:], "left") > outline.sentence_at(cuts[:-1], "right")
        self._cuts = cuts.astype(start_type(shards.tokens))  # [samples + 1] first token of each; last: all tokens
        sizes = np.diff(cuts) + self._forms.specials[pair.astype(np.int64)]
        self._seating = Seating(sizes, length=self.length, seed=seed)
        self.rows_per_epoch, self.texts_per_row = self._seating.rows_per_epoch, self._seating.texts_per_row
        self.padding = self._seating.padding
        self._sheet = Sheet(self.length, padding_id, self.texts_per_row)

    def take(self, first: int, rows: int) -> PackedBatch:
        """See `Packing.take`."""
        row, epoch, sample = self._seating.seats(*self.turns(first, rows))
        number = epoch * self._seating.samples + sample
        halves = self._halves(sample, number)
        form = (halves.lengths[:, 1] > 0).astype(np.int64)
        texts = Texts(
            row=row,
            number=number,
            form=form,
            sizes=self._forms.sizes(form, *halves.lengths.T),
            tokens=self._shards.read(*halves.spans()),
        )
        return lay_out(texts, self._forms, self._sheet, {"next_sentence": halves.labels})

    def _cut(self, room: int) -> Numbers:
        """Where samples begin, and the end of all: sentences until the target is reached, but never over the room.

        The target is the room; in some documents less, "to minimize the mismatch between pre-training and fine-tuning".
        """
        outline, bounds = self._outline, self._outline.document_tokens
        document = np.arange(len(bounds) - 1)
        short = keyed.happens(keyed.mix(self._keys["short"], document), self._config.shorter)
        long_starts = cut_evenly(bounds[:-1][~short], bounds[1:][~short], room)
        begins, limits, chain = links(bounds[:-1][short], bounds[1:][short], size=room, sentences=outline.sentences)
        targets = 2 + keyed.below(keyed.mix(self._keys["target"], document[short]), room - 1)[chain]

        def ahead(place: Numbers, link: Numbers) -> Numbers:
            reached = np.minimum(place + targets[link], limits[link])
            sentence_end = outline.sentences[outline.sentence_at(reached, "left")].astype(np.int64)
            return np.minimum(sentence_end, place + room)

        short_starts, _ = walk(begins, limits, ahead)
        return np.append(np.sort(np.concatenate([long_starts, short_starts])), self._shards.tokens)

    def _halves(self, sample: Numbers, number: Numbers) -> _Halves:
        """Where each sample is split, and what follows its first half, by number: another every epoch."""
        outline, keys = self._outline, self._keys
        start, end = (self._cuts[place].astype(np.int64) for place in (sample, sample + 1))
        first, last = outline.sentence_at(start, "right"), outline.sentence_at(end, "left")
        pair = first < last  # sentences begin within
        chosen = first + keyed.below(keyed.mix(keys["split"], number), np.maximum(last - first, 1))
        split = np.where(pair, outline.sentences[chosen].astype(np.int64), end)
        random = pair & keyed.happens(keyed.mix(keys["next"], number), self._config.random_next)
        starts, lengths = np.stack([start, split], axis=1), np.stack([split - start, end - split], axis=1)
        starts[random, 1], lengths[random, 1] = random_next.draw(
            outline,
            away_from=outline.document_of(first[random] - 1),
            wanted=lengths[random, 1],
            whole=outline.sentences[last[random]] == end[random],
            drawn=keyed.mix(keys["b"], number[random]),
        )
        return _Halves(starts, lengths, np.where(pair, np.where(random, RANDOM, FOLLOWS), NOT_ASKED))
