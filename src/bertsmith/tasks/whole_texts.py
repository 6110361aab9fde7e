"""What tasks over whole texts share: files by split, examples read once, rows of one or two texts, predictions.

Knows neither what is answered nor how files lie; those are the classes and the families built on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError
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
        self.found = {} if found is None else found  # filled by whoever reads, when the files are read
        self._read = read
        self._submit = submit
        self._known: dict[str, list[Example]] = {}

    def has(self, split: str) -> bool:
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
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, length: int, training: bool = False
    ) -> list[Features]:
        targets = [self.target(example) for example in examples]
        chosen = [number for number, target in enumerate(targets) if target is not None or not training]
        encoded = encode((text for number in chosen for text in examples[number].texts), tokenizer)
        return [
            Features(
                rows=tuple(self.framed(examples[number], encoded, tokenizer, length)),
                example=number,
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
            assert question.example not in found, "an example was asked twice"
            example = examples[question.example]
            found[question.example] = self.prediction(example, np.asarray(answer, np.float64).reshape(-1))
        assert len(found) == len(examples), "every example needs an answer"
        return [found[number] for number in range(len(examples))]

    def submission(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, bytes]:
        return self._submit(examples, predictions) if self._submit else {}


def encode(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, Encoded]:
    """Every text encoded, each once however often it comes."""
    distinct = list(dict.fromkeys(texts))
    found: dict[str, Encoded] = {}
    for begin in range(0, len(distinct), AT_ONCE):
        some = distinct[begin : begin + AT_ONCE]
        found.update(zip(some, tokenizer.encode_batch(some), strict=True))
    return found


def golds(examples: Sequence[Example]) -> list[Any]:
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
