"""Two texts of one document, one behind the other, in the right order or swapped (P-ALBERT §3.1)."""

# differs from the paper: nothing is written forty times and nothing is thrown away. A sample is as many whole sentences
# as there is room for, which go on with the next one: every token is in one sample an epoch. A text that is cut within
# a sentence would tell the order without being understood, whether by its begin or by its end; Google's code cuts both
# texts at random after swapping them instead. A sample of one sentence, or a piece of one that is too long for a row,
# is a single text of which nothing is asked, where Google's code gives it a random second one.

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertsmith.data.packing import counter_random
from bertsmith.data.packing.document_stream import Outline, Starts, links, walk
from bertsmith.data.packing.packing import Numbers, check_length, check_share, check_split
from bertsmith.data.packing.sentence_pairs import HalvedTexts, Halves, Split
from bertsmith.data.shards import Shards
from bertsmith.types import IGNORE_INDEX, Frame

IN_ORDER, SWAPPED = 0, 1  # the labels of sentence_order


@dataclass(frozen=True, kw_only=True)
class Config:
    """Rows of two texts of one document."""

    swapped: float = 0.5  # share of pairs whose second text stands first
    shorter: float = 0.1  # share of documents that are cut into samples of some smaller size

    def __post_init__(self) -> None:
        check_share("swapped", self.swapped)
        check_share("shorter", self.shorter)

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int) -> OrderedPairs:
        """See `packing.Settings`."""
        check_length(max_length)
        check_split(shards)
        return OrderedPairs(self, shards, frame=frame, padding_id=padding_id, seed=seed, max_length=max_length)


class OrderedPairs(HalvedTexts):
    """Whole sentences, split into two texts of which the second may come first."""

    question, kind = "sentence_order", "ordered_pairs"

    def __init__(
        self, config: Config, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int
    ) -> None:
        self._swapped = config.swapped
        super().__init__(
            shards,
            Outline(shards),
            frame=frame,
            length=max_length,
            shorter=config.shorter,
            padding_id=padding_id,
            seed=seed,
        )

    def _cut(self, room: int, shorter: float) -> Numbers:
        """Whole sentences until the target is reached, in half of the documents from the end on.

        The sentence that was too long for one sample begins the next: were all cut from the begin on, first texts would
        be longer than second ones.
        """
        sentences, bounds = self._outline.sentences, self._outline.document_tokens
        short, sizes = self._smaller(room, shorter)
        targets = np.where(short, sizes, room)
        back = counter_random.happens(self._draw("back", np.arange(len(targets))), 0.5)
        starts, _ = _whole_sentences(sentences, bounds[:-1][~back], bounds[1:][~back], targets[~back], room=room)
        total = self._shards.tokens
        mirrored = (total - sentences[::-1].astype(np.int64)).astype(sentences.dtype)
        ends = total - bounds[:-1][back][::-1], targets[back][::-1]
        _, others = _whole_sentences(mirrored, total - bounds[1:][back][::-1], *ends, room=room)
        return np.append(np.sort(np.concatenate([starts, total - others])), total)

    def _halves(self, split: Split, number: Numbers) -> Halves:
        """Both halves, as they are or the second one first."""
        swapped = split.pair & counter_random.happens(self._draw("order", number), self._swapped)
        starts = np.stack([split.start, split.middle], axis=1)
        lengths = np.stack([split.middle - split.start, split.end - split.middle], axis=1)
        starts[swapped], lengths[swapped] = starts[swapped, ::-1], lengths[swapped, ::-1]
        return Halves(starts, lengths, np.where(split.pair, np.where(swapped, SWAPPED, IN_ORDER), IGNORE_INDEX))


def _whole_sentences(
    sentences: Starts, begins: Numbers, limits: Numbers, targets: Numbers, *, room: int
) -> tuple[Numbers, Numbers]:
    """Begins and ends of the samples of documents; a sentence that is longer than the room in pieces that stand alone.

    `sentences`: where each begins, and the end of all.
    """

    def sentence(place: Numbers, side: Literal["left", "right"]) -> Numbers:
        """The begin of the first sentence at or after each place, or with `right` after it."""
        return sentences[np.searchsorted(sentences, place.astype(sentences.dtype), side)].astype(np.int64)

    def sentence_end(place: Numbers) -> Numbers:
        """The last place at or before each one where a sentence begins or ends."""
        return sentences[np.searchsorted(sentences, place.astype(sentences.dtype), "right") - 1].astype(np.int64)

    begins, limits, chain = links(begins, limits, size=room, sentences=sentences)
    targets = targets[chain]

    def ahead(place: Numbers, link: Numbers) -> Numbers:
        reached = np.minimum(place + targets[link], limits[link])
        whole = np.minimum(sentence(reached, "left"), sentence_end(np.minimum(place + room, limits[link])))
        within = sentence_end(place) < place  # a sentence that began in the sample before goes on
        piece = np.minimum(sentence(place, "right"), place + room)
        return np.where(within | (whole <= place), piece, whole)

    return walk(begins, limits, ahead)
