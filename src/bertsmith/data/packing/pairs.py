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
from numpy.typing import NDArray

from bertsmith.data.packing import counter_random
from bertsmith.data.packing.document_stream import Outline, cut_evenly, links, walk
from bertsmith.data.packing.packing import Numbers, check_length, check_share, check_split
from bertsmith.data.packing.sentence_pairs import HalvedTexts, Halves, Split
from bertsmith.data.shards import Shards
from bertsmith.errors import DataError
from bertsmith.types import IGNORE_INDEX, Frame

FOLLOWS, RANDOM = 0, 1  # the labels of next_sentence


@dataclass(frozen=True, kw_only=True)
class Config:
    """Rows of sentence pairs."""

    random_next: float = 0.5  # share of pairs whose second text comes from another document
    shorter: float = 0.1  # share of documents that are cut into samples of some smaller size
    single_sentences: bool = False  # each text is one sentence, not as many as there is room for (P-RoBERTa §4.2)

    def __post_init__(self) -> None:
        check_share("random_next", self.random_next)
        check_share("shorter", self.shorter)

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int) -> Pairs:
        """See `packing.Settings`."""
        check_length(max_length)
        check_split(shards)
        outline = Outline(shards)
        if self.random_next and len(outline.documents) < 3:
            raise DataError(
                f"the {shards.split} split of {shards.folder} has only one document, so no second text can come from "
                "another: prepare more text (is there a blank line between documents?), or set random_next=0"
            )
        return Pairs(self, shards, outline, frame=frame, padding_id=padding_id, seed=seed, max_length=max_length)


class Pairs(HalvedTexts):
    """Second halves that follow, or come from elsewhere."""

    question, kind = "next_sentence", "pairs"

    def __init__(
        self,
        config: Config,
        shards: Shards,
        outline: Outline,
        *,
        frame: Frame,
        padding_id: int,
        seed: int,
        max_length: int,
    ) -> None:
        self._random_next, self._single = config.random_next, config.single_sentences
        super().__init__(
            shards,
            outline,
            frame=frame,
            length=max_length,
            shorter=config.shorter,
            padding_id=padding_id,
            seed=seed,
        )

    def _cut(self, room: int, shorter: float) -> Numbers:
        """Sentences until the target is reached, but never over the room, in which a sentence may be cut."""
        outline, bounds = self._outline, self._outline.document_tokens
        if self._single:
            first = np.repeat(outline.documents[:-1], np.diff(outline.documents))
            odd = (np.arange(len(first)) - first) % 2 == 1
            bounds = outline.sentences[np.append(~odd, True)].astype(np.int64)
            return np.append(cut_evenly(bounds[:-1], bounds[1:], room), self._shards.tokens)
        short, sizes = self._smaller(room, shorter)
        long_starts = cut_evenly(bounds[:-1][~short], bounds[1:][~short], room)
        begins, limits, chain = links(bounds[:-1][short], bounds[1:][short], size=room, sentences=outline.sentences)
        targets = sizes[short][chain]

        def ahead(place: Numbers, link: Numbers) -> Numbers:
            reached = np.minimum(place + targets[link], limits[link])
            sentence_end = outline.sentences[outline.sentence_at(reached, "left")].astype(np.int64)
            return np.minimum(sentence_end, place + room)

        short_starts, _ = walk(begins, limits, ahead)
        return np.append(np.sort(np.concatenate([long_starts, short_starts])), self._shards.tokens)

    def _halves(self, split: Split, number: Numbers) -> Halves:
        """The second half, or a text from another document in its place."""
        outline = self._outline
        random = split.pair & counter_random.happens(self._draw("next", number), self._random_next)
        starts = np.stack([split.start, split.middle], axis=1)
        lengths = np.stack([split.middle - split.start, split.end - split.middle], axis=1)
        starts[random, 1], lengths[random, 1] = _draw_random_next(
            outline,
            away_from=outline.document_of(split.first[random] - 1),
            wanted=lengths[random, 1],
            whole=outline.sentences[split.last[random]] == split.end[random],
            drawn=self._draw("b", number[random]),
        )
        return Halves(starts, lengths, np.where(split.pair, np.where(random, RANDOM, FOLLOWS), IGNORE_INDEX))


DRAWS, RUN = 8, 4  # places that are looked at for each text, and sentences one behind the other at each
CHANGES = 2  # of the choice, where it ends with a sentence by chance


class Spans(NamedTuple):
    """Tokens of the split."""

    starts: Numbers
    lengths: Numbers


def _draw_random_next(
    outline: Outline, *, away_from: Numbers, wanted: Numbers, whole: NDArray[np.bool_], drawn: counter_random.Mixed
) -> Spans:
    """For each text one that begins with a sentence, drawn from all sentences of documents other than `away_from`.

    It ends with a sentence where `whole`, else within one, and has `wanted` tokens, or as many as there are behind one
    of the sentences tried. (Where each of these is longer than wanted, a whole one cannot be had.)
    """
    own = outline.documents[away_from].astype(np.int64)
    own_count = outline.documents[away_from + 1].astype(np.int64) - own
    others = len(outline.sentences) - 1 - own_count
    first = counter_random.below(counter_random.mix(drawn[:, None], np.arange(DRAWS)), others[:, None])
    first += np.where(first >= own[:, None], own_count[:, None], 0)  # the own document is passed over
    last = outline.documents[outline.document_of(first) + 1].astype(np.int64) - 1
    found = Spans(np.empty_like(wanted), np.empty_like(wanted))
    for some, run, whole_ones in ((whole, RUN, True), (~whole, 1, False)):  # a sum of sentences is hard to find
        tried = np.minimum(first[some, :, None] + np.arange(run), last[some, :, None]).reshape(-1, DRAWS * run)
        limits = outline.sentences[last[some].repeat(run, axis=1) + 1].astype(np.int64)
        found.starts[some], found.lengths[some] = _best(outline, tried, limits, wanted[some], whole=whole_ones)
    return found


def _best(outline: Outline, sentences: Numbers, limits: Numbers, wanted: Numbers, *, whole: bool) -> Spans:
    """The longest span, up to what is wanted [P], from one of these sentences and within its limit [P, tries]."""
    starts = outline.sentences[sentences].astype(np.int64)
    limits = np.minimum(starts + wanted[:, None], limits)
    stops = outline.sentence_end(limits) if whole else limits.copy()
    every = np.arange(len(wanted))
    best = every, np.argmax(stops - starts, axis=1)
    for _ in range(0 if whole else CHANGES):
        stops[best] -= outline.sentence_end(stops[best]) == stops[best]
        best = every, np.argmax(stops - starts, axis=1)
    start, stop = starts[best], stops[best]
    return Spans(start, np.where(stop > start, stop, limits[best]) - start)
