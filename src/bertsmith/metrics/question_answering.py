"""Extractive question answering: scores of SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0, with the official keys, in percent.

Gold answers map a question id to its correct texts; the list is empty for an unanswerable question. The rules are those
of the official scripts (squad: evaluate-v1.1.py, evaluate-v2.0.py; KorQuAD v1.0).
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
_KOREAN_QUOTES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


@dataclass(frozen=True)
class QuestionScores:
    """Scores of each of N questions, from 0 to 1, for confidence intervals and comparisons."""

    ids: tuple[str, ...]
    exact: NDArray[np.float64]  # [N]
    f1: NDArray[np.float64]  # [N]
    answerable: NDArray[np.bool_]  # [N] True if there is a gold answer


def squad_v1(golds: GoldAnswers, predictions: Mapping[str, str]) -> dict[str, float]:
    """SQuAD 1.1: `exact_match` and `f1`. A question without a prediction scores 0."""
    scores = squad_v1_scores(golds, predictions)
    return {"exact_match": _percent(scores.exact), "f1": _percent(scores.f1)}


def korquad(golds: GoldAnswers, predictions: Mapping[str, str]) -> dict[str, float]:
    """KorQuAD 1.0: as SQuAD 1.1, with F1 over characters, brackets and quotes as spaces, and without articles."""
    scores = korquad_scores(golds, predictions)
    return {"exact_match": _percent(scores.exact), "f1": _percent(scores.f1)}


def squad_v2(
    golds: GoldAnswers,
    predictions: Mapping[str, str],
    *,
    no_answer: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """SQuAD 2.0: `exact`, `f1`, `total`, the same for HasAns and NoAns, and with `no_answer` the best thresholds.

    `no_answer` is the no-answer score of each question (a probability or null odds). Above the threshold the prediction
    counts as empty.
    """
    raw = squad_v2_scores(golds, predictions)
    scores = raw if no_answer is None else apply_threshold(raw, no_answer=no_answer, threshold=threshold)
    result: dict[str, float] = {}
    for prefix, chosen in (("", slice(None)), ("HasAns_", scores.answerable), ("NoAns_", ~scores.answerable)):
        exact, f1 = scores.exact[chosen], scores.f1[chosen]
        if len(exact):
            result |= {f"{prefix}exact": _percent(exact), f"{prefix}f1": _percent(f1), f"{prefix}total": len(exact)}
    if no_answer is not None:
        result |= best_thresholds(raw, predictions, no_answer=no_answer)
    return result


def squad_v1_scores(golds: GoldAnswers, predictions: Mapping[str, str]) -> QuestionScores:
    """SQuAD 1.1 scores of each question."""
    return _scores(golds, predictions, normal=normalize_answer, units=str.split)


def korquad_scores(golds: GoldAnswers, predictions: Mapping[str, str]) -> QuestionScores:
    """KorQuAD 1.0 scores of each question."""
    return _scores(golds, predictions, normal=normalize_korean_answer, units=lambda text: list("".join(text.split())))


def squad_v2_scores(golds: GoldAnswers, predictions: Mapping[str, str]) -> QuestionScores:
    """SQuAD 2.0 scores of each question without a threshold. Every question needs a prediction."""
    _require_all(golds, predictions, "prediction")
    return _scores(golds, predictions, normal=normalize_answer, units=str.split, unanswerable=True)


def apply_threshold(scores: QuestionScores, *, no_answer: Mapping[str, float], threshold: float) -> QuestionScores:
    """The scores if every prediction with a no-answer score above the threshold were empty."""
    _require_all(scores.ids, no_answer, "no-answer score")
    no_answers = np.array([no_answer[question] > threshold for question in scores.ids], dtype=bool)
    right = (~scores.answerable).astype(np.float64)
    exact, f1 = (np.where(no_answers, right, score) for score in (scores.exact, scores.f1))
    return QuestionScores(scores.ids, exact, f1, scores.answerable)


def best_thresholds(
    scores: QuestionScores, predictions: Mapping[str, str], *, no_answer: Mapping[str, float]
) -> dict[str, float]:
    """The best score over all thresholds, and that threshold: `best_exact`, `best_exact_thresh`, the same for f1.

    As in the official script, questions with equal no-answer scores are processed one by one, in the order of
    `no_answer`, and the threshold is 0 if abstaining from every question is best.
    """
    _require_all(scores.ids, no_answer, "no-answer score")
    index = {question: number for number, question in enumerate(scores.ids)}
    scored = [question for question in no_answer if question in index]
    order = sorted(scored, key=lambda question: no_answer[question])
    indices = np.array([index[question] for question in order])
    answered = np.array([bool(predictions[question]) for question in order])
    result: dict[str, float] = {}
    for name, score in (("exact", scores.exact), ("f1", scores.f1)):
        change = np.where(scores.answerable[indices], score[indices], np.where(answered, -1.0, 0.0))
        no_answers = float((~scores.answerable).sum())
        sums = np.cumsum(np.concatenate([[no_answers], change]))[1:]
        top = int(np.argmax(sums))
        better = bool(sums[top] > no_answers)
        result[f"best_{name}"] = 100.0 * float(sums[top] if better else no_answers) / len(scores.ids)
        result[f"best_{name}_thresh"] = float(no_answer[order[top]]) if better else 0.0
    return result


def normalize_answer(text: str) -> str:
    """SQuAD's normalisation: lower case, no ASCII punctuation, no English articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def normalize_korean_answer(text: str) -> str:
    """KorQuAD's normalisation: quotes and brackets as spaces, lower case, no ASCII punctuation."""
    return " ".join(text.translate(_KOREAN_QUOTES).lower().translate(_NO_PUNCTUATION).split())


def gold_answers(data: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The gold answers of the `data` of a SQuAD file."""
    golds: dict[str, list[str]] = {}
    for question in (question for article in data for part in article["paragraphs"] for question in part["qas"]):
        if question["id"] in golds:
            raise DataError(f"question {question['id']} is repeated in the data: ids must be unique")
        golds[question["id"]] = [answer["text"] for answer in question["answers"]]
    return golds


def _scores(
    golds: GoldAnswers,
    predictions: Mapping[str, str],
    *,
    normal: Callable[[str], str],
    units: Callable[[str], list[str]],
    unanswerable: bool = False,
) -> QuestionScores:
    """The best score of each prediction over the gold answers; `unanswerable`: an empty answer can be correct."""
    if not golds:
        raise DataError("the set is empty: there are no questions to score")
    exact, f1 = np.zeros(len(golds)), np.zeros(len(golds))
    for index, (question, texts) in enumerate(golds.items()):
        if not (texts or unanswerable):
            advice = "score data with unanswerable questions as SQuAD 2.0"
            raise DataError(f"question {question} has no gold answer: {advice}")
        if question not in predictions:
            continue
        prediction = predictions[question]
        if not isinstance(prediction, str):
            raise DataError(
                f"the prediction for question {question} is {prediction!r}: expected a string, '' for no answer"
            )
        answer, references = normal(prediction), [normal(text) for text in texts]
        if unanswerable:
            references = [reference for reference in references if reference] or [""]
        exact[index] = answer in references
        f1[index] = max(_overlap(units(answer), units(reference), both_empty=unanswerable) for reference in references)
    return QuestionScores(tuple(golds), exact, f1, np.array([bool(texts) for texts in golds.values()]))


def _overlap(predicted: list[str], reference: list[str], *, both_empty: bool) -> float:
    """F1 of two bags of units; `both_empty` is that of two empty bags."""
    same = (Counter(predicted) & Counter(reference)).total()
    if not same:
        return float(both_empty and predicted == reference)
    precision, recall = same / len(predicted), same / len(reference)
    return 2 * precision * recall / (precision + recall)


def _percent(values: NDArray[np.float64]) -> float:
    return float(100.0 * sum(values.tolist()) / len(values))


def _require_all(questions: Iterable[str], values: Mapping[str, Any], what: str) -> None:
    missing = [question for question in questions if question not in values]
    if missing:
        raise DataError(f"{len(missing)} questions have no {what}, the first is {missing[0]}: SQuAD 2.0 requires all")
    for question, value in values.items():
        if value != value:
            raise DataError(f"the {what} of question {question} is nan: expected a number")
