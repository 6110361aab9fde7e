"""What every task is: files -> examples -> rows, answers -> predictions -> scores. Knows tokenizers, no model.

The same rows serve training, scoring and use. A file of this folder is a family of tasks; its `Config` builds one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError
from bertsmith.metrics.confidence import ConfidenceInterval
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Row

FOLDER = "bertsmith.tasks"
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class Example:
    """One thing asked, as it stands in its file."""

    id: str  # the file's own, or the example's number
    texts: tuple[str, ...]  # a text; two; question and passage; question and choices
    gold: Any = None  # the right answer as people write it: label, number, tags, answers, number of the choice
    source: str = ""  # file:line
    # Tagging: begin and end of each word in the characters of texts[0]; answering: of an answer in those of texts[1].
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Features:
    """One question as a model gets it; it is never torn apart among batches."""

    rows: tuple[Row, ...]  # one, or one for each choice
    example_index: int  # the number of its example in the list that was given
    target: Any = None  # class, number, (first, last) place, right choice, classes [R]; None where nobody knows
    indices: NDArray[np.int64] | None = None  # tagging: which places of the row are read [R]
    start: int = 0  # windows: first word or token of this one in the whole text


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model says of one example."""

    value: Any  # comparable with `Example.gold`
    score: float = 0.0  # how sure it is: a probability, where the answer has one
    detail: Mapping[str, Any] = field(default_factory=dict)  # plain JSON: probabilities, n-best answers, offsets


class Task:
    """Examples of up to three splits and how they are asked, read and scored."""

    objective: str  # whose head answers: classify, regress, tag, span or choose
    name: str  # such as glue/cola
    main_metric: str  # the score that decides; the higher the better
    max_length: int = 128  # places of a row, unless the user says otherwise
    detected: Mapping[str, str] = {}  # what was guessed of the files, such as which column holds the text

    def head_config(self) -> dict[str, Any]:
        """The settings of the objective: `{"kind": "classify", "labels": [...]}`."""
        return {"kind": self.objective}

    def has_split(self, split: str) -> bool:
        """Whether there are examples of that split."""
        raise NotImplementedError

    def examples(self, split: str) -> list[Example]:
        """The examples of a split in the order of its file; a DataError with file:line where one is broken."""
        raise NotImplementedError

    def rows(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool = False
    ) -> list[Features]:
        """What is asked of a model, in the order of the examples; `training` leaves out what cannot be learned from."""
        raise NotImplementedError

    def decode(
        self, examples: Sequence[Example], asked: Sequence[Features], answers: Sequence[NDArray[np.float32]]
    ) -> list[Prediction]:
        """A prediction for each example from the logits of each thing asked.

        classify [classes], regress [1], tag [R, classes], span [places of the row, 2], choose [choices].
        """
        raise NotImplementedError

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The official scores by name, `main` among them, as shares of 1."""
        raise NotImplementedError

    def fitted_head_config(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Settings of the head that only examples with answers can tell, such as when to say nothing."""
        return {}

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        """The confidence interval of `main`."""
        raise NotImplementedError

    def submission(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, bytes]:
        """The files that the benchmark's owners take, by name; none for files of your own."""
        return {}


class TaskConfig(Protocol):
    """A task's `Config`."""

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> Task:
        """The task. `files`: by split, or under `data` the benchmark's folder. `labels`: those of a trained model."""


def truncated_examples(asked: Iterable[Features]) -> set[int]:
    """The numbers of the examples that lost tokens because a row was too short for them."""
    return {one.example_index for one in asked if any(any(row.truncated) for row in one.rows)}


def missing_split(name: str, split: str, files: Mapping[str, Path]) -> DataError:
    """What to say where a split was asked for and there is none."""
    there = ", ".join(f"{known} {path}" for known, path in files.items()) or "no file at all"
    return DataError(f"{name} has no {split} file (it was given {there}): pass --{split} FILE")
