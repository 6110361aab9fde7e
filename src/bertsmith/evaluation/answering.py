"""A model's predictions for many examples, part by part, with what each example took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bertsmith.errors import DataError
from bertsmith.evaluation.asking import Asked
from bertsmith.system.progress import Progress
from bertsmith.tasks.task import Example, Prediction, Task, cut_examples
from bertsmith.tasks.task import Features as Question
from bertsmith.training.finetuning.answering import answers

AT_ONCE = 1024  # examples: bounds the memory, and how long nothing is heard


@dataclass(frozen=True)
class Part:
    """Some examples, what was said of them, how long each is, and of which not everything could be read."""

    examples: list[Example]
    predictions: list[Prediction]
    sizes: list[int]  # tokens of the longest row, with what was cut; of tags, words or characters
    cut: list[bool]
    texts: int  # rows that the model has read


def in_parts(asked: Asked, examples: Sequence[Example], *, title: str, quiet: bool) -> Iterator[Part]:
    """Every example in order, each once."""
    total = sum(_letters(example) for example in examples)
    done = 0
    with Progress(title, total=total, quiet=quiet) as progress:
        for begin, end in pairwise(_cuts(examples)):
            found = _part(asked, examples[begin:end])
            done += sum(_letters(example) for example in found.examples)
            progress.update(done, examples=end)
            yield found


def unit_of(task: Task) -> str:
    """What sizes are counted in."""
    if task.objective != "tag":
        return "tokens"
    return "characters" if getattr(task, "unit", "word") == "character" else "words"


def _letters(example: Example) -> int:
    return sum(len(text) for text in example.texts)


def _cuts(examples: Sequence[Example]) -> list[int]:
    """Where parts begin and end: sentences of one document stay together."""
    found = [0]
    for place in range(1, len(examples)):
        document = getattr(examples[place], "document", "")
        together = document and document == getattr(examples[place - 1], "document", "")
        if place - found[-1] >= AT_ONCE and not together:
            found.append(place)
    return [*found, len(examples)] if len(examples) else found


def _part(asked: Asked, examples: Sequence[Example]) -> Part:
    task, tokenizer = asked.task, asked.tokenizer
    questions = task.rows(examples, tokenizer, length=asked.length)
    logits = answers(
        asked.model,
        questions,
        task.objective,
        padding_id=tokenizer.padding_id,
        length=asked.length,
        half=asked.half,
    )
    if not all(np.isfinite(one).all() for one in logits):
        raise DataError(f"{asked.folder} answers with numbers that are not finite: its weights are of no use")
    predictions = task.decode(examples, questions, logits)
    sizes = _sizes(questions, len(examples))
    if task.objective == "tag":  # a row may hold several sentences, and a sentence several rows
        sizes = [len(prediction.value) for prediction in predictions]
    cut = cut_examples(questions)
    texts = sum(len(question.rows) for question in questions)
    return Part(list(examples), predictions, sizes, [number in cut for number in range(len(examples))], texts)


def _sizes(questions: Sequence[Question], examples: int) -> list[int]:
    """Tokens of each example: of its longest row, to the end of the last window."""
    found = [0] * examples
    for question in questions:
        longest = max(question.begin + len(row) + sum(row.truncated) for row in question.rows)
        found[question.example] = max(found[question.example], longest)
    return found
