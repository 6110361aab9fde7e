"""Tags and the entities that they spell: IOB1, IOB2, IOBES (BIOES) and BILOU, read, checked, converted, told apart.

Two readings. The lenient one takes any sequence of tags as conlleval does, whatever the scheme. The strict one keeps
what the scheme spells correctly and drops the rest, as seqeval's strict mode does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, DataError
from bertsmith.metrics.classification import MatchCounts

Scheme = Literal["IOB1", "IOB2", "IOBES", "BILOU"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
_LETTERS: dict[Scheme, str] = {"IOB1": "IOB", "IOB2": "IOB", "IOBES": "IOBES", "BILOU": "BILOU"}
_SAME_AS = {"L": "E", "U": "S"}  # last and unit: other letters for end and single


class Entity(NamedTuple):
    """One entity: its type, and the words begin … end-1 of its sentence, counted from 0."""

    type: str
    start: int
    end: int


class Violation(NamedTuple):
    """A tag that the scheme does not allow where it stands: number of the word from 0, and what is wrong."""

    word: int
    reason: str


class _Tag(NamedTuple):
    letter: str  # one of O, B, I, E, S; L and U are read as E and S
    kind: str  # "_" where the tag names none


_OUTSIDE = _Tag("O", "")


def tags_to_entities(tags: Sequence[str], *, scheme: Scheme | None = None) -> list[Entity]:
    """The entities of one sentence, from left to right: lenient without a scheme, strict with one."""
    read = [*_read(tags, scheme), _OUTSIDE]
    return _lenient(read) if scheme is None else _strict(read, _RULES[scheme])


def entities_to_tags(found: Iterable[Entity], *, words: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence of so many words in which these entities stand; they must not overlap."""
    _known(scheme)
    single, last = ("U", "L") if scheme == "BILOU" else ("S", "E")
    tags = ["O"] * words
    before: Entity | None = None
    for entity in sorted(found, key=lambda entity: entity.start):
        if not (before.end if before else 0) <= entity.start < entity.end <= words:
            raise DataError(f"{entity} overlaps another entity, is empty, or is not within {words} words")
        letters = ["B"] + ["I"] * (entity.end - entity.start - 1)
        if scheme in ("IOBES", "BILOU"):
            letters[-1] = last if len(letters) > 1 else single
        elif scheme == "IOB1" and not (before and before.end == entity.start and before.type == entity.type):
            letters[0] = "I"
        tags[entity.start : entity.end] = [f"{letter}-{entity.type}" for letter in letters]
        before = entity
    return tags


def convert_tags(tags: Sequence[str], *, to: Scheme) -> list[str]:
    """The tags of a sentence in another scheme: what the lenient reading finds, spelt anew."""
    return entities_to_tags(tags_to_entities(tags), words=len(tags), scheme=to)


def scheme_violations(tags: Sequence[str], *, scheme: Scheme) -> list[Violation]:
    """Where a sentence breaks the rules of a scheme; none where every tag is in its place."""
    _known(scheme)
    found: list[Violation] = []
    before = _OUTSIDE
    for word, tag in enumerate([*tags, "O"]):
        here = _parsed(tag, word)
        if tag[0] not in _LETTERS[scheme]:
            found.append(Violation(word, f"{tag} has no place in {scheme}"))
        elif scheme == "IOB1":
            if here.letter == "B" and (before.letter == "O" or before.kind != here.kind):
                found.append(Violation(word, f"{tag} stands where no entity of its type ends: IOB1 begins with I"))
        else:
            follows = before.letter in "BI" and before.kind == here.kind
            if scheme != "IOB2" and before.letter in "BI" and not (follows and here.letter in "IE"):
                found.append(
                    Violation(word - 1, f"{tags[word - 1]} is followed by {tag if word < len(tags) else 'nothing'}")
                )
            if here.letter in "IE" and not follows:
                found.append(Violation(word, f"{tag} goes on with nothing"))
        before = here
    return found


def detect_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme in which all these sentences are correct; IOB2 where there is no entity to tell it by."""
    listed = [list(sentence) for sentence in sentences]
    letters = {tag[:1] for sentence in listed for tag in sentence}
    candidates: tuple[Scheme, ...] = ("IOB2", "IOB1")
    if letters & {"E", "S"}:
        candidates = ("IOBES",)
    elif letters & {"L", "U"}:
        candidates = ("BILOU",)
    reasons = []
    for scheme in candidates:
        first = next(
            ((number, bad[0]) for number, tags in enumerate(listed) if (bad := scheme_violations(tags, scheme=scheme))),
            None,
        )
        if first is None:
            return scheme
        number, fault = first
        reasons.append(f"not {scheme} (sentence {number + 1}, word {fault.word + 1}: {fault.reason})")
    raise DataError(f"the tags follow no scheme: {'; '.join(reasons)}")


@dataclass(frozen=True)
class _Rules:
    """A strict scheme: whether a tag begins an entity, goes on with it, and whether what follows it lets it end."""

    begins: Callable[[_Tag, _Tag], bool]  # tag before, this tag
    goes_on: Callable[[_Tag, _Tag], bool]  # tag before, this tag
    closes: Callable[[_Tag, _Tag], bool]  # last tag, tag behind it


def _begins_iob1(before: _Tag, here: _Tag) -> bool:
    if here.letter == "B":
        return before.letter != "O" and before.kind == here.kind
    return here.letter == "I" and (before.letter != "I" or before.kind != here.kind)


_IOB1 = _Rules(
    begins=_begins_iob1,
    goes_on=lambda before, here: here.letter == "I" and before.kind == here.kind,
    closes=lambda last, behind: not (last.letter == behind.letter == "B" and last.kind != behind.kind),
)
_IOB2 = _Rules(
    begins=lambda before, here: here.letter == "B",
    goes_on=lambda before, here: here.letter == "I" and before.kind == here.kind,
    closes=lambda last, behind: True,
)
_IOBES = _Rules(
    begins=lambda before, here: here.letter in "BS",
    goes_on=lambda before, here: before.letter in "BI" and here.letter in "IE" and before.kind == here.kind,
    closes=lambda last, behind: last.letter in "ES",
)
_RULES: dict[Scheme, _Rules] = {"IOB1": _IOB1, "IOB2": _IOB2, "IOBES": _IOBES, "BILOU": _IOBES}


def _lenient(tags: list[_Tag]) -> list[Entity]:
    """Runs of tags other than O, cut wherever the tag before ends, this one begins, or the type changes."""
    found: list[Entity] = []
    begin, before = 0, _OUTSIDE
    for word, here in enumerate(tags):
        if before.letter in "OES" or here.letter in "OBS" or before.kind != here.kind:
            if before.letter != "O":
                found.append(Entity(before.kind, begin, word))
            begin = word
        before = here
    return found


def _strict(tags: list[_Tag], rules: _Rules) -> list[Entity]:
    found: list[Entity] = []
    before, word = _OUTSIDE, 0
    while word < len(tags):
        begin = word
        word += 1
        if rules.begins(before, tags[begin]):
            while rules.goes_on(tags[word - 1], tags[word]):
                word += 1
            if rules.closes(tags[word - 1], tags[word]):
                found.append(Entity(tags[begin].kind, begin, word))
        before = tags[word - 1]
    return found


def _read(tags: Sequence[str], scheme: Scheme | None) -> list[_Tag]:
    if isinstance(tags, str):
        raise DataError(f"{tags!r} is one text: the tags of a sentence are a list")
    if scheme is not None:
        _known(scheme)
        for word, tag in enumerate(tags):
            if tag[:1] not in _LETTERS[scheme]:
                raise DataError(f"word {word + 1} has the tag {tag!r}, which has no place in {scheme}")
    return [_parsed(tag, word) for word, tag in enumerate(tags)]


def _parsed(tag: str, word: int) -> _Tag:
    found = _parse(tag)
    if found is None:
        raise DataError(
            f"word {word + 1} has the tag {tag!r}: expected O, or one of B I E S L U and a type, as in B-PER"
        )
    return found


@lru_cache(maxsize=4096)
def _parse(tag: str) -> _Tag | None:
    letter, _, kind = tag.partition("-")
    if letter == "O":
        return _OUTSIDE if tag == "O" else None
    if letter not in {"B", "I", "E", "S", "L", "U"}:
        return None
    return _Tag(_SAME_AS.get(letter, letter), kind or "_")


def _known(scheme: str) -> None:
    if scheme not in SCHEMES:
        raise ConfigError(f"{scheme!r} is no tagging scheme: take one of {', '.join(SCHEMES)} (BIOES is IOBES)")


Sentences = Sequence[Sequence[str]]


@dataclass(frozen=True)
class EntityScores:
    """Counts of all entities and of each type, and the share of words whose tag is right; fractions of 1."""

    overall: MatchCounts
    by_type: dict[str, MatchCounts]  # types in alphabetical order
    accuracy: float

    @property
    def macro_f1(self) -> float:
        """The mean over types of their F1; 0 where there is no entity."""
        return sum(part.f1 for part in self.by_type.values()) / max(1, len(self.by_type))


def score_entities(gold: Sentences, predicted: Sentences, *, scheme: Scheme | None = None) -> EntityScores:
    """Precision, recall and F1 of entities. Without a scheme as conlleval, with one as seqeval's strict mode.

    Both sides are tags, sentence by sentence.
    """
    correct: Counter[str] = Counter()
    found: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for ours, theirs in _pairs(gold, predicted, scheme):
        there.update(entity.type for entity in ours)
        found.update(entity.type for entity in theirs)
        correct.update(entity.type for entity in ours & theirs)
    words = sum(len(tags) for tags in gold)
    right = sum(a == b for ours, theirs in zip(gold, predicted, strict=True) for a, b in zip(ours, theirs, strict=True))
    return EntityScores(
        overall=MatchCounts(correct=correct.total(), predicted=found.total(), gold=there.total()),
        by_type={
            kind: MatchCounts(correct=correct[kind], predicted=found[kind], gold=there[kind])
            for kind in sorted({*there, *found})
        },
        accuracy=right / max(1, words),
    )


def entity_counts(gold: Sentences, predicted: Sentences, *, scheme: Scheme | None = None) -> NDArray[np.int64]:
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
        return set(tags_to_entities(tags, scheme=scheme))
    except DataError as wrong:
        raise DataError(f"{where}: {wrong}") from None
