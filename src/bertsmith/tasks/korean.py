"""Korean text classification and similarity in their authors' files: NSMC, KorNLI, KorSTS, KLUE-NLI, KLUE-STS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.tasks.dataset_files import (
    Layout,
    benchmark_files,
    find_member,
    parse_label,
    parse_number,
    table_examples,
)
from bertsmith.tasks.tables import Ragged, read_table
from bertsmith.tasks.task import Example
from bertsmith.tasks.text_tasks import ClassificationTask, RegressionTask, benchmark_labels

NLI_LABELS = ("contradiction", "entailment", "neutral")
KORNLI_TRAIN = ("multinli.train.ko.tsv", "snli_1.0_train.ko.tsv")


@dataclass(frozen=True)
class Member:
    """One Korean task: its files, columns, labels and main metric."""

    layout: Layout
    subfolders: tuple[str, ...]
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...] = ()  # empty for regression
    main_metric: str = "accuracy"
    threshold: float | None = None  # scores from there on count as paraphrases
    ragged: Ragged = "error"


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
        NLI_LABELS,
        ragged="skip",  # some machine-translated texts of train contain tabs
    ),
    "korsts": Member(
        {split: [(f"sts-{split}.tsv",)] for split in ("train", "dev", "test")},
        ("KorSTS", "kornlu/KorSTS", "KorNLUDatasets/KorSTS", "kor-nlu-datasets/KorSTS"),
        ("sentence1", "sentence2"),
        "score",
        main_metric="spearman",
    ),
    "klue-nli": Member(
        _klue("nli"),
        ("klue-nli-v1.1", "klue_benchmark/klue-nli-v1.1", "klue/klue_benchmark/klue-nli-v1.1"),
        ("premise", "hypothesis"),
        "gold_label",
        NLI_LABELS,
    ),
    "klue-sts": Member(
        _klue("sts"),
        ("klue-sts-v1.1", "klue_benchmark/klue-sts-v1.1", "klue/klue_benchmark/klue-sts-v1.1"),
        ("sentence1", "sentence2"),
        "labels",
        main_metric="pearson",
        threshold=3.0,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the Korean tasks."""

    name: str  # nsmc, kornli, korsts, klue-nli or klue-sts

    def __post_init__(self) -> None:
        find_member("korean", self.name, MEMBERS)

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> ClassificationTask | RegressionTask:
        """See `TaskConfig.build`; a trained model's labels only set the order of the classes."""
        name, member = find_member("korean", self.name, MEMBERS)
        title, detected = f"korean/{name}", dict[str, str]()
        common: dict[str, Any] = {
            "files": benchmark_files(title, files, member.layout, subfolders=member.subfolders),
            "read": partial(_read, member, detected),
            "main_metric": member.main_metric,
            "detected": detected,
        }
        if not member.labels:
            return RegressionTask(title, threshold=member.threshold, **common)
        ordered = benchmark_labels(title, member.labels, labels)
        return ClassificationTask(title, labels=ordered, metrics=("accuracy", "macro_f1"), **common)


def _read(member: Member, detected: dict[str, str], path: Path, split: str) -> list[Example]:
    table = read_table(path, quoted=False, ragged=member.ragged)
    if table.skipped:
        key = f"{split}: skipped rows"
        detected[key] = f"{detected[key]}; " if key in detected else ""
        detected[key] += f"{table.skipped} of {path.name}, whose number of cells differs from the header"
    label = member.label if split != "test" or table.has(member.label) else None
    prefix = f"{path.name.partition('.')[0]}/" if path.name in KORNLI_TRAIN else ""
    return table_examples(table, member.texts, label, partial(_parse, member), id_prefix=prefix)


def _parse(member: Member, cell: Any, where: str, column: str) -> str | float | None:
    if member.labels:
        return parse_label(cell, where, column)
    if column == "labels":  # KLUE-STS: the unrounded mean of the annotators, as its authors score it
        if not isinstance(cell, dict) or "real-label" not in cell:
            raise DataError(f"{where}: 'labels' must be an object with a 'real-label'")
        return parse_number(cell["real-label"], where, "real-label")
    return parse_number(cell, where, column)
