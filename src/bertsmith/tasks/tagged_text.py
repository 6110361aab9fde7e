"""Tagged text: sentences and their words, tagging schemes, labels, and windows of words.

T tokens, W words, R token indices that the head reads, M words whose tags they give.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith.config import did_you_mean
from bertsmith.data.windows import token_windows
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.metrics import sequence_labelling
from bertsmith.metrics.sequence_labelling import LETTERS, Scheme, convert_tags, parse_tag, scheme_violations
from bertsmith.tasks.tables import join_names
from bertsmith.tasks.task import Example, Features
from bertsmith.tokenizers.batch_encoding import BatchEncoder
from bertsmith.tokenizers.pretokenization import BERT_PRETOKENIZER, replace_surrogates, split_words
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded

Spans = tuple[tuple[int, int], ...]  # character span of each word
# How a text without given words is split. word: at white space and punctuation, but `state-of-the-art` and `1,000.5`
# are one; part: at all punctuation; character: every character. A CJK ideograph is always a word of its own.
Unit = Literal["word", "part", "character"]
# detect: the only scheme that all tags follow; lenient: any tags, interpreted like conlleval; plain: a label for each
# word and no entities, such as parts of speech.
FileScheme = Literal["detect", "IOB1", "IOB2", "IOBES", "BILOU", "lenient", "plain"]
LabelScheme = Scheme | Literal["file"]  # file: that of the train file
Numbers = NDArray[np.int64]
OUTSIDE = "O"
IDEOGRAPHS = re.compile(  # one of the ideographs that BERT's tokenizer separates, or a run of other characters
    "[{0}]|[^{0}]+".format("\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf\U0002f800-\U0002fa1f")
)
CHUNK = 1024  # texts that are encoded at a time: bounds the memory


@dataclass(frozen=True, kw_only=True)
class TaggingConfig:
    """Settings of token classification."""

    # document: a row has as many sentences of a document as fit (P-BERT 5.3)
    context: Literal["sentence", "document"] = "sentence"
    overlap: int = 128  # tokens that neighbouring windows share if a text is longer than a row
    scheme: FileScheme = "detect"  # tagging scheme of the files
    # Tagging scheme of the model's labels; file: that of the train file. Scores do not depend on it.
    label_scheme: LabelScheme = "IOB2"

    def __post_init__(self) -> None:
        if self.overlap < 0:
            raise ConfigError(f"task.overlap={self.overlap} must be 0 or more tokens")


@dataclass(frozen=True, slots=True)
class Sentence(Example):
    """One sentence; `gold` has one IOB2 tag or plain label per word and `spans` the words."""

    words_given: bool = False  # the words are those of the file; otherwise of its text, which was split
    document: str = ""  # neighbours with the same name form a document; "" is a document of one sentence
    lines: tuple[int, ...] = ()  # the line of each word in its file
    cells: tuple[str, ...] = ()  # column files: the text of those lines
    opening: str = ""  # the -DOCSTART- line of the document, for its first sentence
    scheme: Scheme | Literal["plain"] = "IOB2"  # of the file


def word_spans(example: Example, unit: Unit) -> Spans:
    """The words of an example: those of its file, or of its split text."""
    return example.spans or split_text(example.texts[0], unit)


def split_text(text: str, unit: Unit) -> Spans:
    """The spans of a text split into words, parts or characters."""
    if unit == "character":
        return tuple((index, index + 1) for index in range(len(text)))
    text = replace_surrogates(text)
    if unit == "word":
        spans = [(begin, end) for _, begin, end in split_words(text)]
    else:
        spans = [span for _, span in BERT_PRETOKENIZER.pre_tokenize_str(text)]
    if text.isascii():
        return tuple(spans)
    return tuple(part.span() for span in spans for part in IDEOGRAPHS.finditer(text, *span))


def join_words(words: list[str], separator: str) -> tuple[str, Spans]:
    """Words as one text, and their spans."""
    spans, position = [], 0
    for word in words:
        spans.append((position, position + len(word)))
        position += len(word) + len(separator)
    return separator.join(words), tuple(spans)


def word_source(example: Example, word: int) -> str:
    """`file:line` of a word, or that of its sentence with the number of the word."""
    lines = getattr(example, "lines", ())
    if lines:
        return f"{example.source.rpartition(':')[0]}:{lines[word]}"
    return f"{example.source}, word {word + 1}"


def is_plain(tags: Iterable[str]) -> bool:
    """Whether these are labels without entities, such as parts of speech: no tag is like B-PER."""
    distinct = set(tags)
    return any(parse_tag(tag) is None for tag in distinct) and not any(
        "-" in tag and parse_tag(tag) for tag in distinct
    )


def in_iob2(sentences: Sequence[Sentence], given: FileScheme) -> tuple[list[Sentence], str]:
    """The sentences with their tags in IOB2, and the scheme of the file."""
    tagged = [sentence for sentence in sentences if sentence.gold is not None]
    _check_spelling(tagged)
    candidates = sequence_labelling.candidate_schemes(sentence.gold for sentence in tagged)
    remark = ""
    if given == "lenient":
        faults = {scheme: sum(1 for _ in _faults(tagged, scheme)) for scheme in candidates}
        scheme: Scheme = min(faults, key=lambda name: faults[name])
        remark = f", except {faults[scheme]:,} tags" if faults[scheme] else ""
    elif given == "detect":
        scheme = _detected(tagged, candidates)
    else:
        assert given != "plain", "plain labels have no scheme"
        scheme = given
        for fault in _faults(tagged, scheme):
            raise DataError(f"{fault}, so the file is not {scheme}: correct it, or set task.scheme=lenient")
    converted = [
        one if one.gold is None else replace(one, gold=tuple(convert_tags(one.gold, to="IOB2")), scheme=scheme)
        for one in sentences
    ]
    return converted, scheme + remark if tagged else ""


def _check_spelling(sentences: Sequence[Sentence]) -> None:
    for sentence in sentences:
        for word, tag in enumerate(sentence.gold):
            if parse_tag(tag) is None:
                raise DataError(
                    f"{word_source(sentence, word)}: {tag[:40]!r} is not a tag: expected O, or B, I, E, S, L or U and "
                    "a type, such as B-PER; for labels without entities, set task.scheme=plain; write texts without "
                    "tags as .jsonl with the key text"
                )


def _detected(sentences: Sequence[Sentence], candidates: Sequence[Scheme]) -> Scheme:
    reasons = []
    for scheme in candidates:
        fault = next(_faults(sentences, scheme), None)
        if fault is None:
            return scheme
        reasons.append(f"not {scheme}: {fault}")
    raise DataError(f"the tags follow no scheme ({'; '.join(reasons)}): correct them, or set task.scheme=lenient")


def _faults(sentences: Sequence[Sentence], scheme: Scheme) -> Iterator[str]:
    """The violations of a scheme with their `file:line`."""
    for sentence in sentences:
        for fault in scheme_violations(sentence.gold, scheme=scheme):
            yield f"{word_source(sentence, fault.word)}: {fault.reason}"


def labels_of_types(types: Iterable[str], scheme: Scheme = "IOB2") -> tuple[str, ...]:
    """O, and every tag of each entity type."""
    letters = sorted(set(LETTERS[scheme]) - {OUTSIDE})
    return (OUTSIDE, *(f"{letter}-{kind}" for kind in sorted(set(types)) for letter in letters))


def types_of(tags: Iterable[str]) -> set[str]:
    """The entity types of tags."""
    return {tag[2:] for tag in tags if tag != OUTSIDE}


def labels_of_train(sentences: Sequence[Example], scheme: Scheme = "IOB2") -> tuple[str, ...]:
    """The labels of a train file; each type has all of its tags, even if only one occurs."""
    types = types_of(tag for sentence in sentences for tag in sentence.gold)
    if not types:
        name = sentences[0].source.rpartition(":")[0]
        raise DataError(f"{name}: every tag is O, so no entity can be learned: is this the tag column?")
    return labels_of_types(types, scheme)


def check_tags(sentences: Sequence[Example], labels: Sequence[str]) -> None:
    """Raises a DataError for the first tag that is not among the labels."""
    known, in_scheme = set(labels), "" if is_plain(labels) else " (in IOB2)"
    for sentence in sentences:
        for word, tag in enumerate(sentence.gold or ()):
            if tag not in known:
                near = did_you_mean(tag, labels)
                raise DataError(
                    f"{word_source(sentence, word)}: {tag[:40]!r}{in_scheme} is not one of the known labels "
                    f"({join_names(labels)}){near}"
                )


def scheme_of_labels(labels: Sequence[str]) -> Scheme:
    """The tagging scheme of a model's labels, IOB2 for B and I alone; a DataError if they are not its tags."""
    tags = [label for label in labels if label == OUTSIDE or (label[1:2] == "-" and parse_tag(label))]
    scheme = sequence_labelling.candidate_schemes([tags])[0]
    wrong = [label for label in labels if label not in tags or label[0] not in LETTERS[scheme]]
    missing = [label for label in labels_of_types(types_of(tags), scheme) if label not in labels]
    missing = [label for label in missing if scheme != "IOB2" or label == OUTSIDE]  # a model may lack the B of a type
    if wrong or missing:
        reason = f"{wrong[0]!r} is not a tag" if wrong else f"{missing[0]} is missing"
        raise DataError(
            f"this model's labels ({join_names(labels)}) are not {scheme} tags ({reason}), which training and "
            "evaluation need: use the commands ner or tag-words"
        )
    return scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class WordFeatures(Features):
    """A row and the words whose tags its logits give.

    Words are counted from the first word of `example_index` on, through the following examples if the row has several
    sentences of a document; `start` is the first of them.
    """

    words: Numbers  # [M]
    logit_rows: Numbers  # [M] row of the logits [R, classes] for each word


@dataclass(frozen=True)
class Stream:
    """Contiguous text: one sentence, or the sentences of a document joined by spaces."""

    examples: range
    text: str
    spans: Numbers  # [W, 2] characters of all words of these examples
    sizes: list[int]  # number of words of each example
    words_given: bool  # instead of those of a split text

    def owner(self, word: int) -> tuple[int, int]:
        """The example of a word, and the index of the word in it."""
        for example, size in zip(self.examples, self.sizes, strict=True):
            if word < size:
                return example, word
            word -= size
        raise AssertionError("no such word")


def streams(examples: Sequence[Example], words: Sequence[Spans], *, by_document: bool) -> Iterator[Stream]:
    """One stream per example, or per document of neighbouring examples."""
    begin = 0
    while begin < len(examples):
        end, document = begin + 1, getattr(examples[begin], "document", "")
        while by_document and document and end < len(examples) and getattr(examples[end], "document", "") == document:
            end += 1
        texts = [example.texts[0] for example in examples[begin:end]]
        shifts = np.cumsum([0, *(len(text) + 1 for text in texts)])
        spans = [np.array(words[begin + n], np.int64).reshape(-1, 2) + shifts[n] for n in range(len(texts))]
        sizes, given = [len(part) for part in spans], getattr(examples[begin], "words_given", False)
        yield Stream(range(begin, end), " ".join(texts), np.concatenate(spans), sizes, given)
        begin = end


def first_tokens(stream: Stream, encoded: Encoded, *, characters: bool) -> Numbers:
    """The first token of each word [W]; -1 for white space and for words without a token.

    A piece of only the space before a word, as in byte-level BPE, is its first token. Words can share a token. With
    `characters`, a character without a token that is not white space, such as a combining mark, takes the token of the
    character before it.
    """
    offsets = encoded.offsets
    if not len(offsets):
        return np.full(len(stream.spans), -1, np.int64)
    begins, ends = stream.spans[:, 0], stream.spans[:, 1]
    token = np.searchsorted(np.maximum.accumulate(offsets[:, 1]), begins, "right")
    blank = np.array([stream.text[begin:end].isspace() for begin, end in stream.spans.tolist()], bool)
    known = np.minimum(token, len(offsets) - 1)
    inside = (token < len(offsets)) & (offsets[known, 0] < ends)
    covered = inside & (begins < ends) & ~blank
    before = np.maximum(known - 1, 0)
    has_space = (offsets[before] == begins[:, None]).all(axis=1) & (encoded.words[before] == encoded.words[known])
    first: Numbers = np.where(covered, token - has_space, -1)
    if characters:
        for word in np.flatnonzero(~covered & ~blank):
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
    by_document: bool,
    characters: bool,
) -> list[WordFeatures]:
    """The features of all examples; `classes` are the labels of each example's words, None if unknown.

    Each word is read once, in the window with the most context.
    """
    size = max_length - sum(isinstance(part, int) for part in tokenizer.frame_ids.single)
    if size < 2:
        raise BertsmithError(f"max_length={max_length} is too short for words and special tokens: use 128")
    features: list[WordFeatures] = []
    encode = BatchEncoder(tokenizer)
    pending = list(streams(examples, words, by_document=by_document))
    for first in range(0, len(pending), CHUNK):
        chunk = pending[first : first + CHUNK]
        flat = encode([stream.text for stream in chunk])
        ends = np.cumsum(flat.lengths)
        for stream, begin, end in zip(chunk, ends - flat.lengths, ends, strict=True):
            if tokenizer.splits_at_white_space and stream.words_given and not characters:
                encoded = tokenizer.encode_words(stream.text, stream.spans.tolist())
            else:
                encoded = Encoded(flat.ids[begin:end], flat.offsets[begin:end], flat.words[begin:end])
                encoded = tokenizer.spelled(stream.text, encoded)
            tokens = first_tokens(stream, encoded, characters=characters)
            features += _stream_features(stream, encoded, tokens, classes, tokenizer, size=size, overlap=overlap)
    return features


def _stream_features(
    stream: Stream,
    encoded: Encoded,
    tokens: Numbers,
    classes: Sequence[Sequence[int] | None],
    tokenizer: Tokenizer,
    *,
    size: int,
    overlap: int,
) -> Iterator[WordFeatures]:
    """The features of the windows of one stream that have a word to read."""
    ends = np.cumsum(stream.sizes)  # words up to the end of each example
    known = [np.array(part, np.int64) for example in stream.examples if (part := classes[example]) is not None]
    labels = np.concatenate(known) if len(known) == len(stream.examples) else None
    frame = tokenizer.frame_ids.single
    for begin, first, end in token_windows(len(encoded), size=size, overlap=overlap):
        read = np.flatnonzero((tokens >= first) & (tokens < end))
        if not len(read):
            continue
        text = encoded.part(begin, begin + size)
        is_first = np.diff(tokens[read], prepend=-1) != 0  # words that share a token are neighbours
        leaders = read[is_first]
        example, word = stream.owner(int(read[0]))
        indices = tokens[leaders] - begin + frame.index("a")
        owners = np.searchsorted(ends, leaders, "right")
        yield WordFeatures(
            rows=(tokenizer.frame(text, max_length=size + sum(isinstance(part, int) for part in frame)),),
            example_index=example,
            target=None if labels is None else labels[leaders],
            indices=indices,
            sentence_starts=indices[np.diff(owners, prepend=-1) != 0] if len(ends) > 1 else None,
            start=word,
            words=read - read[0] + word,
            logit_rows=np.cumsum(is_first) - 1,
        )
