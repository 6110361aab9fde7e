"""GLUE (Wang et al. 2019): nine tasks and the diagnostic set, read from the files as its download has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError, DataError
from bertsmith.metrics.confidence import ConfidenceInterval
from bertsmith.tasks.dataset_files import (
    Files,
    Layout,
    benchmark_files,
    find_subfolder,
    parse_label,
    parse_number,
    row_ids,
    text_column,
)
from bertsmith.tasks.tables import Ragged, Table, read_table
from bertsmith.tasks.task import Example, Prediction
from bertsmith.tasks.text_tasks import ClassificationTask, RegressionTask, benchmark_labels

PLAIN: Layout = {split: [(f"{split}.tsv",)] for split in ("train", "dev", "test")}
WORDS = ("contradiction", "entailment", "neutral")
MRPC_ALL, MRPC_DEV = "msr_paraphrase_train.txt", "dev_ids.tsv"
MRPC_COLUMNS = ("#1 ID", "#2 ID")


@dataclass(frozen=True)
class Member:
    """One task of GLUE: its files and columns, its labels and its scores, the first of which decides."""

    folder: str  # and the name of the file that is handed in
    texts: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] = ("0", "1")  # none where the answer is a number
    measures: tuple[str, ...] = ("accuracy",)
    layout: Layout = dataclasses.field(default_factory=lambda: PLAIN)
    inside: tuple[str, ...] = ()  # other folders in which its files may lie
    columns: tuple[str, ...] = ()  # of train and dev, where these have no header line
    ragged: Ragged = "refuse"


MATCHED: Layout = {
    "train": [("train.tsv",)],
    "dev": [("dev_matched.tsv", "dev_mismatched.tsv"), ("dev_matched.tsv",), ("dev_mismatched.tsv",)],
    "test": [("test_matched.tsv", "test_mismatched.tsv"), ("test_matched.tsv",), ("test_mismatched.tsv",)],
}
MEMBERS = {
    "cola": Member(
        "CoLA", ("sentence",), measures=("matthews", "accuracy"), columns=("source", "label", "mark", "sentence")
    ),
    "sst-2": Member("SST-2", ("sentence",)),
    "mrpc": Member("MRPC", ("#1 String", "#2 String"), "Quality", measures=("f1", "accuracy")),
    # a question with a line end in it breaks a few rows of QQP's train.tsv; the reference leaves them out too
    "qqp": Member("QQP", ("question1", "question2"), "is_duplicate", measures=("f1", "accuracy"), ragged="skip"),
    "sts-b": Member("STS-B", ("sentence1", "sentence2"), "score", labels=(), measures=("spearman",)),
    "mnli": Member("MNLI", ("sentence1", "sentence2"), "gold_label", labels=WORDS, layout=MATCHED),
    "qnli": Member("QNLI", ("question", "sentence"), labels=("entailment", "not_entailment")),
    "rte": Member("RTE", ("sentence1", "sentence2"), labels=("entailment", "not_entailment")),
    "wnli": Member("WNLI", ("sentence1", "sentence2")),
    "ax": Member(
        "AX",
        ("sentence1", "sentence2"),
        labels=WORDS,
        measures=("matthews", "accuracy"),
        layout={"test": [("diagnostic-full.tsv",), ("diagnostic.tsv",), ("AX.tsv",)]},
        inside=("diagnostic", "MNLI"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of GLUE."""

    name: str  # cola, sst-2, mrpc, qqp, sts-b, mnli, qnli, rte, wnli or ax

    def __post_init__(self) -> None:
        if _plain(self.name) not in {_plain(name) for name in MEMBERS}:
            near = did_you_mean(self.name.lower(), MEMBERS)
            raise ConfigError(f"{self.name!r} is no task of glue: {', '.join(MEMBERS)}{near}")

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> ClassificationTask | RegressionTask:
        """The task; a trained model's labels decide the order of the classes, not which there are."""
        name = next(known for known in MEMBERS if _plain(known) == _plain(self.name))
        member, title, found = MEMBERS[name], f"glue/{name}", dict[str, str]()
        places = benchmark_files(title, files, member.layout, inside=(member.folder, *member.inside))
        if name == "mrpc" and "data" in files:
            places = _whole_mrpc(Path(files["data"]), member, places, files)
        read, submit = partial(_read, name, found), partial(submission, name)
        if not member.labels:
            return RegressionTask(title, files=places, read=read, main=member.measures[0], found=found, submit=submit)
        kind = MatchedTask if name == "mnli" else ClassificationTask
        return kind(
            title,
            files=places,
            read=read,
            labels=benchmark_labels(title, member.labels, labels),
            main=member.measures[0],
            measures=member.measures,
            positive="1" if "f1" in member.measures else "",
            found=found,
            submit=submit,
        )


class MatchedTask(ClassificationTask):
    """MNLI, whose dev and test are two sets: genres that train has (ids `m/…`) and others (`mm/…`).

    The score that decides is that of the matched set, where there is one; the other stands beside it.
    """

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        matched, rest = (_of_set(name, examples, predictions) for name in ("m", "mm"))
        scores = super().score(*(matched if matched[0] else rest))
        if matched[0] and rest[0]:
            scores["accuracy_mm"] = super().score(*rest)["accuracy"]
        return scores

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        matched = _of_set("m", examples, predictions)
        return super().interval(*(matched if matched[0] else (examples, predictions)))


def submission(name: str, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, bytes]:
    """The files that gluebenchmark.com takes: index and prediction, in the words of the labels."""
    folder = MEMBERS[name].folder
    sets = {folder: (list(examples), list(predictions))}
    if name == "mnli":
        sets = {f"{folder}-{part}": _of_set(part, examples, predictions) for part in ("m", "mm")}
    found = {}
    for title, (asked, said) in sets.items():
        if asked:
            lines = [
                f"{example.id.rpartition('/')[2]}\t{_word(prediction.value)}\n"
                for example, prediction in zip(asked, said, strict=True)
            ]
            found[f"{title}.tsv"] = "".join(["index\tprediction\n", *lines]).encode()
    return found


def _word(value: str | float) -> str:
    return value if isinstance(value, str) else f"{min(max(value, 0.0), 5.0):.3f}"


def _of_set(
    part: str, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> tuple[list[Example], list[Prediction]]:
    both = [pair for pair in zip(examples, predictions, strict=True) if pair[0].id.startswith(f"{part}/")]
    return [example for example, _ in both], [prediction for _, prediction in both]


def _read(name: str, found: dict[str, str], path: Path, split: str) -> list[Example]:
    member = MEMBERS[name]
    headless = member.columns if split != "test" else ()
    table = read_table(path, columns=headless, quoted=False, ragged=member.ragged)
    if table.skipped:
        found[f"{split}: rows left out"] = f"{table.skipped} with another number of cells than the header"
    if path.name == MRPC_ALL:
        table = _mrpc_part(table, path, split)
    texts, label = member.texts, member.label
    if name == "ax" and table.has("Premise"):  # the full set has names of its own, and the labels
        texts, label = ("Premise", "Hypothesis"), "Label"
    asked = zip(*(text_column(table, column) for column in texts), strict=True)
    golds: list[str | float | None] = [None] * len(table)
    if split != "test" or table.has(label):
        read = parse_label if member.labels else parse_number
        golds = [read(cell, table.source(row), label) for row, cell in enumerate(table.column(label))]
    part = "" if name != "mnli" else "mm/" if "mismatched" in path.name else "m/"
    return [
        Example(id=part + own, texts=pair, gold=gold, source=table.source(row))
        for row, (own, pair, gold) in enumerate(zip(row_ids(table), asked, golds, strict=True))
    ]


def _whole_mrpc(data: Path, member: Member, places: Files, files: Mapping[str, Path]) -> Files:
    """MRPC as Microsoft has it, where it lies beside GLUE's list of dev pairs: ready-made train files lack rows."""
    for folder in (data, find_subfolder(data, member.folder)):
        if (folder / MRPC_ALL).is_file() and (folder / MRPC_DEV).is_file():
            return places | {split: [folder / MRPC_ALL] for split in ("train", "dev") if split not in files}
    return places


def _mrpc_part(table: Table, path: Path, split: str) -> Table:
    """Of Microsoft's training file, the pairs that GLUE has in dev, or all others."""
    listed = path.with_name(MRPC_DEV)
    if not listed.is_file():
        raise DataError(f"{table.name} holds train and dev in one: GLUE's {MRPC_DEV} must lie beside it to part them")
    dev = set(read_table(listed, columns=MRPC_COLUMNS).rows)
    numbers = list(zip(*(table.column(name) for name in MRPC_COLUMNS), strict=True))
    kept = [row for row, pair in enumerate(numbers) if (pair in dev) == (split == "dev")]
    return dataclasses.replace(table, rows=[table.rows[row] for row in kept], lines=[table.lines[row] for row in kept])


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
