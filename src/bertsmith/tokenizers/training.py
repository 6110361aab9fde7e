"""Vocabulary training: word counts of a corpus, the alphabet, and the trainers of the tokenizers library.

Words are counted by work unit (a few megabytes of text), and the counts are merged within a memory limit. The result
does not depend on the number of workers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from zlib import crc32

import tokenizers
from tokenizers import pre_tokenizers

from bertsmith.errors import ConfigError, DataError
from bertsmith.system.workers import ordered_map
from bertsmith.tokenizers.pretokenization import Chunker, replace_surrogates

MAX_WORDS = 1_000_000  # in the counts: under 0.8 GB in all during training
MAX_WORD_LENGTH = 256  # characters: longer strings are not words, and their number is unbounded
UNIT_SIZE = 4_000_000  # characters of a work unit

ASCII = "".join(map(chr, range(ord("!"), ord("~") + 1)))  # printable, without the space
MAX_TRAINER_WORDS = 500_000  # distinct words: the trainer needs over 1 kB for each, and rarer words are noise
MAX_OCCURRENCES = 200_000_000  # passed to the trainer: more takes minutes and changes next to nothing
TEXT_SIZE = 1 << 16  # characters of one text: the trainer's threads share texts

# Syllables, and the jamo that they decompose into: conjoining, compatibility, half-width and the two extensions.
HANGUL = re.compile("[\uac00-\ud7a3\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\ud7b0-\ud7ff\uffa0-\uffdc]")
MIN_HANGUL_SHARE = 0.001  # share of words with Hangul above which accents are kept


class WordSplitter(Protocol):
    """Splits text into the normalised words that a kind trains on. Must be picklable: it is sent to workers."""

    @property
    def chunker(self) -> Chunker: ...

    def __call__(self, chunk: str, /) -> Sequence[str]:
        """The words of one chunk."""


def count_text(text: str, splitter: WordSplitter) -> dict[str, int]:
    """Word -> occurrences in one work unit. Each distinct chunk is split once."""
    words: dict[str, int] = {}
    for chunk, count in Counter(splitter.chunker.chunks_of_lines(replace_surrogates(text))).items():
        for word in splitter(chunk):
            words[word] = words.get(word, 0) + count
    return {word: count for word, count in words.items() if len(word) <= MAX_WORD_LENGTH}


def merge_counts(tables: Iterable[dict[str, int]], *, limit: int = MAX_WORDS) -> dict[str, int]:
    """The sum of the counts of work units, in their order.

    Whenever it exceeds `limit` words, the rarest words are dropped until it fits into three quarters of the limit. A
    word that becomes frequent later is counted from then on.
    """
    if limit < 1:
        raise ConfigError(f"max-words={limit}: the word table must hold at least one word")
    total: dict[str, int] = {}
    for table in tables:
        for word, count in table.items():
            total[word] = total.get(word, 0) + count
        if len(total) > limit:
            threshold = _count_threshold(total, limit * 3 // 4)
            total = {word: count for word, count in total.items() if count > threshold}
    return total


def _count_threshold(counts: dict[str, int], most: int) -> int:
    """The smallest count that at most `most` words exceed."""
    above = len(counts)
    for count, words in sorted(Counter(counts.values()).items()):
        above -= words
        if above <= most:
            return count
    return 0


def count_words(
    texts: Iterable[str],
    splitter: WordSplitter,
    *,
    workers: int = 1,
    limit: int = MAX_WORDS,
    unit_size: int = UNIT_SIZE,
) -> dict[str, int]:
    """Word -> occurrences in any number of texts."""
    tables = ordered_map(partial(count_text, splitter=splitter), work_units(texts, unit_size), workers=workers)
    return merge_counts(tables, limit=limit)


def work_units(texts: Iterable[str], size: int = UNIT_SIZE, *, separator: str = "\n") -> Iterator[str]:
    """Texts, by default one per line, joined into units of about `size` characters."""
    unit: list[str] = []
    characters = 0
    for text in texts:
        unit.append(text)
        characters += len(text)
        if characters >= size:
            yield separator.join(unit)
            unit, characters = [], 0
    if unit:
        yield separator.join(unit)


def ascii_alphabet(*, lowercase: bool) -> str:
    """The printable ASCII characters that texts have after normalisation: always in the alphabet of a vocabulary."""
    return "".join(sorted(set(ASCII.lower() if lowercase else ASCII)))


def remaining_tokens(vocab_size: int, needed: int, *, least: int = 10) -> int:
    """The tokens of a vocabulary beside the `needed` ones; an error if there are not even `least`."""
    if vocab_size < needed + least:
        raise ConfigError(
            f"vocab_size={vocab_size} is too small: special tokens and ASCII characters alone are {needed} tokens; "
            f"set it to at least {needed + least}"
        )
    return vocab_size - needed


def choose_alphabet(counts: Mapping[str, int], *, coverage: float, always: str, most: int) -> list[str]:
    """The characters of `always`, and the fewest others so that all make up `coverage` of the text, at most `most`.

    In code point order.
    """
    if not 0 < coverage <= 1:
        raise ConfigError(f"coverage={coverage} must be a share of the text, above 0 and at most 1")
    occurrences: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            occurrences[character] += count
    if not occurrences:
        raise DataError("the corpus is empty: there are no words to train a vocabulary on")
    target = coverage * occurrences.total()
    covered = sum(occurrences.pop(character, 0) for character in always)
    chosen: list[str] = []
    # Ties by code point, so that the choice does not depend on the order of the counts.
    for character, count in sorted(occurrences.items(), key=lambda item: (-item[1], item[0])):
        if covered >= target or len(chosen) == most:
            break
        chosen.append(character)
        covered += count
    return sorted({*always, *chosen})


def drop_unspellable(counts: dict[str, int], alphabet: Iterable[str]) -> None:
    """Removes words with characters outside the alphabet: they are unknown in any case."""
    known = frozenset(alphabet)
    for word in [word for word in counts if not known.issuperset(word)]:
        del counts[word]


def should_strip_accents(counts: Mapping[str, int], *, lowercase: bool, requested: bool | None) -> bool:
    """Whether accents are stripped: as `requested`, by default if lower-casing, but never from Hangul."""
    if not (lowercase if requested is None else requested):
        return False
    korean = sum(count for word, count in counts.items() if not word.isascii() and HANGUL.search(word))
    share = korean / max(1, sum(counts.values()))
    if share < MIN_HANGUL_SHARE:
        return True
    if requested is None:
        return False
    raise ConfigError(
        f"strip_accents=true decomposes Hangul into jamo, and {share:.1%} of the words have Hangul: "
        "leave strip_accents out, or set it to false"
    )


def strip_accents(counts: dict[str, int], split: Callable[[str], Iterable[str]]) -> dict[str, int]:
    """Counts of the words after accent stripping by `split`. Drops words with Hangul, which become unknown.

    Empties `counts`.
    """
    stripped: dict[str, int] = {}
    while counts:
        word, count = counts.popitem()
        if word.isascii() or not HANGUL.search(word):
            for part in split(word):
                stripped[part] = stripped.get(part, 0) + count
    return stripped


def check_min_count(min_count: int) -> None:
    """Rejects values that the trainers do not accept."""
    if not 1 <= min_count < 1 << 32:
        raise ConfigError(f"min_count={min_count} must be at least 1: the minimum count of a pair that is merged")


def train_backend(model: Any, trainer: Any, counts: dict[str, int]) -> tokenizers.Tokenizer:
    """A tokenizer trained on word counts; words must not contain line ends. Empties `counts` to save memory.

    Trainers accept only texts: a word with count n is passed n times. Their result depends on the order in which they
    meet symbols such as `##a`; callers list all symbols beforehand, so that it depends on the counts alone.
    """
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")
    for word in _rarest(counts, len(counts) - MAX_TRAINER_WORDS):
        del counts[word]
    # The counts of a huge corpus are divided by the same number; words too rare for that are left out.
    divisor = -(-sum(counts.values()) // MAX_OCCURRENCES)
    backend.train_from_iterator(_texts(counts, max(1, divisor)), trainer)
    return backend


def tokens_by_id(backend: tokenizers.Tokenizer) -> list[str]:
    """The trained vocabulary, by id."""
    ids = backend.get_vocab(with_added_tokens=True)
    return sorted(ids, key=lambda token: ids[token])


def _rarest(counts: dict[str, int], number: int) -> list[str]:
    """The `number` rarest words; ties by checksum, so that no letter is preferred."""
    if number <= 0:
        return []
    return sorted(counts, key=lambda word: (counts[word], crc32(word.encode()), word))[:number]


def _texts(counts: dict[str, int], divisor: int) -> Iterator[str]:
    """Each word as often as it was counted, one per line, in texts of about TEXT_SIZE characters."""
    return work_units(_repeated_lines(counts, divisor), TEXT_SIZE, separator="")


def _repeated_lines(counts: dict[str, int], divisor: int) -> Iterator[str]:
    while counts:
        word, count = counts.popitem()
        line, repetitions = word + "\n", (count + divisor // 2) // divisor
        most = max(1, TEXT_SIZE // len(line))
        for begin in range(0, repetitions, most):
            yield line * min(most, repetitions - begin)
