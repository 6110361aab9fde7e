"""Sentences with their words: those that a file gives, or those that a text is cut into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertsmith.tasks.task import Example
from bertsmith.tokenizers.pretokenization import BERT_PRETOKENIZER, replace_surrogates, split_words

Spans = tuple[tuple[int, int], ...]  # begin and end of each word in the characters of the text
# What a text without words of its own is cut into. word: at white space and punctuation, but `state-of-the-art` and
# `1,000.5` are one; part: at all punctuation; character: every character.
Unit = Literal["word", "part", "character"]


@dataclass(frozen=True, slots=True)
class Sentence(Example):
    """One sentence; `gold` is a tuple of tags in IOB2, one for each word, and `spans` says where the words stand."""

    document: str = ""  # neighbours with the same name are of one document; "" is a document of its own
    lines: tuple[int, ...] = ()  # the line of each word in its file
    cells: tuple[str, ...] = ()  # column files: those lines as they are
    opening: str = ""  # the line that opens the document, where this is its first sentence
    scheme: str = "IOB2"  # the scheme of the file


def words(example: Example, unit: Unit) -> Spans:
    """The words of an example; they are all that predictions know of."""
    return example.spans or cut(example.texts[0], unit)


def cut(text: str, unit: Unit) -> Spans:
    """A text cut into words, parts or characters."""
    if unit == "character":
        return tuple((place, place + 1) for place in range(len(text)))
    text = replace_surrogates(text)
    if unit == "word":
        return tuple((begin, end) for _, begin, end in split_words(text))
    return tuple(span for _, span in BERT_PRETOKENIZER.pre_tokenize_str(text))


def joined(words: list[str], between: str) -> tuple[str, Spans]:
    """Words as one text, and where each stands in it."""
    spans, place = [], 0
    for word in words:
        spans.append((place, place + len(word)))
        place += len(word) + len(between)
    return between.join(words), tuple(spans)


def where(example: Example, word: int) -> str:
    """`file:line` of a word, or that of its sentence and the word's number."""
    lines = getattr(example, "lines", ())
    if lines:
        return f"{example.source.rpartition(':')[0]}:{lines[word]}"
    return f"{example.source}, word {word + 1}"
