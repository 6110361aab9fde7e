"""Entities of texts, answers from passages, choices: asked and read by the code of the tasks. Knows no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.errors import BertsmithError
from bertsmith.inference.asking import TextModel, check_top_k, predict_logits, require_head
from bertsmith.tasks.qa_windows import QAConfig
from bertsmith.tasks.question_answering import QuestionAnsweringTask
from bertsmith.tasks.tagged_text import TaggingConfig as TaggingManner
from bertsmith.tasks.tagged_text import Unit
from bertsmith.tasks.task import Example, Prediction, Task, truncated_examples
from bertsmith.tasks.text_tasks import MultipleChoiceTask
from bertsmith.tasks.token_classification import TokenClassificationTask

UNITS = ("word", "part", "character")


def _no_files(path: Any, split: str) -> list[Any]:
    raise AssertionError("texts are given, not read from files")


def _read(asker: TextModel, task: Task, examples: Sequence[Example], *, length: int) -> tuple[list[Prediction], int]:
    """A prediction for each example, and of how many not everything could be read."""
    asked = task.rows(examples, asker.tokenizer, max_length=length)
    return task.decode(examples, asked, predict_logits(asker, asked, task.objective)), len(truncated_examples(asked))


def entities(asker: TextModel, texts: Sequence[str], *, unit: Unit) -> list[list[dict[str, Any]]]:
    """See `Predictor.ner`."""
    require_head(asker.model, "tag")
    if unit not in UNITS:
        raise BertsmithError(f"unit {unit} is not known: {', '.join(UNITS)}")
    head: Any = asker.model.objectives["tag"]
    task = TokenClassificationTask(
        "ner", files={}, load=_no_files, config=TaggingManner(), labels=head.config.labels, unit=unit
    )
    examples = [Example(id=str(number), texts=(text,)) for number, text in enumerate(texts)]
    predictions, _ = _read(asker, task, examples, length=asker.max_length)
    return [[_entity(found) for found in prediction.detail["entities"]] for prediction in predictions]


def _entity(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "entity_group": found["kind"],
        "score": found["score"],
        "word": found["text"],
        "start": found["start"],
        "end": found["end"],
    }


def answers(
    asker: TextModel, question: str, context: str, *, top_k: int, no_answer: float | None
) -> list[dict[str, Any]] | dict[str, Any]:
    """See `Predictor.answer`."""
    require_head(asker.model, "span")
    check_top_k(top_k)
    if no_answer is None:
        head: Any = asker.model.objectives["span"]
        no_answer = head.config.no_answer  # what was best when it learned, if it learned to say nothing
    usual = QAConfig()
    length = min(usual.max_length, asker.max_length)
    manner = QAConfig(
        max_length=length,
        stride=min(usual.stride, max(length // 3, 1)),  # so that windows of short rows share tokens too
        n_best=max(usual.n_best, top_k),
        no_answer=0.0 if no_answer is None else no_answer,
    )
    task = QuestionAnsweringTask(name="answer", config=manner, rules="1.1" if no_answer is None else "2.0", files={})
    (prediction,), cut = _read(asker, task, [Example(id="0", texts=(question, context))], length=length)
    best = sorted(prediction.detail["answers"], key=lambda one: one["text"] != prediction.value)  # the given one first
    found = [_answer(one) | ({"cut": True} if cut else {}) for one in best[:top_k]]
    found = found or [{"answer": "", "score": 0.0, "start": 0, "end": 0}]  # the passage has no word
    return found[0] if top_k == 1 else found


def _answer(found: Mapping[str, Any]) -> dict[str, Any]:
    place = {"start": found["start"], "end": found["end"]}
    return {"answer": found["text"], "score": found["probability"], **place}


def choice(asker: TextModel, question: str, choices: Sequence[str]) -> dict[str, Any]:
    """See `Predictor.choose`."""
    require_head(asker.model, "choose")
    task = MultipleChoiceTask("choose", files={}, read=_no_files)
    example = Example(id="0", texts=(question, *choices), source="this question")
    task.check("test", [example])
    (prediction,), cut = _read(asker, task, [example], length=asker.max_length)
    found = {"choice": prediction.detail["choice"], "index": prediction.value, "score": prediction.score}
    return found | {"probabilities": prediction.detail["probabilities"]} | ({"cut": True} if cut else {})
