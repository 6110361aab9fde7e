"""Multi-task fine-tuning: one encoder, a head for each task, mixed batches; saved, loaded and evaluated by task."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from finetune_fixtures import QUICK, made_up, tiny_gpt, tiny_model, write
from threads import threads

import bertsmith as bs
from bertsmith import config
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.model_io.model_folder import open_model
from bertsmith.training.distributed import World
from bertsmith.training.finetune import _make_loader, finetune, open_with_head
from bertsmith.training.finetune_data import build_task, loss_weights, prepare
from bertsmith.training.finetune_loader import make_batch
from bertsmith.training.log import last_of_each_step, read_events
from bertsmith.training.recipe import FinetuneConfig, make_finetune_config
from bertsmith.training.task_arguments import named_files, named_tasks
from bertsmith.types import IGNORE_INDEX

KINDS = ("classification", "pairs", "multi_label", "regression", "tagging", "choice", "qa")
HEADS = {"classification": "classify", "pairs": "classify", "multi_label": "multi_label", "regression": "regress"}
HEADS |= {"tagging": "tag", "choice": "choose", "qa": "span"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("tasks")
    return {"bert": tiny_model(base), "gpt": tiny_gpt(base)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of each kind of task; the number of training examples differs."""
    base = tmp_path_factory.mktemp("rows")
    splits = {f"{kind}.train": (kind, 16 + 8 * number, 0) for number, kind in enumerate(KINDS)}
    splits |= {f"{kind}.dev": (kind, 8, 1) for kind in KINDS}
    return {name: write(base / f"{name}.jsonl", made_up(*how)) for name, how in splits.items()}


def tuning_of(kinds: tuple[str, ...], model: Path, files: dict[str, Path], *changes: str) -> FinetuneConfig:
    own = {name: path for name, path in files.items() if name.partition(".")[0] in kinds}
    return make_finetune_config({kind: kind for kind in kinds}, model, own, [*QUICK, *changes])


@pytest.fixture(scope="module")
def trained(models: dict[str, Path], files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    tuning = tuning_of(("classification", "regression"), models["bert"], files, "save_every=4", "epochs=3")
    with threads(1):
        finetune(tuning, run, device="cpu", quiet=True)
    return run


def losses(run: Path) -> list[float]:
    return [one["loss"] for one in last_of_each_step(read_events(run / "events.jsonl"), "step")]


def whole_batch(tuning: FinetuneConfig) -> tuple[Any, Any, Any]:
    """The model of a run in evaluation mode, its data, and one batch with all its examples."""
    task = build_task(tuning)
    model, tokenizer, _ = open_with_head(tuning, task)
    data = prepare(tuning, task, tokenizer, positions=64)
    loader = _make_loader(replace(tuning, batch_size=len(data.train)), data, tokenizer, World(), static_shape=False)
    return model.eval(), data, loader(0)[0]


def test_the_loss_of_a_mixed_batch_is_that_of_each_task_on_its_own(
    models: dict[str, Path], files: dict[str, Path]
) -> None:
    tuning = tuning_of(KINDS, models["gpt"], files, "head.pairs.both_orders=true", "max_length=48")
    model, data, batch = whole_batch(tuning)
    assert list(data.task.heads) == [f"{HEADS[kind]}-{kind}" for kind in KINDS]
    mixed, weights = model(model.corrupt(batch)), loss_weights(tuning, data)
    for head in data.task.heads:
        other, own, expected = whole_batch(tuning.for_head(head))
        name = own.task.objective
        other.objectives[name].load_state_dict(model.objectives[head].state_dict())
        loss = other(other.corrupt(expected))
        assert mixed.counts[head] == loss.counts[name], head
        assert mixed.sums[head].item() == pytest.approx(loss.sums[name].item(), rel=1e-4), head
        assert weights[head] == pytest.approx(len(own.train) / len(data.train))


def test_a_batch_without_examples_of_a_task(models: dict[str, Path], files: dict[str, Path]) -> None:
    tuning = tuning_of(KINDS, models["bert"], files, "max_length=48")
    model, data, _ = whole_batch(tuning)
    for head in data.task.heads:
        some = [one for one in data.train if one.head == head][:3]
        loss = model(model.corrupt(make_batch(some, list(data.task.heads), length=48, padding_id=0)))
        assert [name for name, count in loss.counts.items() if count] == [head]
        assert sum(float(value.detach()) for name, value in loss.sums.items() if name != head) == 0
        loss.mean().backward()


def test_balanced_sampling_draws_each_task_equally_often(models: dict[str, Path], files: dict[str, Path]) -> None:
    tuning = tuning_of(("classification", "regression"), models["bert"], files, "sampling=balanced")
    _, data, batch = whole_batch(tuning)
    counts = (batch.labels["classify-classification"] != IGNORE_INDEX).sum(), len(data.train) // 2
    assert counts[0] == counts[1]
    assert loss_weights(tuning, data) == {"classify-classification": 0.5, "regress-regression": 0.5}


def test_a_resumed_run_is_bit_identical(trained: Path, tmp_path: Path) -> None:
    middle = sorted((trained / "checkpoints").iterdir())[0]
    tuning = config.read_file(FinetuneConfig, trained / "recipe.json")
    with threads(1):
        finetune(tuning, tmp_path / "again", device="cpu", quiet=True, resume=str(middle))
    assert losses(tmp_path / "again") == losses(trained)[int(middle.name.removeprefix("step-")) :]
    for name in ("best", "last"):
        assert len({(run / name / "model.safetensors").read_bytes() for run in (trained, tmp_path / "again")}) == 1


def test_the_model_is_saved_with_all_heads_and_used_by_head(trained: Path) -> None:
    model, _, _ = open_model(trained)
    assert list(model.objectives) == ["classify-classification", "regress-regression"]
    event = next(one for one in read_events(trained / "events.jsonl")[::-1] if one["kind"] == "evaluation")
    mains = [event[f"score/{name}"] for name in ("classification_accuracy", "regression_pearson")]
    assert event["score/mean"] == pytest.approx(sum(mains) / 2)
    best = bs.open_run(trained).scores
    for head, metric in {"classify-classification": "accuracy", "regress-regression": "pearson"}.items():
        scores = bs.evaluate(trained, head=head, device="cpu").scores
        assert scores[metric] == pytest.approx(best[f"{head.partition('-')[2]}_{metric}"])
    predictor = bs.load(trained, head="classify-classification", device="cpu")
    assert predictor.predict("the smith has red iron")["label"] in predictor.labels
    assert set(bs.load(trained, head="regress-regression", device="cpu").predict("red iron")) == {"score"}
    choice = "--head classify-classification or --head regress-regression"
    with pytest.raises(BertsmithError, match=choice):
        bs.load(trained, device="cpu").predict("the smith has red iron")
    with pytest.raises(BertsmithError, match=choice):
        bs.evaluate(trained, device="cpu")


def test_the_command_line_takes_several_tasks(models: dict[str, Path], files: dict[str, Path], tmp_path: Path) -> None:
    words: list[Any] = [
        "finetune",
        models["bert"],
        "-t",
        "mood=classification",
        "-t",
        "regression",
        "-o",
        tmp_path / "r",
    ]
    for split in ("train", "dev"):
        words += [f"--{split}", f"mood={files[f'classification.{split}']}"]
        words += [f"--{split}", f"regression={files[f'regression.{split}']}"]
    words += ["--device", "cpu", "--json", *QUICK[1:], "epochs=1", "task.weights.mood=0.5", "head.mood.pooling=mean"]
    done = call(*words, "--limit", 8)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["examples"] == 16
    assert {"score/mean", "score/mood_accuracy", "score/regression_pearson"} <= facts.keys()
    done = call("evaluate", tmp_path / "r", "--head", "classify-mood", "--device", "cpu", "--json")
    assert json.loads(done.stdout)["scores"]["accuracy"] == facts["score/mood_accuracy"]


def test_several_tasks_in_python_with_rows_in_memory(models: dict[str, Path], tmp_path: Path) -> None:
    moods = [("red iron", "good"), ("blue gold", "bad")] * 4
    rows = {"mood": moods, "size": [("red iron", 1.5), ("blue gold", 3.0)] * 4}
    tasks, how = {"mood": "classification", "size": "regression"}, {"epochs": 1, "quiet": True, "device": "cpu"}
    for _ in range(2):  # the second call resumes the finished run
        model = bs.finetune(models["gpt"], tasks, train=rows, dev=rows, output=tmp_path / "run", **how)
    assert list(model.model.objectives) == ["classify-mood", "regress-size"]
    assert bs.evaluate(tmp_path / "run", moods, head="classify-mood", device="cpu").scores["accuracy"] >= 0


def test_tasks_and_files_by_name() -> None:
    assert named_tasks(["glue/cola"]) == "glue/cola"
    assert named_tasks(["glue/cola", "squad/2.0"]) == {"cola": "glue/cola", "squad": "squad/2.0"}
    tasks = named_tasks(["glue/cola", "mood=classification"])
    assert tasks == {"cola": "glue/cola", "mood": "classification"}
    paths = {"data": ["GLUE"], "train": ["mood=a.csv"], "dev": None}
    assert named_files(tasks, paths) == {"data": "GLUE", "mood.train": "a.csv"}
    with pytest.raises(ConfigError, match="two tasks are called pairs: name them"):
        named_tasks(["pairs", "pairs"])
    assert named_files("pairs", {"train": ["a.csv", "b.csv"]}) == {"train": "b.csv"}
    with pytest.raises(ConfigError, match=r"already --train a\.csv: with several tasks, write --train NAME=b\.csv"):
        named_files(tasks, {"train": ["a.csv", "b.csv"]})


def test_mistakes_are_named(models: dict[str, Path], files: dict[str, Path]) -> None:
    kinds = ("classification", "regression")
    with pytest.raises(ConfigError, match=r"head\.pooling: with several tasks \(classification, regression\) write"):
        build_task(tuning_of(kinds, models["bert"], files, "head.pooling=mean"))
    with pytest.raises(ConfigError, match=r"weights\.mood"):
        tuning_of(kinds, models["bert"], files, "task.weights={mood=1.0}")
    with pytest.raises(ConfigError, match="at least two tasks: pass --task TASK"):
        build_task(make_finetune_config("multi_task", models["bert"], {}, []))
