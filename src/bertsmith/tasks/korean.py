"""Korean text classification and similarity in their authors' files: NSMC, KorNLI, KorSTS, KLUE-NLI, KLUE-STS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.tasks.dataset_files import find_member, parse_number
from bertsmith.tasks.glue import NLI_LABELS, SENTENCES, Member
from bertsmith.tasks.task import Dataset, Example
from bertsmith.tasks.text_tasks import ClassificationTask, RegressionTask

KORNLI_TRAIN = ("multinli.train.ko.tsv", "snli_1.0_train.ko.tsv")
KORNLU_FOLDERS = ("", "kornlu/", "KorNLUDatasets/", "kor-nlu-datasets/")
KLUE_FOLDERS = ("", "klue_benchmark/", "klue/klue_benchmark/")
ACCURACY = ("accuracy", "macro_f1")


def _real_label(cell: Any, where: str, column: str) -> float | None:
    """KLUE-STS: the unrounded mean of the annotators, as its authors score it."""
    if not isinstance(cell, dict) or "real-label" not in cell:
        raise DataError(f"{where}: 'labels' must be an object with a 'real-label'")
    return parse_number(cell["real-label"], where, "real-label")


def _klue(task: str, texts: tuple[str, ...], label: str, **settings: Any) -> Member:
    layout = {split: [(f"klue-{task}-v1.1_{split}.json",)] for split in ("train", "dev", "test")}
    subfolders = tuple(f"{folder}klue-{task}-v1.1" for folder in KLUE_FOLDERS)
    return Member(subfolders, texts, label, layout=layout, **settings)


MEMBERS = {
    "nsmc": Member(
        ("nsmc",),
        ("document",),
        metrics=ACCURACY,
        layout={"train": [("ratings_train.txt",)], "test": [("ratings_test.txt",)]},
    ),
    "kornli": Member(
        tuple(f"{folder}KorNLI" for folder in KORNLU_FOLDERS),
        SENTENCES,
        "gold_label",
        NLI_LABELS,
        ACCURACY,
        layout={
            "train": [KORNLI_TRAIN, KORNLI_TRAIN[:1], KORNLI_TRAIN[1:]],
            "dev": [("xnli.dev.ko.tsv",)],
            "test": [("xnli.test.ko.tsv",)],
        },
        ragged="skip",  # some machine-translated texts of train contain tabs
    ),
    "korsts": Member(
        tuple(f"{folder}KorSTS" for folder in KORNLU_FOLDERS),
        SENTENCES,
        "score",
        (),
        ("spearman",),
        layout={split: [(f"sts-{split}.tsv",)] for split in ("train", "dev", "test")},
        parse=parse_number,
        symmetric=True,
    ),
    "klue-nli": _klue("nli", ("premise", "hypothesis"), "gold_label", labels=NLI_LABELS, metrics=ACCURACY),
    "klue-sts": _klue(
        *("sts", SENTENCES, "labels"),
        labels=(),
        metrics=("pearson",),
        parse=_real_label,
        threshold=3.0,
        symmetric=True,
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
        dataset = Dataset(member.files(title, files), partial(_read, member, detected), detected)
        return member.build(title, dataset, labels)


def _read(member: Member, detected: dict[str, str], path: Path, split: str) -> list[Example]:
    table = member.read(path, split)
    if table.skipped:
        key = f"{split}: skipped rows"
        detected[key] = f"{detected[key]}; " if key in detected else ""
        detected[key] += f"{table.skipped} of {path.name}, whose number of cells differs from the header"
    prefix = f"{path.name.partition('.')[0]}/" if path.name in KORNLI_TRAIN else ""
    return member.examples(table, split, id_prefix=prefix)
