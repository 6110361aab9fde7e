"""Labels and numbers for whole texts and pairs of any length: a text that is too long is read in windows.

N texts, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError
from bertsmith.inference.asking import TextModel, check_top_k, predict_logits, require_head
from bertsmith.tasks.tagged_text import token_windows
from bertsmith.tasks.task import Example, Features, Prediction
from bertsmith.tasks.text_tasks import ClassificationTask, RegressionTask, TextTask, encode_texts
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded, Row

OVERLAP = 64  # tokens that neighbouring windows share at least
HEADS = ("classify", "regress")

Text = str | tuple[str, str]  # one text, or a pair


@dataclass(frozen=True)
class Probabilities:
    """How likely each label is for each text."""

    values: NDArray[np.float64]  # [N, K]
    labels: tuple[str, ...]  # [K]
    windows: tuple[int, ...]  # [N] in how many windows each text was read


@dataclass(frozen=True)
class Judged:
    """What a model says of whole texts."""

    predictions: list[Prediction]
    windows: tuple[int, ...]

    def told(self, number: int, result: dict[str, Any]) -> dict[str, Any]:
        """A result about one text, with the number of its windows where there were several."""
        return result | ({"windows": self.windows[number]} if self.windows[number] > 1 else {})


def as_texts(given: Any) -> tuple[list[tuple[str, ...]], bool]:
    """What was given as texts or pairs, and whether it was only one: a string, or a tuple of two."""
    alone = isinstance(given, str) or (isinstance(given, tuple) and [*map(type, given)] == [str, str])
    found = [tuple(one) if isinstance(one, tuple | list) else (one,) for one in ([given] if alone else given)]
    for number, texts in enumerate(found):
        if len(texts) > 2 or not texts or not all(isinstance(text, str) for text in texts):
            raise BertsmithError(f"text {number} is neither a string nor a pair of strings: {texts!r:.80}")
    return found, alone


def rows_of(texts: Sequence[Encoded], tokenizer: Tokenizer, *, length: int) -> list[Row]:
    """One row where everything fits, otherwise a row for each window.

    Of a pair the shorter text stays whole as long as it takes no more than half of a row; where both are longer, every
    window of the one stands beside every window of the other. So every token is read, and nothing is cut.
    """
    parts = tokenizer.frame_parts.single if len(texts) == 1 else tokenizer.frame_parts.pair
    room = length - sum(isinstance(part, int) for part in parts)
    if room < 2:
        raise BertsmithError(f"rows of {length} places have no room for text between the special tokens")
    windowed = [_parts(text, room=own) for text, own in zip(texts, _rooms(list(map(len, texts)), room), strict=True)]
    return [tokenizer.frame(*some, length=length) for some in product(*windowed)]


def _rooms(sizes: list[int], room: int) -> list[int]:
    """How many tokens of each text a row holds."""
    if len(sizes) == 1 or sum(sizes) <= room:
        return [room] * len(sizes)
    least = min(min(sizes), room // 2)
    return [least, room - least] if sizes[0] <= sizes[1] else [room - least, least]


def _parts(text: Encoded, *, room: int) -> list[Encoded]:
    begins = [begin for begin, _, _ in token_windows(len(text), size=room, overlap=OVERLAP)]
    return [
        Encoded(text.ids[begin : begin + room], text.offsets[begin : begin + room], text.words[begin : begin + room])
        for begin in begins
    ]


def judge(asker: TextModel, texts: Sequence[tuple[str, ...]], task: TextTask) -> Judged:
    """A prediction for each text; that of several windows is read from the mean of their logits."""
    encoded = encode_texts((text for one in texts for text in one), asker.tokenizer)
    asked = [
        Features(rows=(row,), example_index=number)
        for number, one in enumerate(texts)
        for row in rows_of([encoded[text] for text in one], asker.tokenizer, length=asker.max_length)
    ]
    logits: list[list[NDArray[np.float32]]] = [[] for _ in texts]
    for one, answer in zip(asked, predict_logits(asker, asked, task.objective), strict=True):
        logits[one.example_index].append(answer)
    examples = [Example(id=str(number), texts=one) for number, one in enumerate(texts)]
    whole = [Features(rows=(), example_index=number) for number in range(len(texts))]
    means = [np.stack(some).mean(axis=0) for some in logits]
    return Judged(task.decode(examples, whole, means), tuple(map(len, logits)))


def task_of(asker: TextModel, *, positive: str = "") -> ClassificationTask | RegressionTask:
    """The task that the model's head was made for."""
    name = require_head(asker.model, *HEADS)
    if name == "regress":
        return RegressionTask("regress", files={}, read=_no_files)
    head: Any = asker.model.objectives[name]
    return ClassificationTask("classify", files={}, read=_no_files, labels=head.config.labels, positive=positive)


def _no_files(path: Any, split: str) -> list[Example]:
    raise AssertionError("texts are given, not read from files")


def predict(asker: TextModel, given: Any, *, top_k: int) -> list[Any] | dict[str, Any]:
    """See `Predictor.predict`."""
    check_top_k(top_k)
    task = task_of(asker)
    texts, alone = as_texts(given)
    judged = judge(asker, texts, task)
    found: list[Any] = []
    for number, prediction in enumerate(judged.predictions):
        if isinstance(task, RegressionTask):
            found.append(judged.told(number, {"score": prediction.value}))
            continue
        shares = sorted(prediction.detail["probabilities"].items(), key=lambda item: -item[1])[:top_k]
        results = [judged.told(number, {"label": label, "score": share}) for label, share in shares]
        found.append(results[0] if top_k == 1 else results)
    return found[0] if alone else found


def probabilities(asker: TextModel, given: Any) -> Probabilities:
    """See `Predictor.predict_proba`."""
    require_head(asker.model, "classify")
    task = task_of(asker)
    assert isinstance(task, ClassificationTask)
    judged = judge(asker, as_texts(given)[0], task)
    values = [list(prediction.detail["probabilities"].values()) for prediction in judged.predictions]
    return Probabilities(np.array(values, np.float64).reshape(-1, len(task.labels)), task.labels, judged.windows)


def pair_scores(asker: TextModel, query: str, documents: Sequence[str], *, positive: str) -> list[dict[str, Any]]:
    """What each document scores beside a query: the number, or the probability of the positive label."""
    task = task_of(asker, positive=positive)
    if isinstance(task, ClassificationTask) and not task.positive:
        raise BertsmithError(
            f"this model has {len(task.labels)} labels ({', '.join(task.labels)}): name the one that ranks, positive=…"
        )
    judged = judge(asker, [(query, document) for document in documents], task)
    scores = [
        one.detail["probabilities"][task.positive] if isinstance(task, ClassificationTask) else one.value
        for one in judged.predictions
    ]
    return [judged.told(number, {"score": score}) for number, score in enumerate(scores)]
