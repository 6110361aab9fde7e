"""The share of the words of texts that a vocabulary does not contain: many show that it is for other texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np

from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded

MOST_WORDS = 20_000
MOST_CHARACTERS = 10_000  # of one text
GROUP = 16  # texts that are encoded at once
EXAMPLES = 3


class UnknownWords(NamedTuple):
    """Words with at least one unknown token, as a share of the words of a sample, and the most frequent of them."""

    share: float
    examples: tuple[str, ...]


def unknown_words(tokenizer: Tokenizer, texts: Iterable[str], *, most_words: int = MOST_WORDS) -> UnknownWords:
    """Of the first `most_words` words of texts; words are those of the tokenizer, split at white space too."""
    unknown, total = Counter[str](), 0
    sample = (text[:MOST_CHARACTERS] for text in texts)
    while total < most_words and (group := list(islice(sample, GROUP))):
        for text, encoded in zip(group, tokenizer.encode_batch(group), strict=True):
            begins = _word_begins(text, encoded)
            total += len(begins)
            is_unknown = encoded.ids == tokenizer.unknown_id
            ends = [*begins[1:], len(encoded)]
            for begin, end in zip(begins, ends, strict=True):
                if is_unknown[begin:end].any():
                    first, last = int(encoded.offsets[begin, 0]), int(encoded.offsets[end - 1, 1])
                    unknown[text[first:last].strip()] += 1
    share = unknown.total() / total if total else 0.0
    return UnknownWords(share, tuple(word for word, _ in unknown.most_common(EXAMPLES)))


def _word_begins(text: str, encoded: Encoded) -> list[int]:
    """The index of the first token of each word."""
    new = np.diff(encoded.words, prepend=-1) != 0
    for index, begin in enumerate(encoded.offsets[:, 0].tolist()):
        new[index] |= text[begin : begin + 1].isspace() or text[max(begin - 1, 0) : begin].isspace()
    found: list[int] = np.flatnonzero(new).tolist()
    return found
