"""Ensembles: several fine-tuned models of one task, whose probabilities or values are averaged for each example.

Encoders and tokenizers may differ: what is averaged belongs to an example, a word or a span of text, not to a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.evaluation.evaluator import (
    Chunk,
    EvaluationConfig,
    Evaluator,
    build_task,
    chunk_of,
    evaluation_files,
    in_chunks,
    open_evaluator,
)
from bertsmith.tasks.tables import join_names
from bertsmith.tasks.task import Example, LabelTask, Task
from bertsmith.training.recipe import FinetuneConfig, task_name

AVERAGED = "an ensemble averages models of one task"


@dataclass(frozen=True)
class Ensemble:
    """Several models; `task` has their labels in the order of the first model."""

    task: Task
    members: tuple[Evaluator, ...]

    @property
    def name(self) -> str:
        """The model folders."""
        return " + ".join(one.name for one in self.members)

    def predict(self, examples: Sequence[Example], *, title: str, quiet: bool) -> Iterator[Chunk]:
        """The predictions for all examples in order."""
        return in_chunks(self.chunk, examples, title=title, quiet=quiet)

    def chunk(self, examples: Sequence[Example]) -> Chunk:
        """The predictions for some examples; lengths and rows are those of the first model."""
        texts = [replace(example, gold=None) for example in examples]  # gold labels are for the ensemble's task only
        parts = [member.outputs(texts) for member in self.members]
        outputs = [self._in_order(member, own) for member, (own, _) in zip(self.members, parts, strict=True)]
        means = [self.task.mean_output(some) for some in zip(*outputs, strict=True)]
        chunk = chunk_of(self.task, examples, means, parts[0][1])
        by_model = [
            chunk_of(member.task, texts, own, features)
            for member, (own, features) in zip(self.members, parts, strict=True)
        ]
        truncated = [any(flags) for flags in zip(*(one.truncated for one in by_model), strict=True)]
        return replace(chunk, truncated=truncated, by_model=tuple(by_model))

    def _in_order(self, member: Evaluator, outputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs of a model with its classes in the order of the ensemble's labels."""
        if not isinstance(self.task, LabelTask) or not isinstance(member.task, LabelTask):
            return outputs
        if self.task.labels == member.task.labels:
            return outputs
        classes = [member.task.labels.index(label) for label in self.task.labels]
        return [member.task.reordered(output, classes) for output in outputs]


def open_models(
    settings: Sequence[EvaluationConfig],
    models: Sequence[str | Path],
    files: Mapping[str, Path],
    *,
    device: str = "auto",
    **opening: Any,
) -> Evaluator | Ensemble:
    """One model, or an ensemble of several; each has settings of its own, such as the rows of its run.

    A ConfigError if their tasks or labels differ. The examples are read with the settings of the first.
    """
    names = [task_name(one.task) for one in settings]
    for model, name in zip(models, names, strict=True):
        if name != names[0]:
            raise ConfigError(f"{models[0]} was fine-tuned on {names[0]}, but {model} on {name}: {AVERAGED}")
    if len(models) > 1 and opening.get("tokenizer"):
        raise BertsmithError("--tokenizer names the tokenizer of one model: save it in the model folder instead")
    members = [
        open_evaluator(one, model, files, device=device, **opening) for one, model in zip(settings, models, strict=True)
    ]
    first, *others = members
    if not others:
        return first
    for other in others:
        _check_same_classes(first, other)
    task = build_task(settings[0], first.model, files)
    task.use_mean_of([one.task for one in members])
    return Ensemble(task, tuple(members))


def _check_same_classes(first: Evaluator, other: Evaluator) -> None:
    a, b = first.task, other.task
    if isinstance(a, LabelTask) and isinstance(b, LabelTask) and {*a.labels} != {*b.labels}:
        different = [
            f"{join_names(sorted({*one.labels} - {*two.labels}))} only in {folder}"
            for one, two, folder in ((a, b, first.folder), (b, a, other.folder))
            if {*one.labels} - {*two.labels}
        ]
        raise ConfigError(f"the labels differ: {', '.join(different)}: {AVERAGED} with the same labels")
    units = [getattr(task, "unit", "") for task in (a, b)]
    if units[0] != units[1]:
        raise ConfigError(
            f"{first.folder} labels each {units[0]}, but {other.folder} each {units[1]}: set task.unit to the same"
        )


def shared_files(
    models: Sequence[str | Path],
    runs: Sequence[FinetuneConfig | None],
    given: Mapping[str, Path],
    *,
    split: str,
) -> dict[str, Path]:
    """The given files, or those of the models' runs, which must be the same."""
    files = [evaluation_files(run, given, split=split) for run in runs]
    fractions = [0.0 if given or run is None else run.dev_fraction for run in runs]
    for number, model in enumerate(models):
        if (files[number], fractions[number]) != (files[0], fractions[0]):
            raise ConfigError(
                f"the runs of {models[0]} and {model} have other {split} examples: pass --data DIR, or "
                + ("--dev FILE" if split == "dev" else f"--file FILE --split {split}")
            )
    return files[0]
