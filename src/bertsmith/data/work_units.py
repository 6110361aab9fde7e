"""Documents -> work units -> tokens: what one worker does with a few megabytes of text.

Units are cut by the text alone, so that the result is the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.document_hash import document_hash, is_held_out
from bertsmith.data.sentences import split
from bertsmith.data.shards.format import EncodedDocuments
from bertsmith.errors import DataError
from bertsmith.tokenizers.tokenizer import Tokenizer, load
from bertsmith.types import Document

UNIT_CHARACTERS = 2**21


@dataclass(frozen=True, slots=True)
class Unit:
    """Some documents in corpus order, about `UNIT_CHARACTERS` together."""

    number: int
    texts: list[str]
    bytes_read: int = 0  # of the corpus on disk, when the unit was complete: for progress only


@dataclass(frozen=True, slots=True)
class EncodedUnit:
    """The tokens of a unit, document by document, with what decides whether a document is kept and where it goes."""

    number: int
    bytes_read: int
    characters: int
    hashes: NDArray[np.uint64]  # [documents]
    held_out: NDArray[np.bool_]  # [documents]
    pieces: EncodedDocuments | None  # None when only the hashes were asked for

    def select(self, keep: NDArray[np.bool_]) -> EncodedDocuments:
        """The pieces of the documents that `keep` [documents] names."""
        assert self.pieces is not None
        whole = self.pieces
        sentence_kept = np.repeat(keep, whole.document_sentences)
        token_kept = np.repeat(sentence_kept, whole.sentence_lengths)
        return EncodedDocuments(
            tokens=whole.tokens[token_kept],
            sentence_lengths=whole.sentence_lengths[sentence_kept],
            document_sentences=whole.document_sentences[keep],
        )


def work_units(documents: Iterable[Document], *, position: Any = None) -> Iterator[Unit]:
    """Groups documents; `position.bytes_read`, if given, is noted in each unit."""
    texts: list[str] = []
    size = number = 0
    for document in documents:
        texts.append(document.text)
        size += len(document.text)
        if size >= UNIT_CHARACTERS:
            yield Unit(number, texts, position.bytes_read if position else 0)
            texts, size, number = [], 0, number + 1
    if texts:
        yield Unit(number, texts, position.bytes_read if position else 0)


def encode_unit(unit: Unit, *, tokenizer: str, fingerprint: str, held_out: float, skip: int = 0) -> EncodedUnit:
    """Sentences and tokens of a unit; of a unit below `skip` (finished by an earlier run) only the hashes."""
    hashes = np.array([document_hash(text) for text in unit.texts], dtype=np.uint64)
    apart = np.array([is_held_out(int(value), held_out) for value in hashes], dtype=np.bool_)
    pieces = None if unit.number < skip else encode_documents(unit.texts, cached_tokenizer(tokenizer, fingerprint))
    characters = sum(map(len, unit.texts))
    return EncodedUnit(unit.number, unit.bytes_read, characters, hashes, apart, pieces)


def encode_documents(texts: list[str], tokenizer: Tokenizer) -> EncodedDocuments:
    """Every document as sentences of ids; sentences without a token vanish, documents stay (perhaps empty)."""
    sentences: list[str] = []
    per_document = np.empty(len(texts), dtype=np.int64)
    for place, text in enumerate(texts):
        found = split(text)
        sentences += found
        per_document[place] = len(found)
    tokens, lengths = tokenizer.encode_ids(sentences)
    real = lengths > 0
    ends = np.cumsum(per_document)
    real_before = np.concatenate([[0], np.cumsum(real)])
    document_sentences = real_before[ends] - real_before[ends - per_document]
    assert lengths.max(initial=0) < 2**16, "sentences are cut to a length that keeps them far below this"
    return EncodedDocuments(tokens, lengths[real].astype(np.uint16), document_sentences.astype(np.uint32))


@lru_cache(maxsize=2)
def cached_tokenizer(folder: str, fingerprint: str) -> Tokenizer:
    """The tokenizer in a folder, read once per process; by its fingerprint, for another may come to lie there."""
    found = load(folder)
    if found.fingerprint != fingerprint:
        raise DataError(f"the tokenizer in {folder} was exchanged while it was in use: start again")
    return found
