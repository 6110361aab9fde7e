"""The word table that vocabularies are learned from: counting work units, merging their tables within a limit.

A work unit is a few megabytes of text. Tables are the same whatever the number of workers. Knows no kind's rules: a
splitter brings them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from zlib import crc32

import tokenizers
from tokenizers import pre_tokenizers

from bertsmith.errors import ConfigError, DataError
from bertsmith.system.workers import ordered_map
from bertsmith.tokenizers.pretokenization import Chunker, replace_surrogates

MAX_WORDS = 1_000_000  # in the table: under 0.8 GB in all while a vocabulary is learned from it
LONGEST = 256  # characters: a longer word is no word, and a table of them has no bound in memory
UNIT_SIZE = 4_000_000  # characters


class WordSplitter(Protocol):
    """How a kind turns text into the words that it learns from. Must be picklable: it travels to workers."""

    chunker: Chunker

    def __call__(self, unit: str, /) -> Sequence[str]:
        """The final words of one unit: normalised and split."""


def count_text(text: str, splitter: WordSplitter) -> dict[str, int]:
    """Word -> occurrences in one work unit. Each distinct unit is split once."""
    words: dict[str, int] = {}
    for unit, count_words in Counter(splitter.chunker.chunks_of_lines(replace_surrogates(text))).items():
        for word in splitter(unit):
            words[word] = words.get(word, 0) + count_words
    return {word: count_words for word, count_words in words.items() if len(word) <= LONGEST}


def merge_counts(tables: Iterable[dict[str, int]], *, limit: int = MAX_WORDS) -> dict[str, int]:
    """One table from those of work units, in their order.

    Whenever it holds more than `limit` words, the rarest go: those with at most the smallest count that makes it fit
    into three quarters of the limit. What is rare until then and frequent later is counted from then on.
    """
    if limit < 1:
        raise ConfigError(f"max-words={limit}: the word table must hold at least one word")
    total: dict[str, int] = {}
    for table in tables:
        for word, count_words in table.items():
            total[word] = total.get(word, 0) + count_words
        if len(total) > limit:
            least = _cut_off(total, limit * 3 // 4)
            total = {word: count_words for word, count_words in total.items() if count_words > least}
    return total


def _cut_off(table: dict[str, int], most: int) -> int:
    """The smallest count such that at most `most` words have a greater one."""
    greater = len(table)
    for count_words, words in sorted(Counter(table.values()).items()):
        greater -= words
        if greater <= most:
            return count_words
    return 0


def count_words(
    texts: Iterable[str],
    splitter: WordSplitter,
    *,
    workers: int = 1,
    limit: int = MAX_WORDS,
    unit_size: int = UNIT_SIZE,
) -> dict[str, int]:
    """The word table of any number of texts."""
    tables = ordered_map(partial(count_text, splitter=splitter), work_units(texts, unit_size), workers=workers)
    return merge_counts(tables, limit=limit)


def work_units(texts: Iterable[str], size: int = UNIT_SIZE) -> Iterator[str]:
    """Texts, one to a line, joined into units of about `size` characters."""
    held: list[str] = []
    characters = 0
    for text in texts:
        held.append(text)
        characters += len(text)
        if characters >= size:
            yield "\n".join(held)
            held, characters = [], 0
    if held:
        yield "\n".join(held)


# Syllables, and the jamo that they fall into: conjoining, compatibility, half-width and the two extensions.
HANGUL = re.compile("[\uac00-\ud7a3\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\ud7b0-\ud7ff\uffa0-\uffdc]")

HANGUL_NOTICED = 0.001  # share of words with Hangul from which accents are kept


def choose_alphabet(counts: Mapping[str, int], *, coverage: float, most: int) -> list[str]:
    """The fewest characters that make up `coverage` of all occurrences in the words, at most `most`, by code point."""
    if not 0 < coverage <= 1:
        raise ConfigError(f"coverage={coverage} must be a share of the text, above 0 and at most 1")
    occurrences: Counter[str] = Counter()
    for word, count_words in counts.items():
        for character in word:
            occurrences[character] += count_words
    if not occurrences:
        raise DataError("there are no words to learn a vocabulary from: the corpus is empty")
    wanted = coverage * occurrences.total()
    chosen: list[str] = []
    covered = 0
    # Ties by code point, so that the choice does not depend on the order of the counts.
    for character, count_words in sorted(occurrences.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted or len(chosen) == most:
            break
        chosen.append(character)
        covered += count_words
    return sorted(chosen)


def drop_unspellable(counts: dict[str, int], alphabet: Iterable[str]) -> None:
    """Drops the words that the alphabet cannot spell: they will be unknown whatever is learned."""
    known = frozenset(alphabet)
    for word in [word for word in counts if not known.issuperset(word)]:
        del counts[word]


def hangul_share(counts: Mapping[str, int]) -> float:
    """The share of all word occurrences that contain Hangul."""
    korean = sum(count_words for word, count_words in counts.items() if not word.isascii() and HANGUL.search(word))
    return korean / max(1, sum(counts.values()))


def should_strip_accents(counts: Mapping[str, int], *, lowercase: bool, asked: bool | None) -> bool:
    """Whether accents are stripped from such words: as `asked`, else along with lower-casing, but never from Hangul."""
    if not (lowercase if asked is None else asked):
        return False
    share = hangul_share(counts)
    if share < HANGUL_NOTICED:
        return True
    if asked is None:
        return False
    raise ConfigError(
        f"strip_accents=true takes Hangul apart into jamo, and {share:.1%} of the words have Hangul: "
        "leave strip_accents out, or set it to false"
    )


MOST_WORDS = 500_000  # different ones: the trainer takes over 1 kB for each, and what is rarer than these is noise
MOST_FED = 200_000_000  # occurrences: feeding more takes minutes and changes next to nothing
CHUNK = 1 << 16  # characters of one text: the trainer's threads share texts between them


def check_min_count(min_count: int) -> None:
    """Refuses what the trainers cannot take."""
    if not 1 <= min_count < 1 << 32:
        raise ConfigError(f"min_count={min_count} must be at least 1: how often a pair must be seen to become a piece")


def train_backend(model: Any, trainer: Any, counts: dict[str, int]) -> tokenizers.Tokenizer:
    """A tokenizer trained on counted words, which must not hold line ends. Empties `counts`, to save memory."""
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")
    for word in _rarest(counts, len(counts) - MOST_WORDS):
        del counts[word]
    # Of a huge corpus every count is divided by the same number; words too rare for that are left out.
    divisor = -(-sum(counts.values()) // MOST_FED)
    backend.train_from_iterator(_texts(counts, max(1, divisor)), trainer)
    return backend


def tokens_by_id(backend: tokenizers.Tokenizer) -> list[str]:
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
        word, count_words = counts.popitem()
        line = word + "\n"
        rest = (count_words + divisor // 2) // divisor
        while rest:
            times = min(rest, max(1, (CHUNK - characters) // len(line)))
            held.append(line * times)
            characters += len(line) * times
            rest -= times
            if characters >= CHUNK:
                yield "".join(held)
                held, characters = [], 0
    yield "".join(held)
