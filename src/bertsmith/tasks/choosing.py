"""Tasks whose answer is one of the choices that each question brings along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError
from bertsmith.metrics.confidence import ConfidenceInterval, wilson
from bertsmith.tasks.task import Example, Prediction
from bertsmith.tasks.whole_texts import Read, TextTask, golds, softmax
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded, Row

MOST_CHOICES = 100  # of one question


class ChoiceTask(TextTask):
    """A question and its choices, any number of them: `texts` is the question, then every choice."""

    objective: ClassVar[str] = "choose"

    def __init__(
        self, name: str, *, files: Mapping[str, Sequence[Path]], read: Read, found: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name, files=files, read=read, found=found)
        self.main = "accuracy"

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
        gold = golds(examples)
        return wilson(sum(a == b.value for a, b in zip(gold, predictions, strict=True)), len(gold))
