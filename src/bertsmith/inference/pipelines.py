"""Classification, regression, ranking, NER, question answering and multiple choice of texts given as strings.

Texts are encoded and predictions decoded by the code of the tasks. Texts that are too long are read in windows.
N texts, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import TextModel, check_top_k, predict_logits, require_pipeline
from bertsmith.objectives.objective import Pipeline
from bertsmith.tasks.qa_windows import QAConfig
from bertsmith.tasks.question_answering import QuestionAnsweringTask
from bertsmith.tasks.tagged_text import TaggingConfig, Unit, token_windows
from bertsmith.tasks.task import Example, Features, Prediction, Task, truncated_examples
from bertsmith.tasks.text_tasks import ClassificationTask, MultipleChoiceTask, RegressionTask, TextTask, encode_texts
from bertsmith.tasks.token_classification import TokenClassificationTask
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded, Row

OVERLAP = 64  # minimum number of tokens that neighbouring windows share
TEXT_PIPELINES: tuple[Pipeline, ...] = ("text-classification", "text-regression")
UNITS = ("word", "part", "character")


@dataclass(frozen=True)
class Probabilities:
    """Class probabilities of each text."""

    values: NDArray[np.float64]  # [N, K]
    labels: tuple[str, ...]  # [K]
    windows: tuple[int, ...]  # [N] number of windows of each text


@dataclass(frozen=True)
class TextPredictions:
    """Predictions of a text-level head."""

    predictions: list[Prediction]
    windows: tuple[int, ...]  # number of windows of each text

    def with_windows(self, index: int, result: dict[str, Any]) -> dict[str, Any]:
        """The result of one text, with its number of windows if there are several."""
        return result | ({"windows": self.windows[index]} if self.windows[index] > 1 else {})


def predict(model: TextModel, inputs: Any, *, top_k: int) -> list[Any] | dict[str, Any]:
    """See `Predictor.predict`."""
    check_top_k(top_k)
    task = _text_task(model)
    texts, single = as_texts(inputs)
    output = predict_texts(model, texts, task)
    results: list[Any] = []
    for index, prediction in enumerate(output.predictions):
        if isinstance(task, RegressionTask):
            results.append(output.with_windows(index, {"score": prediction.value}))
            continue
        best = sorted(prediction.detail["probabilities"].items(), key=lambda item: -item[1])[:top_k]
        labels = [output.with_windows(index, {"label": label, "score": score}) for label, score in best]
        results.append(labels[0] if top_k == 1 else labels)
    return results[0] if single else results


def predict_proba(model: TextModel, inputs: Any) -> Probabilities:
    """See `Predictor.predict_proba`."""
    require_pipeline(model.model, "text-classification")
    task = _text_task(model)
    assert isinstance(task, ClassificationTask)
    output = predict_texts(model, as_texts(inputs)[0], task)
    values = [list(prediction.detail["probabilities"].values()) for prediction in output.predictions]
    return Probabilities(np.array(values, np.float64).reshape(-1, len(task.labels)), task.labels, output.windows)


def score_pairs(model: TextModel, query: str, documents: Sequence[str], *, positive: str) -> list[dict[str, Any]]:
    """The score of each document as the second text of a pair: the regression value, or p(positive label)."""
    task = _text_task(model, positive=positive)
    if isinstance(task, ClassificationTask) and not task.positive:
        raise BertsmithError(
            f"this model has {len(task.labels)} labels ({', '.join(task.labels)}): "
            "name the label whose probability is the score with positive=..."
        )
    output = predict_texts(model, [(query, document) for document in documents], task)
    scores = [
        one.detail["probabilities"][task.positive] if isinstance(task, ClassificationTask) else one.value
        for one in output.predictions
    ]
    return [output.with_windows(index, {"score": score}) for index, score in enumerate(scores)]


def as_texts(inputs: Any) -> tuple[list[tuple[str, ...]], bool]:
    """The inputs as tuples of one or two texts, and whether it was a single one: a string, or a tuple of two."""
    single = isinstance(inputs, str) or (isinstance(inputs, tuple) and [*map(type, inputs)] == [str, str])
    texts = [tuple(one) if isinstance(one, tuple | list) else (one,) for one in ([inputs] if single else inputs)]
    for index, one in enumerate(texts):
        if len(one) > 2 or not one or not all(isinstance(text, str) for text in one):
            raise BertsmithError(f"input {index} is not a string or a pair of strings: {one!r:.80}")
    return texts, single


def predict_texts(model: TextModel, texts: Sequence[tuple[str, ...]], task: TextTask) -> TextPredictions:
    """A prediction for each text or pair; the logits of several windows are averaged."""
    encoded = encode_texts((text for one in texts for text in one), model.tokenizer)
    features = [
        Features(rows=(row,), example_index=index)
        for index, one in enumerate(texts)
        for row in window_rows([encoded[text] for text in one], model.tokenizer, length=model.max_length)
    ]
    logits: list[list[NDArray[np.float32]]] = [[] for _ in texts]
    for one, logits_K in zip(features, predict_logits(model, features, task.objective), strict=True):
        logits[one.example_index].append(logits_K)
    examples = [Example(id=str(index), texts=one) for index, one in enumerate(texts)]
    merged = [Features(rows=(), example_index=index) for index in range(len(texts))]
    means = [np.stack(windows).mean(axis=0) for windows in logits]
    return TextPredictions(task.decode(examples, merged, means), tuple(map(len, logits)))


def window_rows(texts: Sequence[Encoded], tokenizer: Tokenizer, *, length: int) -> list[Row]:
    """One row if the text or pair fits, otherwise a row for each window. No token is truncated.

    The shorter text of a pair is repeated in every row as long as it takes no more than half of a row. If both are
    longer, every window of the first is paired with every window of the second.
    """
    frame = tokenizer.frame_ids.single if len(texts) == 1 else tokenizer.frame_ids.pair
    size = length - sum(isinstance(part, int) for part in frame)
    if size < 2:
        raise BertsmithError(f"a maximum length of {length} leaves no tokens for the text beside the special tokens")
    sizes = _window_sizes(list(map(len, texts)), size)
    windowed = [_windows(text, size=own) for text, own in zip(texts, sizes, strict=True)]
    return [tokenizer.frame(*parts, max_length=length) for parts in product(*windowed)]


def _window_sizes(lengths: list[int], size: int) -> list[int]:
    """The number of tokens of each text in a row."""
    if len(lengths) == 1 or sum(lengths) <= size:
        return [size] * len(lengths)
    short = min(min(lengths), size // 2)
    return [short, size - short] if lengths[0] <= lengths[1] else [size - short, short]


def _windows(text: Encoded, *, size: int) -> list[Encoded]:
    starts = [start for start, _, _ in token_windows(len(text), size=size, overlap=OVERLAP)]
    return [Encoded(*(part[start : start + size] for part in (text.ids, text.offsets, text.words))) for start in starts]


def _text_task(model: TextModel, *, positive: str = "") -> ClassificationTask | RegressionTask:
    """The task of the model's text-level head."""
    name = require_pipeline(model.model, *TEXT_PIPELINES)
    head: Any = model.model.objectives[name]
    task: ClassificationTask | RegressionTask
    if head.pipeline == "text-regression":
        task = RegressionTask(name)
    else:
        task = ClassificationTask(name, labels=head.config.labels, positive=positive)
    task.objective = name
    return task


def _predict_examples(
    model: TextModel, task: Task, examples: Sequence[Example], *, length: int
) -> tuple[list[Prediction], int]:
    """A prediction for each example, and the number of truncated examples."""
    features = task.rows(examples, model.tokenizer, max_length=length)
    logits = predict_logits(model, features, task.objective)
    return task.decode(examples, features, logits), len(truncated_examples(features))


def ner(model: TextModel, texts: Sequence[str], *, unit: Unit) -> list[list[dict[str, Any]]]:
    """See `Predictor.ner`."""
    name = require_pipeline(model.model, "token-classification")
    if unit not in UNITS:
        raise BertsmithError(f'unit "{unit}" does not exist: choose {", ".join(UNITS)}')
    head: Any = model.model.objectives[name]
    task = TokenClassificationTask("ner", config=TaggingConfig(), labels=head.config.labels, unit=unit)
    task.objective = name
    examples = [Example(id=str(index), texts=(text,)) for index, text in enumerate(texts)]
    predictions, _ = _predict_examples(model, task, examples, length=model.max_length)
    return [[_entity(entity) for entity in prediction.detail["entities"]] for prediction in predictions]


def _entity(entity: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "entity_group": entity["kind"],
        "score": entity["score"],
        "word": entity["text"],
        "start": entity["start"],
        "end": entity["end"],
    }


def answer(
    model: TextModel, question: str, context: str, *, top_k: int, no_answer: float | None
) -> list[dict[str, Any]] | dict[str, Any]:
    """See `Predictor.answer`."""
    name = require_pipeline(model.model, "question-answering")
    check_top_k(top_k)
    if no_answer is None:
        head: Any = model.model.objectives[name]
        no_answer = head.config.no_answer  # the best threshold on the dev set, if trained with unanswerable questions
    defaults = QAConfig()
    length = min(defaults.max_length, model.max_length)
    settings = QAConfig(
        max_length=length,
        stride=min(defaults.stride, max(length // 3, 1)),  # windows of short rows overlap too
        n_best=max(defaults.n_best, top_k),
        no_answer=0.0 if no_answer is None else no_answer,
    )
    task = QuestionAnsweringTask("answer", config=settings, rules="1.1" if no_answer is None else "2.0")
    task.objective = name
    (prediction,), truncated = _predict_examples(
        model, task, [Example(id="0", texts=(question, context))], length=length
    )
    best = sorted(prediction.detail["answers"], key=lambda one: one["text"] != prediction.value)  # the chosen one first
    results = [_answer(one) | ({"truncated": True} if truncated else {}) for one in best[:top_k]]
    results = results or [{"answer": "", "score": 0.0, "start": 0, "end": 0}]  # the context has no tokens
    return results[0] if top_k == 1 else results


def _answer(span: Mapping[str, Any]) -> dict[str, Any]:
    return {"answer": span["text"], "score": span["probability"], "start": span["start"], "end": span["end"]}


def choose(model: TextModel, question: str, choices: Sequence[str]) -> dict[str, Any]:
    """See `Predictor.choose`."""
    name = require_pipeline(model.model, "multiple-choice")
    task = MultipleChoiceTask(name)
    task.objective = name
    example = Example(id="0", texts=(question, *choices), source="this question")
    task.check("test", [example])
    (prediction,), truncated = _predict_examples(model, task, [example], length=model.max_length)
    result = {"choice": prediction.detail["choice"], "index": prediction.value, "score": prediction.score}
    probabilities = {"probabilities": prediction.detail["probabilities"]}
    return result | probabilities | ({"truncated": True} if truncated else {})
