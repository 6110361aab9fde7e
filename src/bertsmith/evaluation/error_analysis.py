"""Examples and predictions become cases, which are right or wrong: one for each example, of tags one for each entity.

Golds and answers are words here, for people. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bertsmith.metrics.sequence_labelling import Entity, Scheme, tags_to_entities
from bertsmith.objectives.objective import pipeline_of
from bertsmith.tasks.question_answering import SCORERS, QuestionAnsweringTask
from bertsmith.tasks.tagged_text import Spans, where, words
from bertsmith.tasks.task import Example, Prediction, Task
from bertsmith.tasks.text_tasks import MultipleChoiceTask
from bertsmith.tasks.token_classification import TokenClassificationTask

NOTHING, OTHER_BOUNDS = "nothing", "other bounds"
NO_ANSWER, RIGHT_ANSWER, OTHER_ANSWER = "no answer", "right answer", "other answer"


@dataclass(frozen=True, slots=True)
class Case:
    """What was asked, what is right, what was said."""

    example: int  # its number in the list that was given
    id: str
    texts: tuple[str, ...]
    gold: str
    said: str
    sure: float  # of what was said, a probability; of numbers, how far it is from the gold one
    right: bool
    source: str  # file:line
    cell: tuple[str, str] | None = None  # row and column of the confusion matrix
    counts: bool = True  # into calibration
    told: bool = True  # among the errors, where wrong


def cases_of(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> list[Case]:
    """The cases in the order of the examples."""
    return JUDGES[pipeline_of(task.objective)](task, examples, predictions)


def _labels(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> list[Case]:
    return [
        _case(number, example, example.gold, said.value, said.score, cell=(example.gold, said.value))
        for number, (example, said) in enumerate(zip(examples, predictions, strict=True))
    ]


def _numbers(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> list[Case]:
    found = []
    for number, (example, said) in enumerate(zip(examples, predictions, strict=True)):
        off = abs(example.gold - said.value)
        found.append(_case(number, example, f"{example.gold:g}", f"{said.value:.3f}", off, right=off == 0))
    return found


def _choices(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> list[Case]:
    assert isinstance(task, MultipleChoiceTask)
    found = []
    for number, (example, said) in enumerate(zip(examples, predictions, strict=True)):
        gold, answer = (f"{place}: {example.texts[place + 1]}" for place in (example.gold, said.value))
        found.append(_case(number, example, gold, answer, said.score, right=example.gold == said.value))
    return found


def _answers(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> list[Case]:
    assert isinstance(task, QuestionAnsweringTask)
    golds = {example.id: example.gold for example in examples}
    said = {example.id: prediction.value for example, prediction in zip(examples, predictions, strict=True)}
    marks = SCORERS[task.rules](golds, said)
    exact = dict(zip(marks.ids, marks.exact.tolist(), strict=True))
    found = []
    for number, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        gold = " | ".join(dict.fromkeys(example.gold)) or NO_ANSWER
        right = exact[example.id] == 1
        answer = prediction.value or NO_ANSWER
        column = NO_ANSWER if not prediction.value else RIGHT_ANSWER if right else OTHER_ANSWER
        cell = ("answer" if example.gold else NO_ANSWER, column) if task.rules == "2.0" else None
        found.append(_case(number, example, gold, answer, prediction.score, right=right, cell=cell))
    return found


def _case(
    number: int,
    example: Example,
    gold: str,
    said: str,
    sure: float,
    *,
    right: bool | None = None,
    cell: tuple[str, str] | None = None,
) -> Case:
    right = gold == said if right is None else right
    return Case(number, example.id, example.texts, gold, said, float(sure), right, example.source, cell)


def _tags(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> list[Case]:
    assert isinstance(task, TokenClassificationTask)
    found: list[Case] = []
    for number, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        spans = words(example, task.unit)
        kept = list(range(len(spans)))
        if task.unit == "character":  # white space does not count, as in the task's scores
            kept = [word for word in kept if not example.texts[0][slice(*spans[word])].isspace()]
        scheme: Scheme | None = "IOB2" if task.strict else None
        gold, said = (
            tags_to_entities([tags[word] for word in kept], scheme=scheme) for tags in (example.gold, prediction.value)
        )
        sentence = _Sentence(number, example, prediction, kept, spans)
        found += sentence.cases(gold, said)
    return found


@dataclass(frozen=True)
class _Sentence:
    number: int
    example: Example
    prediction: Prediction
    kept: list[int]  # numbers of the words that entities count
    spans: Spans

    def cases(self, gold: list[Entity], said: list[Entity]) -> list[Case]:
        """A case for each gold entity, and one for each found one that has not the bounds of a gold one."""
        found = []
        at = {(entity.start, entity.end): entity for entity in said}
        for entity in gold:
            same = at.get((entity.start, entity.end))
            near = same or next((other for other in said if _meet(entity, other)), None)
            column = same.type if same else OTHER_BOUNDS if near else NOTHING
            found.append(self._case(entity, near, (entity.type, column), counts=same is not None))
        bounds = {(entity.start, entity.end) for entity in gold}
        for entity in said:
            if (entity.start, entity.end) not in bounds:
                near = next((other for other in gold if _meet(entity, other)), None)
                cell = (OTHER_BOUNDS if near else NOTHING, entity.type)
                found.append(self._case(near, entity, cell, told=near is None))
        return found

    def _case(
        self,
        gold: Entity | None,
        said: Entity | None,
        cell: tuple[str, str],
        *,
        counts: bool = True,
        told: bool = True,
    ) -> Case:
        shown = gold or said
        assert shown is not None
        return Case(
            self.number,
            self.example.id,
            self.example.texts[:1],
            self._words(gold),
            self._words(said),
            self._sure(said),
            gold is not None and gold == said,
            where(self.example, self.kept[shown.start]),
            cell,
            counts,
            told,
        )

    def _place(self, entity: Entity) -> tuple[int, int]:
        return self.spans[self.kept[entity.start]][0], self.spans[self.kept[entity.end - 1]][1]

    def _words(self, entity: Entity | None) -> str:
        if entity is None:
            return NOTHING
        begin, end = self._place(entity)
        return f"{entity.type}: {self.example.texts[0][begin:end]}"

    def _sure(self, entity: Entity | None) -> float:
        if entity is None:
            return self.prediction.score
        begin, end = self._place(entity)
        for one in self.prediction.detail["entities"]:
            if (one["start"], one["end"]) == (begin, end):
                return float(one["score"])
        return self.prediction.score


def _meet(first: Entity, second: Entity) -> bool:
    return first.start < second.end and second.start < first.end


Judge = Callable[[Task, Sequence[Example], Sequence[Prediction]], list[Case]]
JUDGES: dict[str, Judge] = {
    "text-classification": _labels,
    "text-regression": _numbers,
    "multiple-choice": _choices,
    "question-answering": _answers,
    "token-classification": _tags,
}
