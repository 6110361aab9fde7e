"""Words of a batch as texts, and the pieces that another tokenizer makes of them.

T flat tokens of the batch, P pieces of a text, C characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.windows import token_windows
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Batch, Row

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class AlignedText:
    """A text as rows of a frozen encoder; where in the concatenated rows the first and last piece of each word is."""

    rows: tuple[Row, ...]
    first: Numbers  # [words] -1 for a word without a piece
    last: Numbers  # [words]


def words_of(batch: Batch) -> tuple[list[tuple[str, ...]], Numbers]:
    """The words of each text of a batch, by their spelling, and the flat positions of all words.

    A text ends at special tokens: the two texts of a pair are two.
    """
    assert batch.characters is not None
    spelled_TC = batch.characters.flatten(0, 1).cpu().numpy()
    document_ids = batch.document_ids.cpu().numpy()
    ordinary_T = (~batch.special_mask.cpu().numpy() & (document_ids > 0)).flatten()
    row_T = np.repeat(np.arange(len(document_ids)), document_ids.shape[1])
    text_T = row_T * (int(document_ids.max(initial=0)) + 1) + document_ids.flatten()
    positions = np.flatnonzero(ordinary_T)
    if not len(positions):
        return [], positions
    new = (np.diff(positions) > 1) | (np.diff(text_T[positions]) != 0)
    words = [row[row < 256].astype(np.uint8).tobytes().decode("utf-8", "replace") for row in spelled_TC[positions]]
    cuts = [0, *(np.flatnonzero(new) + 1).tolist(), len(words)]
    return [tuple(words[begin:end]) for begin, end in pairwise(cuts)], positions


def align(words: Sequence[str], tokenizer: Tokenizer, *, positions: int) -> AlignedText:
    """The pieces of words that are joined by spaces; a text that is too long becomes several rows.

    A word is read in the row in which it has most context.
    """
    encoded = tokenizer.encode(" ".join(words))
    sizes = np.array([len(word) for word in words], np.int64)
    ends = np.cumsum(sizes + 1) - 1
    begins = ends - sizes
    first, last = _pieces(encoded.offsets.astype(np.int64), begins, ends)
    length = min(positions, tokenizer.max_length)
    frame = tokenizer.frame_ids.single
    room, start = length - sum(isinstance(part, int) for part in frame), frame.index("a")
    rows: list[Row] = []
    at_first, at_last, before = np.full(len(words), -1), np.full(len(words), -1), 0
    for begin, low, high in token_windows(len(encoded), size=room, overlap=room // 2):
        row = tokenizer.frame(encoded.part(begin, begin + room), max_length=length)
        if not len(row):
            continue
        rows.append(row)
        read = (first >= low) & (first < high)
        at_first[read] = first[read] - begin + start + before
        at_last[read] = np.minimum(last[read] - begin, room - 1) + start + before
        before += len(row)
    return AlignedText(tuple(rows), at_first, at_last)


def _pieces(offsets_P2: Numbers, begins: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """The first and the last piece of each word, both -1 for a word without a piece."""
    first = np.searchsorted(np.maximum.accumulate(offsets_P2[:, 1]), begins, "right")
    last = np.searchsorted(offsets_P2[:, 0], ends, "left") - 1
    found = first <= last
    return np.where(found, first, -1), np.where(found, last, -1)
