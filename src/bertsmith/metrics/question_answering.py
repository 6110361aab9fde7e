"""Scores of answers that are spans of text: SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0, with the official keys, in per cent.

Gold answers are a mapping from a question's id to the texts that count as right: none for a question without an answer.
The rules are those of the evaluation scripts of these sets (squad: evaluate-v1.1.py, evaluate-v2.0.py; KorQuAD v1.0).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError

GoldAnswers = Mapping[str, Sequence[str]]
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_KOREAN_MARKS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


@dataclass(frozen=True)
class QuestionScores:
    """What each question earned, from 0 to 1: what intervals and comparisons are made of. N questions."""

    ids: tuple[str, ...]
    exact: NDArray[np.float64]  # [N]
    f1: NDArray[np.float64]  # [N]
    answerable: NDArray[np.bool_]  # [N] True where there is a gold answer


def squad_v1(golds: GoldAnswers, predictions: Mapping[str, str]) -> dict[str, float]:
    """SQuAD 1.1: `exact_match` and `f1`. A question without a prediction earns 0."""
    return _in_per_cent(squad_v1_scores(golds, predictions))


def korquad(golds: GoldAnswers, predictions: Mapping[str, str]) -> dict[str, float]:
    """KorQuAD 1.0: as SQuAD 1.1, with F1 over characters, brackets and quotes read as spaces, and no articles."""
    return _in_per_cent(korquad_scores(golds, predictions))


def squad_v2(
    golds: GoldAnswers,
    predictions: Mapping[str, str],
    *,
    no_answer: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """SQuAD 2.0: `exact`, `f1`, `total`, the same for HasAns and NoAns, and with `no_answer` the best thresholds.

    `no_answer` says for each question how sure the model is that there is none (a probability, or null odds). Above the
    threshold the prediction counts as empty.
    """
    raw = squad_v2_scores(golds, predictions)
    marks = raw if no_answer is None else apply_threshold(raw, no_answer=no_answer, threshold=threshold)
    found: dict[str, float] = {}
    for prefix, chosen in (("", slice(None)), ("HasAns_", marks.answerable), ("NoAns_", ~marks.answerable)):
        exact, f1 = marks.exact[chosen].tolist(), marks.f1[chosen].tolist()
        if exact:
            found[f"{prefix}exact"] = 100.0 * sum(exact) / len(exact)
            found[f"{prefix}f1"] = 100.0 * sum(f1) / len(f1)
            found[f"{prefix}total"] = len(exact)
    if no_answer is not None:
        found |= best_thresholds(raw, predictions, no_answer=no_answer)
    return found


def squad_v1_scores(golds: GoldAnswers, predictions: Mapping[str, str]) -> QuestionScores:
    """What each question earns in SQuAD 1.1."""
    return _marks_v1(golds, predictions, normal=normalize_answer, units=str.split)


def korquad_scores(golds: GoldAnswers, predictions: Mapping[str, str]) -> QuestionScores:
    """What each question earns in KorQuAD 1.0."""
    return _marks_v1(golds, predictions, normal=normalize_korean_answer, units=_characters)


def squad_v2_scores(golds: GoldAnswers, predictions: Mapping[str, str]) -> QuestionScores:
    """What each question earns in SQuAD 2.0 before any threshold. Every question needs a prediction."""
    _something(golds)
    _all_there(golds, predictions, "prediction")
    exact, f1 = [], []
    for question, texts in golds.items():
        rights = [normal for text in texts if (normal := normalize_answer(text))] or [""]
        answer = normalize_answer(_text(predictions[question], question))
        exact.append(max(float(right == answer) for right in rights))
        f1.append(max(_overlap_or_both_empty(answer.split(), right.split()) for right in rights))
    return _marks(golds, exact, f1)


def apply_threshold(marks: QuestionScores, *, no_answer: Mapping[str, float], threshold: float) -> QuestionScores:
    """The marks if every prediction whose `no_answer` is above the threshold were empty."""
    _all_there(marks.ids, no_answer, "no-answer score")
    silent = np.array([no_answer[question] > threshold for question in marks.ids], dtype=bool)
    right = (~marks.answerable).astype(np.float64)
    return QuestionScores(
        ids=marks.ids,
        exact=np.where(silent, right, marks.exact),
        f1=np.where(silent, right, marks.f1),
        answerable=marks.answerable,
    )


def best_thresholds(
    marks: QuestionScores, predictions: Mapping[str, str], *, no_answer: Mapping[str, float]
) -> dict[str, float]:
    """The best that any threshold reaches, and that threshold: `best_exact`, `best_exact_thresh`, the same for f1.

    As in the official script, questions with equal scores are taken one by one, in the order of `no_answer`, and the
    threshold is 0 where it is best to answer nothing.
    """
    _all_there(marks.ids, no_answer, "no-answer score")
    place = {question: number for number, question in enumerate(marks.ids)}
    asked = [question for question in no_answer if question in place]
    order = sorted(asked, key=lambda question: no_answer[question])
    where = np.array([place[question] for question in order])
    answered = np.array([bool(predictions[question]) for question in order])
    found: dict[str, float] = {}
    for name, earned in (("exact", marks.exact), ("f1", marks.f1)):
        change = np.where(marks.answerable[where], earned[where], np.where(answered, -1.0, 0.0))
        silent = float((~marks.answerable).sum())
        sums = np.cumsum(np.concatenate([[silent], change]))[1:]
        top = int(np.argmax(sums))
        better = bool(sums[top] > silent)
        found[f"best_{name}"] = 100.0 * float(sums[top] if better else silent) / len(marks.ids)
        found[f"best_{name}_thresh"] = float(no_answer[order[top]]) if better else 0.0
    return found


def normalize_answer(text: str) -> str:
    """A text as SQuAD compares it: lower case, without ASCII punctuation and English articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def normalize_korean_answer(text: str) -> str:
    """A text as KorQuAD compares it: quotes and brackets as spaces, lower case, no ASCII punctuation."""
    return " ".join(text.translate(_KOREAN_MARKS).lower().translate(_NO_PUNCTUATION).split())


def gold_answers(data: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The gold answers of a SQuAD file, from its `data`: articles with paragraphs with questions."""
    golds: dict[str, list[str]] = {}
    for article in data:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                if question["id"] in golds:
                    raise DataError(f"question {question['id']} stands twice in the data: ids must differ")
                golds[question["id"]] = [answer["text"] for answer in question["answers"]]
    return golds


def _marks_v1(
    golds: GoldAnswers,
    predictions: Mapping[str, str],
    *,
    normal: Callable[[str], str],
    units: Callable[[str], list[str]],
) -> QuestionScores:
    _something(golds)
    exact, f1 = [], []
    for question, texts in golds.items():
        if not texts:
            raise DataError(f"question {question} has no gold answer: score a set with such questions as SQuAD 2.0")
        if question not in predictions:
            exact.append(0.0)
            f1.append(0.0)
            continue
        answer = normal(_text(predictions[question], question))
        rights = [normal(text) for text in texts]
        exact.append(max(float(right == answer) for right in rights))
        f1.append(max(_overlap(units(answer), units(right)) for right in rights))
    return _marks(golds, exact, f1)


def _overlap(ours: list[str], theirs: list[str]) -> float:
    """F1 of two bags of units; 0 where they share none, so that of two empty ones too."""
    same = sum((Counter(ours) & Counter(theirs)).values())
    if not same:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def _overlap_or_both_empty(ours: list[str], theirs: list[str]) -> float:
    return _overlap(ours, theirs) if ours and theirs else float(ours == theirs)


def _characters(text: str) -> list[str]:
    return list("".join(text.split()))


def _marks(golds: GoldAnswers, exact: list[float], f1: list[float]) -> QuestionScores:
    return QuestionScores(
        ids=tuple(golds),
        exact=np.array(exact),
        f1=np.array(f1),
        answerable=np.array([bool(texts) for texts in golds.values()]),
    )


def _in_per_cent(marks: QuestionScores) -> dict[str, float]:
    total = len(marks.ids)
    return {
        "exact_match": 100.0 * sum(marks.exact.tolist()) / total,
        "f1": 100.0 * sum(marks.f1.tolist()) / total,
    }


def _something(golds: GoldAnswers) -> None:
    if not golds:
        raise DataError("there are no questions to score: the set is empty")


def _text(prediction: str, question: str) -> str:
    if not isinstance(prediction, str):
        raise DataError(f"the prediction for question {question} is {prediction!r}: a text is needed, '' for no answer")
    return prediction


def _all_there(questions: Iterable[str], values: Mapping[str, Any], what: str) -> None:
    missing = [question for question in questions if question not in values]
    if missing:
        raise DataError(f"{len(missing)} questions have no {what}, the first is {missing[0]}: SQuAD 2.0 needs them all")
    for question, value in values.items():
        if value != value:
            raise DataError(f"the {what} of question {question} is nan: numbers that can be ordered are needed")
