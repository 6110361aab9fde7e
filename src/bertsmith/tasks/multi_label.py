"""Multi-label classification from user files: any number of labels, as a list, as text or as columns of 0 and 1."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError
from bertsmith.metrics import classification, confidence
from bertsmith.metrics.classification import MatchCounts
from bertsmith.metrics.confidence import ConfidenceInterval
from bertsmith.tasks.dataset_files import (
    IDS,
    ONE_TEXT,
    ColumnHints,
    TableConfig,
    TableReader,
    choose_columns,
    column_hints,
    is_missing,
    parse_label,
    table_examples,
    user_files,
)
from bertsmith.tasks.tables import Table, join_names
from bertsmith.tasks.task import Case, Dataset, Example, Prediction, Task
from bertsmith.tasks.text_tasks import (
    ClassificationTask,
    TextTask,
    check_known_labels,
    gold_and_predicted,
    note_similar_labels,
    separator_of,
    sort_labels,
)

NO_LABEL = "no label"  # of a text without labels, in error analysis
BINARY = {"0", "1", "false", "true", "0.0", "1.0"}
LABELS = column_hints(
    "label",
    *("labels", "label", "tags", "categories", "classes", "topics", "genres", "emotions", "intents", "targets"),
    *("category", "class", "topic", "genre", "emotion", "target"),
)


@dataclass(frozen=True, kw_only=True)
class Config(TableConfig):
    """Settings of multi-label classification."""

    tuple_columns = (("text", "labels"), ("text",))
    text: str = ""  # column of the text; detected if empty
    label: str = ""  # column of the labels, lists or texts; detected if empty
    separator: str = ""  # between the labels of a text, such as "|"
    labels: str | tuple[str, ...] = ""  # columns of 0 and 1 instead, one for each label, separated by commas

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> MultiLabelTask:
        """See `TaskConfig.build`; without the labels of a trained model they are those of train."""
        reader = MultiLabelReader(self, user_files("multi_label", files), tuple(labels))
        return MultiLabelTask("multi_label", reader.dataset(), labels=labels, columns=reader.columns)

    @property
    def label_columns(self) -> list[str]:
        """The columns that `labels` names."""
        parts = self.labels.split(",") if isinstance(self.labels, str) else self.labels
        return [part.strip() for part in parts if part.strip()]


@dataclass
class MultiLabelReader(TableReader):
    """Reads files with one text and its labels."""

    config: Config
    known: tuple[str, ...]  # labels of a trained model
    columns: list[str] = field(default_factory=list, init=False)  # of 0 and 1, one for each label

    def hints(self) -> Sequence[ColumnHints]:
        return (ONE_TEXT, LABELS)

    def examples(self, table: Table, optional: tuple[str, ...]) -> list[Example]:
        given = self.given(table, ("text", "label"), optional)
        if not self.columns and "label" not in given:
            self.columns += self._label_columns(table, given.get("text", ""))
        present = [name for name in self.columns if table.has(name)]
        if self.columns and (present or not optional):
            chosen = choose_columns(table, given | {name: name for name in self.columns}, [ONE_TEXT])
            self.detected |= {"text": chosen["text"], "labels": join_names(self.columns)}
            golds: list[Any] = self._from_columns(table)
        else:
            hints = [ONE_TEXT] if self.columns else [ONE_TEXT, LABELS]
            chosen = choose_columns(table, given, hints, optional=optional)
            self.detected |= {role: name for role, name in chosen.items() if role in ("text", "label")}
            golds = self._from_lists(table, chosen["label"]) if "label" in chosen else [None] * len(table)
        examples = table_examples(table, [chosen["text"]], None, parse_label)
        return [replace(example, gold=gold) for example, gold in zip(examples, golds, strict=True)]

    def _label_columns(self, table: Table, text: str) -> list[str]:
        """The given columns of 0 and 1, those of a trained model's labels, or several that have only 0 and 1."""
        if self.config.label_columns:
            return self.config.label_columns
        binary = [
            name
            for index, name in enumerate(table.columns)
            if name != text and name.lower() not in IDS and all(_is_binary(row[index]) for row in table.rows)
        ]
        if self.known and all(label in binary for label in self.known):
            return list(self.known)
        named = {names[0] for names in LABELS[1]}
        if any(name.lower() in named and name not in binary for name in table.columns):
            return []
        return binary if len(binary) > 1 and not self.known else []

    def _from_columns(self, table: Table) -> list[tuple[str, ...]]:
        indices = [table.column_index(name, setting="labels") for name in self.columns]
        for number, row in enumerate(table.rows):
            for index, name in zip(indices, self.columns, strict=True):
                if not _is_binary(row[index]):
                    raise DataError(f"{table.source(number)}: {name!r} must be 0 or 1, found {str(row[index])[:40]!r}")
        pairs = list(zip(indices, self.columns, strict=True))
        return [
            tuple(name for index, name in pairs if str(row[index]).lower() in ("1", "true", "1.0"))
            for row in table.rows
        ]

    def _from_lists(self, table: Table, column: str) -> list[tuple[str, ...] | None]:
        cells = table.column(column)
        if all(isinstance(cell, str) and not cell.strip() for cell in cells):
            return [None] * len(cells)
        separator = self.config.separator
        texts = [cell.strip() for cell in cells if isinstance(cell, str) and not is_missing(cell)]
        if not separator and (found := separator_of(texts)):
            raise DataError(
                f"{table.name}: {column!r} has several labels in a cell, such as {found[1][:40]!r}: "
                f'set task.separator="{found[0]}"'
            )
        return [parse_labels(cell, table.source(row), column, separator) for row, cell in enumerate(cells)]


def _is_binary(cell: Any) -> bool:
    return not isinstance(cell, list | dict) and str(cell).strip().lower() in BINARY


def parse_labels(cell: Any, where: str, column: str, separator: str) -> tuple[str, ...] | None:
    """A cell as labels: a list, a list written as text, or a text; an empty one has none, and a missing one is None."""
    if isinstance(cell, str):
        items: Any = _literal_list(cell.strip(), where, column)
        if items is None:
            items = cell.split(separator) if separator else [cell]
    elif is_missing(cell):
        return None
    else:
        items = cell if isinstance(cell, list) else [cell]
    if any(isinstance(item, list | dict) for item in items):
        raise DataError(f"{where}: {column!r} must be a list of labels, found {str(cell)[:40]!r}")
    parsed = (parse_label(item, where, column) for item in items)
    return tuple(dict.fromkeys(label for label in parsed if label is not None))


def _literal_list(text: str, where: str, column: str) -> list[Any] | None:
    """The items of a list that was written as text, as JSON or by Python; None for other texts."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        items = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        items = None
    if not isinstance(items, list) or not all(str(item) in text for item in items):  # ['a' 'b'] would be ['ab']
        raise DataError(f'{where}: {column!r} is {text[:40]}: write a list as ["first", "second"]')
    return items


class MultiLabelTask(ClassificationTask):
    """Any number of labels for each text, each with its own probability and threshold. K labels."""

    objective = "multi_label"
    interval_metrics = ("micro_f1", "macro_f1", "accuracy")

    def __init__(
        self,
        name: str,
        dataset: Dataset | None = None,
        *,
        labels: Sequence[str] = (),
        positive: str = "",
        thresholds: Sequence[float] | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        """`columns`: of 0 and 1, whose names are the labels; they may be known only once a file was read."""
        super().__init__(name, dataset, labels=labels, main_metric="micro_f1", positive=positive)
        self.thresholds = thresholds
        self._columns = columns

    @property
    def positive(self) -> str:
        return self._positive

    def use_head_config(self, config: Any) -> None:
        """The thresholds of the trained head."""
        super().use_head_config(config)
        self.thresholds = getattr(config, "thresholds", None)

    def use_mean_of(self, tasks: Sequence[Task]) -> None:
        """The mean threshold of each label; a model without thresholds counts with 0.5."""
        found = [task.threshold_by_label() for task in tasks if isinstance(task, MultiLabelTask)]
        self.thresholds = tuple(sum(one[label] for one in found) / len(found) for label in self.labels)

    def threshold_by_label(self) -> dict[str, float]:
        return dict(zip(self.labels, self.thresholds or [0.5] * len(self.labels), strict=True))

    def check(self, split: str, examples: Sequence[Example]) -> None:
        TextTask.check(self, split, examples)
        if split == "train" and not self._labels:
            self._labels = tuple(self._columns) or sort_labels(self.gold_labels(examples))
            if len(self._labels) < 2:
                found = join_names(self._labels)
                raise DataError(f"{examples[0].source.rpartition(':')[0]}: {self.name} needs two labels, found {found}")
            note_similar_labels(self._labels)
        check_known_labels([(one.source, label) for one in examples for label in one.gold or ()], self.labels)

    def gold_labels(self, examples: Sequence[Example]) -> Iterator[str]:
        return (label for example in examples for label in example.gold)

    def balanced_weights(self, examples: Sequence[Example]) -> list[float]:
        """The weight of texts with a label: texts without it / texts with it; 1 where there are no such texts."""
        counts, total = Counter(self.gold_labels(examples)), len(examples)
        shares = ((total - counts[label], counts[label]) for label in self.labels)
        return [without / having if without and having else 1.0 for without, having in shares]

    def target(self, example: Example) -> Any:
        return None if example.gold is None else [float(label in example.gold) for label in self.labels]

    def output(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        probabilities: NDArray[np.float64] = (1 + np.tanh(logits / 2)) / 2
        return probabilities

    def prediction(self, example: Example, output: NDArray[np.float64]) -> Prediction:
        assert len(output) == len(self.labels), f"{len(output)} logits for {len(self.labels)} labels"
        return self._thresholded(output, self.thresholds)

    def _thresholded(self, probabilities: NDArray[np.float64], thresholds: Sequence[float] | None) -> Prediction:
        """The score is the probability of exactly these labels if labels are independent."""
        chosen = probabilities > (0.5 if thresholds is None else np.array(thresholds))
        value = tuple(label for label, is_chosen in zip(self.labels, chosen, strict=True) if is_chosen)
        score = float(np.where(chosen, probabilities, 1 - probabilities).prod())
        return Prediction(value, score, {"probabilities": dict(zip(self.labels, probabilities.tolist(), strict=True))})

    def fitted_head_config(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """The threshold of each label with the best F1 on these examples."""
        gold = np.array([self.target(example) for example in examples]) > 0
        columns = zip(_probabilities(predictions).T, gold.T, strict=True)
        return {"thresholds": tuple(classification.best_threshold(*column) for column in columns)}

    def refitted(self, predictions: Sequence[Prediction], fitted: Mapping[str, Any]) -> list[Prediction]:
        return [self._thresholded(one, fitted["thresholds"]) for one in _probabilities(predictions)]

    def _counts(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> NDArray[np.int64]:
        return classification.multi_label_counts(*gold_and_predicted(examples, predictions), labels=self.labels)

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """F1 over all labels and as the mean of the labels, exact-match accuracy, precision and recall."""
        counts = self._counts(examples, predictions)
        overall = MatchCounts(*map(int, counts.sum(axis=(0, 1))))
        return {
            "micro_f1": overall.f1,
            "macro_f1": float(classification.macro_f1_from_counts(counts.sum(axis=0))),
            "accuracy": float(_exact(counts).mean()),
            "precision": overall.precision,
            "recall": overall.recall,
        }

    def label_matches(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, MatchCounts]:
        sums = self._counts(examples, predictions).sum(axis=0)
        return {label: MatchCounts(*map(int, row)) for label, row in zip(self.labels, sums, strict=True)}

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        counts = self._counts(examples, predictions)
        if self.main_metric == "accuracy":
            return confidence.wilson(int(_exact(counts).sum()), len(counts))
        macro = self.main_metric == "macro_f1"
        metric = classification.macro_f1_from_counts if macro else classification.micro_f1_from_counts
        reshaped = partial(_by_label, labels=len(self.labels))
        return confidence.bootstrap(counts.reshape(len(counts), -1), lambda sums: metric(reshaped(sums)))

    def case(self, index: int, example: Example, prediction: Prediction) -> Case:
        sides = (
            ", ".join(label for label in self.labels if label in side) for side in (example.gold, prediction.value)
        )
        gold, predicted = (side or NO_LABEL for side in sides)
        return Case.of(index, example, gold, predicted, prediction.score)

    def confusion_labels(self) -> None:  # type: ignore[override]
        return None

    def baseline(self, examples: Sequence[Example]) -> tuple[str, list[Prediction]]:
        most = Counter(self.gold_labels(examples)).most_common(1)
        value = tuple(label for label, _ in most)
        return f"always {value[0] if value else NO_LABEL}", [Prediction(value)] * len(examples)


def _probabilities(predictions: Sequence[Prediction]) -> NDArray[np.float64]:
    return np.array([list(one.detail["probabilities"].values()) for one in predictions], np.float64)


def _exact(counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the labels of an example are all correct [N]."""
    correct, predicted, gold = np.moveaxis(counts, -1, 0)
    exact: NDArray[np.bool_] = ((correct == predicted) & (correct == gold)).all(axis=-1)
    return exact


def _by_label(sums: NDArray[np.float64], *, labels: int) -> NDArray[np.float64]:
    return sums[..., :-1].reshape(-1, labels, 3)
