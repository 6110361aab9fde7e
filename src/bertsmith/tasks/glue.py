"""GLUE (Wang et al. 2019): nine tasks and the diagnostic set, in the files of its download."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.metrics.confidence import ConfidenceInterval
from bertsmith.tasks import dataset_files
from bertsmith.tasks.dataset_files import Layout, find_member, parse_label, parse_number
from bertsmith.tasks.tables import Ragged, Table, read_table
from bertsmith.tasks.task import Dataset, Example, Files, Prediction
from bertsmith.tasks.text_tasks import ClassificationTask, RegressionTask, benchmark_labels

ONE_FILE_PER_SPLIT: Layout = {split: [(f"{split}.tsv",)] for split in ("train", "dev", "test")}
NLI_LABELS = ("contradiction", "entailment", "neutral")
MRPC_ALL, MRPC_DEV = "msr_paraphrase_train.txt", "dev_ids.tsv"
MRPC_COLUMNS = ("#1 ID", "#2 ID")


@dataclass(frozen=True)
class Member:
    """One task of a benchmark of texts or pairs: its files, columns, labels and metrics, the main metric first."""

    subfolders: tuple[str, ...]  # folders with its files; GLUE's submission file is named after the first
    texts: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] = ("0", "1")  # empty for regression
    metrics: tuple[str, ...] = ("accuracy",)
    layout: Layout = dataclasses.field(default_factory=lambda: ONE_FILE_PER_SPLIT)
    columns: tuple[str, ...] = ()  # of train and dev files without a header
    ragged: Ragged = "error"
    parse: Callable[[Any, str, str], Any] = parse_label
    threshold: float | None = None  # regression: numbers from there on count as paraphrases
    symmetric: bool = False  # the order of the two texts does not matter

    def read(self, path: Path, split: str) -> Table:
        """The table of a file."""
        columns = self.columns if split != "test" else ()
        return read_table(path, columns=columns, quoted=False, ragged=self.ragged)

    def examples(self, table: Table, split: str, *, id_prefix: str = "") -> list[Example]:
        """The examples of a table; a test file may have no labels."""
        label = self.label if split != "test" or table.has(self.label) else None
        return dataset_files.table_examples(table, self.texts, label, self.parse, id_prefix=id_prefix)

    def files(self, title: str, files: Mapping[str, Path]) -> Files:
        """Its files by split."""
        return dataset_files.benchmark_files(title, files, self.layout, subfolders=self.subfolders)

    def build(
        self, title: str, dataset: Dataset, labels: Sequence[str], kind: type[ClassificationTask] = ClassificationTask
    ) -> ClassificationTask | RegressionTask:
        """The task; `labels` are those of a trained model, which set the order of the classes."""
        main = self.metrics[0]
        task: ClassificationTask | RegressionTask
        if not self.labels:
            task = RegressionTask(title, dataset, main_metric=main, threshold=self.threshold)
        else:
            ordered = benchmark_labels(title, self.labels, labels)
            positive = "1" if "f1" in self.metrics else ""
            task = kind(title, dataset, labels=ordered, main_metric=main, metrics=self.metrics, positive=positive)
        task.symmetric = self.symmetric
        return task


MATCHED: Layout = {
    "train": [("train.tsv",)],
    "dev": [("dev_matched.tsv", "dev_mismatched.tsv"), ("dev_matched.tsv",), ("dev_mismatched.tsv",)],
    "test": [("test_matched.tsv", "test_mismatched.tsv"), ("test_matched.tsv",), ("test_mismatched.tsv",)],
}
DIAGNOSTIC: Layout = {"test": [("diagnostic-full.tsv",), ("diagnostic.tsv",), ("AX.tsv",)]}
COLA_COLUMNS = ("source", "label", "mark", "sentence")
SENTENCES, QUESTIONS, STRINGS = ("sentence1", "sentence2"), ("question1", "question2"), ("#1 String", "#2 String")
MEMBERS = {
    "cola": Member(("CoLA",), ("sentence",), metrics=("matthews", "accuracy"), columns=COLA_COLUMNS),
    "sst-2": Member(("SST-2",), ("sentence",)),
    "mrpc": Member(("MRPC",), STRINGS, "Quality", metrics=("f1", "accuracy"), symmetric=True),
    # a line break in a question splits a few rows of QQP's train.tsv; the reference skips them too
    "qqp": Member(("QQP",), QUESTIONS, "is_duplicate", metrics=("f1", "accuracy"), ragged="skip", symmetric=True),
    "sts-b": Member(("STS-B",), SENTENCES, "score", (), ("spearman",), parse=parse_number, symmetric=True),
    "mnli": Member(("MNLI",), SENTENCES, "gold_label", NLI_LABELS, layout=MATCHED),
    "qnli": Member(("QNLI",), ("question", "sentence"), labels=("entailment", "not_entailment")),
    "rte": Member(("RTE",), SENTENCES, labels=("entailment", "not_entailment")),
    "wnli": Member(("WNLI",), SENTENCES),
    "ax": Member(
        ("AX", "diagnostic", "MNLI"), SENTENCES, "label", NLI_LABELS, ("matthews", "accuracy"), layout=DIAGNOSTIC
    ),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of GLUE."""

    name: str  # cola, sst-2, mrpc, qqp, sts-b, mnli, qnli, rte, wnli or ax

    def __post_init__(self) -> None:
        find_member("glue", self.name, MEMBERS)

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> ClassificationTask | RegressionTask:
        """See `TaskConfig.build`; a trained model's labels only set the order of the classes."""
        name, member = find_member("glue", self.name, MEMBERS)
        title, detected = f"glue/{name}", dict[str, str]()
        paths = member.files(title, files)
        if name == "mrpc" and "data" in files:
            paths = _full_mrpc(Path(files["data"]), paths, files)
        dataset = Dataset(paths, partial(_read, name, detected), detected, partial(submission, name))
        return member.build(title, dataset, labels, MatchedTask if name == "mnli" else ClassificationTask)


class MatchedTask(ClassificationTask):
    """MNLI, whose dev and test have two sets: genres of train (ids `m/…`) and other genres (`mm/…`).

    The main metric is that of the matched set, if there is one; `accuracy_mm` is that of the other.
    """

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        matched, mismatched = (_subset(name, examples, predictions) for name in ("m", "mm"))
        scores = super().score(*(matched if matched[0] else mismatched))
        if matched[0] and mismatched[0]:
            scores["accuracy_mm"] = super().score(*mismatched)["accuracy"]
        return scores

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        matched = _subset("m", examples, predictions)
        return super().interval(*(matched if matched[0] else (examples, predictions)))


def submission(name: str, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, bytes]:
    """The files for gluebenchmark.com: index and prediction."""
    folder = MEMBERS[name].subfolders[0]
    sets = {folder: (list(examples), list(predictions))}
    if name == "mnli":
        sets = {f"{folder}-{subset}": _subset(subset, examples, predictions) for subset in ("m", "mm")}
    return {f"{title}.tsv": _submission_file(*pair) for title, pair in sets.items() if pair[0]}


def _submission_file(examples: Sequence[Example], predictions: Sequence[Prediction]) -> bytes:
    lines = ["index\tprediction\n"]
    for example, prediction in zip(examples, predictions, strict=True):
        value = prediction.value
        written = value if isinstance(value, str) else f"{min(max(value, 0.0), 5.0):.3f}"
        lines.append(f"{example.id.rpartition('/')[2]}\t{written}\n")
    return "".join(lines).encode()


def _subset(
    name: str, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> tuple[list[Example], list[Prediction]]:
    pairs = [pair for pair in zip(examples, predictions, strict=True) if pair[0].id.startswith(f"{name}/")]
    return [example for example, _ in pairs], [prediction for _, prediction in pairs]


def _read(name: str, detected: dict[str, str], path: Path, split: str) -> list[Example]:
    member = MEMBERS[name]
    table = member.read(path, split)
    if table.skipped:
        detected[f"{split}: skipped rows"] = f"{table.skipped}, whose number of cells differs from the header"
    if path.name == MRPC_ALL:
        table = _mrpc_split(table, path, split)
    if name == "ax" and table.has("Premise"):  # the full diagnostic set has other names, and labels
        member = dataclasses.replace(member, texts=("Premise", "Hypothesis"), label="Label")
    subset = "" if name != "mnli" else "mm/" if "mismatched" in path.name else "m/"
    return member.examples(table, split, id_prefix=subset)


def _full_mrpc(data: Path, paths: Files, files: Mapping[str, Path]) -> Files:
    """Microsoft's MRPC file beside GLUE's list of dev pairs, if both exist: prepared train files lack rows."""
    for folder in (data, dataset_files.find_subfolder(data, "MRPC")):
        if (folder / MRPC_ALL).is_file() and (folder / MRPC_DEV).is_file():
            return paths | {split: [folder / MRPC_ALL] for split in ("train", "dev") if split not in files}
    return paths


def _mrpc_split(table: Table, path: Path, split: str) -> Table:
    """The pairs of Microsoft's training file that GLUE has in dev, or all others."""
    dev_ids = path.with_name(MRPC_DEV)
    if not dev_ids.is_file():
        raise DataError(f"{table.name} contains train and dev: put GLUE's {MRPC_DEV} beside it to split them")
    dev = set(read_table(dev_ids, columns=MRPC_COLUMNS).rows)
    pairs = list(zip(*(table.column(name) for name in MRPC_COLUMNS), strict=True))
    kept = [row for row, pair in enumerate(pairs) if (pair in dev) == (split == "dev")]
    return dataclasses.replace(table, rows=[table.rows[row] for row in kept], lines=[table.lines[row] for row in kept])
