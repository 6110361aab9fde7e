"""Sentences with their words: those that a file gives, or those that a text is cut into.

The tags of files, in whatever scheme, as IOB2. What is no tag or breaks the scheme is said with file:line.

The settings that every tagging task has.

The classes of a tagger: outside, and for each type of entity its begin and its inside.

Words -> rows: which place of which row answers for which word, each word once, where it has the most context.

T tokens, W words, R places that are read, M words that they answer for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith.config import did_you_mean
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.metrics import sequence_labelling
from bertsmith.metrics.sequence_labelling import Scheme
from bertsmith.tasks.tables import listed
from bertsmith.tasks.task import Example, Features
from bertsmith.tokenizers.batch_encoding import BatchEncoder
from bertsmith.tokenizers.pretokenization import BERT_PRETOKENIZER, replace_surrogates, split_words
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded

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
    return example.spans or split_text(example.texts[0], unit)


def split_text(text: str, unit: Unit) -> Spans:
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


# detect: the one scheme in which every tag is in its place; lenient: any tags, read as conlleval does.
Given = Literal["detect", "IOB1", "IOB2", "IOBES", "BILOU", "lenient"]


def in_iob2(sentences: Sequence[Sentence], given: Given) -> tuple[list[Sentence], str]:
    """The sentences with their tags in IOB2, and what scheme the file has."""
    told = [sentence for sentence in sentences if sentence.gold is not None]
    _check_spelling(told)
    remark = ""
    if given == "lenient":
        faults = {scheme: _faults(told, scheme) for scheme in _candidates(told)}
        scheme: Scheme = min(faults, key=lambda name: faults[name])
        remark = f", but for {faults[scheme]:,} tags" if faults[scheme] else ""
    else:
        scheme = _detected(told) if given == "detect" else given
        fault = _first_fault(told, scheme)
        if fault:
            raise DataError(f"{fault}, so that this is not {scheme}: mend it, or say scheme=lenient")
    found = [
        sentence
        if sentence.gold is None
        else replace(sentence, gold=tuple(sequence_labelling.convert_tags(sentence.gold, to="IOB2")), scheme=scheme)
        for sentence in sentences
    ]
    return found, scheme + remark if told else ""


def _check_spelling(sentences: Sequence[Sentence]) -> None:
    wrong = set()
    for tag in {tag for sentence in sentences for tag in sentence.gold}:
        try:
            sequence_labelling.tags_to_entities([tag])
        except DataError:
            wrong.add(tag)
    for sentence in sentences if wrong else ():
        for word, tag in enumerate(sentence.gold):
            if tag in wrong:
                raise DataError(
                    f"{where(sentence, word)}: {tag[:40]!r} is no tag: expected O, or B, I, E, S, L or U and a type, "
                    "as in B-PER"
                )


def _candidates(sentences: Sequence[Sentence]) -> tuple[Scheme, ...]:
    letters = {tag[0] for sentence in sentences for tag in sentence.gold}
    if letters & {"E", "S"}:
        return ("IOBES",)
    return ("BILOU",) if letters & {"L", "U"} else ("IOB2", "IOB1")


def _detected(sentences: Sequence[Sentence]) -> Scheme:
    faults = {scheme: _first_fault(sentences, scheme) for scheme in _candidates(sentences)}
    for scheme, fault in faults.items():
        if not fault:
            return scheme
    reasons = "; ".join(f"not {scheme}: {fault}" for scheme, fault in faults.items())
    raise DataError(f"the tags follow no scheme ({reasons}): mend them, or say scheme=lenient")


def _faults(sentences: Sequence[Sentence], scheme: Scheme) -> int:
    return sum(len(sequence_labelling.scheme_violations(sentence.gold, scheme=scheme)) for sentence in sentences)


def _first_fault(sentences: Sequence[Sentence], scheme: Scheme) -> str:
    for sentence in sentences:
        for fault in sequence_labelling.scheme_violations(sentence.gold, scheme=scheme):
            return f"{where(sentence, fault.word)}: {fault.reason}"
    return ""


@dataclass(frozen=True, kw_only=True)
class TaggingConfig:
    """How words are put to a model."""

    # document: a row holds as many sentences of a document as fit (BERT, section 5.3)
    context: Literal["sentence", "document"] = "sentence"
    overlap: int = 128  # tokens that neighbouring windows share where a text is longer than a row
    scheme: Given = "detect"  # how the files spell entities

    def __post_init__(self) -> None:
        if self.overlap < 0:
            raise ConfigError(f"overlap={self.overlap} must be 0 or more tokens")


OUTSIDE = "O"


def labels_of_types(kinds: Iterable[str]) -> tuple[str, ...]:
    """The classes for these types."""
    return (OUTSIDE, *(f"{letter}-{kind}" for kind in sorted(set(kinds)) for letter in "BI"))


def labels_of_train(sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """The classes of a train file; every type has both of its tags, whether or not both occur."""
    kinds = {tag[2:] for sentence in sentences for tag in sentence.gold if tag != OUTSIDE}
    if not kinds:
        name = sentences[0].source.rpartition(":")[0]
        raise DataError(f"{name}: every word is outside (O): there is no entity to learn from; is this the tag column?")
    return labels_of_types(kinds)


def check_tags(sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
    """Raises a DataError for the first tag that is not among the classes."""
    known = set(labels)
    for sentence in sentences:
        for word, tag in enumerate(sentence.gold or ()):
            if tag not in known:
                near = did_you_mean(tag, labels)
                raise DataError(
                    f"{where(sentence, word)}: {tag[:40]!r} (in IOB2) is none of the tags that are learned "
                    f"({listed(list(labels))}){near}"
                )


def check_model_labels(labels: Sequence[str]) -> None:
    """Raises a DataError where a model's classes are not tags in IOB2."""
    wrong = [label for label in labels if label != OUTSIDE and label[:2] not in ("B-", "I-")]
    if wrong or OUTSIDE not in labels:
        found = f"{wrong[0]!r} is none" if wrong else "O is not among them"
        raise DataError(f"this model's labels ({listed(list(labels))}) are not tags in IOB2: {found}")


Numbers = NDArray[np.int64]
CHUNK = 1024  # texts that are encoded at a time: bounds the memory


def _none() -> Numbers:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class WordFeatures(Features):
    """A row and the words that its places answer for.

    Words are counted from the first word of `example` on, through the examples behind it where the row asks for several
    sentences of a document; `begin` is the first of them.
    """

    words: Numbers = field(default_factory=_none)  # [M]
    logit_rows: Numbers = field(default_factory=_none)  # [M] which of `places` answers for each


@dataclass(frozen=True)
class Stream:
    """Text that is asked in one piece if it fits: one sentence, or the sentences of a document joined by spaces."""

    examples: range
    text: str
    spans: NDArray[np.int64]  # [W, 2] all words of these examples, in the characters of `text`
    sizes: list[int]  # how many words each example has

    def owner(self, word: int) -> tuple[int, int]:
        """The example that a word is of, and its number there."""
        for example, size in zip(self.examples, self.sizes, strict=True):
            if word < size:
                return example, word
            word -= size
        raise AssertionError("no such word")


def streams(examples: Sequence[Example], words: Sequence[Spans], *, together: bool) -> Iterator[Stream]:
    """Every example by itself, or, `together`, neighbours of the same document."""
    begin = 0
    while begin < len(examples):
        end, document = begin + 1, getattr(examples[begin], "document", "")
        while together and document and end < len(examples) and getattr(examples[end], "document", "") == document:
            end += 1
        texts = [example.texts[0] for example in examples[begin:end]]
        shifts = np.cumsum([0, *(len(text) + 1 for text in texts)])
        spans = [np.array(words[begin + n], np.int64).reshape(-1, 2) + shifts[n] for n in range(len(texts))]
        yield Stream(range(begin, end), " ".join(texts), np.concatenate(spans), [len(part) for part in spans])
        begin = end


def token_windows(tokens: int, *, room: int, overlap: int) -> list[tuple[int, int, int]]:
    """Windows over so many tokens: begin, and the first and the end of the tokens that are read there.

    All windows are full and evenly spread; neighbours share at least `overlap` tokens, or half a window where that is
    less. A token is read in the window whose middle is nearest: there the shorter of its two sides is longest.
    """
    if tokens <= room:
        return [(0, 0, tokens)]
    step = room - min(overlap, room // 2)
    last = -(-(tokens - room) // step)
    begins = [turn * (tokens - room) // last for turn in range(last + 1)]
    borders = [0, *((a + b + room) // 2 for a, b in pairwise(begins)), tokens]
    return list(zip(begins, borders, borders[1:], strict=False))


def first_tokens(stream: Stream, offsets: NDArray[np.int32], *, characters: bool) -> Numbers:
    """The token that answers for each word [W]: its first one; -1 for white space and for what comes to no token.

    Several words can share a token. With `characters`, one that comes to no token and is no white space, such as a
    combining mark, goes with the character before it.
    """
    if not len(offsets):
        return np.full(len(stream.spans), -1, np.int64)
    begins, ends = stream.spans[:, 0], stream.spans[:, 1]
    found = np.searchsorted(np.maximum.accumulate(offsets[:, 1]), begins, "right")
    blank = np.array([stream.text[begin:end].isspace() for begin, end in stream.spans.tolist()], bool)
    there = (found < len(offsets)) & (offsets[np.minimum(found, len(offsets) - 1), 0] < ends) & (begins < ends) & ~blank
    first: Numbers = np.where(there, found, -1)
    if characters:
        for word in np.flatnonzero(~there & ~blank):
            if word and ends[word - 1] == begins[word]:
                first[word] = first[word - 1]
    return first


def word_features(
    examples: Sequence[Example],
    words: Sequence[Spans],
    classes: Sequence[Sequence[int] | None],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    overlap: int,
    together: bool,
    characters: bool,
) -> list[WordFeatures]:
    """The rows of all examples; `classes` are the right ones of each example's words, None where nobody knows."""
    parts = tokenizer.frame_ids.single
    room = max_length - sum(isinstance(part, int) for part in parts)
    if room < 2:
        raise BertsmithError(f"length={max_length} has no room for words between the special tokens: take 128, or more")
    found: list[WordFeatures] = []
    encode = BatchEncoder(tokenizer)
    waiting = list(streams(examples, words, together=together))
    for first in range(0, len(waiting), CHUNK):
        chunk = waiting[first : first + CHUNK]
        flat = encode([stream.text for stream in chunk])
        ends = np.cumsum(flat.lengths)
        for stream, begin, end in zip(chunk, ends - flat.lengths, ends, strict=True):
            encoded = Encoded(flat.ids[begin:end], flat.offsets[begin:end], flat.words[begin:end])
            tokens = first_tokens(stream, encoded.offsets, characters=characters)
            right = _right(stream, classes)
            for window in token_windows(len(encoded), room=room, overlap=overlap):
                found += _row(stream, encoded, tokens, right, window, tokenizer, length=max_length)
    return found


def _right(stream: Stream, classes: Sequence[Sequence[int] | None]) -> Numbers | None:
    parts = [classes[example] for example in stream.examples]
    known = [np.array(part, np.int64) for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def _row(
    stream: Stream,
    encoded: Encoded,
    tokens: Numbers,
    right: Numbers | None,
    window: tuple[int, int, int],
    tokenizer: Tokenizer,
    *,
    length: int,
) -> list[WordFeatures]:
    """The row of one window; none where it has no word to read."""
    begin, first, end = window
    read = np.flatnonzero((tokens >= first) & (tokens < end))
    if not len(read):
        return []
    parts = tokenizer.frame_ids.single
    room = length - sum(isinstance(part, int) for part in parts)
    cut = slice(begin, begin + room)
    row = tokenizer.frame(Encoded(encoded.ids[cut], encoded.offsets[cut], encoded.words[cut]), max_length=length)
    leads = np.diff(tokens[read], prepend=-1) != 0  # words that share a token follow each other
    leaders = read[leads]
    example, word = stream.owner(int(read[0]))
    return [
        WordFeatures(
            rows=(row,),
            example_index=example,
            target=None if right is None else right[leaders],
            indices=tokens[leaders] - begin + parts.index("a"),
            start=word,
            words=read - read[0] + word,
            logit_rows=np.cumsum(leads) - 1,
        )
    ]
