"""What tasks over whole texts share: files by split, examples read once, rows of one or two texts, predictions.

Knows neither what is answered nor how files lie; those are the classes and the families built on it.


Tasks whose answer is one of some labels: their names, probabilities, accuracy, F1, Matthews correlation.

Tasks whose answer is a number: correlations with the right ones, and their mean squared error.

Tasks whose answer is one of the choices that each question brings along."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError, DataError
from bertsmith.metrics.classification import (
    accuracy_from_confusion,
    confusion_matrix,
    f1,
    f1_from_counts,
    label_f1_from_confusion,
    macro_f1_from_confusion,
    matthews_from_confusion,
)
from bertsmith.metrics.confidence import (
    ConfidenceInterval,
    bootstrap,
    bootstrap_classification,
    bootstrap_regression,
    wilson,
)
from bertsmith.metrics.regression import batched_pearson, batched_spearman, mean_squared_error, pearson, spearman
from bertsmith.tasks.tables import listed
from bertsmith.tasks.task import Example, Features, Prediction, Task, missing_split
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded, Row

Read = Callable[[Path, str], list[Example]]  # file, split
Submit = Callable[[Sequence[Example], Sequence[Prediction]], dict[str, bytes]]
AT_ONCE = 4096  # texts that the tokenizer gets in one call: bounds its memory


class TextTask(Task):
    """A task whose examples are one, two or more texts, each example asked in one piece."""

    def __init__(
        self,
        name: str,
        *,
        files: Mapping[str, Sequence[Path]],
        read: Read,
        found: Mapping[str, str] | None = None,
        submit: Submit | None = None,
    ) -> None:
        self.name = name
        self.files = files
        self.detected = {} if found is None else found  # filled by whoever reads, when the files are read
        self._read = read
        self._submit = submit
        self._known: dict[str, list[Example]] = {}

    def has_split(self, split: str) -> bool:
        return split in self.files

    def examples(self, split: str) -> list[Example]:
        if split not in self._known:
            if split not in self.files:
                raise missing_split(self.name, split, {known: paths[0] for known, paths in self.files.items()})
            found = [example for path in self.files[split] for example in self._read(path, split)]
            if split != "test":
                for example in found:
                    if example.gold is None:
                        raise DataError(f"{example.source}: no right answer, which every row of {split} needs")
            self._known[split] = found
            self.check(split, found)
        return list(self._known[split])

    def check(self, split: str, examples: Sequence[Example]) -> None:
        """Raises a DataError where an answer is none of this task's."""

    def target(self, example: Example) -> Any:
        """The right answer as the objective takes it; None where nobody knows."""
        return example.gold

    def framed(self, example: Example, encoded: Mapping[str, Encoded], tokenizer: Tokenizer, length: int) -> list[Row]:
        """The rows of an example: one, of all its texts."""
        return [tokenizer.frame(*(encoded[text] for text in example.texts), max_length=length)]

    def rows(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool = False
    ) -> list[Features]:
        targets = [self.target(example) for example in examples]
        chosen = [number for number, target in enumerate(targets) if target is not None or not training]
        encoded = encode_texts((text for number in chosen for text in examples[number].texts), tokenizer)
        return [
            Features(
                rows=tuple(self.framed(examples[number], encoded, tokenizer, max_length)),
                example_index=number,
                target=targets[number],
            )
            for number in chosen
        ]

    def prediction(self, example: Example, answer: NDArray[np.float64]) -> Prediction:
        """What the logits of one example say."""
        raise NotImplementedError

    def decode(
        self, examples: Sequence[Example], asked: Sequence[Features], answers: Sequence[NDArray[np.float32]]
    ) -> list[Prediction]:
        found: dict[int, Prediction] = {}
        for question, answer in zip(asked, answers, strict=True):
            assert question.example_index not in found, "an example was asked twice"
            example = examples[question.example_index]
            found[question.example_index] = self.prediction(example, np.asarray(answer, np.float64).reshape(-1))
        assert len(found) == len(examples), "every example needs an answer"
        return [found[number] for number in range(len(examples))]

    def submission(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, bytes]:
        return self._submit(examples, predictions) if self._submit else {}


def encode_texts(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, Encoded]:
    """Every text encoded, each once however often it comes."""
    distinct = list(dict.fromkeys(texts))
    found: dict[str, Encoded] = {}
    for begin in range(0, len(distinct), AT_ONCE):
        some = distinct[begin : begin + AT_ONCE]
        found.update(zip(some, tokenizer.encode_batch(some), strict=True))
    return found


def gold_values(examples: Sequence[Example]) -> list[Any]:
    """The right answers; a DataError where there is none to score by."""
    for example in examples:
        if example.gold is None:
            raise DataError(f"{example.source}: no right answer, so that nothing can be scored: score another split")
    return [example.gold for example in examples]


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of logits [..., C]."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    found: NDArray[np.float64] = shifted / shifted.sum(axis=-1, keepdims=True)
    return found


MEASURES: dict[str, Callable[[NDArray[np.int64]], NDArray[np.float64]]] = {
    "accuracy": accuracy_from_confusion,
    "macro_f1": macro_f1_from_confusion,
    "matthews": matthews_from_confusion,
}
_WHOLE = re.compile(r"[+-]?\d+")
_FEW = 20  # rows: in fewer of them every label may well be another


class ClassificationTask(TextTask):
    """A text, or a pair, gets one label. Without `labels` they are those of train, in order."""

    objective = "classify"

    def __init__(
        self,
        name: str,
        *,
        files: Mapping[str, Sequence[Path]],
        read: Read,
        labels: Sequence[str] = (),
        main: str = "accuracy",
        measures: Sequence[str] = ("accuracy",),
        positive: str = "",
        found: Mapping[str, str] | None = None,
        submit: Submit | None = None,
    ) -> None:
        super().__init__(name, files=files, read=read, found=found, submit=submit)
        self.main_metric = main
        self.metrics = measures
        self._positive = positive
        self._labels = tuple(labels)
        if labels:
            self._settle()

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels; their order is that of the classes."""
        if not self._labels:
            if not self.has_split("train"):
                raise DataError(f"{self.name}: labels come from a train file or a trained model: pass --train FILE")
            self.examples("train")
        return self._labels

    @property
    def positive(self) -> str:
        """The label whose F1 counts: the one that was named, the second of two, or "" where there are more."""
        return self._positive or (self.labels[1] if len(self.labels) == 2 else "")

    def head_config(self) -> dict[str, Any]:
        return {"kind": self.objective, "labels": list(self.labels)}

    def check(self, split: str, examples: Sequence[Example]) -> None:
        if split == "train" and not self._labels:
            self._labels = _from_train(self.name, examples)
            self._settle()
            return
        told = [example for example in examples if example.gold is not None]
        known = set(self.labels) if told else set()
        for example in told:
            if example.gold not in known:
                near = did_you_mean(example.gold, self.labels)
                raise DataError(
                    f"{example.source}: label {example.gold[:40]!r} is none of those that are learned "
                    f"({listed(self.labels)}){near}"
                )

    def target(self, example: Example) -> int | None:
        return None if example.gold is None else self.labels.index(example.gold)

    def prediction(self, example: Example, answer: NDArray[np.float64]) -> Prediction:
        assert len(answer) == len(self.labels), f"{len(answer)} logits for {len(self.labels)} labels"
        likely = softmax(answer)
        best = int(likely.argmax())
        shares = dict(zip(self.labels, likely.tolist(), strict=True))
        return Prediction(self.labels[best], float(likely[best]), {"probabilities": shares})

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        gold, said = gold_values(examples), [prediction.value for prediction in predictions]
        table = confusion_matrix(gold, said, labels=self.labels).counts
        return {name: float(self._measure(name)(table)) for name in self.metrics if name != "f1" or self.positive}

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        gold, said = gold_values(examples), [prediction.value for prediction in predictions]
        if self.main_metric == "accuracy":
            return wilson(sum(a == b for a, b in zip(gold, said, strict=True)), len(gold))
        if self.main_metric != "f1":
            return bootstrap_classification(gold, said, self._measure(self.main_metric))
        ours, theirs = (np.array([label == self.positive for label in side]) for side in (gold, said))
        return bootstrap(np.stack([ours & theirs, theirs, ours], axis=1), lambda sums: f1_from_counts(sums[..., :3]))

    def _measure(self, name: str) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
        return (
            partial(label_f1_from_confusion, index=self.labels.index(self.positive)) if name == "f1" else MEASURES[name]
        )

    def _settle(self) -> None:
        """What can be wrong with labels and scores is said before anything is trained."""
        if self._positive and self._positive not in self._labels:
            near = did_you_mean(self._positive, self._labels)
            raise ConfigError(f"positive={self._positive} is none of the labels ({listed(self._labels)}){near}")
        if self.main_metric == "f1" and not self.positive:
            raise ConfigError(f"main=f1 needs to know of which of the {len(self._labels)} labels: name it, positive=…")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Labels in order: whole numbers as numbers, anything else as text."""
    distinct = set(names)
    if all(_WHOLE.fullmatch(name) for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct))


def benchmark_labels(name: str, own: Sequence[str], given: Sequence[str]) -> Sequence[str]:
    """A benchmark's labels in the order of the trained model whose labels are `given`, if there is one."""
    if given and sorted(given) != sorted(own):
        raise DataError(f"this model's labels are {listed(list(given))}, but those of {name} are {listed(list(own))}")
    return given or own


def _from_train(name: str, examples: Sequence[Example]) -> tuple[str, ...]:
    labels = in_order(example.gold for example in examples)
    where = examples[0].source.rpartition(":")[0]
    if len(labels) < 2:
        raise DataError(f"{where}: every row has the label {labels[0]!r}: {name} needs two labels to tell apart")
    if len(examples) > _FEW and 2 * len(labels) > len(examples):
        raise DataError(
            f"{where}: {len(labels):,} different labels in {len(examples):,} rows, such as {listed(labels, 3)}: "
            "name another column with label=COLUMN, or take the task regression for numbers"
        )
    return labels


CORRELATIONS = {"pearson": batched_pearson, "spearman": batched_spearman}


class RegressionTask(TextTask):
    """A text, or a pair, gets a number."""

    objective = "regress"

    def __init__(
        self,
        name: str,
        *,
        files: Mapping[str, Sequence[Path]],
        read: Read,
        main: str = "pearson",
        threshold: float | None = None,
        found: Mapping[str, str] | None = None,
        submit: Submit | None = None,
    ) -> None:
        super().__init__(name, files=files, read=read, found=found, submit=submit)
        self.main_metric = main
        self.threshold = threshold  # where given, numbers from there on are one class, and its F1 is a score too

    def prediction(self, example: Example, answer: NDArray[np.float64]) -> Prediction:
        (number,) = answer.tolist()
        return Prediction(number)

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        gold, said = gold_values(examples), [prediction.value for prediction in predictions]
        scores = {
            "pearson": pearson(gold, said),
            "spearman": spearman(gold, said),
            "mean_squared_error": mean_squared_error(gold, said),
        }
        if self.threshold is not None:
            ours, theirs = ([int(number >= self.threshold) for number in side] for side in (gold, said))
            scores["f1"] = f1(ours, theirs) if any(ours) or any(theirs) else 0.0
        return scores

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        said = [prediction.value for prediction in predictions]
        return bootstrap_regression(gold_values(examples), said, CORRELATIONS[self.main_metric])


MOST_CHOICES = 100  # of one question


class MultipleChoiceTask(TextTask):
    """A question and its choices, any number of them: `texts` is the question, then every choice."""

    objective = "choose"

    def __init__(
        self, name: str, *, files: Mapping[str, Sequence[Path]], read: Read, found: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name, files=files, read=read, found=found)
        self.main_metric = "accuracy"

    def check(self, split: str, examples: Sequence[Example]) -> None:
        for example in examples:
            choices = len(example.texts) - 1
            if not 2 <= choices <= MOST_CHOICES:
                raise DataError(f"{example.source}: {choices} choices: a question has 2 to {MOST_CHOICES}")
            if example.gold is not None and not 0 <= example.gold < choices:
                raise DataError(f"{example.source}: the right choice is number {example.gold}, but there are {choices}")

    def framed(self, example: Example, encoded: Mapping[str, Encoded], tokenizer: Tokenizer, length: int) -> list[Row]:
        question, *choices = (encoded[text] for text in example.texts)
        return [tokenizer.frame(question, choice, max_length=length) for choice in choices]

    def prediction(self, example: Example, answer: NDArray[np.float64]) -> Prediction:
        assert len(answer) == len(example.texts) - 1, f"{len(answer)} logits for {len(example.texts) - 1} choices"
        likely = softmax(answer)
        best = int(likely.argmax())
        detail = {"choice": example.texts[best + 1], "probabilities": likely.tolist()}
        return Prediction(best, float(likely[best]), detail)

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        return {"accuracy": self.interval(examples, predictions).value}

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        gold = gold_values(examples)
        return wilson(sum(a == b.value for a, b in zip(gold, predictions, strict=True)), len(gold))
