"""The tags of files, in whatever scheme, as IOB2. What is no tag or breaks the scheme is said with file:line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from bertsmith.errors import DataError
from bertsmith.metrics import sequence_labelling
from bertsmith.metrics.sequence_labelling import Scheme
from bertsmith.tasks.tagged.sentences import Sentence, where

# detect: the one scheme in which every tag is in its place; lenient: any tags, read as conlleval does.
Given = Literal["detect", "IOB1", "IOB2", "IOBES", "BILOU", "lenient"]


def in_iob2(sentences: Sequence[Sentence], given: Given) -> tuple[list[Sentence], str]:
    """The sentences with their tags in IOB2, and what scheme the file has."""
    told = [sentence for sentence in sentences if sentence.gold is not None]
    _check_spelling(told)
    remark = ""
    if given == "lenient":
        faults = {scheme: _faults(told, scheme) for scheme in _candidates(told)}
        scheme: Scheme = min(faults, key=lambda name: faults[name])
        remark = f", but for {faults[scheme]:,} tags" if faults[scheme] else ""
    else:
        scheme = _detected(told) if given == "detect" else given
        fault = _first_fault(told, scheme)
        if fault:
            raise DataError(f"{fault}, so that this is not {scheme}: mend it, or say scheme=lenient")
    found = [
        sentence
        if sentence.gold is None
        else replace(sentence, gold=tuple(sequence_labelling.convert_tags(sentence.gold, to="IOB2")), scheme=scheme)
        for sentence in sentences
    ]
    return found, scheme + remark if told else ""


def _check_spelling(sentences: Sequence[Sentence]) -> None:
    wrong = set()
    for tag in {tag for sentence in sentences for tag in sentence.gold}:
        try:
            sequence_labelling.tags_to_entities([tag])
        except DataError:
            wrong.add(tag)
    for sentence in sentences if wrong else ():
        for word, tag in enumerate(sentence.gold):
            if tag in wrong:
                raise DataError(
                    f"{where(sentence, word)}: {tag[:40]!r} is no tag: expected O, or B, I, E, S, L or U and a type, "
                    "as in B-PER"
                )


def _candidates(sentences: Sequence[Sentence]) -> tuple[Scheme, ...]:
    letters = {tag[0] for sentence in sentences for tag in sentence.gold}
    if letters & {"E", "S"}:
        return ("IOBES",)
    return ("BILOU",) if letters & {"L", "U"} else ("IOB2", "IOB1")


def _detected(sentences: Sequence[Sentence]) -> Scheme:
    faults = {scheme: _first_fault(sentences, scheme) for scheme in _candidates(sentences)}
    for scheme, fault in faults.items():
        if not fault:
            return scheme
    reasons = "; ".join(f"not {scheme}: {fault}" for scheme, fault in faults.items())
    raise DataError(f"the tags follow no scheme ({reasons}): mend them, or say scheme=lenient")


def _faults(sentences: Sequence[Sentence], scheme: Scheme) -> int:
    return sum(len(sequence_labelling.scheme_violations(sentence.gold, scheme=scheme)) for sentence in sentences)


def _first_fault(sentences: Sequence[Sentence], scheme: Scheme) -> str:
    for sentence in sentences:
        for fault in sequence_labelling.scheme_violations(sentence.gold, scheme=scheme):
            return f"{where(sentence, fault.word)}: {fault.reason}"
    return ""
