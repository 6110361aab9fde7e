"""Logits -> a tag for each word -> entities with their place in the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.metrics import sequence_labelling
from bertsmith.tasks.tagged.sentences import Spans
from bertsmith.tasks.tagged.windows import AskedWords
from bertsmith.tasks.task import Example, Features, Prediction
from bertsmith.tasks.whole_texts import softmax

OUTSIDE = "O"


def predictions(
    examples: Sequence[Example],
    words: Sequence[Spans],
    asked: Sequence[Features],
    answers: Sequence[NDArray[np.float32]],
    labels: Sequence[str],
) -> list[Prediction]:
    """A prediction for each example: tags as its value, entities and unread words in its detail."""
    ends = np.cumsum([len(spans) for spans in words], dtype=np.int64)
    begins = ends - np.array([len(spans) for spans in words], np.int64)
    said: list[str | None] = [None] * int(ends[-1] if len(ends) else 0)
    sure = np.zeros(len(said))
    for question, answer in zip(asked, answers, strict=True):
        assert isinstance(question, AskedWords), "rows of another task"
        assert np.shape(answer) == (len(question.indices if question.indices is not None else ()), len(labels))
        likely = softmax(np.asarray(answer, np.float64))
        best = likely.argmax(axis=1)
        before = -1
        for word, read in zip((begins[question.example] + question.words).tolist(), question.reads, strict=True):
            assert said[word] is None, "a word was asked twice"
            said[word] = labels[best[read]] if read != before else _goes_on(labels[best[read]])
            sure[word] = likely[read, best[read]]
            before = read
    return [
        _prediction(example, spans, said[begin:end], sure[begin:end])
        for example, spans, begin, end in zip(examples, words, begins.tolist(), ends.tolist(), strict=True)
    ]


def _prediction(example: Example, spans: Spans, said: list[str | None], sure: NDArray[np.float64]) -> Prediction:
    read = np.array([tag is not None for tag in said], bool)
    text, value = example.texts[0], _bridged(said)
    found: list[Mapping[str, Any]] = []
    for kind, begin, end in sequence_labelling.tags_to_entities(value):
        start, stop = spans[begin][0], spans[end - 1][1]
        score = float(sure[begin:end][read[begin:end]].mean())
        found.append({"kind": kind, "start": start, "end": stop, "text": text[start:stop], "score": score})
    unread = [word for word in np.flatnonzero(~read).tolist() if not text[slice(*spans[word])].isspace()]
    return Prediction(
        tuple(value), float(sure[read].mean()) if read.any() else 0.0, {"entities": found, "unread": unread}
    )


def _bridged(said: Sequence[str | None]) -> list[str]:
    """Words that came to no token are outside, unless the entity before them goes on behind them."""
    found: list[str] = []
    behind: list[str] = [OUTSIDE] * len(said)
    following = OUTSIDE
    for word in range(len(said) - 1, -1, -1):
        behind[word] = following = said[word] or following
    for word, tag in enumerate(said):
        if tag is None:
            before = found[-1] if found else OUTSIDE
            tag = behind[word] if behind[word] == _goes_on(before) else OUTSIDE
        found.append(tag)
    return found


def _goes_on(tag: str) -> str:
    """The tag with which an entity goes on behind this one."""
    return f"I{tag[1:]}" if tag[0] == "B" else tag
