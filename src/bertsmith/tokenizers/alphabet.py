"""Which characters a vocabulary spells its words with. Knows characters and counts, nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from bertsmith.errors import ConfigError, DataError

# Syllables, and the jamo that they fall into: conjoining, compatibility, half-width and the two extensions.
HANGUL = re.compile("[\uac00-\ud7a3\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\ud7b0-\ud7ff\uffa0-\uffdc]")

HANGUL_NOTICED = 0.001  # share of words with Hangul from which accents are kept


def by_coverage(counts: Mapping[str, int], *, coverage: float, most: int) -> list[str]:
    """The fewest characters that make up `coverage` of all occurrences in the words, at most `most`, by code point."""
    if not 0 < coverage <= 1:
        raise ConfigError(f"coverage={coverage} must be a share of the text, above 0 and at most 1")
    occurrences: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            occurrences[character] += count
    if not occurrences:
        raise DataError("there are no words to learn a vocabulary from: the corpus is empty")
    wanted = coverage * occurrences.total()
    chosen: list[str] = []
    covered = 0
    # Ties by code point, so that the choice does not depend on the order of the counts.
    for character, count in sorted(occurrences.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted or len(chosen) == most:
            break
        chosen.append(character)
        covered += count
    return sorted(chosen)


def keep_spelled(counts: dict[str, int], alphabet: Iterable[str]) -> None:
    """Drops the words that the alphabet cannot spell: they will be unknown whatever is learned."""
    known = frozenset(alphabet)
    for word in [word for word in counts if not known.issuperset(word)]:
        del counts[word]


def hangul_share(counts: Mapping[str, int]) -> float:
    """The share of all word occurrences that contain Hangul."""
    korean = sum(count for word, count in counts.items() if not word.isascii() and HANGUL.search(word))
    return korean / max(1, sum(counts.values()))


def strips_accents(counts: Mapping[str, int], *, lowercase: bool, asked: bool | None) -> bool:
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
