"""Word-level vocabularies, for ULMFiT, CoVe, TagLM and ELMo: rare words are unknown.

Texts are split at white space and punctuation, or, where they are tokenized already, at white space only. Unknown words
are one token, or one token per word shape (`Tokyo-based`, `1,000`, `walking`). ULMFiT's markers (fastai: text/core.py)
are tokens of their own: `NASA` -> `xxup nasa`, `Smith` -> `xxmaj smith`, `sooo` -> `s xxrep 3 o`,
`no no no` -> `xxwrep 3 no`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property, partial
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from bertsmith import types
from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers.folder import MAX_LENGTH, TokenizerFolder, read_vocabulary, vocabulary_bytes
from bertsmith.tokenizers.pretokenization import (
    WHITESPACE_CHUNKER,
    Chunker,
    Token,
    Word,
    from_tokens,
    replace_surrogates,
    split_at_white_space,
    split_words,
)
from bertsmith.tokenizers.python_tokenizer import PythonTokenizer
from bertsmith.tokenizers.special_tokens import SpecialTokens
from bertsmith.tokenizers.spelled_ids import SpelledIdEncoder

SPECIALS = SpecialTokens("<pad>", "<unk>", start="<s>", separator="</s>", end="</s>")
VOCABULARY = "vocab.txt"
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
SUFFIXES = ("ing", "tion", "ness", "ment", "able", "est", "ed", "ly", "er", "al", "s")
SHAPES = ("number", "digit", "hyphen", "capitals", "capital", *SUFFIXES)
# differs from the paper's code: repeated digits are not marked, a number stays a number.
REPEATED = re.compile(r"([^\s\d])\1{2,}")
MIN_REPEATS = 3  # of the same word in a row to be marked

Unknowns = Literal["one", "classes"]
Split = Literal["punctuation", "whitespace"]


def _lines(text: str) -> list[str]:
    return text.split("\n")


def _words_or_lines(text: str) -> list[str]:
    """The chunks of each line; a line that may repeat a word three times, which is marked, is one chunk."""
    return [chunk for line in _lines(text) for chunk in ([line] if INDIVISIBLE.search(line) else line.split())]


# A word three times, or white space of Python that the tokenizers library does not treat as such.
INDIVISIBLE = re.compile(r"(\w+)\s+\1\s+\1|[\x1c-\x1f]")
# Repeated words are marked across spaces, but not across lines.
MARKING_CHUNKER = Chunker(_words_or_lines)
PYTHON_WHITESPACE_CHUNKER = Chunker()


class Marker(StrEnum):
    """A token that describes how the next word was written."""

    UP = "xxup"
    CAPITAL = "xxmaj"
    REPEATED = "xxrep"
    WORD_REPEATED = "xxwrep"


class MarkedWord(NamedTuple):
    """The characters `begin` to `end` of a text as tokens: markers, numbers and one word in lower case."""

    tokens: tuple[str, ...]
    begin: int
    end: int


def add_markers(line: str) -> Iterator[MarkedWord]:
    """The words of a line with ULMFiT's markers."""
    words: list[Word] = []
    start = 0
    for match in REPEATED.finditer(line):
        words += _words(line, start, match.start())
        words.append(Word(match.group(), match.start(), match.end()))
        start = match.end()
    words += _words(line, start, len(line))
    for _, group in groupby(words, key=lambda word: word.text):
        same = list(group)
        if len(same) >= MIN_REPEATS and same[0].text.isalnum():
            tokens = (Marker.WORD_REPEATED, str(len(same)), *_mark_word(same[0].text))
            yield MarkedWord(tokens, same[0].begin, same[-1].end)
        else:
            for word in same:
                yield MarkedWord(_mark_word(word.text), word.begin, word.end)


def _words(line: str, begin: int, end: int) -> Iterator[Word]:
    for word in split_words(line[begin:end]):
        yield Word(word.text, begin + word.begin, begin + word.end)


def _mark_word(word: str) -> tuple[str, ...]:
    lower = word.lower()
    if REPEATED.fullmatch(word):
        return Marker.REPEATED, str(len(word)), word[0].lower()
    if len(word) > 1 and word.isupper():
        return Marker.UP, lower
    if len(word) > 1 and word[0].isupper() and word[1:] == word[1:].lower():
        return Marker.CAPITAL, lower
    return (lower,)


def remove_markers(tokens: Iterable[str]) -> list[str]:
    """The words that tokens with markers describe."""
    rest = iter(tokens)
    return [_unmark(token, rest) for token in rest]


def _unmark(token: str, rest: Iterator[str]) -> str:
    """One word; the operands of a marker are taken from `rest` and may be missing."""
    if token not in set(Marker):
        return token
    if token == Marker.UP:
        return _unmark(next(rest, ""), rest).upper()
    if token == Marker.CAPITAL:
        word = _unmark(next(rest, ""), rest)
        return word[:1].upper() + word[1:]
    number = next(rest, "")
    word = _unmark(next(rest, ""), rest)
    times = int(number) if number.isdecimal() and len(number) < 4 else 1
    return word * times if token == Marker.REPEATED else " ".join([word] * times)


@dataclass(frozen=True)
class Rules:
    """Everything besides the vocabulary that determines the ids; splits a chunk into words as in the vocabulary."""

    lowercase: bool = True
    unknowns: Unknowns = "one"
    marks: bool = False
    split: Split = "punctuation"

    def __post_init__(self) -> None:
        for name, choices in (("unknowns", Unknowns), ("split", Split)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be one of {', '.join(get_args(choices))}")
        if self.marks and not self.lowercase:
            raise ConfigError("marks=true encodes capitals as markers and requires lowercase=true")
        if self.marks and self.split != "punctuation":
            raise ConfigError("marks=true marks words between punctuation and requires split=punctuation")

    @property
    def chunker(self) -> Chunker:
        if self.split == "whitespace":
            return PYTHON_WHITESPACE_CHUNKER
        return MARKING_CHUNKER if self.marks else WHITESPACE_CHUNKER

    def __call__(self, chunk: str) -> Sequence[str]:
        return [str(token) for word in self.normalized_words(chunk) for token in word.tokens]

    def normalized_words(self, text: str) -> Iterator[MarkedWord]:
        """The words of a text as in the vocabulary, with their offsets."""
        if not self.marks:
            split = split_at_white_space if self.split == "whitespace" else split_words
            for word, begin, end in split(text):
                yield MarkedWord((self.normalize(word),), begin, end)
            return
        start = 0
        for line in _lines(text):
            for tokens, begin, end in add_markers(line):
                yield MarkedWord(tokens, start + begin, start + end)
            start += len(line) + 1

    def normalize(self, word: str) -> str:
        """A word as in the vocabulary, without markers."""
        return word.lower() if self.lowercase else word

    def reserved(self) -> list[str]:
        """The first tokens of the vocabulary, which no text contains."""
        classes = [f"<unk:{shape}>" for shape in SHAPES] if self.unknowns == "classes" else []
        return [*SPECIALS.tokens(), *classes, *(map(str, Marker) if self.marks else [])]


def word_shape(word: str) -> str | None:
    """The class of an unknown word by its spelling; None for the general one."""
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


@dataclass(frozen=True)
class Config:
    """Training of a vocabulary of words."""

    lowercase: bool = True
    min_count: int = 2  # minimum count of a word
    unknowns: Unknowns = "one"  # "classes": one unknown token per word shape
    marks: bool = False  # ULMFiT's xxup, xxmaj, xxrep, xxwrep
    split: Split = "punctuation"  # "whitespace": at white space only, for texts that are tokenized already

    def __post_init__(self) -> None:
        if self.min_count < 1:
            raise ConfigError(f"min_count={self.min_count} must be at least 1: the minimum count of a word")
        _ = self.rules  # which are checked

    @property
    def rules(self) -> Rules:
        return Rules(self.lowercase, self.unknowns, self.marks, self.split)

    def word_splitter(self) -> Rules:
        return self.rules

    def train(self, counts: dict[str, int], *, vocab_size: int) -> Words:
        """The most frequent words, at most `vocab_size` tokens with the special ones."""
        reserved = self.rules.reserved()
        if vocab_size <= len(reserved):
            raise ConfigError(f"vocab_size={vocab_size} is too small: {len(reserved)} tokens are reserved")
        excluded = frozenset(reserved)
        frequent = [word for word, count in counts.items() if count >= self.min_count and word not in excluded]
        if not frequent:
            raise DataError(f"there are no words to train on with a count of at least {self.min_count} (min_count)")
        frequent.sort(key=lambda word: (-counts[word], word))
        return Words([*reserved, *frequent[: vocab_size - len(reserved)]], word_rules=self.rules)


class Words(PythonTokenizer):
    """A word-level tokenizer."""

    kind = "words"
    transformers_classes = ("WordsTokenizer",)

    def __init__(self, tokens: Sequence[str], *, word_rules: Rules, max_length: int = MAX_LENGTH) -> None:
        reserved = word_rules.reserved()
        if list(tokens[: len(reserved)]) != reserved:
            raise DataError(f"a vocabulary of words must begin with {', '.join(reserved)}")
        self.word_rules = word_rules
        super().__init__(tokens, special_tokens=SPECIALS, max_length=max_length)
        self._words = {token: number for token, number in self._ids.items() if number >= len(reserved)}
        self._shapes = {name: self._ids[f"<unk:{name}>"] for name in SHAPES if f"<unk:{name}>" in reserved}
        self.unknown_ids |= {*self._shapes.values()}
        self.special_ids |= self.unknown_ids

    @property
    def splits_at_white_space(self) -> bool:  # type: ignore[override]
        return self.word_rules.split == "whitespace"

    def chunker(self) -> Chunker:
        return self.word_rules.chunker

    @cached_property
    def spelled_ids(self) -> SpelledIdEncoder | None:
        """As `encode_ids`, with the spelling of unknown words; not with ULMFiT's markers."""
        if self.word_rules.marks:
            return None
        return SpelledIdEncoder(self, self.unknown_ids)

    def tokenize(self, text: str) -> Iterable[Token]:
        for number, (tokens, begin, end) in enumerate(self.word_rules.normalized_words(text)):
            for token in tokens:
                yield Token(self._id(token, text[begin:end]), begin, end, number)

    def encode_words(self, text: str, spans: Iterable[tuple[int, int]]) -> types.Encoded:
        text = replace_surrogates(text)
        words = [Word(text[begin:end], begin, end) for begin, end in spans]
        tokens = [
            Token(self._id(self.word_rules.normalize(word), word), begin, end, number)
            for number, (word, begin, end) in enumerate(words)
            if word and not word.isspace()
        ]
        return self.spelled(text, from_tokens(tokens))

    def _id(self, token: str, original: str) -> int:
        if isinstance(token, Marker):
            return self._ids[token]
        if token in self._words:
            return self._words[token]
        # The shape of the original word, unless the token is a number of repetitions.
        shape = word_shape(original if original.lower() == token else token)
        return self._shapes.get(shape, self.unknown_id) if shape else self.unknown_id

    def decode(self, ids: ArrayLike, *, skip_special_tokens: bool = True) -> str:
        numbers = np.asarray(ids, np.int64).tolist()
        tokens = [
            self.id_to_token(number) for number in numbers if not (skip_special_tokens and number in self.special_ids)
        ]
        return " ".join(remove_markers(tokens) if self.word_rules.marks else tokens)

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> Words:
        get = contents.config.get
        settings = get("do_lower_case", True), get("unknowns", "one"), get("marks", False), get("split", "punctuation")
        try:
            rules = Rules(*settings)
        except ConfigError as error:
            raise DataError(str(error)) from error
        return cls(read_vocabulary(contents.file(VOCABULARY)), word_rules=rules, max_length=contents.max_length())

    def rules(self) -> dict[str, Any]:
        return asdict(self.word_rules)

    def transformers_config(self) -> dict[str, Any]:
        rules = self.word_rules
        return {
            "do_lower_case": rules.lowercase,
            "unknowns": rules.unknowns,
            "marks": rules.marks,
            "split": rules.split,
        }

    def vocabulary_files(self) -> dict[str, bytes]:
        return {VOCABULARY: vocabulary_bytes(self.tokens())}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Words, word_rules=self.word_rules, max_length=self.max_length), (self.tokens(),)
