"""Korean sets of whole texts: NSMC, KorNLI, KorSTS, KLUE-NLI, KLUE-STS, read from the files of their authors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError, DataError
from bertsmith.tasks.dataset_files import Layout, benchmark_files, parse_label, parse_number, row_ids, text_column
from bertsmith.tasks.tables import Ragged, read_table
from bertsmith.tasks.task import Example
from bertsmith.tasks.text_tasks import ClassificationTask, RegressionTask, benchmark_labels

WORDS = ("contradiction", "entailment", "neutral")
KORNLI_TRAIN = ("multinli.train.ko.tsv", "snli_1.0_train.ko.tsv")


@dataclass(frozen=True)
class Member:
    """One Korean task: its files and columns, its labels, and the score that decides."""

    layout: Layout
    inside: tuple[str, ...]  # folders in which its files may lie
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...] = ()  # none where the answer is a number
    main: str = "accuracy"
    threshold: float | None = None  # from there on two sentences mean the same
    ragged: Ragged = "refuse"


def _klue(task: str) -> Layout:
    return {split: [(f"klue-{task}-v1.1_{split}.json",)] for split in ("train", "dev", "test")}


MEMBERS = {
    "nsmc": Member(
        {"train": [("ratings_train.txt",)], "test": [("ratings_test.txt",)]},
        ("nsmc",),
        ("document",),
        "label",
        ("0", "1"),
    ),
    "kornli": Member(
        {
            "train": [KORNLI_TRAIN, KORNLI_TRAIN[:1], KORNLI_TRAIN[1:]],
            "dev": [("xnli.dev.ko.tsv",)],
            "test": [("xnli.test.ko.tsv",)],
        },
        ("KorNLI", "kornlu/KorNLI", "KorNLUDatasets/KorNLI", "kor-nlu-datasets/KorNLI"),
        ("sentence1", "sentence2"),
        "gold_label",
        WORDS,
        ragged="skip",  # machine translation has left tabs in some texts of train
    ),
    "korsts": Member(
        {split: [(f"sts-{split}.tsv",)] for split in ("train", "dev", "test")},
        ("KorSTS", "kornlu/KorSTS", "KorNLUDatasets/KorSTS", "kor-nlu-datasets/KorSTS"),
        ("sentence1", "sentence2"),
        "score",
        main="spearman",
    ),
    "klue-nli": Member(
        _klue("nli"),
        ("klue-nli-v1.1", "klue_benchmark/klue-nli-v1.1", "klue/klue_benchmark/klue-nli-v1.1"),
        ("premise", "hypothesis"),
        "gold_label",
        WORDS,
    ),
    "klue-sts": Member(
        _klue("sts"),
        ("klue-sts-v1.1", "klue_benchmark/klue-sts-v1.1", "klue/klue_benchmark/klue-sts-v1.1"),
        ("sentence1", "sentence2"),
        "labels",
        main="pearson",
        threshold=3.0,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the Korean tasks."""

    name: str  # nsmc, kornli, korsts, klue-nli or klue-sts

    def __post_init__(self) -> None:
        if self.name.lower() not in MEMBERS:
            near = did_you_mean(self.name.lower(), MEMBERS)
            raise ConfigError(f"{self.name!r} is no task of korean: {', '.join(MEMBERS)}{near}")

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> ClassificationTask | RegressionTask:
        """The task; a trained model's labels decide the order of the classes, not which there are."""
        name = self.name.lower()
        member, title, found = MEMBERS[name], f"korean/{name}", dict[str, str]()
        places = benchmark_files(title, files, member.layout, inside=member.inside)
        read = partial(_read, member, found)
        if not member.labels:
            return RegressionTask(
                title, files=places, read=read, main=member.main, threshold=member.threshold, found=found
            )
        own = benchmark_labels(title, member.labels, labels)
        measures = ("accuracy", "macro_f1")
        return ClassificationTask(
            title, files=places, read=read, labels=own, main=member.main, measures=measures, found=found
        )


def _read(member: Member, found: dict[str, str], path: Path, split: str) -> list[Example]:
    table = read_table(path, quoted=False, ragged=member.ragged)
    if table.skipped:
        name = f"{split}: rows left out"
        found[name] = f"{found[name]}; " if name in found else ""
        found[name] += f"{table.skipped} of {path.name} with another number of cells than the header"
    asked = zip(*(text_column(table, column) for column in member.texts), strict=True)
    answers: list[Any] = [None] * len(table)
    if split != "test" or table.has(member.label):
        answers = [_answer(member, cell, table.source(row)) for row, cell in enumerate(table.column(member.label))]
    part = f"{path.name.partition('.')[0]}/" if path.name in KORNLI_TRAIN else ""
    return [
        Example(id=part + own, texts=texts, gold=gold, source=table.source(row))
        for row, (own, texts, gold) in enumerate(zip(row_ids(table), asked, answers, strict=True))
    ]


def _answer(member: Member, cell: Any, where: str) -> str | float | None:
    if member.labels:
        return parse_label(cell, where, member.label)
    if member.label == "labels":  # KLUE-STS: the mean of its annotators before it is rounded, as its authors score it
        if not isinstance(cell, dict) or "real-label" not in cell:
            raise DataError(f"{where}: 'labels' must be an object with a 'real-label'")
        return parse_number(cell["real-label"], where, "real-label")
    return parse_number(cell, where, member.label)
