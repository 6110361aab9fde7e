"""A text cut into words as people count them, with their places. Knows no vocabulary."""

from __future__ import annotations

import re
from typing import NamedTuple

from tokenizers import pre_tokenizers

from bertsmith.tokenizers.units import Units

# Python's split() takes these for white space, the rule below does not.
UNITS = Units(str.split, irregular=re.compile("[\x1c-\x1f]"))
AT_PUNCTUATION = pre_tokenizers.BertPreTokenizer()


class Word(NamedTuple):
    """A word as it stands in a text, from `begin` to `end`."""

    text: str
    begin: int
    end: int


def split_words(text: str) -> list[Word]:
    """Words at white space and punctuation as in BERT, but `state-of-the-art`, `1,000.5` and `'s` are one word each."""
    words: list[Word] = []
    for piece, (begin, end) in AT_PUNCTUATION.pre_tokenize_str(text):
        if len(words) > 1 and words[-2].end == words[-1].begin and words[-1].end == begin:
            taken = _taken(words[-2].text, words[-1].text, piece)
            if taken:
                begin = words[-taken].begin
                del words[-taken:]
        words.append(Word(text[begin:end], begin, end))
    return words


def _taken(before: str, sign: str, piece: str) -> int:
    """How many of the two words right before `piece` belong to it."""
    if sign == "-" and before[-1].isalnum() and piece[0].isalnum():
        return 2
    if sign in {".", ",", ":"} and before[-1].isdecimal() and piece[0].isdecimal():
        return 2
    # The rest of a shortened word, with its apostrophe: isn 't, it 's.
    return int(sign in {"'", "’"} and before[-1].isalpha() and piece[0].isalpha())
