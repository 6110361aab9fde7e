"""The contract of a task: files -> examples -> rows, logits -> predictions -> scores. Tasks do not depend on models."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith import config
from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError, DataError, MetricError
from bertsmith.metrics.classification import MatchCounts
from bertsmith.metrics.confidence import ConfidenceInterval, bootstrap_examples
from bertsmith.tasks.own_metrics import Metric, Metrics, call_metric, named_metrics
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Row

FOLDER = "bertsmith.tasks"
SPLITS = ("train", "dev", "test")
LOWER_IS_BETTER = ("mean_squared_error",)  # metrics that cannot select the best model
Files = dict[str, list[Path]]  # by split


@dataclass(frozen=True, slots=True)
class Example:
    """One example of a dataset file."""

    id: str  # from the file, or the index of the example
    texts: tuple[str, ...]  # one text; two; question and passage; question and choices
    gold: Any = None  # the label as users write it: class name, number, tags, answers, index of the choice
    source: str = ""  # file:line
    # Tagging: character span of each word in texts[0]; question answering: span of an answer in texts[1].
    spans: tuple[tuple[int, int], ...] = ()
    head: str = ""  # of several tasks: the head that predicts it


@dataclass(frozen=True, slots=True)
class Features:
    """Model inputs for one example or window; always in one batch."""

    rows: tuple[Row, ...]  # one, or one per choice
    example_index: int  # index in the list of examples
    target: Any = None  # class, number, (first, last) token index, choice, classes [R]; None without a gold label
    indices: NDArray[np.int64] | None = None  # tagging: token indices of the row that the head reads [R]
    start: int = 0  # windows: first word or token of the window in the full text
    head: str = ""  # of several tasks: the head that predicts it
    # tagging: those of `indices` that begin a sentence; None: the first
    sentence_starts: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The decoded prediction for one example."""

    value: Any  # comparable with `Example.gold`
    score: float = 0.0  # the probability of the value, where there is one
    detail: Mapping[str, Any] = field(default_factory=dict)  # JSON values: probabilities, n-best answers, offsets


@dataclass(frozen=True, slots=True)
class Case:
    """A prediction beside its gold label, as text, for error analysis."""

    example: int  # index in the list of examples
    id: str
    texts: tuple[str, ...]
    gold: str
    prediction: str
    confidence: float  # probability of the prediction; in regression the absolute error
    correct: bool
    source: str  # file:line
    cell: tuple[str, str] | None = None  # row and column of the confusion matrix
    calibrated: bool = True  # counts for calibration
    reported: bool = True  # listed among the errors if wrong

    @classmethod
    def of(cls, index: int, example: Example, gold: str, prediction: str, confidence: float, **rest: Any) -> Case:
        """The case of an example; `correct` defaults to gold == prediction."""
        rest.setdefault("correct", gold == prediction)
        return cls(index, example.id, example.texts, gold, prediction, float(confidence), source=example.source, **rest)


Submit = Callable[[Sequence[Example], Sequence[Prediction]], dict[str, bytes]]


@dataclass(frozen=True)
class Dataset:
    """The files of a task and how they are read."""

    files: Files = field(default_factory=dict)
    read: Callable[[Path, str], Sequence[Example]] = lambda path, split: ()  # file, split
    detected: dict[str, str] = field(default_factory=dict)  # facts detected in the files; `read` may add some
    submit: Submit = lambda examples, predictions: {}  # the benchmark's submission files by name


def task_names() -> list[str]:
    """Every task as on the command line: `classification`, or `glue/cola` for a member of a benchmark."""
    members = {kind: getattr(config.find_kind(FOLDER, kind), "MEMBERS", {}) for kind in config.kinds(FOLDER)}
    return [name for kind, names in members.items() for name in ([f"{kind}/{one}" for one in names] or [kind])]


def unknown_task(name: str) -> ConfigError:
    """The error for a name that is not a task: the members of a benchmark, or the nearest task."""
    known = task_names()
    if members := [one for one in known if one.startswith(f"{name}/")]:
        return ConfigError(f"{name} has several tasks: choose one of {', '.join(members)}")
    plain = {one.rpartition("/")[2].replace("-", "").lower(): one for one in known}
    same = plain.get(name.replace("-", "").lower())
    near = f"; did you mean {same}?" if same else did_you_mean(name, known)
    return ConfigError(f"{name!r} is not among the tasks: {', '.join(config.kinds(FOLDER))}{near}")


class Task:
    """Examples of up to three splits, their rows, and the decoding and scoring of predictions."""

    objective: str  # the objective whose head predicts: classify, regress, tag, span or choose
    main_metric: str  # selects the best model; higher is better
    max_length: int = 128  # tokens of a row unless the user sets it
    symmetric: bool = False  # the order of the two texts does not matter: causal encoders read both orders
    length_unit: str = "tokens"  # unit of the lengths in an evaluation
    has_probabilities: ClassVar[bool] = True  # whether `Prediction.score` is a probability
    pseudo_labels: ClassVar[tuple[str, ...]] = ()  # rows of the confusion matrix that are not labels
    interval_metrics: tuple[str, ...] = ()  # those that `interval` serves beside the task's own main metric
    chosen_metric: str = ""  # the main metric of the user's choice
    own_metrics: Mapping[str, Metric] = MappingProxyType({})  # of the user

    def __init__(self, name: str, dataset: Dataset | None = None) -> None:
        self.name = name  # such as glue/cola
        self.dataset = dataset or Dataset()
        self.detected = self.dataset.detected
        self._examples: dict[str, list[Example]] = {}

    @property
    def heads(self) -> dict[str, Task]:
        """The tasks by the name of their head: several in multi-task fine-tuning."""
        return {self.objective: self}

    def head_config(self) -> dict[str, Any]:
        """Settings of the objective: `{"kind": "classify", "labels": [...]}`."""
        return {"kind": self.objective}

    def has_split(self, split: str) -> bool:
        """Whether the task has files for a split."""
        return split in self.dataset.files

    def examples(self, split: str, *, with_labels: bool = True) -> list[Example]:
        """The examples of a split in file order; a DataError with file:line for an invalid one.

        Without labels they are for predictions only: their labels may be unknown to the model.
        """
        if split not in self._examples:
            files = self.dataset.files
            if split not in files:
                given = ", ".join(f"{known} {paths[0]}" for known, paths in files.items()) or "none"
                raise DataError(f"{self.name} has no {split} file (files: {given}): pass --{split} FILE")
            examples = [example for path in files[split] for example in self.read(path, split)]
            examples = examples if with_labels else [replace(example, gold=None) for example in examples]
            self.check(split, examples)
            self._examples[split] = examples
        return list(self._examples[split])

    def read(self, path: Path, split: str) -> Sequence[Example]:
        """The examples of one file."""
        return self.dataset.read(path, split)

    def check(self, split: str, examples: Sequence[Example]) -> None:
        """Raises a DataError for an invalid label."""

    def rows(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool = False
    ) -> list[Features]:
        """Features in the order of the examples; `training` drops those without a usable target."""
        raise NotImplementedError

    def decode(
        self, examples: Sequence[Example], features: Sequence[Features], logits: Sequence[NDArray[np.float32]]
    ) -> list[Prediction]:
        """One prediction per example from the logits of each of its features.

        classify [classes], regress [1], tag [R, classes], span [tokens of the row, 2], choose [choices].
        """
        return self.predictions(examples, self.outputs(examples, features, logits))

    def outputs(
        self, examples: Sequence[Example], features: Sequence[Features], logits: Sequence[NDArray[np.float32]]
    ) -> list[Any]:
        """What a model predicts for each example, independent of its tokenizer: probabilities, a number or answers."""
        raise NotImplementedError

    def predictions(self, examples: Sequence[Example], outputs: Sequence[Any]) -> list[Prediction]:
        """The predictions from the outputs of one model, or from the mean outputs of several."""
        raise NotImplementedError

    def mean_output(self, outputs: Sequence[Any]) -> Any:
        """The mean of the outputs of several models for one example."""
        return np.mean(np.stack(outputs), axis=0)

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The official metrics by name, including `main_metric`, between 0 and 1."""
        raise NotImplementedError

    def use_metrics(self, metrics: Metrics, main_metric: str = "") -> None:
        """Adds metrics of the user's own, and sets the main metric unless it is empty."""
        self.own_metrics = named_metrics(metrics)
        if main_metric:
            self.main_metric = self.chosen_metric = main_metric

    def scores(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The official metrics and the user's own; a ConfigError if the main metric is not among them."""
        scores = self.score(examples, predictions)
        values = [example.gold for example in examples], [prediction.value for prediction in predictions]
        for name, metric in self.own_metrics.items():
            if name in scores:
                raise ConfigError(f"metrics: {name} is already a metric of {self.name}: choose another name")
            scores[name] = call_metric(name, metric, *map(list, values))
        if self.main_metric not in scores or self.main_metric in LOWER_IS_BETTER:
            known = [name for name in scores if " " not in name and name not in LOWER_IS_BETTER]
            near = did_you_mean(self.main_metric, known)
            raise ConfigError(f"main_metric={self.main_metric} is not one of {', '.join(known)}{near}")
        return scores

    def main_interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        """The confidence interval of the main metric, also of one of the user's choice."""
        if not self.chosen_metric or self.chosen_metric in self.interval_metrics:
            return self.interval(examples, predictions)

        def score(indices: list[int]) -> float:
            drawn = [replace(examples[index], id=str(number)) for number, index in enumerate(indices)]
            try:
                return self.scores(drawn, [predictions[index] for index in indices])[self.main_metric]
            except MetricError:
                return math.nan

        return bootstrap_examples(len(examples), score)

    def fitted_head_config(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Head settings fitted on labelled examples, such as the no-answer threshold of SQuAD 2.0."""
        return {}

    def refitted(self, predictions: Sequence[Prediction], fitted: Mapping[str, Any]) -> list[Prediction]:
        """The predictions with the settings of `fitted_head_config`, where these change them."""
        return list(predictions)

    def use_head_config(self, config: Any) -> None:
        """Takes over what the config of a trained head has for predictions, such as thresholds."""

    def use_mean_of(self, tasks: Sequence[Task]) -> None:
        """Takes over the mean of what the heads of several models have for predictions, such as thresholds."""

    def use_head(self, head: Any) -> None:
        """Takes over how a trained head decodes its logits, such as the transitions of a CRF."""

    def label_matches(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, MatchCounts]:
        """Counts of each label, for tasks without a confusion matrix."""
        return {}

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        """The confidence interval of `main_metric`."""
        raise NotImplementedError

    def submission(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, bytes]:
        """The benchmark's submission files by name; empty for user files."""
        return self.dataset.submit(examples, predictions)

    def cases(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> list[Case]:
        """Cases for error analysis: one per example, in tagging one per entity."""
        raise NotImplementedError

    def confusion_labels(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Rows (gold) and columns (predicted) of the confusion matrix; None for tasks without one."""
        return None

    def baseline(self, examples: Sequence[Example]) -> tuple[str, list[Prediction]]:
        """A description and the predictions of a baseline without a model, such as the most frequent label."""
        raise NotImplementedError


class LabelTask(Task):
    """A task with labels: those of a trained model, or of train."""

    label_noun: ClassVar[str] = "labels"
    _labels: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names in class order."""
        if not self._labels:
            if not self.has_split("train"):
                noun = self.label_noun
                raise DataError(f"{self.name}: {noun} come from a train file or a trained model: pass --train FILE")
            self.examples("train")
        return self._labels

    def head_config(self) -> dict[str, Any]:
        return {"kind": self.objective, "labels": list(self.labels)}

    def reordered(self, output: Any, classes: Sequence[int]) -> Any:
        """An output with its classes in another order: those of another model with the same labels."""
        return output[list(classes)]

    def gold_labels(self, examples: Sequence[Example]) -> Iterator[str]:
        """The gold labels of all examples."""
        return (example.gold for example in examples)

    def balanced_weights(self, examples: Sequence[Example]) -> list[float]:
        """A weight for each label: labels / (occurring classes * labels of the class), as scikit-learn's "balanced".

        A class that does not occur has the weight 1.
        """
        counts = Counter(self.gold_labels(examples))
        mean = counts.total() / max(1, len(counts))
        return [mean / counts[label] if counts[label] else 1.0 for label in self.labels]


class TaskConfig(Protocol):
    """The protocol of a task's `Config`."""

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> Task:
        """The task. `files`: by split, or the benchmark's folder under `data`. `labels`: those of a trained model."""


def task_files(files: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The files of one of several tasks, by split; those of all tasks where it has none of its own."""
    own = {key.removeprefix(f"{name}."): path for key, path in files.items() if key.startswith(f"{name}.")}
    return own or {key: path for key, path in files.items() if "." not in key}


def truncated_examples(features: Iterable[Features]) -> set[int]:
    """Indices of the examples that were truncated because a row was too short."""
    return {one.example_index for one in features if any(any(row.truncated) for row in one.rows)}


def gold_values(examples: Sequence[Example], problem: str) -> list[Any]:
    """The gold labels; a DataError with the problem if one is missing."""
    for example in examples:
        if example.gold is None:
            raise DataError(f"{example.source}: {problem}")
    return [example.gold for example in examples]
