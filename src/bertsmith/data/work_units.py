"""Documents -> work units -> tokens: the part of `prepare` that runs in worker processes.

Units are formed by the text alone, so that the result does not depend on the number of workers. Document hashes and the
held-out split depend only on the text of a document; they are part of the format of shards and must never change.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus import Corpus
from bertsmith.data.parallel import PairOptions, encode_pairs
from bertsmith.data.sentences import split_sentences
from bertsmith.data.shards.format import EncodedDocuments
from bertsmith.data.shards.unknown_words import UnknownWords
from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers.tokenizer import Tokenizer, load

UNIT_CHARACTERS = 2**21
TO_SPACES = bytes.maketrans(b"\t\n\v\f\r", b"     ")


def document_hash(text: str) -> int:
    """64 bits of BLAKE2b over the UTF-8 text, with each run of ASCII white space as one space and none at the ends."""
    data = text.encode("utf-8", "surrogatepass").translate(TO_SPACES).strip(b" ")
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def is_held_out(value: int, fraction: float, *, seed: int = 0) -> bool:
    """Whether the document with that hash is held out; a larger fraction includes the documents of a smaller one."""
    if not 0 <= fraction <= 1:
        raise ConfigError(f"held_out={fraction} must be a fraction between 0 and 1")
    digest = blake2b(value.to_bytes(8, "little"), digest_size=8, salt=seed.to_bytes(8, "little", signed=True)).digest()
    return int.from_bytes(digest, "little") < fraction * 2**64


class HashSet:
    """A set of document hashes. Ten million take 134 MB (201 MB while it grows); a Python set takes 715 MB."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 2**10))  # open addressing, a power of two; 0 is an empty slot
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, value: int) -> bool:
        """Adds a hash; returns whether it is new."""
        if 3 * self._count >= 2 * len(self._slots):
            former, self._slots, self._count = self._slots, array("Q", bytes(16 * len(self._slots))), 0
            for known in filter(None, former):
                self.add(known)
        slots, last = self._slots, len(self._slots) - 1
        value = value or 1  # 0 and 1 count as equal, as rare as any other collision
        index = value & last  # every bit of the hash is random
        while slots[index]:
            if slots[index] == value:
                return False
            index = index + 1 & last
        slots[index] = value
        self._count += 1
        return True


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """Consecutive documents of a corpus, about `UNIT_CHARACTERS` in total."""

    number: int
    texts: list[str]
    characters: int
    bytes_read: int  # of the corpus on disk up to the end of the unit, for progress


@dataclass(frozen=True, slots=True)
class EncodedUnit:
    """The tokens of a unit, with the hashes that decide which documents are kept and which are held out."""

    number: int
    bytes_read: int
    characters: int
    hashes: NDArray[np.uint64]  # [documents]
    held_out: NDArray[np.bool_]  # [documents]
    documents: EncodedDocuments | None  # None if only the hashes are needed
    left_out: dict[str, int] = field(default_factory=dict)  # documents without sentences, by reason

    def select(self, keep: NDArray[np.bool_]) -> EncodedDocuments:
        """The documents selected by `keep` [documents]."""
        assert self.documents is not None
        keep_sentence = np.repeat(keep, self.documents.document_sentences)
        keep_token = np.repeat(keep_sentence, self.documents.sentence_lengths)
        return EncodedDocuments(
            tokens=self.documents.tokens[keep_token],
            sentence_lengths=self.documents.sentence_lengths[keep_sentence],
            document_sentences=self.documents.document_sentences[keep],
            unknown=self.documents.unknown,
        )


def units_of(corpus: Corpus, *, limit: int | None = None, characters: int | None = None) -> Iterator[WorkUnit]:
    """Groups the first `limit` documents into units of `characters` (default `UNIT_CHARACTERS`) or a little more."""
    texts: list[str] = []
    size = number = 0
    for document in islice(corpus, limit):
        texts.append(document.text)
        size += len(document.text)
        if size >= (characters or UNIT_CHARACTERS):
            yield WorkUnit(number, texts, size, corpus.bytes_read)
            texts, size, number = [], 0, number + 1
    if texts:
        yield WorkUnit(number, texts, size, corpus.bytes_read)


def encode_unit(
    unit: WorkUnit,
    *,
    tokenizer: str,
    fingerprint: str,
    held_out: float,
    skip: int = 0,
    pairs: PairOptions | None = None,
) -> EncodedUnit:
    """The tokens of a unit; only the hashes of a unit below `skip`, which an earlier run finished.

    `pairs`: of parallel text.
    """
    hashes = np.array([document_hash(text) for text in unit.texts], dtype=np.uint64)
    is_out = np.array([is_held_out(int(value), held_out) for value in hashes], dtype=np.bool_)
    documents, left_out = None, dict[str, int]()
    if unit.number >= skip:
        documents, left_out = encode_texts(unit.texts, cached_tokenizer(tokenizer, fingerprint), pairs)
    return EncodedUnit(unit.number, unit.bytes_read, unit.characters, hashes, is_out, documents, left_out)


def encode_texts(
    texts: list[str], tokenizer: Tokenizer, pairs: PairOptions | None
) -> tuple[EncodedDocuments, dict[str, int]]:
    """The tokens of documents, or of pairs; and how many pairs are left out, by reason."""
    return (encode_documents(texts, tokenizer), {}) if pairs is None else encode_pairs(texts, tokenizer, pairs)


def encode_documents(texts: list[str], tokenizer: Tokenizer) -> EncodedDocuments:
    """The tokens of each sentence of each document; drops sentences without tokens, keeps empty documents."""
    documents = [split_sentences(text) for text in texts]
    texts, unknown = list(chain.from_iterable(documents)), None
    if tokenizer.spelled_ids is None:
        tokens, lengths = tokenizer.encode_ids(texts)
    else:
        tokens, lengths, words = tokenizer.spelled_ids(texts)
        unknown = UnknownWords(tokenizer.vocab_size, words)
    nonempty = lengths > 0
    document = np.repeat(np.arange(len(documents)), [len(sentences) for sentences in documents])
    document_sentences = np.bincount(document[nonempty], minlength=len(documents))
    assert lengths.max(initial=0) < 2**16, "split_sentences limits the length of sentences"
    sizes = lengths[nonempty].astype(np.uint16), document_sentences.astype(np.uint32)
    return EncodedDocuments(tokens, *sizes, unknown)


@lru_cache(maxsize=2)
def cached_tokenizer(folder: str, fingerprint: str) -> Tokenizer:
    """The tokenizer in a folder, loaded once per process; the fingerprint detects that it was replaced."""
    tokenizer = load(folder)
    if tokenizer.fingerprint != fingerprint:
        raise DataError(f"the tokenizer in {folder} was replaced while it was in use: start again")
    return tokenizer
