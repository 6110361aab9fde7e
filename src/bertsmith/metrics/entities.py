"""Scores of entities, as conlleval and seqeval give them: an entity counts if its type and both its ends are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError
from bertsmith.metrics.counts import Counts
from bertsmith.metrics.tags import Entity, Scheme
from bertsmith.metrics.tags import entities as entities_of

Sentences = Sequence[Sequence[str]]


@dataclass(frozen=True)
class EntityScores:
    """Counts of all entities and of each type, and the share of words whose tag is right; fractions of 1."""

    overall: Counts
    by_type: dict[str, Counts]  # types in alphabetical order
    accuracy: float

    @property
    def macro_f1(self) -> float:
        """The mean over types of their F1; 0 where there is no entity."""
        return sum(part.f1 for part in self.by_type.values()) / max(1, len(self.by_type))


def score(gold: Sentences, predicted: Sentences, *, scheme: Scheme | None = None) -> EntityScores:
    """Precision, recall and F1 of entities. Without a scheme as conlleval, with one as seqeval's strict mode.

    Both sides are tags, sentence by sentence.
    """
    correct: Counter[str] = Counter()
    found: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for ours, theirs in _pairs(gold, predicted, scheme):
        there.update(entity.kind for entity in ours)
        found.update(entity.kind for entity in theirs)
        correct.update(entity.kind for entity in ours & theirs)
    words = sum(len(tags) for tags in gold)
    right = sum(a == b for ours, theirs in zip(gold, predicted, strict=True) for a, b in zip(ours, theirs, strict=True))
    return EntityScores(
        overall=Counts(correct=correct.total(), found=found.total(), gold=there.total()),
        by_type={
            kind: Counts(correct=correct[kind], found=found[kind], gold=there[kind])
            for kind in sorted({*there, *found})
        },
        accuracy=right / max(1, words),
    )


def sentence_counts(gold: Sentences, predicted: Sentences, *, scheme: Scheme | None = None) -> NDArray[np.int64]:
    """Correct, found and gold entities of each sentence [N, 3]: with `counts.f1_of`, what intervals are made of."""
    counted = [(len(ours & theirs), len(theirs), len(ours)) for ours, theirs in _pairs(gold, predicted, scheme)]
    return np.array(counted, dtype=np.int64)


def _pairs(gold: Sentences, predicted: Sentences, scheme: Scheme | None) -> list[tuple[set[Entity], set[Entity]]]:
    if len(gold) != len(predicted):
        raise DataError(f"{len(gold)} gold sentences but {len(predicted)} predicted ones: they must be the same")
    if not len(gold):
        raise DataError("there are no sentences to score: the set is empty")
    found = []
    for number, (ours, theirs) in enumerate(zip(gold, predicted, strict=True)):
        if len(ours) != len(theirs):
            raise DataError(f"sentence {number + 1} has {len(ours)} gold tags but {len(theirs)} predicted ones")
        found.append(
            (
                _entities(ours, scheme, f"gold sentence {number + 1}"),
                _entities(theirs, scheme, f"predicted sentence {number + 1}"),
            )
        )
    return found


def _entities(tags: Sequence[str], scheme: Scheme | None, where: str) -> set[Entity]:
    try:
        return set(entities_of(tags, scheme=scheme))
    except DataError as wrong:
        raise DataError(f"{where}: {wrong}") from None
