"""Several tasks in one run: one encoder, and a head for each task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.config import Registry
from bertsmith.errors import ConfigError
from bertsmith.metrics.confidence import ConfidenceInterval, bootstrap_examples
from bertsmith.tasks.task import FOLDER, Example, Features, Prediction, Task, task_files
from bertsmith.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of multi-task fine-tuning; several --task options write it."""

    tasks: dict[str, Annotated[Any, Registry(FOLDER)]] = field(default_factory=dict)  # by name
    weights: dict[str, float] = field(default_factory=dict)  # of the tasks' losses; absent: 1

    def __post_init__(self) -> None:
        if unknown := [name for name in self.weights if name not in self.tasks]:
            raise ConfigError(f"weights.{unknown[0]}: there is no such task ({', '.join(self.tasks) or 'none'})")

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> MultiTask:
        """See `TaskConfig.build`; files named TASK.train are those of one task, files named train those of all."""
        if len(self.tasks) < 2:
            raise ConfigError("multi_task needs at least two tasks: pass --task TASK for each of them")
        return MultiTask({name: task.build(files=task_files(files, name)) for name, task in self.tasks.items()}, self)


class MultiTask(Task):
    """The examples of all tasks; predictions are decoded and scored by each task."""

    objective = ""  # each task has its own
    main_metric = "mean"  # of the tasks' main metrics

    def __init__(self, tasks: Mapping[str, Task], config: Config) -> None:
        super().__init__("multi_task")
        self.tasks, self.weights = dict(tasks), {name: config.weights.get(name, 1.0) for name in tasks}
        self.max_length = max(task.max_length for task in tasks.values())

    @property
    def heads(self) -> dict[str, Task]:
        """The tasks by head, such as classify-cola."""
        return {f"{task.objective}-{name}": task for name, task in self.tasks.items()}

    def has_split(self, split: str) -> bool:
        return any(task.has_split(split) for task in self.tasks.values())

    def examples(self, split: str, *, with_labels: bool = True) -> list[Example]:
        found: list[Example] = []
        for head, task in self.heads.items():
            if split == "train" or task.has_split(split) or not self.has_split(split):
                own = task.examples(split, with_labels=with_labels)
                found += [replace(one, id=f"{head}/{one.id}", head=head) for one in own]
                self.detected |= {f"{task.name}: {role}": name for role, name in task.detected.items()}
        return found

    def rows(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool = False
    ) -> list[Features]:
        return [
            replace(one, head=head, example_index=numbers[one.example_index])
            for head, task, numbers in self._parts(examples)
            for one in task.rows(_own(examples, numbers), tokenizer, max_length=max_length, training=training)
        ]

    def decode(
        self, examples: Sequence[Example], features: Sequence[Features], logits: Sequence[NDArray[np.float32]]
    ) -> list[Prediction]:
        predictions: dict[int, Prediction] = {}
        for head, task, numbers in self._parts(examples):
            index = {number: own for own, number in enumerate(numbers)}
            own = [(one, values) for one, values in zip(features, logits, strict=True) if one.head == head]
            renumbered = [replace(one, example_index=index[one.example_index]) for one, _ in own]
            decoded = task.decode(_own(examples, numbers), renumbered, [values for _, values in own])
            predictions |= zip(numbers, decoded, strict=True)
        return [predictions[index] for index in range(len(examples))]

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        scores, main = dict[str, float](), list[float]()
        for head, task, numbers in self._parts(examples):
            own = task.score(_own(examples, numbers), _taken(predictions, numbers))
            scores |= {f"{head.partition('-')[2]}_{name}": value for name, value in own.items()}
            main.append(own[task.main_metric])
        return {"mean": sum(main) / len(main), **scores}

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        def score(indices: list[int]) -> float:
            return self.score(_taken(examples, indices), _taken(predictions, indices))[self.main_metric]

        return bootstrap_examples(len(examples), score)

    def baseline(self, examples: Sequence[Example]) -> tuple[str, list[Prediction]]:
        predictions: dict[int, Prediction] = {}
        for _, task, numbers in self._parts(examples):
            predictions |= zip(numbers, task.baseline(_own(examples, numbers))[1], strict=True)
        return "the baseline of each task", [predictions[index] for index in range(len(examples))]

    def _parts(self, examples: Sequence[Example]) -> Iterator[tuple[str, Task, list[int]]]:
        """Each task that has some of the examples: its head, the task and the indices of its examples."""
        for head, task in self.heads.items():
            if numbers := [index for index, example in enumerate(examples) if example.head == head]:
                yield head, task, numbers


def _own(examples: Sequence[Example], numbers: Sequence[int]) -> list[Example]:
    """Examples of one task, with the ids of its files."""
    return [replace(one, id=one.id.removeprefix(f"{one.head}/")) for one in _taken(examples, numbers)]


def _taken(items: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    return [items[number] for number in numbers]
