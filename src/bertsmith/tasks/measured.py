"""Tasks whose answer is a number: correlations with the right ones, and their mean squared error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.metrics.classification import f1
from bertsmith.metrics.confidence import ConfidenceInterval, bootstrap_regression
from bertsmith.metrics.regression import batched_pearson, batched_spearman, mean_squared_error, pearson, spearman
from bertsmith.tasks.task import Example, Prediction
from bertsmith.tasks.whole_texts import Read, Submit, TextTask, golds

CORRELATIONS = {"pearson": batched_pearson, "spearman": batched_spearman}


class NumberTask(TextTask):
    """A text, or a pair, gets a number."""

    objective: ClassVar[str] = "regress"

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
        self.main = main
        self.threshold = threshold  # where given, numbers from there on are one class, and its F1 is a score too

    def prediction(self, example: Example, answer: NDArray[np.float64]) -> Prediction:
        (number,) = answer.tolist()
        return Prediction(number)

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        gold, said = golds(examples), [prediction.value for prediction in predictions]
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
        return bootstrap_regression(golds(examples), said, CORRELATIONS[self.main])
