"""Base classes of tasks over full texts: classification, regression and multiple choice."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError, DataError, DataWarning
from bertsmith.metrics import classification, confidence, regression
from bertsmith.metrics.confidence import ConfidenceInterval
from bertsmith.tasks.tables import join_names
from bertsmith.tasks.task import Case, Dataset, Example, Features, LabelTask, Prediction, Task, gold_values
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded, Row

ENCODE_BATCH = 4096  # texts per call of the tokenizer: bounds its memory
MAX_CHOICES = 100  # of one question
METRICS: dict[str, Callable[[NDArray[np.int64]], NDArray[np.float64]]] = {
    "accuracy": classification.accuracy_from_confusion,
    "macro_f1": classification.macro_f1_from_confusion,
    "matthews": classification.matthews_from_confusion,
}
CORRELATIONS = {"pearson": regression.batched_pearson, "spearman": regression.batched_spearman}
_INTEGER = re.compile(r"[+-]?\d+")
SEPARATORS = "|;,"  # between several labels in one cell
_FEW_ROWS = 20  # with fewer rows every label may differ


class TextTask(Task):
    """A task whose examples are one, two or more texts, with one `Features` per example."""

    both_orders: bool = False  # two rows per example, one for each order of its texts
    texts: int | None = None  # of each example: 1, 2 (a pair), or None if it is unknown

    def head_config(self) -> dict[str, Any]:
        counts = {len(example.texts) for example in self.examples("train")} if self.has_split("train") else set()
        return super().head_config() | ({"texts": counts.pop()} if counts in ({1}, {2}) else {})

    def use_head_config(self, config: Any) -> None:
        """Whether the head reads single texts or pairs, and both orders of a pair."""
        self.both_orders, self.texts = getattr(config, "both_orders", False), getattr(config, "texts", None)

    def text_count_error(self, count: int) -> str:
        """What is wrong with an example of so many texts; empty if nothing is."""
        if count == (expected := 2 if self.both_orders else self.texts) or expected is None:
            return ""
        if count == 1:
            return "the model was fine-tuned on pairs of texts, and here is one text"
        return "the model was fine-tuned on single texts, and here is a pair"

    def check(self, split: str, examples: Sequence[Example]) -> None:
        if split != "test":
            gold_values(examples, f"no label, but every row of {split} needs one")

    def target(self, example: Example) -> Any:
        """The label as the objective takes it; None without one."""
        return example.gold

    def frame(
        self, example: Example, encoded: Mapping[str, Encoded], tokenizer: Tokenizer, max_length: int
    ) -> list[Row]:
        """The rows of an example: one row with all its texts, or one for each order of a pair."""
        texts = [encoded[text] for text in example.texts]
        if problem := self.text_count_error(len(texts)):
            problem += ": use examples like those of train"
            if self.both_orders:
                problem = "head.both_orders=true needs two texts, and here is one: set head.both_orders=false"
            raise DataError(f"{example.source}: {problem}" if example.source else problem)
        orders = [texts, texts[::-1]] if self.both_orders else [texts]
        return [tokenizer.frame(*order, max_length=max_length) for order in orders]

    def rows(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool = False
    ) -> list[Features]:
        targets = [self.target(example) for example in examples]
        chosen = [index for index, target in enumerate(targets) if target is not None or not training]
        encoded = encode_texts((text for index in chosen for text in examples[index].texts), tokenizer)
        return [
            Features(tuple(self.frame(examples[index], encoded, tokenizer, max_length)), index, targets[index])
            for index in chosen
        ]

    def output(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities, or the number, from the logits of one example."""
        return softmax(logits)

    def prediction(self, example: Example, output: NDArray[np.float64]) -> Prediction:
        """The prediction from the output for one example."""
        raise NotImplementedError

    def outputs(
        self, examples: Sequence[Example], features: Sequence[Features], logits: Sequence[NDArray[np.float32]]
    ) -> list[NDArray[np.float64]]:
        outputs: dict[int, NDArray[np.float64]] = {}
        for one, values in zip(features, logits, strict=True):
            assert one.example_index not in outputs, "an example has two features"
            outputs[one.example_index] = self.output(np.asarray(values, np.float64).reshape(-1))
        assert len(outputs) == len(examples), "an example has no features"
        return [outputs[index] for index in range(len(examples))]

    def predictions(self, examples: Sequence[Example], outputs: Sequence[NDArray[np.float64]]) -> list[Prediction]:
        return [self.prediction(example, output) for example, output in zip(examples, outputs, strict=True)]

    def case(self, index: int, example: Example, prediction: Prediction) -> Case:
        """The case of one example."""
        raise NotImplementedError

    def cases(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> list[Case]:
        return list(map(self.case, range(len(examples)), examples, predictions))


class ClassificationTask(TextTask, LabelTask):
    """A text or a pair gets one label. Without `labels` they are those of train, sorted."""

    objective = "classify"
    interval_metrics = (*METRICS, "f1")

    def __init__(
        self,
        name: str,
        dataset: Dataset | None = None,
        *,
        labels: Sequence[str] = (),
        main_metric: str = "accuracy",
        metrics: Sequence[str] = ("accuracy",),
        positive: str = "",
    ) -> None:
        super().__init__(name, dataset)
        self.main_metric = main_metric
        self.metrics = metrics
        self._positive = positive
        self._labels = tuple(labels)
        if labels:
            self._check_settings()

    @property
    def positive(self) -> str:
        """The label of the F1 score: the given one, the second of two, or "" if there are more."""
        return self._positive or (self.labels[1] if len(self.labels) == 2 else "")

    def check(self, split: str, examples: Sequence[Example]) -> None:
        super().check(split, examples)
        if split == "train" and not self._labels:
            self._labels = _train_labels(self.name, examples)
            self._check_settings()
            return
        if labelled := [example for example in examples if example.gold is not None]:
            check_known_labels([(example.source, example.gold) for example in labelled], self.labels)

    def target(self, example: Example) -> int | None:
        return None if example.gold is None else self.labels.index(example.gold)

    def prediction(self, example: Example, output: NDArray[np.float64]) -> Prediction:
        assert len(output) == len(self.labels), f"{len(output)} logits for {len(self.labels)} labels"
        best = int(output.argmax())
        by_label = dict(zip(self.labels, output.tolist(), strict=True))
        return Prediction(self.labels[best], float(output[best]), {"probabilities": by_label})

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        table = classification.confusion_matrix(*gold_and_predicted(examples, predictions), labels=self.labels).counts
        return {name: float(self._metric(name)(table)) for name in self.metrics if name != "f1" or self.positive}

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        gold, predicted = gold_and_predicted(examples, predictions)
        if self.main_metric == "accuracy":
            return confidence.wilson(sum(a == b for a, b in zip(gold, predicted, strict=True)), len(gold))
        if self.main_metric != "f1":
            return confidence.bootstrap_classification(gold, predicted, self._metric(self.main_metric))
        a, b = (np.array([label == self.positive for label in side]) for side in (gold, predicted))
        counts = np.stack([a & b, b, a], axis=1)
        return confidence.bootstrap(counts, lambda sums: classification.f1_from_counts(sums[..., :3]))

    def case(self, index: int, example: Example, prediction: Prediction) -> Case:
        cell = (example.gold, prediction.value)
        return Case.of(index, example, *cell, prediction.score, cell=cell)

    def confusion_labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.labels, self.labels

    def baseline(self, examples: Sequence[Example]) -> tuple[str, list[Prediction]]:
        most = Counter(example.gold for example in examples).most_common(1)[0][0]
        return f"always {most}", [Prediction(most)] * len(examples)

    def _metric(self, name: str) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
        if name == "f1":
            return partial(classification.label_f1_from_confusion, index=self.labels.index(self.positive))
        return METRICS[name]

    def _check_settings(self) -> None:
        if self._positive and self._positive not in self._labels:
            near = did_you_mean(self._positive, self._labels, "task.positive=")
            raise ConfigError(
                f"task.positive={self._positive} is not one of the labels ({join_names(self._labels)}){near}"
            )
        if self.main_metric == "f1" and not self.positive:
            raise ConfigError(f"main_metric=f1 needs one of the {len(self._labels)} labels: set task.positive=LABEL")


class RegressionTask(TextTask):
    """A text or a pair gets a number. `threshold`: numbers from there on are a class, whose F1 is a metric too."""

    objective = "regress"
    interval_metrics = tuple(CORRELATIONS)
    has_probabilities = False

    def __init__(
        self, name: str, dataset: Dataset | None = None, *, main_metric: str = "pearson", threshold: float | None = None
    ) -> None:
        super().__init__(name, dataset)
        self.main_metric = main_metric
        self.threshold = threshold

    def output(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return logits

    def prediction(self, example: Example, output: NDArray[np.float64]) -> Prediction:
        (number,) = output.tolist()
        return Prediction(number)

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        sides = gold_and_predicted(examples, predictions)
        metrics = (regression.pearson, regression.spearman, regression.mean_squared_error)
        scores = {metric.__name__: metric(*sides) for metric in metrics}
        if self.threshold is not None:
            a, b = ([int(number >= self.threshold) for number in side] for side in sides)
            scores["f1"] = classification.f1(a, b) if any(a) or any(b) else 0.0
        return scores

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        return confidence.bootstrap_regression(
            *gold_and_predicted(examples, predictions), CORRELATIONS[self.main_metric]
        )

    def case(self, index: int, example: Example, prediction: Prediction) -> Case:
        error = abs(example.gold - prediction.value)
        return Case.of(index, example, f"{example.gold:g}", f"{prediction.value:.3f}", error, correct=error == 0)

    def baseline(self, examples: Sequence[Example]) -> tuple[str, list[Prediction]]:
        mean = float(np.mean([example.gold for example in examples]))
        return f"always the mean, {mean:.3g}", [Prediction(mean)] * len(examples)


class MultipleChoiceTask(TextTask):
    """A question with any number of choices: `texts` are the question and then the choices."""

    objective = "choose"
    main_metric = "accuracy"

    def check(self, split: str, examples: Sequence[Example]) -> None:
        super().check(split, examples)
        for example in examples:
            choices = len(example.texts) - 1
            if not 2 <= choices <= MAX_CHOICES:
                raise DataError(f"{example.source}: {choices} choices: a question needs 2 to {MAX_CHOICES}")
            if example.gold is not None and not 0 <= example.gold < choices:
                raise DataError(f"{example.source}: the label is choice {example.gold}, but there are {choices}")

    def frame(
        self, example: Example, encoded: Mapping[str, Encoded], tokenizer: Tokenizer, max_length: int
    ) -> list[Row]:
        question, *choices = (encoded[text] for text in example.texts)
        return [tokenizer.frame(question, choice, max_length=max_length) for choice in choices]

    def prediction(self, example: Example, output: NDArray[np.float64]) -> Prediction:
        assert len(output) == len(example.texts) - 1, f"{len(output)} logits for {len(example.texts) - 1} choices"
        best = int(output.argmax())
        detail = {"choice": example.texts[best + 1], "probabilities": output.tolist()}
        return Prediction(best, float(output[best]), detail)

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        return {"accuracy": self.interval(examples, predictions).value}

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        gold, predicted = gold_and_predicted(examples, predictions)
        return confidence.wilson(sum(a == b for a, b in zip(gold, predicted, strict=True)), len(gold))

    def case(self, index: int, example: Example, prediction: Prediction) -> Case:
        gold, value = (f"{choice}: {example.texts[choice + 1]}" for choice in (example.gold, prediction.value))
        return Case.of(index, example, gold, value, prediction.score, correct=example.gold == prediction.value)

    def baseline(self, examples: Sequence[Example]) -> tuple[str, list[Prediction]]:
        return "always the first choice", [Prediction(0)] * len(examples)


def encode_texts(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, Encoded]:
    """Each distinct text, encoded once."""
    distinct = list(dict.fromkeys(texts))
    encoded: dict[str, Encoded] = {}
    for begin in range(0, len(distinct), ENCODE_BATCH):
        some = distinct[begin : begin + ENCODE_BATCH]
        encoded.update(zip(some, tokenizer.encode_batch(some), strict=True))
    return encoded


def gold_and_predicted(examples: Sequence[Example], predictions: Sequence[Prediction]) -> tuple[list[Any], list[Any]]:
    """Gold and predicted values."""
    gold = gold_values(examples, "no label, so the split cannot be scored: score another split")
    return gold, [prediction.value for prediction in predictions]


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of logits [..., C]."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: NDArray[np.float64] = shifted / shifted.sum(axis=-1, keepdims=True)
    return probabilities


def sort_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted labels: integers by value, anything else as text."""
    distinct = set(names)
    if all(_INTEGER.fullmatch(name) for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct))


def benchmark_labels(name: str, own: Sequence[str], given: Sequence[str]) -> Sequence[str]:
    """The labels of a benchmark, in the order of the trained model's labels if they are `given`."""
    if given and sorted(given) != sorted(own):
        raise DataError(f"the model has the labels {join_names(given)}, but {name} has {join_names(own)}")
    return given or own


def check_known_labels(labelled: Iterable[tuple[str, str]], known: Sequence[str]) -> None:
    """Raises a DataError if a label is not a known one; `labelled`: the source of each example and a label of it."""
    sources: dict[str, str] = {}
    for source, label in labelled:
        sources.setdefault(label, source)
    if unknown := [label for label in sources if label not in known]:
        first, *others = unknown
        also = f"; also unknown: {join_names(others)}" if others else ""
        raise DataError(
            f"{sources[first]}: label {first[:40]!r} is not one of the known labels ({join_names(known)})"
            f"{also}{did_you_mean(first, known)}"
        )


def separator_of(labels: Iterable[str]) -> tuple[str, str] | None:
    """The separator of labels such as A|B whose parts are labels of other rows, with the most frequent of them.

    None unless they are at least one row in a hundred.
    """
    counts = Counter(labels)
    for separator in SEPARATORS:
        parts = {label: [part.strip() for part in label.split(separator)] for label in counts if separator in label}
        uses = Counter(part for some in parts.values() for part in set(some))
        several = [
            label
            for label, some in parts.items()
            if any(part in counts for part in some) and all(part in counts or uses[part] > 1 for part in some)
        ]
        if 100 * sum(counts[label] for label in several) >= max(counts.total(), 1):
            return separator, max(several, key=lambda label: counts[label])
    return None


def note_similar_labels(labels: Sequence[str]) -> None:
    """A `DataWarning` for labels that differ only in case or white space."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault("".join(label.split()).casefold(), []).append(label)
    for group in (group for group in groups.values() if len(group) > 1):
        shown = " and ".join(map(repr, group))
        warnings.warn(f"the labels {shown} differ only in case or white space: are they the same?", DataWarning, 2)


def _train_labels(name: str, examples: Sequence[Example]) -> tuple[str, ...]:
    labels = sort_labels(example.gold for example in examples)
    where = examples[0].source.rpartition(":")[0]
    lists = [label for label in labels if label.startswith("[") and label.endswith("]")]
    if several := separator_of(example.gold for example in examples) if not lists else ("", lists[0]):
        setting = f' task.separator="{several[0]}"' if several[0] else ""
        raise DataError(
            f"{where}: labels such as {several[1][:40]!r} look like several labels in one: use the task "
            f"multi_label{setting and ' with' + setting}, or replace the separator in the file"
        )
    note_similar_labels(labels)
    if len(labels) < 2:
        raise DataError(f"{where}: every row has the label {labels[0]!r}: {name} needs at least two labels")
    if len(examples) > _FEW_ROWS and 2 * len(labels) > len(examples):
        raise DataError(
            f"{where}: {len(labels):,} different labels in {len(examples):,} rows, such as {join_names(labels, 3)}: "
            "set task.label=COLUMN to another column, or use the task regression for numbers"
        )
    return labels
