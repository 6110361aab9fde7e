"""Ids of texts that keep the spelling of words outside of the vocabulary: for shards of encoders that read characters.

Id V + n is the n-th unknown word that this encoder has seen, where V is the vocabulary size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.tokenizers.pretokenization import ChunkCache, Chunker, replace_surrogates
from bertsmith.tokenizers.spelling import encoded_word

MAX_WORDS = 2_000_000  # about 200 MB; then both caches start anew
UnknownWord = tuple[int, bytes]  # the id of its unknown token, its UTF-8 bytes
SpelledIds = tuple[NDArray[np.uint32], NDArray[np.int64], tuple[UnknownWord, ...]]


class SpellingTokenizer(Protocol):
    """A tokenizer of words."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def cache_limit(self) -> int: ...
    def chunker(self) -> Chunker: ...
    def rules(self) -> dict[str, Any]: ...
    def tokenize(self, text: str) -> Any: ...


class SpelledIdEncoder:
    """Encodes texts to flat ids, with a cache. Not thread-safe."""

    def __init__(self, tokenizer: SpellingTokenizer, unknown_ids: Collection[int]) -> None:
        self._tokenizer, self._unknown_ids = tokenizer, frozenset(unknown_ids)
        self._lowercase = bool(tokenizer.rules().get("lowercase", False))
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[UnknownWord, int] = {}
        options: dict[str, Any] = {"id_dtype": np.dtype(np.uint32), "limit": self._tokenizer.cache_limit}
        self._cache = ChunkCache(self._encode, self._tokenizer.chunker(), **options)

    def __call__(self, texts: Sequence[str]) -> SpelledIds:
        """The ids of all texts [T], the number of ids of each text, and the unknown words that ids refer to."""
        if len(self._numbers) > MAX_WORDS:
            self._clear()
        ids, counts = self._cache(texts)
        base = self._tokenizer.vocab_size
        outside = np.flatnonzero(ids >= base)
        used, numbers = np.unique(ids[outside], return_inverse=True)
        words = list(self._numbers)  # in the order of their numbers
        result = ids.astype(np.uint32)
        result[outside] = base + numbers
        return result, counts, tuple(words[number - base] for number in used.tolist())

    def _encode(self, texts: list[str]) -> list[list[int]]:
        base, numbers = self._tokenizer.vocab_size, self._numbers
        encoded: list[list[int]] = []
        for text in texts:
            text = replace_surrogates(text)
            ids: list[int] = []
            for number, begin, end, _ in self._tokenizer.tokenize(text):
                if number in self._unknown_ids:
                    word = number, encoded_word(text[begin:end], lowercase=self._lowercase)
                    number = base + numbers.setdefault(word, len(numbers))
                ids.append(number)
            encoded.append(ids)
        return encoded
