"""Base class of extractive question answering: n-best answers from windows, official scores and submission files.

`Example.gold` has the accepted answers, none for a question without one; `Example.spans` has the character span of
the first one that was located in the passage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError
from bertsmith.metrics import question_answering as metrics
from bertsmith.metrics.confidence import ConfidenceInterval, bootstrap, mean_from_sums
from bertsmith.tasks.qa_answers import Answers, decode_answers, mean_answers
from bertsmith.tasks.qa_windows import NO_ANSWER, QAConfig, Question, passage_windows
from bertsmith.tasks.task import Case, Dataset, Example, Features, Prediction, Task, gold_values
from bertsmith.tokenizers.tokenizer import Tokenizer

Misplaced = Literal["error", "skip"]  # for an answer that is not at its offset in the passage; skip: not trained on
ScoringRules = Literal["1.1", "2.0", "korquad"]  # the official script; with 2.0 a question may have no answer
SCORERS: Mapping[ScoringRules, Callable[[metrics.GoldAnswers, Mapping[str, str]], metrics.QuestionScores]] = {
    "1.1": metrics.squad_v1_scores,
    "2.0": metrics.squad_v2_scores,
    "korquad": metrics.korquad_scores,
}
NOTHING, CORRECT, OTHER = "no answer", "correct answer", "other answer"
MAX_SHOWN = 60  # characters of a text in a message


class QuestionAnsweringTask(Task):
    """Questions answered by a span of a passage."""

    objective = "span"
    main_metric = "f1"

    def __init__(
        self,
        name: str,
        dataset: Dataset | None = None,
        *,
        config: QAConfig,
        rules: ScoringRules = "1.1",
        whole_words: bool = False,  # differs from the reference, so never for scores
    ) -> None:
        super().__init__(name, dataset)
        self.whole_words = whole_words
        self.config = config
        self.rules: ScoringRules = rules
        self.max_length = config.max_length

    def rows(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool = False
    ) -> list[Features]:
        """One row per window. In training, questions whose answer overlaps no token are dropped."""
        questions = [_question(example) for example in examples]
        features = passage_windows(questions, tokenizer, self.config, max_length=max_length)
        return [one for one in features if one.target is not None] if training else features

    def outputs(
        self, examples: Sequence[Example], features: Sequence[Features], logits: Sequence[NDArray[np.float32]]
    ) -> list[Answers]:
        passages = [example.texts[1] for example in examples]
        options = {"allow_no_answer": self.rules == "2.0", "whole_words": self.whole_words}
        return decode_answers(passages, features, logits, self.config, **options)

    def predictions(self, examples: Sequence[Example], outputs: Sequence[Answers]) -> list[Prediction]:
        """Answers with their character span; `detail` has the n-best answers and, for 2.0, the null odds."""
        return [_prediction(one, self.config.no_answer if self.rules == "2.0" else None) for one in outputs]

    def mean_output(self, outputs: Sequence[Answers]) -> Answers:
        """See `mean_answers`: answers are spans of the passage, so that tokenizers may differ."""
        return mean_answers(outputs, self.config.n_best)

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The official scores; for 2.0 also `best_exact` and `best_f1` at the best threshold."""
        golds, texts = self._golds(examples), _texts(examples, predictions)
        if self.rules == "2.0":
            best = self._best_thresholds(examples, predictions)
            scores = metrics.squad_v2(golds, texts) | {key: best[key] for key in ("best_exact", "best_f1")}
        else:
            scores = (metrics.korquad if self.rules == "korquad" else metrics.squad_v1)(golds, texts)
        return {key: value / 100 for key, value in scores.items() if not key.endswith("total")}

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        marks = SCORERS[self.rules](self._golds(examples), _texts(examples, predictions))
        return bootstrap(marks.f1, mean_from_sums)

    def fitted_head_config(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """For 2.0 the no-answer threshold."""
        return {"no_answer": self.threshold(examples, predictions)} if self.rules == "2.0" else {}

    def threshold(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> float:
        """The null odds above which predicting no answer gives the best F1 on these examples: for `no_answer`."""
        return self._best_thresholds(examples, predictions)["best_f1_thresh"]

    def submission(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, bytes]:
        """The output files of bert: run_squad.py, which the official scripts score."""
        kept = ("text", "probability", "start_logit", "end_logit")
        n_best = {
            example.id: [{key: answer[key] for key in kept} for answer in prediction.detail["answers"]]
            for example, prediction in zip(examples, predictions, strict=True)
        }
        files = {"predictions.json": _texts(examples, predictions), "nbest_predictions.json": n_best}
        if self.rules == "2.0":
            files["null_odds.json"] = _null_odds(examples, predictions)
        return {name: f"{json.dumps(data, ensure_ascii=False, indent=4)}\n".encode() for name, data in files.items()}

    def cases(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> list[Case]:
        marks = SCORERS[self.rules](self._golds(examples), _texts(examples, predictions))
        exact = dict(zip(marks.ids, marks.exact.tolist(), strict=True))
        cases = []
        for index, (example, one) in enumerate(zip(examples, predictions, strict=True)):
            gold = " | ".join(dict.fromkeys(example.gold)) or NOTHING
            correct = exact[example.id] == 1
            column = NOTHING if not one.value else CORRECT if correct else OTHER
            cell = ("answer" if example.gold else NOTHING, column) if self.rules == "2.0" else None
            cases.append(Case.of(index, example, gold, one.value or NOTHING, one.score, correct=correct, cell=cell))
        return cases

    def confusion_labels(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        return (("answer", NOTHING), (CORRECT, OTHER, NOTHING)) if self.rules == "2.0" else None

    def baseline(self, examples: Sequence[Example]) -> tuple[str, list[Prediction]]:
        return "never an answer", [Prediction("", detail={"answers": [], "null_odds": 0.0})] * len(examples)

    def _golds(self, examples: Sequence[Example]) -> dict[str, tuple[str, ...]]:
        golds = gold_values(examples, "the question has no gold answer, so it cannot be scored")
        return dict(zip((example.id for example in examples), golds, strict=True))

    def _best_thresholds(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        best = {
            example.id: next((answer["text"] for answer in prediction.detail["answers"] if answer["text"]), "")
            for example, prediction in zip(examples, predictions, strict=True)
        }  # the best non-empty answers, whatever the null odds
        marks = metrics.squad_v2_scores(self._golds(examples), best)
        return metrics.best_thresholds(marks, best, no_answer=_null_odds(examples, predictions))


def with_no_answer_threshold(predictions: Sequence[Prediction], threshold: float) -> list[Prediction]:
    """The predictions of the same n-best answers with another no-answer threshold."""
    return [_thresholded(prediction, threshold) for prediction in predictions]


def _question(example: Example) -> Question:
    question, passage = example.texts
    if example.gold is None:
        return Question(question, passage)
    spans = example.spans or (() if example.gold else (NO_ANSWER,))
    return Question(question, passage, *spans[:1])


def _prediction(answers: Answers, threshold: float | None) -> Prediction:
    detail: dict[str, Any] = {"answers": [answer._asdict() for answer in answers.best]}
    if threshold is None:
        no_tokens = {"text": "", "probability": 0.0}  # a passage without tokens has no candidates
        return _with_answer(Prediction("", detail=detail), next(iter(detail["answers"]), no_tokens))
    return _thresholded(Prediction("", detail=detail | {"null_odds": answers.null_odds}), threshold)


def _thresholded(prediction: Prediction, threshold: float) -> Prediction:
    """No answer if the null odds exceed the threshold or all answers are empty."""
    empty = next(answer for answer in prediction.detail["answers"] if not answer["text"])
    best = next((answer for answer in prediction.detail["answers"] if answer["text"]), empty)
    return _with_answer(prediction, empty if prediction.detail["null_odds"] > threshold else best)


def _with_answer(prediction: Prediction, answer: Mapping[str, Any]) -> Prediction:
    span = {key: answer[key] if answer["text"] else None for key in ("start", "end")}
    return replace(prediction, value=answer["text"], score=answer["probability"], detail={**prediction.detail, **span})


def _texts(examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, str]:
    return {example.id: prediction.value for example, prediction in zip(examples, predictions, strict=True)}


def _null_odds(examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
    pairs = zip(examples, predictions, strict=True)
    return {example.id: prediction.detail["null_odds"] for example, prediction in pairs}


def locate_answers(
    passage: str, answers: Iterable[tuple[str, int | None]], source: str, misplaced: Misplaced
) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """The answers, and the span of the first one that was located: at its start, or else its first occurrence."""
    texts, spans = [], []
    for text, start in answers:
        wanted, begin = (text, start) if start is not None else (text.strip(), passage.find(text.strip()))
        span = locate_answer(passage, wanted, begin)
        if span is None and misplaced == "error":
            raise _misplaced_answer(source, passage, text, start)
        texts.append(text)
        spans += [span] if span else []
    return tuple(texts), tuple(spans[:1])


def locate_answer(passage: str, text: str, start: int) -> tuple[int, int] | None:
    """The character span of an answer without surrounding white space; None if it is not at `start`.

    As in the reference, white space may differ and the offset may point anywhere into the first word.
    """
    begin, end = start, start + len(text)
    if start < 0 or not text.strip():
        return None
    if passage[begin:end] != text:
        words = r"\s+".join(map(re.escape, text.split()))
        first = max(0, *(blank.end() for blank in re.finditer(r"\s", passage[:begin])), 0)
        after = re.compile(r"\s|$").search(passage, max(end - 1, begin))
        match = re.compile(words).search(passage, first, after.start() if after else len(passage))
        if match is None:
            return None
        begin, end = match.span()
    span = passage[begin:end]
    return begin + len(span) - len(span.lstrip()), end - len(span) + len(span.rstrip())


def _misplaced_answer(source: str, passage: str, text: str, start: int | None) -> DataError:
    """The error for an answer that is not at its offset."""
    advice = "or set task.misplaced=skip to leave such questions out of training"
    if start is None:
        return DataError(f"{source}: the answer {shorten(text)} is not in its passage: correct the row, {advice}")
    actual = shorten(passage[max(start, 0) : max(start, 0) + len(text)])
    elsewhere = passage.find(text)
    where = f"it begins at {elsewhere}" if elsewhere >= 0 else "it is not in the passage"
    return DataError(
        f"{source}: the answer {shorten(text)} should begin at character {start}, but the passage has {actual}; "
        f"{where}: correct the file, {advice}"
    )


def shorten(text: str) -> str:
    """A text in quotes, shortened."""
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…")
