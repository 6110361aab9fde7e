"""Where an answer stands in its passage: what a file claims, checked.

What every task over passages shares: windows as rows, n-best answers as predictions, official scores and files.

Gold answers are the texts that count as right, none for a question without an answer; `Example.spans` says where the
first of them that was found stands in the passage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError
from bertsmith.metrics import question_answering as metrics
from bertsmith.metrics.confidence import ConfidenceInterval, bootstrap, mean_from_sums
from bertsmith.tasks.qa_answers import Answers, decode_answers
from bertsmith.tasks.qa_windows import NO_ANSWER, QAConfig, Question, passage_windows
from bertsmith.tasks.task import Example, Features, Prediction, Task, missing_split
from bertsmith.tokenizers.tokenizer import Tokenizer

Misplaced = Literal["refuse", "skip"]  # what to do with an answer that does not stand where the file says
SHOWN = 60  # characters of a text in a message


def place(passage: str, text: str, start: int) -> tuple[int, int] | None:
    """The first character and the one after the last of an answer, without white space round it; None if it is not so.

    As in the reference, white space may be written otherwise and the offset may point anywhere into the first word.
    """
    begin, end = start, start + len(text)
    if start < 0 or not text.strip():
        return None
    if passage[begin:end] != text:
        words = r"\s+".join(map(re.escape, text.split()))
        first = max(0, *(found.end() for found in re.finditer(r"\s", passage[:begin])), 0)
        after = re.compile(r"\s|$").search(passage, max(end - 1, begin))
        found = re.compile(words).search(passage, first, after.start() if after else len(passage))
        if found is None:
            return None
        begin, end = found.span()
    stretch = passage[begin:end]
    return begin + len(stretch) - len(stretch.lstrip()), end - len(stretch) + len(stretch.rstrip())


def wrong_place(source: str, passage: str, text: str, start: int | None) -> DataError:
    """What to say of an answer that does not stand where it should."""
    elsewhere = passage.find(text)
    advice = "or leave such questions out of the training with misplaced=skip"
    if start is None:
        return DataError(f"{source}: the answer {shown(text)} does not occur in its passage: mend the row, {advice}")
    found = shown(passage[max(start, 0) : max(start, 0) + len(text)])
    where = f"it begins at {elsewhere}" if elsewhere >= 0 else "it occurs nowhere in the passage"
    return DataError(
        f"{source}: the answer {shown(text)} should begin at character {start}, but there is {found}; {where}: "
        f"mend the file, {advice}"
    )


def shown(text: str) -> str:
    """A text in quotes, cut short."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


ScoringRules = Literal["1.1", "2.0", "korquad"]  # whose script scores; with those of 2.0 there may be no answer
SCORERS: Mapping[ScoringRules, Callable[[metrics.GoldAnswers, Mapping[str, str]], metrics.QuestionScores]] = {
    "1.1": metrics.squad_v1_scores,
    "2.0": metrics.squad_v2_scores,
    "korquad": metrics.korquad_scores,
}


class QuestionAnsweringTask(Task):
    """Questions that a stretch of a passage answers. A family says how its files are read."""

    objective = "span"
    main_metric = "f1"

    def __init__(self, *, name: str, config: QAConfig, rules: ScoringRules, files: Mapping[str, Path]) -> None:
        self.name = name
        self.config = config
        self.rules: ScoringRules = rules
        self.files = files
        self.max_length = config.max_length

    def load(self, path: Path, split: str) -> list[Example]:
        """The examples of one file."""
        raise NotImplementedError

    def has_split(self, split: str) -> bool:
        return split in self.files

    def examples(self, split: str) -> list[Example]:
        if not self.has_split(split):
            raise missing_split(self.name, split, self.files)
        return self.load(self.files[split], split)

    def rows(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool = False
    ) -> list[Features]:
        """Windows, one row each. In training, questions whose answer no token of the passage holds are left out."""
        found = passage_windows(
            [_question(example) for example in examples], tokenizer, self.config, max_length=max_length
        )
        return [one for one in found if one.target is not None] if training else found

    def decode(
        self, examples: Sequence[Example], asked: Sequence[Features], logits: Sequence[NDArray[np.float32]]
    ) -> list[Prediction]:
        """Answers with their place in the passage; `detail` has the n-best answers and, in 2.0, the null odds."""
        passages = [example.texts[1] for example in examples]
        found = decode_answers(passages, asked, logits, self.config, may_be_none=self.rules == "2.0")
        return [_prediction(one, self.config.no_answer if self.rules == "2.0" else None) for one in found]

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The official scores; in 2.0 also `best_exact` and `best_f1`, which the best threshold would reach."""
        golds, texts = self._golds(examples), _texts(examples, predictions)
        if self.rules == "2.0":
            best, odds = _best_texts(examples, predictions), _odds(examples, predictions)
            reached = metrics.best_thresholds(metrics.squad_v2_scores(golds, best), best, no_answer=odds)
            found = metrics.squad_v2(golds, texts) | {key: reached[key] for key in ("best_exact", "best_f1")}
        else:
            found = (metrics.korquad if self.rules == "korquad" else metrics.squad_v1)(golds, texts)
        return {key: value / 100 for key, value in found.items() if not key.endswith("total")}

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        marks = SCORERS[self.rules](self._golds(examples), _texts(examples, predictions))
        return bootstrap(marks.f1, mean_from_sums)

    def fitted_head_config(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """See `Task.learned`: in 2.0 the threshold."""
        return {"no_answer": self.threshold(examples, predictions)} if self.rules == "2.0" else {}

    def threshold(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> float:
        """The null odds above which to say nothing, so that F1 on these examples is the best: for `no_answer`."""
        golds, best = self._golds(examples), _best_texts(examples, predictions)
        marks = metrics.squad_v2_scores(golds, best)
        return metrics.best_thresholds(marks, best, no_answer=_odds(examples, predictions))["best_f1_thresh"]

    def submission(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, bytes]:
        """The files of the reference, by which the official scripts score."""
        kept = ("text", "probability", "start_logit", "end_logit")
        lists = {
            example.id: [{key: answer[key] for key in kept} for answer in prediction.detail["answers"]]
            for example, prediction in zip(examples, predictions, strict=True)
        }
        found = {"predictions.json": _texts(examples, predictions), "nbest_predictions.json": lists}
        if self.rules == "2.0":
            found["null_odds.json"] = _odds(examples, predictions)
        return {name: f"{json.dumps(data, ensure_ascii=False, indent=4)}\n".encode() for name, data in found.items()}

    def _golds(self, examples: Sequence[Example]) -> dict[str, tuple[str, ...]]:
        for example in examples:
            if example.gold is None:
                raise DataError(f"{example.source}: the question has no gold answer, so that nothing can be scored")
        return {example.id: example.gold for example in examples}


def with_no_answer_threshold(predictions: Sequence[Prediction], threshold: float) -> list[Prediction]:
    """The same n-best answers under another threshold of no answer."""
    return [_decided(prediction, threshold) for prediction in predictions]


def _question(example: Example) -> Question:
    question, passage = example.texts
    if example.gold is None:
        return Question(question, passage)
    spans = example.spans or (() if example.gold else (NO_ANSWER,))
    return Question(question, passage, *spans[:1])


def _prediction(found: Answers, threshold: float | None) -> Prediction:
    detail: dict[str, Any] = {"answers": [answer._asdict() for answer in found.best]}
    if threshold is None:
        return _said(Prediction(value="", detail=detail), found.best[0]._asdict() if found.best else None)
    return _decided(Prediction(value="", detail=detail | {"null_odds": found.null_odds}), threshold)


def _decided(prediction: Prediction, threshold: float) -> Prediction:
    """No answer exactly where the null odds are above the threshold, or where there is no text to answer with."""
    nothing = next(answer for answer in prediction.detail["answers"] if not answer["text"])
    best = next((answer for answer in prediction.detail["answers"] if answer["text"]), nothing)
    return _said(prediction, nothing if prediction.detail["null_odds"] > threshold else best)


def _said(prediction: Prediction, answer: Mapping[str, Any] | None) -> Prediction:
    """The prediction with this answer as the one that is given; an empty one stands nowhere."""
    place = {key: answer[key] if answer and answer["text"] else None for key in ("start", "end")}
    return replace(
        prediction,
        value=answer["text"] if answer else "",
        score=answer["probability"] if answer else 0.0,
        detail={**prediction.detail, **place},
    )


def _texts(examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, str]:
    return {example.id: prediction.value for example, prediction in zip(examples, predictions, strict=True)}


def _best_texts(examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, str]:
    """The best answers that are not empty, whatever the odds."""
    return {
        example.id: next((answer["text"] for answer in prediction.detail["answers"] if answer["text"]), "")
        for example, prediction in zip(examples, predictions, strict=True)
    }


def _odds(examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
    found = zip(examples, predictions, strict=True)
    return {example.id: prediction.detail["null_odds"] for example, prediction in found}
