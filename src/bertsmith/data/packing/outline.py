"""Where the sentences and documents of a split begin, in one array each. Knows no tokens.

4 bytes a sentence and 4 a document as long as a split has fewer than 2**32 tokens, 8 beyond.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing.packing import Numbers
from bertsmith.data.shards import Part, Shards

Starts = NDArray[np.integer[Any]]


class Outline:
    """S sentences and D documents; documents without a token do not count."""

    def __init__(self, shards: Shards) -> None:
        sentences = np.empty(shards.sentences + 1, start_type(shards.tokens))
        documents = np.empty(shards.documents + 1, start_type(shards.sentences))
        sentences[-1], documents[-1] = shards.tokens, shards.sentences
        for part in shards.parts:
            _enter(copy.copy(part), sentences, documents)  # a copy, so that what a part remembers goes with it
        self.sentences: Starts = sentences  # [S+1] first token of each sentence; last: all tokens
        self.documents: Starts = documents[np.append(np.diff(documents) > 0, True)]  # [D+1] first sentence; last: S

    @property
    def document_tokens(self) -> Numbers:
        """[D+1] first token of each document; last: all tokens."""
        return self.sentences[self.documents].astype(np.int64)

    def sentence_at(self, tokens: Numbers, side: Literal["left", "right"]) -> Numbers:
        """The number of the first sentence that begins at or after each token, or with `right` after it."""
        return np.searchsorted(self.sentences, tokens.astype(self.sentences.dtype), side)

    def sentence_end(self, tokens: Numbers) -> Numbers:
        """The last token at or before each one where a sentence ends and another begins."""
        return self.sentences[self.sentence_at(tokens, "right") - 1].astype(np.int64)

    def document_of(self, sentences: Numbers) -> Numbers:
        """The document of each sentence."""
        return np.searchsorted(self.documents, sentences.astype(self.documents.dtype), "right") - 1


def start_type(most: int) -> type[np.uint32 | np.int64]:
    """The smallest type for numbers up to `most`."""
    return np.uint32 if most < 1 << 32 else np.int64


def _enter(part: Part, sentences: Starts, documents: Starts) -> None:
    spans = slice(part.sentence_base, part.sentence_base + part.sentences)
    np.add(part.sentence_starts[:-1], np.int64(part.token_base), out=sentences[spans], casting="unsafe")
    spans = slice(part.document_base, part.document_base + part.documents)
    np.add(part.document_starts[:-1], np.int64(part.sentence_base), out=documents[spans], casting="unsafe")
