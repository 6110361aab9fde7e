"""Documents are cut into samples: once, by sentences and sizes, all documents together. Knows no tokens.

A chain is a stretch of tokens that is cut from its begin to its limit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bertsmith.data.packing.outline import Starts
from bertsmith.data.packing.packing import Numbers

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
