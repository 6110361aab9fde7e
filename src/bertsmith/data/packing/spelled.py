"""The rows of any packing with the characters of their words, from shards that keep the spelling of unknown words.

The characters of a batch are as wide as its longest word needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bertsmith.data.packing.packing import PackedBatch, Packing
from bertsmith.data.shards import SpelledShards
from bertsmith.tokenizers.spelling import PADDING, Characters, spell_bytes

MULTIPLE, COLUMNS = 64, 8  # of which the numbers of distinct words and of columns are multiples: fewer shapes


class SpelledPacking(Packing):
    """Another packing of `SpelledShards`, with `spellings` and `spelling_ids`."""

    def __init__(self, packing: Packing, shards: SpelledShards, vocabulary: Characters) -> None:
        """`vocabulary` [V, C]: the characters of each token; those of unknown words get the same width."""
        self.packing, self.shards, self.vocabulary = packing, shards, vocabulary
        self.max_length, self.rows_per_epoch = packing.max_length, packing.rows_per_epoch
        self.texts_per_row, self.padding_fraction, self.dense = (
            packing.texts_per_row,
            packing.padding_fraction,
            packing.dense,
        )

    def rows(self, first: int, count: int) -> PackedBatch:
        packed = self.packing.rows(first, count)
        size, width = self.vocabulary.shape
        keys, index = np.unique(packed.input_ids, return_inverse=True)
        outside = np.flatnonzero(keys >= size)
        spellings = np.full((-(-len(keys) // MULTIPLE) * MULTIPLE, width), PADDING, np.int16)
        spellings[: len(keys)] = self.vocabulary[np.where(keys < size, keys, 0)]
        if len(outside):
            characters = spell_bytes(
                self.shards.unknown_words(keys[outside].astype(np.int64) - size), max_characters=width
            )
            spellings[outside] = PADDING
            spellings[outside, : characters.shape[1]] = characters
        longest = int(np.count_nonzero(spellings != PADDING, axis=1).max())
        spellings = spellings[:, : -(-max(longest, 1) // COLUMNS) * COLUMNS]
        changes: dict[str, Any] = {"input_ids": self._ids(packed.input_ids), "spellings": spellings}
        if packed.next_ids is not None:
            changes["next_ids"] = self._ids(packed.next_ids)
        return replace(packed, spelling_ids=index.reshape(packed.input_ids.shape), **changes)

    def _ids(self, keys: Any) -> Any:
        """The ids of the vocabulary, with unknown tokens."""
        size = len(self.vocabulary)
        outside = keys >= size
        ids = keys.copy()
        ids[outside] = self.shards.unknown_ids(keys[outside].astype(np.int64) - size)
        return ids

    def learning_rate_factor(self, step: int) -> float:
        return self.packing.learning_rate_factor(step)
