"""The methods of a predictor that use a head: classification, regression, question answering and others.

Texts are encoded and predictions decoded by the code of the tasks. Texts that are too long are read in windows.
N texts, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import product
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.data.windows import token_windows
from bertsmith.errors import BertsmithError
from bertsmith.inference.deadline import current_deadline
from bertsmith.inference.forward import LogitsQuery, ModelInput, TextModel, check_top_k, require_pipeline
from bertsmith.inference.predictions import Answer, Choice, Label, Predictions
from bertsmith.objectives.objective import Pipeline
from bertsmith.tasks.multi_label import MultiLabelTask
from bertsmith.tasks.qa_windows import QAConfig
from bertsmith.tasks.question_answering import QuestionAnsweringTask, ScoringRules
from bertsmith.tasks.task import Example, Features, Prediction, Task, truncated_examples
from bertsmith.tasks.text_tasks import (
    ClassificationTask,
    MultipleChoiceTask,
    RegressionTask,
    TextTask,
    encode_texts,
)
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded

OVERLAP = 64  # minimum number of tokens that neighbouring windows share
LABEL_PIPELINES: tuple[Pipeline, ...] = ("text-classification", "multi-label-classification")
TEXT_PIPELINES: tuple[Pipeline, ...] = (*LABEL_PIPELINES, "text-regression")
ANSWER_FIELDS = {"answer": "text", "score": "probability", "start": "start", "end": "end"}

Pair: TypeAlias = tuple[str, str]
TextOrWords: TypeAlias = str | Sequence[str]  # a list of words is a text that is tokenized already
Texts: TypeAlias = (
    Iterable[str] | Iterable[Pair] | Iterable[Sequence[str]]
)  # also pandas Series, Arrow and numpy arrays


class TextPipelines(TextModel):
    """The pipelines of `Predictor`."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the classification head, in the order of `predict_proba`; empty without such a head."""
        name = self.model.head_for(*LABEL_PIPELINES, "token-classification")
        head: Any = self.model.objectives[name] if name else None
        return tuple(head.config.labels) if head else ()

    @overload
    def predict(self, texts: str | Pair, *, top_k: Literal[1] = 1) -> Label: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, texts: str | Pair, *, top_k: int) -> Predictions[Label]: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, texts: Texts, *, top_k: Literal[1] = 1) -> Predictions[Label]: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, texts: Texts, *, top_k: int) -> Predictions[Predictions[Label]]: ...

    def predict(self, texts: Any, *, top_k: int = 1) -> Any:
        """The label of each text, `{"label", "score"}`, or the value of a regression model, `{"score"}`.

        A string, or a tuple of two strings (a pair), gives one result. A list, a generator, a pandas Series or an array
        of strings or pairs gives a list. With `top_k` over 1 each result is a list of labels, the most likely first. A
        multi-label model gives every label with a probability of its own, or the `top_k`, in this order; `predicted`
        marks those above the label's threshold: 0.5, or the best on the dev examples of the model's fine-tuning. Texts
        that are too long are read in overlapping windows whose logits are averaged; the result then has `windows`,
        their number.
        """
        check_top_k(top_k)
        task = self._text_task()
        inputs, single = as_texts(texts)
        results: list[Any] = []
        for prediction, windows in zip(*self._predict_texts(inputs, task), strict=True):
            if isinstance(task, RegressionTask):
                results.append(_with_windows({"score": prediction.value}, windows))
                continue
            best = sorted(prediction.detail["probabilities"].items(), key=lambda item: -item[1])
            labels = Predictions(_with_windows({"label": label, "score": score}, windows) for label, score in best)
            if several := isinstance(task, MultiLabelTask):
                labels = Predictions({**one, "predicted": one["label"] in prediction.value} for one in labels)
            every = top_k == 1 and several
            results.append(labels if every else labels[0] if top_k == 1 else Predictions(labels[:top_k]))
        return results[0] if single else Predictions(results)

    def predict_proba(self, texts: str | Pair | Texts) -> NDArray[np.float64]:
        """The probabilities of each text or pair, in the order of `labels` [N, K]; windows as in `predict`."""
        require_pipeline(self.model, *LABEL_PIPELINES)
        task = self._text_task()
        assert isinstance(task, ClassificationTask)
        predictions, _ = self._predict_texts(as_texts(texts)[0], task)
        values = [list(prediction.detail["probabilities"].values()) for prediction in predictions]
        return np.array(values, np.float64).reshape(-1, len(task.labels))

    def score_pairs(self, query: str, documents: Sequence[str], *, positive: str) -> list[dict[str, Any]]:
        """The score of each document as the second text of a pair: the regression value, or p(positive label)."""
        task = self._text_task(positive=positive)
        if task.texts == 1:
            raise BertsmithError(
                "the model was fine-tuned on single texts and cannot score pairs of a query and a text: use a model "
                "fine-tuned on pairs, or rank by embeddings with ignore_heads=True (--ignore-heads)"
            )
        if isinstance(task, ClassificationTask) and not task.positive:
            raise BertsmithError(
                f"this model has {len(task.labels)} labels ({', '.join(task.labels)}): "
                "name the label whose probability is the score as positive (--positive LABEL)"
            )
        predictions, windows = self._predict_texts([(query, document) for document in documents], task)
        scores = [
            one.detail["probabilities"][task.positive] if isinstance(task, ClassificationTask) else one.value
            for one in predictions
        ]
        return [_with_windows({"score": score}, count) for score, count in zip(scores, windows, strict=True)]

    def next_sentence(self, first: str, second: str) -> dict[str, Any]:
        """How the second text relates to the first: the probabilities of both classes, `objective` and `truncated`.

        `objective` names the head. next_sentence (BERT): does the second text follow the first, `is_next` or
        `not_next`? sentence_order (ALBERT): are two texts that belong together `in_order` or `swapped`?
        """
        name = require_pipeline(self.model, "next-sentence")
        self.check_texts(first, second)
        row = self.tokenizer.frame(*map(self.tokenizer.encode, (first, second)), max_length=self.max_length)
        (logits,) = self.backend.run(LogitsQuery(name), [ModelInput((row,))])
        head: Any = self.model.objectives[name]
        probabilities = dict(zip(head.class_names, torch.from_numpy(logits).softmax(-1).tolist(), strict=True))
        return {"objective": name, **probabilities, "truncated": any(row.truncated)}

    @overload
    def answer(  # type: ignore[overload-overlap]
        self, question: str, context: str, *, top_k: Literal[1] = 1, no_answer: float | None = None
    ) -> Answer: ...
    @overload
    def answer(
        self, question: str, context: str, *, top_k: int, no_answer: float | None = None
    ) -> Predictions[Answer]: ...

    def answer(self, question: str, context: str, *, top_k: int = 1, no_answer: float | None = None) -> Any:
        """The span of the context that answers, `{"answer", "score", "start", "end"}`; a list if `top_k` is over 1.

        Answers are extended to full words; in Korean they may end before a particle. The score is the probability among
        the best spans. Contexts of any length are read in windows; `truncated` marks a question that was too long. With
        `no_answer`, the answer is "" if the no-answer score exceeds the best span's by more than this threshold. By
        default a model trained with unanswerable questions uses its best threshold on the dev set; other models always
        answer.
        """
        name = require_pipeline(self.model, "question-answering")
        check_top_k(top_k)
        if no_answer is None:
            head: Any = self.model.objectives[name]
            no_answer = head.config.no_answer
        defaults = QAConfig()
        length = min(defaults.max_length, self.max_length)
        settings = QAConfig(
            max_length=length,
            stride=min(defaults.stride, max(length // 3, 1)),  # windows of short rows overlap too
            n_best=max(defaults.n_best, top_k),
            no_answer=0.0 if no_answer is None else no_answer,
        )
        rules: ScoringRules = "1.1" if no_answer is None else "2.0"
        task = QuestionAnsweringTask("answer", config=settings, rules=rules, whole_words=True)
        task.objective = name
        example = Example(id="0", texts=(question, context))
        (prediction,), truncated = self._predict_examples(task, [example], length=length)
        best = sorted(prediction.detail["answers"], key=lambda one: one["text"] != prediction.value)  # the chosen first
        results = [one | truncated for one in _renamed(best[:top_k], ANSWER_FIELDS)]
        results = results or [{"answer": "", "score": 0.0, "start": 0, "end": 0}]  # the context has no tokens
        return results[0] if top_k == 1 else Predictions(results)

    def choose(self, question: str, choices: Sequence[str]) -> Choice:
        """The most likely of several choices: `{"choice", "index", "score", "probabilities"}`.

        `truncated` is added if a choice was longer than the model's maximum length.
        """
        name = require_pipeline(self.model, "multiple-choice")
        task = MultipleChoiceTask(name)
        task.objective = name
        example = Example(id="0", texts=(question, *choices), source="this question")
        task.check("test", [example])
        (prediction,), truncated = self._predict_examples(task, [example], length=self.max_length)
        result: Any = {"choice": prediction.detail["choice"], "index": prediction.value, "score": prediction.score}
        chosen: Choice = result | {"probabilities": prediction.detail["probabilities"]} | truncated
        return chosen

    def _text_task(self, *, positive: str = "") -> ClassificationTask | RegressionTask:
        """The task of the model's text-level head."""
        name = require_pipeline(self.model, *TEXT_PIPELINES)
        head: Any = self.model.objectives[name]
        task: ClassificationTask | RegressionTask
        if head.pipeline == "text-regression":
            task = RegressionTask(name)
        else:
            kind = MultiLabelTask if head.pipeline == "multi-label-classification" else ClassificationTask
            task = kind(name, labels=head.config.labels, positive=positive)
        task.objective = name
        task.use_head_config(head.config)
        return task

    def _predict_texts(
        self, texts: Sequence[tuple[str, ...]], task: TextTask
    ) -> tuple[list[Prediction], tuple[int, ...]]:
        """A prediction for each text or pair, from the mean logits of its windows, and its number of windows."""
        self.check_texts(*(text for one in texts for text in one))
        encoded = encode_texts((text for one in texts for text in one), self.tokenizer)
        features: list[Features] = []
        for index, parts in enumerate(texts):
            if problem := task.text_count_error(len(parts)):
                advice = "pass a pair (--second TEXT)" if len(parts) == 1 else "pass one text"
                raise BertsmithError(f"text {index}: {problem}: {advice}")
            for window in text_windows([encoded[text] for text in parts], self.tokenizer, length=self.max_length):
                orders = [window, window[::-1]] if task.both_orders else [window]
                rows = tuple(self.tokenizer.frame(*order, max_length=self.max_length) for order in orders)
                features.append(Features(rows=rows, example_index=index))
            current_deadline().check(len(features) * self.max_length if len(features) > len(texts) else 0)
        logits: list[list[NDArray[np.float32]]] = [[] for _ in texts]
        for one, logits_K in zip(features, self.logits(features, task.objective), strict=True):
            logits[one.example_index].append(logits_K)
        examples = [Example(id=str(index), texts=one) for index, one in enumerate(texts)]
        merged = [Features(rows=(), example_index=index) for index in range(len(texts))]
        means = [np.stack(windows).mean(axis=0) for windows in logits]
        return task.decode(examples, merged, means), tuple(map(len, logits))

    def _predict_examples(
        self, task: Task, examples: Sequence[Example], *, length: int
    ) -> tuple[list[Prediction], dict[str, bool]]:
        """A prediction for each example, and `truncated` for the results if an example was truncated."""
        self.check_texts(*(text for example in examples for text in example.texts))
        features = task.rows(examples, self.tokenizer, max_length=length)
        predictions = task.decode(examples, features, self.logits(features, task.objective))
        return predictions, {"truncated": True} if truncated_examples(features) else {}


def _with_windows(result: dict[str, Any], windows: int) -> dict[str, Any]:
    """The result of one text, with its number of windows if there are several."""
    return result | ({"windows": windows} if windows > 1 else {})


def _renamed(spans: Sequence[Any], fields: dict[str, str]) -> list[dict[str, Any]]:
    return [{name: span[field] for name, field in fields.items()} for span in spans]


def as_texts(inputs: Any) -> tuple[list[tuple[str, ...]], bool]:
    """The inputs as tuples of one or two texts, and whether it was a single one: a string, or a tuple of two."""
    single = isinstance(inputs, str) or (isinstance(inputs, tuple) and [*map(type, inputs)] == [str, str])
    listed = [inputs] if single else as_list(inputs)
    texts = [tuple(one) if isinstance(one, tuple | list) else (one,) for one in listed]
    for index, one in enumerate(texts):
        if len(one) not in (1, 2) or not all(isinstance(text, str) for text in one):
            raise BertsmithError(
                f"text {index} is {_shown(listed[index])}: it must be a string, or a tuple or list of two strings"
            )
    return texts, single


def as_list(inputs: Any) -> list[Any]:
    """The items of a list, a generator, a pandas Series, or an Arrow or numpy array; an error for other types."""
    if type(inputs) is list:
        return list(inputs)
    if isinstance(inputs, str | bytes | Mapping | Set) or hasattr(inputs, "columns") or not hasattr(inputs, "__iter__"):
        kind = "a table: pass one of its columns" if hasattr(inputs, "columns") else f"{_shown(inputs)}: pass a list"
        raise BertsmithError(f"the texts are {kind} of strings")
    convert = getattr(inputs, "to_pylist", None) or getattr(inputs, "tolist", None)
    return list(convert() if convert else inputs)


def string_list(texts: Any) -> list[str]:
    """The texts of a string or of `as_list`; an error for an item that is not a string."""
    listed = [texts] if isinstance(texts, str) else as_list(texts)
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise BertsmithError(f"text {index} is {_shown(text)}: it must be a string")
    return listed


def text_list(texts: Any) -> list[str]:
    """The texts of `string_list`; a list of words, a text that is tokenized already, is its words joined by spaces."""
    listed = [texts] if isinstance(texts, str) else as_list(texts)
    words = {index: _checked_words(one, index) for index, one in enumerate(listed) if is_word_list(one)}
    return string_list([" ".join(words[index]) if index in words else one for index, one in enumerate(listed)])


def texts_or_ids(texts: Any) -> list[Any]:
    """The texts of `text_list`, or lists of token ids."""
    listed = as_list(texts)
    as_ids = (not isinstance(one, str) and isinstance(one, Sequence | np.ndarray) for one in listed)
    has_words = any(is_word_list(one) and len(one) for one in listed)
    return listed if listed and all(as_ids) and not has_words else text_list(listed)


def is_word_list(text: Any) -> bool:
    """Whether a text is a list of words, possibly empty."""
    return isinstance(text, list | tuple | np.ndarray) and (not len(text) or any(isinstance(one, str) for one in text))


def _checked_words(words: Sequence[Any], index: int) -> list[str]:
    """The words of text `index`; an error for one that is empty or has white space."""
    for number, word in enumerate(words):
        if not isinstance(word, str) or word.split() != [word]:
            found = f"text {index}, word {number} is {_shown(word)}"
            raise BertsmithError(f"{found}: a word of a tokenized text must be a string without white space")
    return list(words)


def _shown(value: Any) -> str:
    """A value of the wrong type, for an error message."""
    if value is None or isinstance(value, int | float):
        return str(value)
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:60] + '…'}"


def text_windows(texts: Sequence[Encoded], tokenizer: Tokenizer, *, length: int) -> list[tuple[Encoded, ...]]:
    """The text or pair itself if it fits into a row, otherwise windows of it. No token is truncated.

    The shorter text of a pair is repeated in every row as long as it takes no more than half of a row. If both are
    longer, every window of the first is paired with every window of the second.
    """
    frame = tokenizer.frame_ids.single if len(texts) == 1 else tokenizer.frame_ids.pair
    size = length - sum(isinstance(part, int) for part in frame)
    if size < 2:
        raise BertsmithError(f"a maximum length of {length} leaves no tokens for the text beside the special tokens")
    sizes = _window_sizes(list(map(len, texts)), size)
    windowed = [_windows(text, size=own) for text, own in zip(texts, sizes, strict=True)]
    count = math.prod(map(len, windowed))  # of two long texts the square
    current_deadline().check(count * length if count > 1 else 0)
    return list(product(*windowed))


def _window_sizes(lengths: list[int], size: int) -> list[int]:
    """The number of tokens of each text in a row."""
    if len(lengths) == 1 or sum(lengths) <= size:
        return [size] * len(lengths)
    short = min(min(lengths), size // 2)
    return [short, size - short] if lengths[0] <= lengths[1] else [size - short, short]


def _windows(text: Encoded, *, size: int) -> list[Encoded]:
    starts = [start for start, _, _ in token_windows(len(text), size=size, overlap=OVERLAP)]
    return [text.part(start, start + size) for start in starts]
