"""Cases of an error analysis from gold and predicted entities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bertsmith.metrics.sequence_labelling import Entity
from bertsmith.tasks import tagged_text
from bertsmith.tasks.tagged_text import Spans
from bertsmith.tasks.task import Case, Example, Prediction

NOTHING, OTHER_BOUNDS = "nothing", "other bounds"


@dataclass(frozen=True)
class EntityCases:
    """The entities of one example."""

    index: int
    example: Example
    prediction: Prediction
    words: list[int]  # indices of the scored words, which entities count
    spans: Spans

    def cases(self, gold: list[Entity], predicted: list[Entity]) -> list[Case]:
        """One case per gold entity, and one per predicted entity whose bounds are those of no gold entity."""
        cases = []
        by_bounds = {(entity.start, entity.end): entity for entity in predicted}
        for entity in gold:
            same = by_bounds.get((entity.start, entity.end))
            near = same or next((other for other in predicted if _overlap(entity, other)), None)
            column = same.type if same else OTHER_BOUNDS if near else NOTHING
            cases.append(self._case(entity, near, (entity.type, column), calibrated=same is not None))
        bounds = {(entity.start, entity.end) for entity in gold}
        for entity in predicted:
            if (entity.start, entity.end) not in bounds:
                near = next((other for other in gold if _overlap(entity, other)), None)
                cell = (OTHER_BOUNDS if near else NOTHING, entity.type)
                cases.append(self._case(near, entity, cell, reported=near is None))
        return cases

    def _case(self, gold: Entity | None, predicted: Entity | None, cell: tuple[str, str], **flags: Any) -> Case:
        shown = gold or predicted
        assert shown is not None
        example = replace(self.example, source=tagged_text.word_source(self.example, self.words[shown.start]))
        texts, confidence = (self._text(gold), self._text(predicted)), self._confidence(predicted)
        return Case.of(self.index, example, *texts, confidence, correct=gold == predicted, cell=cell, **flags)

    def _span(self, entity: Entity) -> tuple[int, int]:
        return self.spans[self.words[entity.start]][0], self.spans[self.words[entity.end - 1]][1]

    def _text(self, entity: Entity | None) -> str:
        return NOTHING if entity is None else f"{entity.type}: {self.example.texts[0][slice(*self._span(entity))]}"

    def _confidence(self, entity: Entity | None) -> float:
        span = self._span(entity) if entity else None
        found = (one["score"] for one in self.prediction.detail["entities"] if (one["start"], one["end"]) == span)
        return float(next(found, self.prediction.score))


def _overlap(first: Entity, second: Entity) -> bool:
    return first.start < second.end and second.start < first.end
