"""The share of the words of texts that a vocabulary does not contain; many mean a tokenizer for other texts."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from bertsmith.errors import UnknownWordsWarning
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded

MAX_WORDS = 20_000
MAX_CHARACTERS = 10_000  # of one text
GROUP = 16  # texts that are encoded at once
EXAMPLES = 3
MAX_SHOWN = 40  # characters of an example in a warning
LIMIT = 0.02  # largest share of unknown words without a warning


class UnknownWords(NamedTuple):
    """Words with at least one unknown token, as a share of the words of a sample, and the most frequent of them."""

    share: float
    examples: tuple[str, ...]


def unknown_words(tokenizer: Tokenizer, texts: Iterable[str], *, max_words: int = MAX_WORDS) -> UnknownWords:
    """Of the first `max_words` words of texts; words are those of the tokenizer, split at white space too."""
    unknown, total = Counter[str](), 0
    sample = (text[:MAX_CHARACTERS] for text in texts)
    while total < max_words and (group := list(islice(sample, GROUP))):
        for text, encoded in zip(group, tokenizer.encode_batch(group), strict=True):
            begins = _word_begins(text, encoded)
            total += len(begins)
            is_unknown = tokenizer.is_unknown(encoded.ids)
            for begin, end in pairwise([*begins, len(encoded)]):
                if is_unknown[begin:end].any():
                    first, last = int(encoded.offsets[begin, 0]), int(encoded.offsets[end - 1, 1])
                    unknown[text[first:last].strip()] += 1
    share = unknown.total() / total if total else 0.0
    return UnknownWords(share, tuple(word for word, _ in unknown.most_common(EXAMPLES)))


def check_unknown_words(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    words: str = "the words",
    question: str = "is it the tokenizer of this language?",
) -> float:
    """The share of unknown words of a sample of the texts; an `UnknownWordsWarning` if it exceeds 2 %."""
    if tokenizer.open_vocabulary:
        return 0.0
    unknown = unknown_words(tokenizer, texts)
    if unknown.share > LIMIT:
        cut = [word if len(word) <= MAX_SHOWN else f"{word[:MAX_SHOWN]}…" for word in unknown.examples]
        shown = ", ".join("".join(char if char.isprintable() else "\ufffd" for char in word) for word in cut)
        message = f"{100 * unknown.share:.0f} % of {words} are unknown to this tokenizer, e.g. {shown}: {question}"
        warnings.warn(message, UnknownWordsWarning, stacklevel=3)
    return unknown.share


@contextmanager
def each_warning_once() -> Iterator[None]:
    """Shows equal warnings about unknown words once: those of several runs on the same examples."""
    with warnings.catch_warnings():
        warnings.showwarning = partial(_show_once, set[str](), warnings.showwarning)
        yield


def _show_once(shown: set[str], usual: Any, message: Warning | str, category: type[Warning], *place: Any) -> None:
    if not issubclass(category, UnknownWordsWarning) or str(message) not in shown:
        usual(message, category, *place)
        shown.add(str(message))


def check_vocabulary(tokenizer: Tokenizer) -> float:
    """Warns if words of the vocabulary itself are unknown: their case or accents are not those that texts get."""
    if tokenizer.kind != "wordpiece":
        return 0.0
    own = [token for token in tokenizer.tokens() if token.isalpha()]
    return check_unknown_words(
        tokenizer,
        own[:: len(own) // MAX_WORDS + 1],
        words="the words of the vocabulary",
        question="does the setting of case and accents (--cased or --uncased) match the vocabulary?",
    )


def _word_begins(text: str, encoded: Encoded) -> list[int]:
    """The index of the first token of each word."""
    if not len(encoded):
        return []
    space = np.array([True, *map(str.isspace, text)])
    number = np.cumsum(space[:-1] & ~space[1:])  # by character, the number of its word between white space
    spaced = number[np.minimum(encoded.offsets[:, 1], len(text) - 1)]  # white space belongs to the word after it
    new = (np.diff(encoded.words, prepend=-1) != 0) | (np.diff(spaced, prepend=-1) != 0)
    begins: list[int] = np.flatnonzero(new).tolist()
    return begins
