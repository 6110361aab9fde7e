"""Tasks whose answer is one of some labels: their names, probabilities, accuracy, F1, Matthews correlation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError, DataError
from bertsmith.metrics.classification import (
    accuracy_from_confusion,
    confusion_matrix,
    f1_from_counts,
    label_f1_from_confusion,
    macro_f1_from_confusion,
    matthews_from_confusion,
)
from bertsmith.metrics.confidence import ConfidenceInterval, bootstrap, bootstrap_classification, wilson
from bertsmith.tasks.tables import listed
from bertsmith.tasks.task import Example, Prediction
from bertsmith.tasks.whole_texts import Read, Submit, TextTask, golds, softmax

MEASURES: dict[str, Callable[[NDArray[np.int64]], NDArray[np.float64]]] = {
    "accuracy": accuracy_from_confusion,
    "macro_f1": macro_f1_from_confusion,
    "matthews": matthews_from_confusion,
}
_WHOLE = re.compile(r"[+-]?\d+")
_FEW = 20  # rows: in fewer of them every label may well be another


class LabelTask(TextTask):
    """A text, or a pair, gets one label. Without `labels` they are those of train, in order."""

    objective: ClassVar[str] = "classify"

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
        self.main = main
        self.measures = measures
        self._positive = positive
        self._labels = tuple(labels)
        if labels:
            self._settle()

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels; their order is that of the classes."""
        if not self._labels:
            if not self.has("train"):
                raise DataError(f"{self.name}: labels come from a train file or a trained model: pass --train FILE")
            self.examples("train")
        return self._labels

    @property
    def positive(self) -> str:
        """The label whose F1 counts: the one that was named, the second of two, or "" where there are more."""
        return self._positive or (self.labels[1] if len(self.labels) == 2 else "")

    def head(self) -> dict[str, Any]:
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
        gold, said = golds(examples), [prediction.value for prediction in predictions]
        table = confusion_matrix(gold, said, labels=self.labels).counts
        return {name: float(self._measure(name)(table)) for name in self.measures if name != "f1" or self.positive}

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        gold, said = golds(examples), [prediction.value for prediction in predictions]
        if self.main == "accuracy":
            return wilson(sum(a == b for a, b in zip(gold, said, strict=True)), len(gold))
        if self.main != "f1":
            return bootstrap_classification(gold, said, self._measure(self.main))
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
        if self.main == "f1" and not self.positive:
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
