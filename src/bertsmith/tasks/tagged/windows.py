"""Words -> rows: which place of which row answers for which word, each word once, where it has the most context.

T tokens, W words, R places that are read, M words that they answer for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError
from bertsmith.tasks.tagged.sentences import Spans
from bertsmith.tasks.task import Example, Features
from bertsmith.tokenizers.batch_encoding import BatchEncoder
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded

Numbers = NDArray[np.int64]
CHUNK = 1024  # texts that are encoded at a time: bounds the memory


def _none() -> Numbers:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class AskedWords(Features):
    """A row and the words that its places answer for.

    Words are counted from the first word of `example` on, through the examples behind it where the row asks for several
    sentences of a document; `begin` is the first of them.
    """

    words: Numbers = field(default_factory=_none)  # [M]
    reads: Numbers = field(default_factory=_none)  # [M] which of `places` answers for each


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


def windows(tokens: int, *, room: int, overlap: int) -> list[tuple[int, int, int]]:
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


def ask(
    examples: Sequence[Example],
    words: Sequence[Spans],
    classes: Sequence[Sequence[int] | None],
    tokenizer: Tokenizer,
    *,
    length: int,
    overlap: int,
    together: bool,
    characters: bool,
) -> list[AskedWords]:
    """The rows of all examples; `classes` are the right ones of each example's words, None where nobody knows."""
    parts = tokenizer.frame_ids.single
    room = length - sum(isinstance(part, int) for part in parts)
    if room < 2:
        raise BertsmithError(f"length={length} has no room for words between the special tokens: take 128, or more")
    found: list[AskedWords] = []
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
            for window in windows(len(encoded), room=room, overlap=overlap):
                found += _row(stream, encoded, tokens, right, window, tokenizer, length=length)
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
) -> list[AskedWords]:
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
        AskedWords(
            rows=(row,),
            example=example,
            target=None if right is None else right[leaders],
            indices=tokens[leaders] - begin + parts.index("a"),
            begin=word,
            words=read - read[0] + word,
            reads=np.cumsum(leads) - 1,
        )
    ]
