"""ULMFiT from text to a table: language model, target language model, classifier, forward and backward, few labels.

    PYTHONPATH=src:. python -m bench.ulmfit imdb DATA WORK [--direction forward]
        [--only text general target classify labels] [--set STAGE:SETTING=VALUE]... [--stop-after 540] [--device cuda]
    PYTHONPATH=src:. python -m bench.ulmfit imdb DATA WORK --only table

DATA has the files that `ulmfit.toml` names, compressed or not. Every stage is one or several commands of bertsmith,
which are printed. The same call skips finished stages and resumes the others; `--stop-after` saves and ends it in time,
with exit status 75.

- `text`: tokenizers, shards and examples, which both directions read: of the general files those that DATA has.
- `general`: the language model of general text.
- `target`: that of the texts of the task, from the general model.
- `classify`: the classifier, and its probabilities of the test examples in WORK/predictions-DIRECTION.jsonl.
- `labels`: few labels, from the target language model and from random weights, with 5,000 test examples.
- `table`: error on test of each direction whose probabilities are in WORK, and of their mean, which is what
  `bertsmith evaluate` computes for an ensemble; so the directions may be trained on different machines.

`<br />` in texts becomes a line break. A call needs only the files of DATA whose stages are not finished. After `text`,
both directions may run at the same time in one WORK; a machine that keeps nothing must give back only
predictions-*.jsonl and labels-*.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import gzip
import json
import lzma
import random
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from bench.command_chain import CommandChain, add_options, run_stages
from bertsmith.errors import ConfigError, DataError

STAGES = ("text", "general", "target", "classify", "labels", "table")
DIRECTIONS = ("forward", "backward")
OPENERS: dict[str, Callable[..., TextIO]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
# of the study of few labels; a run is scored on dev when it ends, and nothing is selected on it
FEW_LABELS = {"train": "train.jsonl", "dev": "few-dev.jsonl", "test": "few-test.jsonl"}
FEW_TEST, FEW_DEV = 5000, 200  # examples


def main(words: Sequence[str] | None = None) -> int:
    """Runs the stages; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="imdb or nsmc, or another one of --file")
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--file", type=Path, default=Path(__file__).with_suffix(".toml"))
    parser.add_argument("--direction", choices=DIRECTIONS, default="forward")
    add_options(parser, STAGES)
    options = parser.parse_args(words)
    return run_stages(Study, options, STAGES)


class Study:
    """The stages of one direction, and the folders of their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        studies = tomllib.loads(options.file.read_text())
        if options.study not in studies:
            raise ConfigError(f"{options.study} is not a study of {options.file}: choose one of {', '.join(studies)}")
        self.files: dict[str, Any] = studies[options.study]
        self.settings = {stage: [*words] for stage, words in self.files["settings"].items()}
        for change in options.set:
            stage, colon, rest = change.partition(":")
            if not colon or stage not in self.settings:
                raise ConfigError(f"--set {change}: write STAGE:SETTING=VALUE, STAGE one of {', '.join(self.settings)}")
            self.settings[stage].append(rest)
        self.data, self.work, self.device = options.data, options.work, ["--device", options.device]
        self.direction: str = options.direction
        self.chain = CommandChain(self.work)

    def text(self) -> None:
        """Tokenizers, shards and examples."""
        if not self.chain.is_done("general-shards"):
            found = [self._found(name) for name in self.files["general"]]
            corpus = [path for path in found if path] or [self._find(self.files["general"][0])]
            self._shards("general", corpus)
        if not self.chain.is_done("target-shards"):
            corpus = self.work / "texts.jsonl"
            write_rows(corpus, ({"text": row["text"]} for name in self.files["texts"] for row in self._rows(name)))
            self._shards("target", [corpus])
        self._write_examples()

    def general(self) -> None:
        """The language model of general text."""
        self._language_model("general", "awd_lstm/quick", [])

    def target(self) -> None:
        """The language model of the texts of the task."""
        self._language_model("target", "awd_lstm/target", ["--start", self._run("general")])

    def classify(self) -> None:
        """The classifier, and its probabilities of the test examples."""
        run, predictions = self._run("classifier"), self._predictions(self.direction)
        files = ["-t", "classification", "--train", self.work / "train.jsonl"]
        how = [*self.device, *self.settings["classify"]]
        self.chain.run(f"classifier-{self.direction}", ["finetune", self._run("target"), *files, "-o", run, *how])
        if not predictions.exists():
            test = ["--file", self.work / "test.jsonl", "-o", predictions, "-q", *self.device]
            self.chain.run(f"predictions-{self.direction}", ["predict", run, *test])

    def labels(self) -> None:
        """The study of few labels."""
        splits = [word for name, file in FEW_LABELS.items() for word in (f"--{name}", self.work / file)]
        study = ["-m", f"target={self._run('target')}", "--from-scratch", "-t", "classification", *splits]
        study += ["-o", self.work / f"labels-{self.direction}", "-q", *self.device, *self.settings["labels"]]
        self.chain.run(f"labels-{self.direction}", ["sample-efficiency", *study])

    def table(self) -> None:
        """Prints the errors on test, and the study of few labels, as Markdown."""
        found = {name: self._predictions(name) for name in DIRECTIONS if self._predictions(name).exists()}
        if found:
            self._write_examples()
            print(table_of(found, self.work / "test.jsonl"))
        for direction in DIRECTIONS:
            study = self.work / f"labels-{direction}" / "sample_efficiency.md"
            print(f"\n{study.read_text()}" if study.exists() else "", end="", flush=True)

    def _shards(self, name: str, corpus: Sequence[Path]) -> None:
        tokenizer, shards = self.work / f"{name}-tokenizer", self.work / f"{name}-shards"
        own = [*corpus, "-o", tokenizer, "--overwrite", "-q", *self.settings["tokenizer"]]
        self.chain.run(f"{name}-tokenizer", ["tokenizer", "train", *own])
        self.chain.run(f"{name}-shards", ["prepare", *corpus, "-t", tokenizer, "-o", shards, "-q"])

    def _language_model(self, name: str, recipe: str, start: list[Any]) -> None:
        how = [*start, *self.device, f"encoder.backward={'true' if self.direction == 'backward' else 'false'}"]
        own = ["-d", self.work / f"{name}-shards", "-o", self._run(name), *how, *self.settings[name]]
        self.chain.run(f"{name}-{self.direction}", ["pretrain", recipe, *own])

    def _run(self, name: str) -> Path:
        return self.work / f"{name}-{self.direction}"

    def _predictions(self, direction: str) -> Path:
        return self.work / f"predictions-{direction}.jsonl"

    def _found(self, name: str) -> Path | None:
        """A file of the data folder, compressed or not."""
        paths = (self.data / f"{name}{ending}" for ending in ("", *OPENERS))
        return next((path for path in paths if path.exists()), None)

    def _find(self, name: str) -> Path:
        path = self._found(name)
        if path is None:
            raise DataError(f"{self.data} has no {name}, nor {name}.xz or {name}.gz")
        return path

    def _rows(self, name: str) -> Iterator[dict[str, str]]:
        """The texts and labels of a file: JSON lines or a TSV. Line breaks of HTML become those of text."""
        path = self._find(name)
        with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", newline="") as file:
            is_json = name.endswith(".jsonl")
            lines = map(json.loads, file) if is_json else csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            for row in lines:
                text = row[self.files["text"]].replace("<br />", "\n").strip()
                if text:
                    yield {"text": text, "label": str(row.get(self.files["label"]))}

    def _write_examples(self) -> None:
        """The labelled examples; and for few labels a dev and a test set that are quick to score."""
        if (self.work / FEW_LABELS["dev"]).exists():
            return
        test = list(self._rows(self.files["test"]))
        by_label: dict[str, list[dict[str, str]]] = defaultdict(list)
        for row in random.Random(0).sample(test, len(test)):
            by_label[row["label"]].append(row)
        test_each, dev_each = FEW_TEST // len(by_label), FEW_DEV // len(by_label)
        write_rows(self.work / FEW_LABELS["train"], self._rows(self.files["train"]))
        write_rows(self.work / "test.jsonl", test)
        write_rows(self.work / FEW_LABELS["test"], (row for rows in by_label.values() for row in rows[:test_each]))
        write_rows(self.work / FEW_LABELS["dev"], (row for rows in by_label.values() for row in rows[-dev_each:]))


def write_rows(path: Path, rows: Iterator[dict[str, str]] | Sequence[dict[str, str]]) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    partial.replace(path)


def table_of(predictions: dict[str, Path], test: Path) -> str:
    """The error of each model, and of the mean of their probabilities, in percent."""
    gold = [row["label"] for row in read_rows(test)]
    probabilities = {name: [row["probabilities"] for row in read_rows(path)] for name, path in predictions.items()}
    if len(probabilities) > 1:
        pairs = zip(*probabilities.values(), strict=True)
        probabilities["mean of both"] = [
            {label: sum(one[label] for one in some) for label in some[0]} for some in pairs
        ]
    lines = ["| model | error on test, % | examples |", "|---|---|---|"]
    for name, some in probabilities.items():
        wrong = sum(max(one, key=one.__getitem__) != label for one, label in zip(some, gold, strict=True))
        lines.append(f"| {name} | {100 * wrong / len(gold):.2f} | {len(gold):,} |")
    return "\n".join(lines)


def read_rows(path: Path) -> list[Any]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


if __name__ == "__main__":
    sys.exit(main())
