"""Tagging schemes (IOB1, IOB2, IOBES/BIOES, BILOU), their entities, and entity scores.

Entities are decoded leniently, as in conlleval, or strictly: only those valid in the scheme count, as in seqeval.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, DataError
from bertsmith.metrics.classification import MatchCounts

Scheme = Literal["IOB1", "IOB2", "IOBES", "BILOU"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
LETTERS: dict[Scheme, str] = {"IOB1": "IOB", "IOB2": "IOB", "IOBES": "IOBES", "BILOU": "BILOU"}
_SAME_AS = {"L": "E", "U": "S", "M": "I"}  # BILOU's last and unit are IOBES's end and single; BMES's middle is inside
_LABEL_FORMS = tuple(  # B-PER, B_PER, B; PER-B, PER_B
    re.compile(form, re.IGNORECASE)
    for form in (r"(?P<letter>[BIESLUM])(?:[\W_](?P<kind>.*))?", r"(?P<kind>.+)[\W_](?P<letter>[BIESLUM])")
)
_NO_ENTITY = {"O", "X", "[PAD]", "[CLS]", "[SEP]"}  # X: later tokens of a word
_PARTS_OF_SPEECH = {"NOUN", "VERB", "NN", "VB", "NNG", "VV"}  # Universal Dependencies, Penn Treebank, Sejong


class Entity(NamedTuple):
    """An entity: its type and its words start … end-1, counted from 0."""

    type: str
    start: int
    end: int


class Violation(NamedTuple):
    """A tag that is invalid in its context: index of the word from 0, and the reason."""

    word: int
    reason: str


class Tag(NamedTuple):
    """A parsed tag."""

    letter: str  # one of O, B, I, E, S; L and U become E and S
    kind: str  # "_" if the tag has no type


_OUTSIDE = Tag("O", "")


def tags_to_entities(tags: Sequence[str], *, scheme: Scheme | None = None) -> list[Entity]:
    """The entities of one sentence in order: lenient without a scheme, strict with one."""
    read = [*_read(tags, scheme), _OUTSIDE]
    return _lenient(read) if scheme is None else _strict(read, scheme)


def entities_to_tags(found: Iterable[Entity], *, words: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence with these entities, which must not overlap."""
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
    """The tags of a sentence in another scheme, by lenient decoding."""
    return entities_to_tags(tags_to_entities(tags), words=len(tags), scheme=to)


def scheme_violations(tags: Sequence[str], *, scheme: Scheme) -> list[Violation]:
    """The violations of a scheme in a sentence."""
    _known(scheme)
    violations: list[Violation] = []
    before = _OUTSIDE
    for word, tag in enumerate([*tags, "O"]):
        here = _parsed(tag, word)
        if tag[0] not in LETTERS[scheme]:
            violations.append(Violation(word, f"{tag} does not exist in {scheme}"))
        elif scheme == "IOB1":
            if here.letter == "B" and (before.letter == "O" or before.kind != here.kind):
                reason = f"{tag} does not follow an entity of its type: IOB1 entities begin with I"
                violations.append(Violation(word, reason))
        else:
            follows = before.letter in "BI" and before.kind == here.kind
            if scheme != "IOB2" and before.letter in "BI" and not (follows and here.letter in "IE"):
                following = tag if word < len(tags) else "nothing"
                violations.append(Violation(word - 1, f"{tags[word - 1]} is followed by {following}"))
            if here.letter in "IE" and not follows:
                violations.append(Violation(word, f"{tag} does not continue an entity"))
        before = here
    return violations


def candidate_schemes(sentences: Iterable[Sequence[str]]) -> tuple[Scheme, ...]:
    """The schemes that have all letters of the tags."""
    letters = {tag[:1] for tags in sentences for tag in tags}
    if letters & {"E", "S"}:
        return ("IOBES",)
    return ("BILOU",) if letters & {"L", "U"} else ("IOB2", "IOB1")


def detect_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme in which all sentences are valid; IOB2 if there are no entities."""
    listed = [list(sentence) for sentence in sentences]
    reasons = []
    for scheme in candidate_schemes(listed):
        violations = ((n, one) for n, tags in enumerate(listed, 1) for one in scheme_violations(tags, scheme=scheme))
        number, violation = next(violations, (0, None))
        if violation is None:
            return scheme
        reasons.append(f"not {scheme} (sentence {number}, word {violation.word + 1}: {violation.reason})")
    raise DataError(f"the tags are not valid in any scheme: {'; '.join(reasons)}")


class EntityLabels(NamedTuple):
    """The labels of a token classifier as entity tags."""

    tags: tuple[str, ...]  # by class: O, or B, I, E or S and a type
    scheme: Scheme | None  # how predicted tags are decoded; None: leniently

    def entities(self, classes: Iterable[int]) -> list[Entity]:
        """The entities of a sequence of predicted classes."""
        return tags_to_entities([self.tags[number] for number in classes], scheme=self.scheme)


def entity_labels(labels: Sequence[str]) -> EntityLabels | None:
    """The scheme of a label set: IOB1, IOB2, IOBES, BILOU, BMES, or bare types beside O; None if it has no entities.

    IOB2 is decoded leniently, as by transformers; IOB1, which has an I without a B, IOBES and BILOU strictly, as by
    seqeval. Sets with another choice of letters, such as B, I and S, are decoded leniently.
    """
    others = [label for label in labels if label not in _NO_ENTITY]
    forms = [[form.fullmatch(label) for label in others] for form in _LABEL_FORMS]
    found: list[tuple[str, str]] = []  # letter and type of each of the others
    for matches in forms:
        if all(matches) and not found:
            read = [(one["letter"].upper(), one["kind"] or "_") for one in matches if one]
            found = [(_SAME_AS.get(letter, letter), kind) for letter, kind in read]
    if not found:
        bare = "O" in labels and "X" not in labels and not any(any(matches) for matches in forms)
        if not bare or _PARTS_OF_SPEECH & set(others):
            return None
        found = [("I", label) for label in others]
    tags = {label: f"{letter}-{kind}" for label, (letter, kind) in zip(others, found, strict=True)}
    letters, kinds = {letter for letter, _ in found}, {kind for _, kind in found}
    scheme: Scheme | None = "IOBES" if letters >= {"B", "E", "S"} else None
    if letters <= {"B", "I"} and any(("I", kind) in found and ("B", kind) not in found for kind in kinds):
        scheme = "IOB1"
    return EntityLabels(tuple(tags.get(label, "O") for label in labels), scheme)


def allowed_transitions(
    labels: Sequence[str], scheme: Scheme | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]] | None:
    """Which labels may begin a sentence [K], follow each other (from, to) [K, K] and end a sentence [K].

    Without a scheme that of the labels, B and I being IOB2; None for labels that are not tags of a scheme.
    """
    known = entity_labels(labels)
    tags = [] if known is None else [_parsed(tag, number) for number, tag in enumerate(known.tags)]
    letters = {tag.letter for tag in tags} - {"O"}
    if scheme is not None:
        _known(scheme)
        if known is None or not letters <= {_SAME_AS.get(letter, letter) for letter in LETTERS[scheme]}:
            raise ConfigError(f"the labels {', '.join(labels[:6])}{' …' * (len(labels) > 6)} are not tags of {scheme}")
    elif known is None or not letters:
        return None
    else:
        found: Scheme | None = known.scheme or ("IOB2" if letters == {"B", "I"} else None)
        if found is None:
            return None
        scheme = found
    pairs = [[_may_follow(scheme, before, here) for here in [*tags, _OUTSIDE]] for before in [*tags, _OUTSIDE]]
    allowed = np.array(pairs, np.bool_)
    return allowed[-1, :-1], allowed[:-1, :-1], allowed[:-1, -1]


def _may_follow(scheme: Scheme, before: Tag, here: Tag) -> bool:
    """Whether a valid sentence may have these neighbours; both of its ends are like O."""
    same = before.kind == here.kind
    if scheme == "IOB1":
        return here.letter != "B" or (before.letter != "O" and same)
    if scheme == "IOB2":
        return here.letter != "I" or (before.letter != "O" and same)
    return (same and here.letter in "IE") if before.letter in "BI" else here.letter in "OBS"


def _begins(scheme: Scheme, before: Tag, here: Tag) -> bool:
    """Strict decoding: whether a tag begins an entity."""
    if scheme != "IOB1":
        return here.letter in ("B" if scheme == "IOB2" else "BS")
    if here.letter == "B":
        return before.letter != "O" and before.kind == here.kind
    return here.letter == "I" and (before.letter != "I" or before.kind != here.kind)


def _continues(scheme: Scheme, before: Tag, here: Tag) -> bool:
    """Strict decoding: whether a tag continues the entity of the tag before."""
    if scheme in ("IOB1", "IOB2"):
        return here.letter == "I" and before.kind == here.kind
    return before.letter in "BI" and here.letter in "IE" and before.kind == here.kind


def _closes(scheme: Scheme, last: Tag, following: Tag) -> bool:
    """Strict decoding: whether an entity may end between two tags."""
    if scheme == "IOB1":
        return not (last.letter == following.letter == "B" and last.kind != following.kind)
    return scheme == "IOB2" or last.letter in "ES"


def _lenient(tags: list[Tag]) -> list[Entity]:
    """Runs of tags other than O, split where an entity ends or begins or the type changes."""
    found: list[Entity] = []
    begin, before = 0, _OUTSIDE
    for word, here in enumerate(tags):
        if before.letter in "OES" or here.letter in "OBS" or before.kind != here.kind:
            if before.letter != "O":
                found.append(Entity(before.kind, begin, word))
            begin = word
        before = here
    return found


def _strict(tags: list[Tag], scheme: Scheme) -> list[Entity]:
    found: list[Entity] = []
    before, word = _OUTSIDE, 0
    while word < len(tags):
        begin = word
        word += 1
        if _begins(scheme, before, tags[begin]):
            while _continues(scheme, tags[word - 1], tags[word]):
                word += 1
            if _closes(scheme, tags[word - 1], tags[word]):
                found.append(Entity(tags[begin].kind, begin, word))
        before = tags[word - 1]
    return found


def _read(tags: Sequence[str], scheme: Scheme | None) -> list[Tag]:
    if isinstance(tags, str):
        raise DataError(f"{tags!r} is a string: the tags of a sentence must be a list")
    if scheme is not None:
        _known(scheme)
        for word, tag in enumerate(tags):
            if tag[:1] not in LETTERS[scheme]:
                raise DataError(f"word {word + 1} has the tag {tag!r}, which does not exist in {scheme}")
    return [_parsed(tag, word) for word, tag in enumerate(tags)]


def _parsed(tag: str, word: int) -> Tag:
    found = parse_tag(tag)
    if found is None:
        raise DataError(
            f"word {word + 1} has the tag {tag!r}: expected O, or one of B I E S L U and a type, as in B-PER"
        )
    return found


@lru_cache(maxsize=4096)
def parse_tag(tag: str) -> Tag | None:
    """The letter and type of a tag; None if it is not one."""
    letter, _, kind = tag.partition("-")
    if letter == "O":
        return _OUTSIDE if tag == "O" else None
    if letter not in {"B", "I", "E", "S", "L", "U"}:
        return None
    return Tag(_SAME_AS.get(letter, letter), kind or "_")


def _known(scheme: str) -> None:
    if scheme not in SCHEMES:
        raise ConfigError(f"{scheme!r} is not a tagging scheme: expected one of {', '.join(SCHEMES)} (BIOES is IOBES)")


Sentences = Sequence[Sequence[str]]


@dataclass(frozen=True)
class EntityScores:
    """Counts of all entities and of each type, and the tag accuracy as a fraction of 1."""

    overall: MatchCounts
    by_type: dict[str, MatchCounts]  # types in alphabetical order
    accuracy: float

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the entity types; 0 if there are no entities."""
        return sum(part.f1 for part in self.by_type.values()) / max(1, len(self.by_type))


def score_entities(gold: Sentences, predicted: Sentences, *, scheme: Scheme | None = None) -> EntityScores:
    """Scores of the tags of sentences: as conlleval without a scheme, as seqeval's strict mode with one.

    An entity is correct if its type and both boundaries are.
    """
    correct, predictions, golds = Counter[str](), Counter[str](), Counter[str]()
    for expected, actual in _pairs(gold, predicted, scheme):
        golds.update(entity.type for entity in expected)
        predictions.update(entity.type for entity in actual)
        correct.update(entity.type for entity in expected & actual)
    same = [a == b for a, b in zip(chain.from_iterable(gold), chain.from_iterable(predicted), strict=True)]
    types = sorted({*golds, *predictions})
    return EntityScores(
        overall=MatchCounts(correct.total(), predictions.total(), golds.total()),
        by_type={kind: MatchCounts(correct[kind], predictions[kind], golds[kind]) for kind in types},
        accuracy=sum(same) / max(1, len(same)),
    )


def entity_counts(gold: Sentences, predicted: Sentences, *, scheme: Scheme | None = None) -> NDArray[np.int64]:
    """Correct, predicted and gold entities of each sentence [N, 3], for `f1_from_counts` and confidence intervals."""
    counted = [(len(a & b), len(b), len(a)) for a, b in _pairs(gold, predicted, scheme)]
    return np.array(counted, dtype=np.int64)


def _pairs(gold: Sentences, predicted: Sentences, scheme: Scheme | None) -> list[tuple[set[Entity], set[Entity]]]:
    if len(gold) != len(predicted):
        raise DataError(f"{len(gold)} gold sentences but {len(predicted)} predicted ones: the numbers must be equal")
    if not len(gold):
        raise DataError("the set is empty: there are no sentences to score")
    pairs = []
    for number, (expected, actual) in enumerate(zip(gold, predicted, strict=True), start=1):
        if len(expected) != len(actual):
            raise DataError(f"sentence {number} has {len(expected)} gold tags but {len(actual)} predicted ones")
        golds = _entities(expected, scheme, f"gold sentence {number}")
        pairs.append((golds, _entities(actual, scheme, f"predicted sentence {number}")))
    return pairs


def _entities(tags: Sequence[str], scheme: Scheme | None, where: str) -> set[Entity]:
    try:
        return set(tags_to_entities(tags, scheme=scheme))
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
