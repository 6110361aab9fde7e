"""Pre-tokenization: independent chunks of a text, a cache of their ids, and the word rule of word-level tokenizers.

A chunk (mostly a word between white space) has the same ids whatever its neighbours. A corpus repeats its chunks, so
each one is normalised and encoded once and looked up afterwards: this makes counting and encoding fast.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from bertsmith.types import Encoded

Ids = NDArray[np.uint16] | NDArray[np.uint32]

MAX_CACHED_LENGTH = 64  # characters: longer chunks are rarely repeated and would fill the memory
GROUP = 512  # chunks that are passed to the backend as one text
SURROGATE = re.compile("[\ud800-\udfff]")
NOT_WHITE_SPACE = re.compile(r"\S+")
BERT_PRETOKENIZER = pre_tokenizers.BertPreTokenizer()


def replace_surrogates(text: str) -> str:
    """`text` with each lone surrogate, which UTF-8 cannot encode, as U+FFFD; the length does not change."""
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


@dataclass(frozen=True)
class Chunker:
    """Splits a text into chunks. The ids of a text are the concatenated ids of its chunks.

    `split` must be a module-level function, because chunkers are sent to worker processes.
    """

    split: Callable[[str], list[str]] = str.split
    irregular: re.Pattern[str] | None = None  # a text with a match is not split

    def chunks(self, text: str) -> list[str]:
        """The chunks of one text."""
        if self.irregular is not None and self.irregular.search(text):
            return [text]
        return self.split(text)

    def chunks_of_lines(self, text: str) -> Iterable[str]:
        """The chunks of a text of many lines; only its irregular lines are not split."""
        if self.irregular is None or not self.irregular.search(text):
            return self.split(text)
        return chain.from_iterable(self.chunks(line) for line in text.split("\n"))


def _one_chunk(text: str) -> list[str]:
    return [text]


WHOLE_TEXT = Chunker(_one_chunk)
# Python's split() treats these control characters as white space, the tokenizers library does not.
WHITESPACE_CHUNKER = Chunker(str.split, irregular=re.compile("[\x1c-\x1f]"))


def encode_chunks(backend: tokenizers.Tokenizer, chunks: list[str]) -> list[list[int]]:
    """The ids of each chunk. They are passed as words of pre-tokenized texts, which saves a third of the time."""
    encoded: list[list[int]] = []
    groups = [chunks[begin : begin + GROUP] for begin in range(0, len(chunks), GROUP)]
    encodings = backend.encode_batch(groups, is_pretokenized=True, add_special_tokens=False)
    for group, encoding in zip(groups, encodings, strict=True):
        sizes = np.bincount(np.array(encoding.word_ids, np.int64), minlength=len(group))
        ids, ends = encoding.ids, np.cumsum(sizes).tolist()
        encoded += [ids[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    return encoded


class ChunkCache:
    """Encodes texts to flat ids with a cache of chunk -> ids. Thread-safe."""

    def __init__(
        self,
        encode: Callable[[list[str]], Iterable[Sequence[int]]],
        chunker: Chunker,
        *,
        id_dtype: np.dtype[Any],
        limit: int,
    ) -> None:
        self.encode = encode  # texts -> ids of each, exact and slow
        self.chunker = chunker
        self.id_dtype = id_dtype
        self.limit = limit
        self.tables: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})  # recent, older; at most `limit` in each

    def __call__(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """Ids of all texts, concatenated [T], and the number of ids of each text [texts]."""
        recent, older = self.tables
        if len(recent) > self.limit:
            recent, older = self.tables = ({}, recent)  # new dicts: another thread may be using the current ones
        chunked = [self.chunker.chunks(text) for text in texts]
        new = set().union(*chunked).difference(recent)
        long = self._add(new, recent, older) if new else {}
        parts = []
        for chunks in chunked:
            if long and not long.keys().isdisjoint(chunks):
                parts.append(b"".join([long[chunk] if chunk in long else recent[chunk] for chunk in chunks]))
            else:
                parts.append(b"".join(map(recent.__getitem__, chunks)))
        counts = np.fromiter(map(len, parts), np.int64, len(parts)) // self.id_dtype.itemsize
        return np.frombuffer(b"".join(parts), self.id_dtype), counts

    def _add(self, new: set[str], recent: dict[str, bytes], older: dict[str, bytes]) -> dict[str, bytes]:
        """Adds chunks to `recent`, from `older` or newly encoded; returns those too long to be cached."""
        known = [chunk for chunk in new if chunk in older]
        recent.update((chunk, older[chunk]) for chunk in known)
        unknown = list(new.difference(known))
        long: dict[str, bytes] = {}
        for chunk, ids in zip(unknown, self.encode(list(map(replace_surrogates, unknown))), strict=True):
            (recent if len(chunk) <= MAX_CACHED_LENGTH else long)[chunk] = array(self.id_dtype.char, ids).tobytes()
        return long


class Token(NamedTuple):
    """A token of a text: its id, its characters `begin` to `end`, and the index of its word."""

    id: int
    begin: int
    end: int
    word: int


def from_tokens(tokens: Iterable[Token]) -> Encoded:
    """Tokens as arrays."""
    table = np.array(list(tokens), np.int32).reshape(-1, 4)
    return Encoded(table[:, 0].copy(), table[:, 1:3].copy(), table[:, 3].copy())


class Word(NamedTuple):
    """A word of a text, from character `begin` to `end`."""

    text: str
    begin: int
    end: int


def split_words(text: str) -> list[Word]:
    """Words at white space and punctuation as in BERT, but `state-of-the-art`, `1,000.5` and `'s` are one word each."""
    words: list[Word] = []
    for piece, (begin, end) in BERT_PRETOKENIZER.pre_tokenize_str(text):
        if len(words) > 1 and words[-2].end == words[-1].begin and words[-1].end == begin:
            joined = _words_to_join(words[-2].text, words[-1].text, piece)
            if joined:
                begin = words[-joined].begin
                del words[-joined:]
        words.append(Word(text[begin:end], begin, end))
    return words


def split_at_white_space(text: str) -> list[Word]:
    """The words of a text that is tokenized already: those of `text.split()`."""
    return [Word(match.group(), *match.span()) for match in NOT_WHITE_SPACE.finditer(text)]


def _words_to_join(before: str, sign: str, piece: str) -> int:
    """How many of the two words before `piece` form one word with it."""
    if sign == "-" and before[-1].isalnum() and piece[0].isalnum():
        return 2
    if sign in {".", ",", ":"} and before[-1].isdecimal() and piece[0].isdecimal():
        return 2
    # The second half of a contraction, with its apostrophe: isn 't, it 's.
    return int(sign in {"'", "’"} and before[-1].isalpha() and piece[0].isalpha())
