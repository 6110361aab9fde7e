"""Named entities in column files of known sets: CoNLL-2003, WNUT-17, KLUE-NER."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError
from bertsmith.tasks.labelled import benchmark_labels
from bertsmith.tasks.places import Layout, benchmark_files
from bertsmith.tasks.tagged import column_files
from bertsmith.tasks.tagged.column_files import Columns
from bertsmith.tasks.tagged.labels import of_kinds
from bertsmith.tasks.tagged.manner import Manner
from bertsmith.tasks.tagged.schemes import Given
from bertsmith.tasks.tagged.sentences import Sentence, Unit
from bertsmith.tasks.tagged.tagging_task import Tagging

WORDS = Columns()


@dataclass(frozen=True)
class Member:
    """One set: its files, its types of entities, and what its words are."""

    layout: Layout
    inside: tuple[str, ...]  # folders in which its files may lie
    kinds: tuple[str, ...]
    columns: Columns = WORDS
    unit: Unit = "word"
    strict: bool = False


MEMBERS = {
    "conll2003": Member(
        {
            "train": [("eng.train",), ("train.txt",)],
            "dev": [("eng.testa",), ("valid.txt",), ("dev.txt",)],
            "test": [("eng.testb",), ("test.txt",)],
        },
        ("conll2003", "conll-2003", "eng"),
        ("LOC", "MISC", "ORG", "PER"),
    ),
    "wnut17": Member(
        {
            "train": [("wnut17train.conll",)],
            "dev": [("emerging.dev.conll",)],
            "test": [("emerging.test.annotated",), ("emerging.test",)],
        },
        ("wnut17", "emerging_entities_17"),
        ("corporation", "creative-work", "group", "location", "person", "product"),
    ),
    "klue-ner": Member(
        {split: [(f"klue-ner-v1.1_{split}.tsv",)] for split in ("train", "dev", "test")},
        ("klue-ner-v1.1", "klue_benchmark/klue-ner-v1.1", "klue/klue_benchmark/klue-ner-v1.1"),
        ("DT", "LC", "OG", "PS", "QT", "TI"),
        Columns(comment="##", between=""),
        unit="character",
        strict=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Config(Manner):
    """Settings of the known sets."""

    name: str  # conll2003, wnut17 or klue-ner
    scheme: Given = "lenient"  # how the files spell entities; two tags of CoNLL-2003 break the rules of IOB1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name.lower() not in MEMBERS:
            near = did_you_mean(self.name.lower(), MEMBERS)
            raise ConfigError(
                f"{self.name!r} is no set of conll: {', '.join(MEMBERS)}{near}; for files of your own take tagging"
            )

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> Tagging:
        """The task; a trained model's labels decide the order of the classes, not which there are."""
        name = self.name.lower()
        member, title = MEMBERS[name], f"conll/{name}"

        def load(path: Path, split: str) -> list[Sentence]:
            return column_files.read(path, member.columns, tagged=split != "test")

        return Tagging(
            title,
            files=benchmark_files(title, files, member.layout, inside=member.inside),
            load=load,
            manner=self,
            labels=benchmark_labels(title, of_kinds(member.kinds), labels),
            unit=member.unit,
            strict=member.strict,
        )
