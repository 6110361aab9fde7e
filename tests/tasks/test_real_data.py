"""The real files, where they are available: as many examples as their authors count, all of them readable."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from bertsmith.tasks import codah, commonsenseqa, glue, korean
from bertsmith.tasks.task import TaskConfig

DATA = Path(os.environ.get("BERTSMITH_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "tasks"


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    class Unpacking(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            if not (DATA / f"{name}.tar.xz").is_file():
                pytest.skip(f"{name} is not available")
            self[name] = tmp_path_factory.mktemp(name)
            with tarfile.open(DATA / f"{name}.tar.xz") as archive:
                archive.extractall(self[name], filter="data")
            return self[name]

    return Unpacking()


@pytest.mark.parametrize(
    ("archive", "settings", "counts"),
    [
        ("glue", glue.Config(name="cola"), {"train": 8551, "dev": 1043, "test": 1063}),
        ("glue", glue.Config(name="sst-2"), {"train": 67349, "dev": 872, "test": 1821}),
        ("glue", glue.Config(name="mrpc"), {"train": 3668, "dev": 408, "test": 1725}),
        ("glue", glue.Config(name="sts-b"), {"train": 5749, "dev": 1500, "test": 1379}),
        ("glue", glue.Config(name="qnli"), {"dev": 5463, "test": 5463}),
        ("glue", glue.Config(name="rte"), {"train": 2490, "dev": 277, "test": 3000}),
        ("glue", glue.Config(name="wnli"), {"train": 635, "dev": 71, "test": 146}),
        ("codah", codah.Config(fold=0), {"train": 1665, "dev": 556, "test": 555}),
        ("codah", codah.Config(fold=4), {"train": 1665, "dev": 555, "test": 556}),
        ("commonsenseqa", commonsenseqa.Config(), {"train": 9741, "dev": 1221, "test": 1140}),
        ("nsmc", korean.Config(name="nsmc"), {"train": 150_000, "test": 50_000}),
        ("kornlu", korean.Config(name="korsts"), {"train": 5749, "dev": 1500, "test": 1379}),
        ("kornlu", korean.Config(name="kornli"), {"dev": 2490, "test": 5010}),
        ("klue", korean.Config(name="klue-nli"), {"dev": 3000}),
        ("klue", korean.Config(name="klue-sts"), {"dev": 519}),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "name", None),
)
def test_example_counts_match_the_authors(
    archive: str, settings: TaskConfig, counts: dict[str, int], unpacked: Mapping[str, Path]
) -> None:
    task = settings.build(files={"data": unpacked[archive]})
    assert {split: len(task.examples(split)) for split in ("train", "dev", "test") if task.has_split(split)} == counts
    for split in counts:
        assert len({example.id for example in task.examples(split)}) == counts[split]
    assert not task.detected


def test_mrpc_split_has_the_dev_set_of_glue_and_the_row_missing_in_its_train_file(
    unpacked: Mapping[str, Path],
) -> None:
    folder = unpacked["glue"]
    actual = glue.Config(name="mrpc").build(files={"data": folder})
    files = {split: folder / "MRPC" / f"{split}.tsv" for split in ("train", "dev")}
    expected = glue.Config(name="mrpc").build(files=files)
    pairs = {
        (name, split): [(example.texts, example.gold) for example in task.examples(split)]
        for name, task in (("ours", actual), ("theirs", expected))
        for split in ("train", "dev")
    }
    assert pairs["ours", "dev"] == pairs["theirs", "dev"]
    assert len(pairs["ours", "train"]) == len(pairs["theirs", "train"]) + 1
    assert set(pairs["theirs", "train"]) < set(pairs["ours", "train"])


def test_the_five_test_folds_of_codah_cover_the_dataset_once(unpacked: Mapping[str, Path]) -> None:
    folder = unpacked["codah"]
    folds = [codah.Config(fold=fold).build(files={"data": folder}).examples("test") for fold in range(codah.FOLDS)]
    whole = codah.Config().build(files={"test": folder / "codah" / "data" / "full_data.tsv"}).examples("test")
    assert len(whole) == 2776
    assert sorted(example.texts for fold in folds for example in fold) == sorted(example.texts for example in whole)
