"""The classes of a tagger: outside, and for each type of entity its begin and its inside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bertsmith.config import did_you_mean
from bertsmith.errors import DataError
from bertsmith.tasks.tables import listed
from bertsmith.tasks.tagged.sentences import Sentence, where

OUTSIDE = "O"


def of_kinds(kinds: Iterable[str]) -> tuple[str, ...]:
    """The classes for these types."""
    return (OUTSIDE, *(f"{letter}-{kind}" for kind in sorted(set(kinds)) for letter in "BI"))


def of_train(sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """The classes of a train file; every type has both of its tags, whether or not both occur."""
    kinds = {tag[2:] for sentence in sentences for tag in sentence.gold if tag != OUTSIDE}
    if not kinds:
        name = sentences[0].source.rpartition(":")[0]
        raise DataError(f"{name}: every word is outside (O): there is no entity to learn from; is this the tag column?")
    return of_kinds(kinds)


def check(sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
    """Raises a DataError for the first tag that is not among the classes."""
    known = set(labels)
    for sentence in sentences:
        for word, tag in enumerate(sentence.gold or ()):
            if tag not in known:
                near = did_you_mean(tag, labels)
                raise DataError(
                    f"{where(sentence, word)}: {tag[:40]!r} (in IOB2) is none of the tags that are learned "
                    f"({listed(list(labels))}){near}"
                )


def check_model(labels: Sequence[str]) -> None:
    """Raises a DataError where a model's classes are not tags in IOB2."""
    wrong = [label for label in labels if label != OUTSIDE and label[:2] not in ("B-", "I-")]
    if wrong or OUTSIDE not in labels:
        found = f"{wrong[0]!r} is none" if wrong else "O is not among them"
        raise DataError(f"this model's labels ({listed(list(labels))}) are not tags in IOB2: {found}")
