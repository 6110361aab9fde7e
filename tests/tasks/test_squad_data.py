"""The real sets, where they are available: as many windows as the reference, and exact answers."""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.tasks import squad
from bertsmith.tasks.question_answering import QuestionAnsweringTask
from bertsmith.tasks.task import Example, Features
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.wordpiece import WordPiece

DATA = Path(os.environ.get("BERTSMITH_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
VOCABULARY = DATA / "vocab" / "bert-uncased.txt"
pytestmark = pytest.mark.skipif(not (DATA / "tasks" / "squad.tar.xz").is_file(), reason="SQuAD is not available")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("squad")
    for name in ("squad", "korquad1"):
        with tarfile.open(DATA / "tasks" / f"{name}.tar.xz") as archive:
            archive.extractall(result, filter="data")
    return result


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return WordPiece.from_vocabulary(VOCABULARY)


def task_of(folder: Path, name: Any, pattern: str) -> QuestionAnsweringTask:
    (path,) = folder.rglob(pattern)
    return squad.Config(name=name).build(files={"dev": path})


def perfect(one: Features) -> np.ndarray:
    logits = np.zeros((len(one.rows[0]), 2), np.float32)
    logits[list(one.target), [0, 1]] = 10
    return logits


def read_back(examples: list[Example], labelled: list[Features]) -> Counter[str]:
    """How many answers the tokens of their window give exactly; more: the first or last token holds more than that."""
    result: Counter[str] = Counter()
    seen = set()
    for one in labelled:
        example, row = examples[one.example_index], one.rows[0]
        if one.target == (0, 0) or one.example_index in seen:
            continue
        seen.add(one.example_index)
        begin, end = row.offsets[one.target[0], 0], row.offsets[one.target[1], 1]
        text, gold = example.texts[1][begin:end].strip(), example.texts[1][slice(*example.spans[0])]
        assert begin <= example.spans[0][0]
        assert end >= example.spans[0][1]
        result["exact" if text == gold else "more"] += 1
    return result


@pytest.mark.parametrize(
    ("name", "pattern", "questions", "windows", "answers"),
    [
        ("1.1", "dev-v1.1*.json", 10_570, 10_833, {"exact": 10_503, "more": 67}),
        ("2.0", "dev-v2.0*.json", 11_873, 12_232, {"exact": 5_893, "more": 35}),
        pytest.param(
            *("1.1", "train-v1.1*.json", 87_599, 88_641, {"exact": 87_096, "more": 503}), marks=pytest.mark.slow
        ),
    ],
)
def test_windows_and_exact_answers(
    name: str, pattern: str, questions: int, windows: int, answers: dict[str, int], folder: Path, tokenizer: Tokenizer
) -> None:
    task = task_of(folder, name, pattern)
    examples = task.examples("dev")
    labelled = task.rows(examples, tokenizer, max_length=384)
    assert (len(examples), len(labelled)) == (questions, windows)
    assert read_back(examples, labelled) == answers


def test_perfect_logits_of_squad_2_dev_score_perfectly(folder: Path, tokenizer: Tokenizer) -> None:
    task = task_of(folder, "2.0", "dev-v2.0*.json")
    examples = task.examples("dev")[:3000]
    labelled = task.rows(examples, tokenizer, max_length=384)
    scores = task.score(examples, task.decode(examples, labelled, [perfect(one) for one in labelled]))
    assert scores["NoAns_exact"] == 1
    assert scores["HasAns_exact"] > 0.99  # the rest: tokens that hold more than the answer, answers of over 30 tokens
    assert scores["best_f1"] == scores["f1"] > 0.99


def test_korquad_dev_is_read_and_its_answers_lie_in_their_windows(folder: Path, tokenizer: Tokenizer) -> None:
    task = task_of(folder, "korquad", "KorQuAD_v1.0_dev.json")
    examples = task.examples("dev")
    assert len(examples) == 5774
    labelled = task.rows(examples[:500], tokenizer, max_length=384)
    assert sum(read_back(examples, labelled).values()) == 500
