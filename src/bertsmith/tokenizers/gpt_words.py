"""GPT-1's words (gpt1: text_utils.py): ftfy repairs the text, runs of punctuation are set apart, spaCy splits the rest.

The rules of spaCy are local to the text between white space. Those of ftfy are not: it decides by line whether the text
was decoded with a wrong encoding, so that texts with such characters, or with HTML entities, are not split into chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from bertsmith.errors import BertsmithError
from bertsmith.tokenizers.pretokenization import Chunker

NEWLINE = "\n"  # the word for one or more line ends between other words
REPLACED = {"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"}
REPLACEMENTS = str.maketrans(REPLACED)
PUNCTUATION = re.compile(r"""(-+|~+|!+|"+|;+|\?+|\++|,+|\)+|\(+|\\+|/+|\*+|\[+|\]+|}+|{+|\|+|_+)""")
LINE_END = re.compile(r"\s*\n\s*")
SPACES = re.compile(r"[^\S\n]+")
# Entities, and characters that ftfy removes, takes for line ends, decomposes or composes.
REPAIRED = re.compile(
    "[&\x00-\x08\x0b\x0d-\x1f\x7f-\x9f\u0300-\u036f\u2028\u2029\u206a-\u206f\ufb00-\ufb06\ufeff\uff01-\uffff]"
)
MAX_SPACY_WORDS = 500_000  # spaCy keeps every string that it has seen: after so many words, it starts afresh


def standardize(text: str) -> str:
    """GPT-1's `text_standardize`."""
    text = PUNCTUATION.sub(r" \1 ", text.translate(REPLACEMENTS))
    return SPACES.sub(" ", LINE_END.sub(" \n ", text)).strip()


class AlignedWord(NamedTuple):
    """A word in lower case, with the range of the original text that each of its characters stands for."""

    text: str
    begins: Sequence[int]
    ends: Sequence[int]


class GPTWords:
    """Splits texts into GPT-1's words. Needs ftfy and spaCy."""

    def __init__(self) -> None:
        try:
            self._ftfy, self._english = import_module("ftfy"), import_module("spacy.lang.en").English
        except ImportError as error:
            name = str(error.name).partition(".")[0]
            raise BertsmithError(f"splitter=spacy needs the package {name}: pip install 'bertsmith[gpt]'") from error
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._tokenizer = self._english().tokenizer
        self._exceptions = frozenset(self._tokenizer.rules)
        self._seen = 0

    def __call__(self, text: str) -> list[str]:
        """The words of a text in lower case; line ends between them are `NEWLINE`."""
        if text.isascii() and text.isalpha() and text not in self._exceptions:
            return [text.lower()]
        return [_word(token.text) for token in self._tokens(standardize(self._repaired(text)))]

    def aligned(self, text: str) -> Iterator[AlignedWord]:
        """The words of a text with their places in it."""
        fixed = self._repaired(text)
        begins, ends = align(text, fixed, self._repaired)
        # Standardizing replaces characters and changes white space: the other characters stay in their order.
        visible = [place for place, sign in enumerate(fixed) if not sign.isspace() for _ in REPLACED.get(sign, sign)]
        done = 0
        for token in self._tokens(standardize(fixed)):
            word: str = token.text
            if word.isspace():
                places = [fixed.index("\n", visible[done - 1])]
            else:
                places = visible[done : done + len(word)]
                done += len(word)
            if not word.isascii():  # İ is two characters in lower case
                places = [place for place, sign in zip(places, word, strict=True) for _ in sign.lower()]
            yield AlignedWord(_word(word), [begins[place] for place in places], [ends[place] for place in places])

    def _repaired(self, text: str) -> str:
        # ftfy leaves these texts as they are, but takes much longer than spaCy to find out.
        if text.isascii() and not REPAIRED.search(text):
            return text
        return str(self._ftfy.fix_text(text))

    def _tokens(self, text: str) -> Any:
        if self._seen > MAX_SPACY_WORDS:
            self._start_afresh()
        tokens = self._tokenizer(text)
        self._seen += len(tokens)
        return tokens


@cache
def gpt_words() -> GPTWords:
    """One splitter for all tokenizers of the process: spaCy takes half a second to start."""
    return GPTWords()


def _word(token: str) -> str:
    return NEWLINE if token.isspace() else str(token.lower())


def align(text: str, changed: str, change: Callable[[str], str]) -> tuple[Sequence[int], Sequence[int]]:
    """For each character of `changed`, the begin and the end of what it stands for in `text`."""
    if text == changed:
        return range(len(text)), range(1, len(text) + 1)
    words, changed_words = (re.findall(r"\S+|\s+", one) for one in (text, changed))
    if len(words) == len(changed_words):
        pairs = list(zip(words, changed_words, strict=True))
    else:
        matcher = SequenceMatcher(None, words, changed_words, autojunk=False)
        pairs = [("".join(words[a:b]), "".join(changed_words[c:d])) for _, a, b, c, d in matcher.get_opcodes()]
    begins: list[int] = []
    ends: list[int] = []
    start = 0
    for before, after in pairs:
        for a, b, size in _blocks(before, after, change):
            if b - a == size:
                begins += range(start + a, start + b)
                ends += range(start + a + 1, start + b + 1)
            else:
                begins += [start + a] * size
                ends += [start + b] * size
        start += len(before)
    return begins, ends


def _blocks(before: str, after: str, change: Callable[[str], str]) -> Iterator[tuple[int, int, int]]:
    """Begin and end of blocks of `before`, and how many characters each has in `after`."""
    if before == after:
        yield 0, len(before), len(after)
        return
    single = [change(character) for character in before]
    if "".join(single) == after:
        yield from ((place, place + 1, len(new)) for place, new in enumerate(single))
        return
    for _, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        yield a, b, d - c


def _chunks(text: str) -> list[str]:
    return re.findall(r"\S+|\n\s*", text.strip())


@cache
def gpt_chunker() -> Chunker:
    """Words between white space, and the line ends between them."""
    gpt_words()
    bad = import_module("ftfy.badness").BADNESS_RE
    return Chunker(_chunks, irregular=re.compile(f"{REPAIRED.pattern}|(?x:{bad.pattern})"))
