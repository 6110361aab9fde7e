"""Whole words, for ULMFiT, CoVe and TagLM: a word that is not among the frequent ones is unknown.

Unknown words are one token, or one for each shape (`Tokyo-based`, `1,000`, `walking`), so that a model still sees
something of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers.folder import TokenizerFolder, read_vocabulary
from bertsmith.tokenizers.pretokenization import WHITESPACE_CHUNKER, Chunker, Word, split_words
from bertsmith.tokenizers.special_tokens import SpecialTokens
from bertsmith.tokenizers.tokenizer import MAX_LENGTH, PythonTokenizer, Token

SPECIALS = SpecialTokens("<pad>", "<unk>", start="<s>", separator="</s>", end="</s>")
VOCABULARY = "vocab.txt"
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
SUFFIXES = ("ing", "tion", "ness", "ment", "able", "est", "ed", "ly", "er", "al", "s")
SHAPES = ("number", "digit", "hyphen", "capitals", "capital", *SUFFIXES)

Unknowns = Literal["one", "classes"]


# differs from the paper's code: digits are not counted, a number stays a number.
REPEATED = re.compile(r"([^\s\d])\1{2,}")
FEWEST = 3  # of the same word in a row to be said as one


class Mark(StrEnum):
    """A word that no text has: it says how the next one was written."""

    UP = "xxup"
    CAPITAL = "xxmaj"
    REPEATED = "xxrep"
    WORD_REPEATED = "xxwrep"


class Marked(NamedTuple):
    """What a stretch of a text is written as: marks, numbers and one word in lower case."""

    tokens: tuple[str, ...]
    begin: int
    end: int


def mark(line: str) -> Iterator[Marked]:
    """A line with its marks, in order."""
    words: list[Word] = []
    at = 0
    for match in REPEATED.finditer(line):
        words += _words(line, at, match.start())
        words.append(Word(match.group(), match.start(), match.end()))
        at = match.end()
    words += _words(line, at, len(line))
    for _, group in groupby(words, key=lambda word: word.text):
        same = list(group)
        if len(same) >= FEWEST and same[0].text.isalnum():
            tokens = (Mark.WORD_REPEATED, str(len(same)), *_spoken(same[0].text))
            yield Marked(tokens, same[0].begin, same[-1].end)
        else:
            for word in same:
                yield Marked(_spoken(word.text), word.begin, word.end)


def _words(line: str, begin: int, end: int) -> Iterator[Word]:
    for word in split_words(line[begin:end]):
        yield Word(word.text, begin + word.begin, begin + word.end)


def _spoken(word: str) -> tuple[str, ...]:
    lower = word.lower()
    if REPEATED.fullmatch(word):
        return Mark.REPEATED, str(len(word)), word[0].lower()
    if len(word) > 1 and word.isupper():
        return Mark.UP, lower
    if len(word) > 1 and word[0].isupper() and word[1:] == word[1:].lower():
        return Mark.CAPITAL, lower
    return (lower,)


def unmark(tokens: Iterable[str]) -> list[str]:
    """The words that marks were put to, as far as they say."""
    rest = iter(tokens)
    return [_written(token, rest) for token in rest]


def _written(token: str, rest: Iterator[str]) -> str:
    """One word; what a mark belongs to is taken from `rest`, and may be missing."""
    if token not in set(Mark):
        return token
    if token == Mark.UP:
        return _written(next(rest, ""), rest).upper()
    if token == Mark.CAPITAL:
        word = _written(next(rest, ""), rest)
        return word[:1].upper() + word[1:]
    number = next(rest, "")
    word = _written(next(rest, ""), rest)
    times = int(number) if number.isdecimal() and len(number) < 4 else 1
    return word * times if token == Mark.REPEATED else " ".join([word] * times)


def _lines(text: str) -> list[str]:
    return text.split("\n")


# Words that are repeated are marked across spaces, but not across lines.
LINES = Chunker(_lines)


@dataclass(frozen=True)
class Rules:
    """Everything besides the vocabulary that decides ids."""

    lowercase: bool = True
    unknowns: Unknowns = "one"
    marks: bool = False

    def read(self, text: str) -> Iterator[Marked]:
        """The words of a text as the vocabulary has them, with where they stand."""
        if not self.marks:
            for word, begin, end in split_words(text):
                yield Marked((word.lower() if self.lowercase else word,), begin, end)
            return
        at = 0
        for line in _lines(text):
            for tokens, begin, end in mark(line):
                yield Marked(tokens, at + begin, at + end)
            at += len(line) + 1

    def reserved(self) -> list[str]:
        """The first tokens of the vocabulary: words that no text has."""
        classes = [f"<unk:{shape}>" for shape in SHAPES] if self.unknowns == "classes" else []
        return [*SPECIALS.tokens(), *classes, *(map(str, Mark) if self.marks else [])]


def shape(word: str) -> str | None:
    """Which kind of unknown word this is; None where it has no mark of any."""
    if NUMBER.fullmatch(word):
        return "number"
    if any(character.isdecimal() for character in word):
        return "digit"
    if "-" in word[1:-1]:
        return "hyphen"
    if len(word) > 1 and word.isupper():
        return "capitals"
    if word[0].isupper():
        return "capital"
    return next((suffix for suffix in SUFFIXES if word.endswith(suffix) and len(word) > len(suffix) + 2), None)


class Splitter:
    """One unit -> its words as the vocabulary has them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.chunker = LINES if rules.marks else WHITESPACE_CHUNKER

    def __call__(self, unit: str) -> Sequence[str]:
        return [str(token) for marked in self.rules.read(unit) for token in marked.tokens]


@dataclass(frozen=True)
class Config:
    """How a vocabulary of words is learned."""

    lowercase: bool = True
    min_count: int = 2  # how often a word must be seen
    unknowns: Unknowns = "one"  # "classes": an unknown word is known by its shape
    marks: bool = False  # ULMFiT's xxup, xxmaj, xxrep, xxwrep

    def __post_init__(self) -> None:
        if self.min_count < 1:
            raise ConfigError(f"min_count={self.min_count} must be at least 1: how often a word must be seen")
        if self.unknowns not in get_args(Unknowns):
            raise ConfigError(f"unknowns={self.unknowns!r} must be one of {', '.join(get_args(Unknowns))}")
        if self.marks and not self.lowercase:
            raise ConfigError("marks=true says capitals by marks and needs lowercase=true")

    @property
    def rules(self) -> Rules:
        """The part that decides ids."""
        return Rules(self.lowercase, self.unknowns, self.marks)

    def word_splitter(self) -> Splitter:
        """For counting."""
        return Splitter(self.rules)

    def train(self, counts: dict[str, int], *, vocab_size: int) -> Words:
        """The most frequent words, at most `vocab_size` with the special tokens."""
        reserved = self.rules.reserved()
        if vocab_size <= len(reserved):
            raise ConfigError(f"vocab_size={vocab_size} is too small: {len(reserved)} are reserved")
        never = frozenset(reserved)
        frequent = [word for word, count in counts.items() if count >= self.min_count and word not in never]
        if not frequent:
            raise DataError(f"there are no words to learn from that were seen {self.min_count} times (min_count)")
        frequent.sort(key=lambda word: (-counts[word], word))
        return Words([*reserved, *frequent[: vocab_size - len(reserved)]], reading=self.rules)


class Words(PythonTokenizer):
    """A tokenizer of whole words."""

    kind = "words"
    transformers_classes = ("WordsTokenizer",)
    special_token_keys: ClassVar[Mapping[str, str]] = {
        "padding": "pad_token",
        "unknown": "unk_token",
        "start": "bos_token",
        "separator": "sep_token",
        "end": "eos_token",
    }

    def __init__(self, tokens: Sequence[str], *, reading: Rules, max_length: int = MAX_LENGTH) -> None:
        reserved = reading.reserved()
        if list(tokens[: len(reserved)]) != reserved:
            raise DataError(f"this vocabulary of words must begin with {', '.join(reserved)}")
        self.reading = reading
        super().__init__(tokens, special_tokens=SPECIALS, max_length=max_length)
        self._words = {token: number for token, number in self._ids.items() if number >= len(reserved)}
        self._shapes = {name: self._ids[f"<unk:{name}>"] for name in SHAPES if f"<unk:{name}>" in reserved}

    def cut(self, text: str) -> Iterable[Token]:
        for number, (tokens, begin, end) in enumerate(self.reading.read(text)):
            for token in tokens:
                yield Token(self._number(token, text[begin:end]), begin, end, number)

    def _number(self, token: str, written: str) -> int:
        if isinstance(token, Mark):
            return self._ids[token]
        known = self._words.get(token)
        if known is None:
            # The shape is that of the word as it was written, unless this is a number of repetitions.
            found = shape(written if written.lower() == token else token)
            return self._shapes.get(found, self.unknown_id) if found else self.unknown_id
        return known

    def decode(self, ids: ArrayLike, *, skip_special_tokens: bool = True) -> str:
        numbers = np.asarray(ids, np.int64).tolist()
        tokens = [
            self.id_to_token(number) for number in numbers if not (skip_special_tokens and number in self.special_ids)
        ]
        return " ".join(unmark(tokens) if self.reading.marks else tokens)

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> Words:
        given = contents.config
        reading = Rules(given.get("do_lower_case", True), given.get("unknowns", "one"), given.get("marks", False))
        return cls(
            read_vocabulary(contents.path / VOCABULARY), reading=reading, max_length=contents.max_length(MAX_LENGTH)
        )

    def rules(self) -> dict[str, Any]:
        return asdict(self.reading)

    def transformers_config(self) -> dict[str, Any]:
        return {
            "tokenizer_class": self.transformers_classes[0],
            "do_lower_case": self.reading.lowercase,
            "unknowns": self.reading.unknowns,
            "marks": self.reading.marks,
        }

    def vocabulary_files(self) -> dict[str, bytes]:
        return {VOCABULARY: "".join(f"{token}\n" for token in self.tokens()).encode()}

    def chunker(self) -> Chunker:
        return LINES if self.reading.marks else WHITESPACE_CHUNKER

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.tokens(), self.reading, self.max_length)


def _rebuild(tokens: Sequence[str], reading: Rules, max_length: int) -> Words:
    return Words(tokens, reading=reading, max_length=max_length)
