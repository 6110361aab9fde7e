"""Predictions for words: from the logits of windows to sentences, the words without a token, the mean over models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.tasks.tagged_text import OUTSIDE, Spans, WordFeatures
from bertsmith.tasks.task import Features
from bertsmith.tasks.text_tasks import softmax
from bertsmith.types import SequenceDecoder


class WordPrediction(NamedTuple):
    """The predicted class of a word, by its first token."""

    word: int
    number: int  # of the class
    score: float
    shared: bool  # the token is also that of the word before
    probabilities: NDArray[np.float64]  # of all classes [C]

    @classmethod
    def of(cls, word: int, probabilities: NDArray[np.float64], *, shared: bool) -> WordPrediction:
        best = int(probabilities.argmax())
        return cls(word, best, float(probabilities[best]), shared, probabilities)


def predict_words(
    spans: Sequence[Spans],
    features: Sequence[Features],
    logits: Sequence[NDArray[np.float32]],
    decoder: SequenceDecoder | None = None,
) -> list[list[WordPrediction]]:
    """The predictions for the words of each example, in order; words without a token have none.

    The decoder reads the logits of all words of an example at once, whatever windows they were computed in; without one
    each word gets its most likely class. Words that share a token are one word to it.
    """
    read = _logits_of_words(spans, features, logits)
    sequences = [np.stack([one.logits for one in some if not one.shared]) for some in read if some]
    decoded = iter((decoder or _decode_each)(sequences))
    return [_predicted(some, *next(decoded)) if some else [] for some in read]


class _WordLogits(NamedTuple):
    word: int
    shared: bool
    logits: NDArray[np.float32]


def _logits_of_words(
    spans: Sequence[Spans], features: Sequence[Features], logits: Sequence[NDArray[np.float32]]
) -> list[list[_WordLogits]]:
    """The logits of the words of each example, in order."""
    begins = np.cumsum([0, *map(len, spans)])
    found: list[list[_WordLogits]] = [[] for _ in spans]
    for one, values in zip(features, logits, strict=True):
        assert isinstance(one, WordFeatures), "features of another task"
        assert len(values) == len(one.indices if one.indices is not None else ())
        words, before = begins[one.example_index] + one.words, (-1, -1)
        owners = np.searchsorted(begins, words, "right") - 1
        for word, example, row in zip(words - begins[owners], owners.tolist(), one.logit_rows.tolist(), strict=True):
            found[example].append(_WordLogits(int(word), (example, row) == before, values[row]))
            before = example, row
    read = [sorted(some, key=lambda one: one.word) for some in found]
    assert all(a.word < b.word for some in read for a, b in pairwise(some)), "two features have the same word"
    return read


def _predicted(
    words: Sequence[_WordLogits], classes: NDArray[np.int64], probabilities: NDArray[np.float64]
) -> list[WordPrediction]:
    """With the class of the token that each word has or shares."""
    rows = np.cumsum([not one.shared for one in words]) - 1
    values = zip(words, classes[rows].tolist(), probabilities[rows], strict=True)
    return [WordPrediction(one.word, number, float(row[number]), one.shared, row) for one, number, row in values]


def _decode_each(logits: Sequence[NDArray[np.float32]]) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """The most likely class of each word, and the probabilities of all classes."""
    if not logits:
        return []
    probabilities = softmax(np.concatenate(logits).astype(np.float64))
    ends = np.cumsum([*map(len, logits)])[:-1]
    return list(zip(np.split(probabilities.argmax(axis=1), ends), np.split(probabilities, ends), strict=True))


def mean_words(outputs: Sequence[Sequence[WordPrediction]], tags: Sequence[str]) -> list[WordPrediction]:
    """The mean probabilities of each word of a text over the models that have a token for it.

    `tags`: the entity tags in class order, none for plain labels. Where only some of the models share a token between a
    word and the one before, these predict I- for the word instead of B-, as a single model does.
    """
    by_word: dict[int, list[WordPrediction]] = {}
    for one in chain.from_iterable(outputs):
        by_word.setdefault(one.word, []).append(one)
    means = []
    for word, some in sorted(by_word.items()):
        shared = all(one.shared for one in some)
        rows = [one.probabilities if one.shared == shared else _inside(one.probabilities, tags) for one in some]
        means.append(WordPrediction.of(word, np.mean(np.stack(rows), axis=0), shared=shared))
    return means


def _inside(probabilities: NDArray[np.float64], tags: Sequence[str]) -> NDArray[np.float64]:
    """The probabilities [C], those of each B- tag added to its I- tag."""
    moved = probabilities.copy()
    for begin, tag in enumerate(tags):
        if continued(tag) != tag and continued(tag) in tags:
            moved[tags.index(continued(tag))] += moved[begin]
            moved[begin] = 0
    return moved


def with_unread_words(predicted: Sequence[str | None]) -> list[str]:
    """Words without a token are outside, unless the same entity continues after them."""
    following = [OUTSIDE] * len(predicted)
    after = OUTSIDE
    for word in range(len(predicted) - 1, -1, -1):
        following[word] = after = predicted[word] or after
    value: list[str] = []
    for word, tag in enumerate(predicted):
        if tag is None:
            before = value[-1] if value else OUTSIDE
            tag = following[word] if following[word] == continued(before) else OUTSIDE
        value.append(tag)
    return value


def continued(tag: str) -> str:
    """The tag that continues the entity of a tag."""
    return f"I{tag[1:]}" if tag[0] == "B" else tag
