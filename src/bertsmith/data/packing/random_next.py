"""A second text that does not follow: from another document, in length and ends like the one that does.

If only the true second texts ended with a sentence, "does it follow?" could be answered from the last token alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing import keyed
from bertsmith.data.packing.outline import Outline
from bertsmith.data.packing.packing import Numbers

DRAWS, RUN = 8, 4  # places that are looked at for each text, and sentences one behind the other at each
CHANGES = 2  # of the choice, where it ends with a sentence by chance


class Spans(NamedTuple):
    """Tokens of the split."""

    starts: Numbers
    lengths: Numbers


def draw(
    outline: Outline, *, away_from: Numbers, wanted: Numbers, whole: NDArray[np.bool_], drawn: keyed.Mixed
) -> Spans:
    """For each text one that begins with a sentence, drawn from all sentences of documents other than `away_from`.

    It ends with a sentence where `whole`, else within one, and has `wanted` tokens, or as many as there are behind one
    of the sentences tried. (Where each of these is longer than wanted, a whole one cannot be had.)
    """
    own = outline.documents[away_from].astype(np.int64)
    own_count = outline.documents[away_from + 1].astype(np.int64) - own
    others = len(outline.sentences) - 1 - own_count
    first = keyed.below(keyed.mix(drawn[:, None], np.arange(DRAWS)), others[:, None])
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
