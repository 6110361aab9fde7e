"""A second text that does not follow: from another document, in length and ends like the one that does.

If only the true second texts ended with a sentence, "does it follow?" could be answered from the last token alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.packing import keyed
from bertsmith.corpus.packing.outline import Outline
from bertsmith.corpus.packing.packing import Numbers

DRAWS, RUN = 8, 4  # places that are looked at for each text, and sentences one behind the other at each


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
    last = outline.documents[outline.document_of(first) + 1].astype(np.int64)
    tried = np.minimum(first[:, :, None] + np.arange(RUN), last[:, :, None] - 1)
    starts = outline.sentences[tried].astype(np.int64)
    limits = outline.sentences[last].astype(np.int64)[:, :, None]
    limits = np.minimum(starts + wanted[:, None, None], limits)
    sentence_ends = outline.sentences[outline.sentence_at(limits, "right") - 1].astype(np.int64)
    ends = np.where(whole[:, None, None], sentence_ends, limits - (limits == sentence_ends))
    starts, limits, ends = (some.reshape(len(wanted), DRAWS * RUN) for some in (starts, limits, ends))
    best = np.arange(len(wanted)), np.argmax(ends - starts, axis=1)
    start, end = starts[best], ends[best]
    return Spans(start, np.where(end > start, end, limits[best]) - start)
