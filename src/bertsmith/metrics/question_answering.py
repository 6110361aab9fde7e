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
    return _percentages(squad_v1_scores(golds, predictions))


def korquad(golds: GoldAnswers, predictions: Mapping[str, str]) -> dict[str, float]:
    """KorQuAD 1.0: as SQuAD 1.1, with F1 over characters, brackets and quotes as spaces, and without articles."""
    return _percentages(korquad_scores(golds, predictions))


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
        exact, f1 = scores.exact[chosen].tolist(), scores.f1[chosen].tolist()
        if exact:
            result[f"{prefix}exact"] = 100.0 * sum(exact) / len(exact)
            result[f"{prefix}f1"] = 100.0 * sum(f1) / len(f1)
            result[f"{prefix}total"] = len(exact)
    if no_answer is not None:
        result |= best_thresholds(raw, predictions, no_answer=no_answer)
    return result


def squad_v1_scores(golds: GoldAnswers, predictions: Mapping[str, str]) -> QuestionScores:
    """SQuAD 1.1 scores of each question."""
    return _scores_v1(golds, predictions, normal=normalize_answer, units=str.split)


def korquad_scores(golds: GoldAnswers, predictions: Mapping[str, str]) -> QuestionScores:
    """KorQuAD 1.0 scores of each question."""
    return _scores_v1(golds, predictions, normal=normalize_korean_answer, units=_characters)


def squad_v2_scores(golds: GoldAnswers, predictions: Mapping[str, str]) -> QuestionScores:
    """SQuAD 2.0 scores of each question without a threshold. Every question needs a prediction."""
    _require_questions(golds)
    _require_all(golds, predictions, "prediction")
    exact, f1 = [], []
    for question, texts in golds.items():
        references = [normal for text in texts if (normal := normalize_answer(text))] or [""]
        answer = normalize_answer(_text(predictions[question], question))
        exact.append(max(float(reference == answer) for reference in references))
        f1.append(max(_overlap_or_both_empty(answer.split(), reference.split()) for reference in references))
    return _question_scores(golds, exact, f1)


def apply_threshold(scores: QuestionScores, *, no_answer: Mapping[str, float], threshold: float) -> QuestionScores:
    """The scores if every prediction with a no-answer score above the threshold were empty."""
    _require_all(scores.ids, no_answer, "no-answer score")
    no_answers = np.array([no_answer[question] > threshold for question in scores.ids], dtype=bool)
    right = (~scores.answerable).astype(np.float64)
    return QuestionScores(
        ids=scores.ids,
        exact=np.where(no_answers, right, scores.exact),
        f1=np.where(no_answers, right, scores.f1),
        answerable=scores.answerable,
    )


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
    for article in data:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                if question["id"] in golds:
                    raise DataError(f"question {question['id']} is repeated in the data: ids must be unique")
                golds[question["id"]] = [answer["text"] for answer in question["answers"]]
    return golds


def _scores_v1(
    golds: GoldAnswers,
    predictions: Mapping[str, str],
    *,
    normal: Callable[[str], str],
    units: Callable[[str], list[str]],
) -> QuestionScores:
    _require_questions(golds)
    exact, f1 = [], []
    for question, texts in golds.items():
        if not texts:
            raise DataError(
                f"question {question} has no gold answer: score data with unanswerable questions as SQuAD 2.0"
            )
        if question not in predictions:
            exact.append(0.0)
            f1.append(0.0)
            continue
        answer = normal(_text(predictions[question], question))
        references = [normal(text) for text in texts]
        exact.append(max(float(reference == answer) for reference in references))
        f1.append(max(_overlap(units(answer), units(reference)) for reference in references))
    return _question_scores(golds, exact, f1)


def _overlap(predicted: list[str], reference: list[str]) -> float:
    """F1 of two bags of units; 0 if they share none, and therefore 0 for two empty bags."""
    same = sum((Counter(predicted) & Counter(reference)).values())
    if not same:
        return 0.0
    precision, recall = same / len(predicted), same / len(reference)
    return 2 * precision * recall / (precision + recall)


def _overlap_or_both_empty(predicted: list[str], reference: list[str]) -> float:
    return _overlap(predicted, reference) if predicted and reference else float(predicted == reference)


def _characters(text: str) -> list[str]:
    return list("".join(text.split()))


def _question_scores(golds: GoldAnswers, exact: list[float], f1: list[float]) -> QuestionScores:
    return QuestionScores(
        ids=tuple(golds),
        exact=np.array(exact),
        f1=np.array(f1),
        answerable=np.array([bool(texts) for texts in golds.values()]),
    )


def _percentages(scores: QuestionScores) -> dict[str, float]:
    total = len(scores.ids)
    return {"exact_match": 100.0 * sum(scores.exact.tolist()) / total, "f1": 100.0 * sum(scores.f1.tolist()) / total}


def _require_questions(golds: GoldAnswers) -> None:
    if not golds:
        raise DataError("the set is empty: there are no questions to score")


def _text(prediction: str, question: str) -> str:
    if not isinstance(prediction, str):
        raise DataError(
            f"the prediction for question {question} is {prediction!r}: expected a string, '' for no answer"
        )
    return prediction


def _require_all(questions: Iterable[str], values: Mapping[str, Any], what: str) -> None:
    missing = [question for question in questions if question not in values]
    if missing:
        raise DataError(f"{len(missing)} questions have no {what}, the first is {missing[0]}: SQuAD 2.0 requires all")
    for question, value in values.items():
        if value != value:
            raise DataError(f"the {what} of question {question} is nan: expected a number")
