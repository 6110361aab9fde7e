"""Counted words into the trainers of the tokenizers library, which know texts only.

A word that was seen n times is handed over n times, in texts of many words. The trainers' own results depend on the
order in which they meet symbols such as `##a`; naming every symbol beforehand makes them depend on the counts alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import tokenizers
from tokenizers import pre_tokenizers

from bertsmith.errors import ConfigError

MOST_WORDS = 500_000  # different ones: the trainer takes over 1 kB for each, and what is rarer than these is noise
MOST_FED = 200_000_000  # occurrences: feeding more takes minutes and changes next to nothing
CHUNK = 1 << 16  # characters of one text: the trainer's threads share texts between them


def check(min_count: int) -> None:
    """Refuses what the trainers cannot take."""
    if not 1 <= min_count < 1 << 32:
        raise ConfigError(f"min_count={min_count} must be at least 1: how often a pair must be seen to become a piece")


def train(model: Any, trainer: Any, counts: dict[str, int]) -> tokenizers.Tokenizer:
    """A tokenizer trained on counted words, which must not hold line ends. Empties `counts`, to save memory."""
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")
    for word in _rarest(counts, len(counts) - MOST_WORDS):
        del counts[word]
    # Of a huge corpus every count is divided by the same number; words too rare for that are left out.
    divisor = -(-sum(counts.values()) // MOST_FED)
    backend.train_from_iterator(_texts(counts, max(1, divisor)), trainer)
    return backend


def by_id(backend: tokenizers.Tokenizer) -> list[str]:
    """The vocabulary that was learned, by id."""
    ids = backend.get_vocab(with_added_tokens=True)
    return sorted(ids, key=lambda token: ids[token])


def _rarest(counts: dict[str, int], number: int) -> list[str]:
    """That many of the rarest words; of those equally rare, whichever their checksums say: no letter is preferred."""
    if number <= 0:
        return []
    return sorted(counts, key=lambda word: (counts[word], crc32(word.encode()), word))[:number]


def _texts(counts: dict[str, int], divisor: int) -> Iterator[str]:
    held: list[str] = []
    characters = 0
    while counts:
        word, count = counts.popitem()
        line = word + "\n"
        rest = (count + divisor // 2) // divisor
        while rest:
            times = min(rest, max(1, (CHUNK - characters) // len(line)))
            held.append(line * times)
            characters += len(line) * times
            rest -= times
            if characters >= CHUNK:
                yield "".join(held)
                held, characters = [], 0
    yield "".join(held)
