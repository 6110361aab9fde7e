"""Evaluations without a model: a task over a file, with made-up predictions."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertsmith.evaluation.evaluation import Evaluation, analyze
from bertsmith.tasks import classification
from bertsmith.tasks.task import Example, Prediction, Task

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
LABELS = ("copper", "iron", "은 silver", EVIL)


def made_evaluation(task: Task, examples: list[Example], predictions: list[Prediction]) -> Evaluation:
    """The result of `evaluate` for these predictions."""
    found = Evaluation(
        model="runs/made-up/best",
        task=task.name,
        split="dev",
        objective=task.objective,
        main_metric=task.main_metric,
        max_length=128,
        unit="words",
        probabilities=task.has_probabilities,
        device="cpu",
        examples=len(examples),
        truncated=1,
        unknown_word_rate=0.0,
        seconds=0.5,
        texts_per_second=len(examples) / 0.5,
        detected=dict(task.detected),
        predictions=(examples, predictions),
        submission=task.submission(examples, predictions),
    )
    sizes = [len(" ".join(example.texts).split()) for example in examples]
    return analyze(found, task, lengths=sizes, truncated=[number == 0 for number in range(len(examples))])


def labelled(rows: Sequence[tuple[str, str]], folder: Path, labels: Sequence[str]) -> Task:
    """A classification over texts and their labels."""
    path = folder / "dev.jsonl"
    lines = (json.dumps({"text": text, "label": label}, ensure_ascii=False) for text, label in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return classification.Config().build(files={"dev": path}, labels=labels)


def predicted(labels: Sequence[str], chosen: str, probability: float) -> Prediction:
    """A prediction with that probability; the other labels share the rest."""
    rest = (1 - probability) / (len(labels) - 1)
    return Prediction(
        chosen, probability, {"probabilities": {label: probability if label == chosen else rest for label in labels}}
    )


def mixed(folder: Path, count: int = 240) -> Evaluation:
    """Four labels, one of them hostile, texts of many lengths, and a model that is mostly right."""
    draw = random.Random(3)
    rows = [
        (" ".join(draw.choices(["대장간", "the", "smith", "<b>", "hammers", EVIL], k=draw.randrange(1, 60))), label)
        for label in draw.choices(LABELS, weights=(5, 3, 2, 1), k=count)
    ]
    task = labelled(rows, folder, LABELS)
    examples = task.examples("dev")
    predictions = []
    for example in examples:
        right = draw.random() < 0.7
        probability = float(np.clip(draw.gauss(0.8 if right else 0.6, 0.15), 0.3, 0.999))
        predictions.append(predicted(LABELS, example.gold if right else draw.choice(LABELS), probability))
    return made_evaluation(task, examples, predictions)
