"""Dev examples are the task's own, or a share of train that depends only on the texts."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
from command_line import call
from finetune_fixtures import tiny_model

from bertsmith.errors import ConfigError
from bertsmith.tasks.task import Example
from bertsmith.training.finetune import build_task
from bertsmith.training.finetune_data import is_dev, stratified_order, train_and_dev
from bertsmith.training.recipe import make_finetune_config


def written(path: Path, rows: int) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((f"text {row}", "ab"[row % 2]) for row in range(rows))])
    return path


def split(folder: Path, *changes: str, rows: int = 1000, dev: bool = False) -> tuple[list[Example], list[Example]]:
    files = {"train": written(folder / "train.csv", rows)}
    files |= {"dev": written(folder / "dev.csv", 10)} if dev else {}
    tuning = make_finetune_config("classification", folder / "model", files, changes)
    return train_and_dev(tuning, build_task(tuning))


def test_dev_fraction_splits_train(tmp_path: Path) -> None:
    train, dev = split(tmp_path, "dev_fraction=0.1")
    assert 70 < len(dev) < 130
    assert not {one.texts for one in train} & {one.texts for one in dev}
    assert len(train) + len(dev) == 1000
    repeated, other = split(tmp_path, "dev_fraction=0.1", "seed=5", rows=500)
    assert other == [one for one in dev if one in [*repeated, *other]]  # independent of other examples


def test_a_larger_dev_fraction_contains_a_smaller_one(tmp_path: Path) -> None:
    small, large = (split(tmp_path, f"dev_fraction={share}")[1] for share in (0.1, 0.4))
    assert {one.id for one in small} < {one.id for one in large}


def test_questions_on_one_passage_stay_together() -> None:
    passages = [f"passage {number} " * 5 for number in range(200)]
    aside = {
        passage: {is_dev(Example(id="x", texts=(f"question {number}", passage)), 0.3) for number in range(5)}
        for passage in passages
    }
    assert all(len(examples) == 1 for examples in aside.values())
    assert 30 < sum(True in examples for examples in aside.values()) < 90


def test_there_is_no_split_by_default(tmp_path: Path) -> None:
    train, dev = split(tmp_path)
    assert (len(train), dev) == (1000, [])
    train, dev = split(tmp_path, dev=True)
    assert (len(train), len(dev)) == (1000, 10)


@pytest.mark.parametrize(
    ("changes", "how", "says"),
    [
        (["dev_fraction=0.1"], {"dev": True}, "has dev examples: leave out dev_fraction=0.1"),
        (["dev_fraction=0.01"], {"rows": 2}, "splits 2 examples into 2 for training and 0 for dev"),
        (["dev_fraction=1"], {}, "dev_fraction=1 must be at least 0 and below 1"),
    ],
)
def test_invalid_dev_fractions(changes: list[str], how: dict[str, int], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        split(tmp_path, *changes, **how)  # type: ignore[arg-type]


def test_a_sweep_without_dev_examples_is_refused(tmp_path: Path) -> None:
    model, train = tiny_model(tmp_path), written(tmp_path / "train.csv", 60)
    command = ["finetune", str(model), "-t", "classification", "--train", str(train), "-o", str(tmp_path / "run")]
    command += ["--seeds", "2", "--device", "cpu", "epochs=1", "batch_size=16"]
    refused = call(*command)
    assert refused.returncode == 78
    assert "pass --dev FILE, or use some of the training examples: dev_fraction=0.1" in refused.stderr
    accepted = call(*command, "dev_fraction=0.3")
    assert accepted.returncode == 0, accepted.stderr


def test_every_prefix_of_a_stratified_order_has_the_proportions_of_the_classes() -> None:
    classes = [*("a" * 700), *("b" * 200), *("c" * 99), "d"]
    whole = Counter(classes)
    order = stratified_order(classes, seed=3)
    assert sorted(order.tolist()) == list(range(1000))
    for size in (1, 7, 50, 333, 999):
        counts = Counter(classes[index] for index in order[:size])
        assert all(abs(counts[name] - size * whole[name] / 1000) <= 2 for name in whole), counts
    assert stratified_order(classes, seed=3).tolist() == order.tolist()
    assert stratified_order(classes, seed=4).tolist() != order.tolist()
    first = [index for index in order.tolist() if classes[index] == "a"][:100]
    assert 200 < sum(first) / 100 < 500  # of 0 to 699: in random order
    seldom = [stratified_order(classes, seed=seed).tolist().index(999) for seed in range(40)]
    assert min(seldom) < 250 < 750 < max(seldom)  # the only d is anywhere


def test_stratified_subsets_are_nested_and_functions_of_the_seed(tmp_path: Path) -> None:
    def ids(*changes: str) -> set[str]:
        train, dev = split(tmp_path, "dev_fraction=0.1", *changes)
        assert len(dev) > 70
        return {example.id for example in train}

    sizes = [ids("subset=stratified", f"limit={size}") for size in (10, 50, 200)]
    assert list(map(len, sizes)) == [10, 50, 200]
    assert sizes[0] < sizes[1] < sizes[2]
    assert Counter(int(id) % 2 for id in sizes[0]) == {0: 5, 1: 5}
    assert ids("subset=stratified", "limit=10", "epochs=9") == sizes[0]
    assert ids("subset=stratified", "limit=10", "seed=1") != sizes[0]
    assert ids("limit=10") == {one.id for one in split(tmp_path, "dev_fraction=0.1")[0][:10]}
    assert ids("subset=stratified") == ids()
