"""`evaluate` and `predict` as their users call them, on models that were just fine-tuned."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call
from finetune_fixtures import made_up, tiny_model, tuning_of, write
from threads import threads

import bertsmith
from bertsmith.errors import ConfigError, DataError
from bertsmith.evaluation import evaluate, evaluator
from bertsmith.evaluation.output_files import write_predictions
from bertsmith.model_io.model_folder import open_model, save_model
from bertsmith.tasks import classification
from bertsmith.tasks.tagged_text import Sentence
from bertsmith.training.finetune import finetune
from bertsmith.training.finetune_data import build_task, train_and_dev
from bertsmith.training.recipe import make_finetune_config

KINDS = ("classification", "pairs", "regression", "choice", "qa", "tagging")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A run of two epochs for each kind of task, and one of CoLA in GLUE's own files."""
    base = tmp_path_factory.mktemp("evaluate")
    model = tiny_model(base)
    for kind in KINDS:
        (base / kind).mkdir()
        tuning = tuning_of(kind, model, base / kind, "epochs=2", "learning_rate=2e-3")
        found = finetune(tuning, base / kind / "run", device="cpu", quiet=True)
        (base / kind / "found.json").write_text(json.dumps(found), encoding="utf-8")
    glue = base / "glue" / "CoLA"
    glue.mkdir(parents=True)
    for split in ("train", "dev"):
        rows = [f"x\t{number % 2}\t\tthe smith has {('red', 'blue')[number % 2]} iron\n" for number in range(32)]
        (glue / f"{split}.tsv").write_text("".join(rows), encoding="utf-8")
    (glue / "test.tsv").write_text("index\tsentence\n0\tred iron\n1\tblue iron\n", encoding="utf-8")
    tuning = make_finetune_config("glue/cola", model, {"data": base / "glue"}, ["epochs=1", "max_length=32"])
    finetune(tuning, base / "cola", device="cpu", quiet=True)
    return base


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_run(kind: str, base: Path) -> None:
    trained = json.loads((base / kind / "found.json").read_text(encoding="utf-8"))
    files = {"dev": base / kind / "dev.jsonl"}
    found = evaluate(base / kind / "run", kind, files, device="cpu")
    assert found.max_length == 32  # that of the run
    assert found.model == str(base / kind / "run" / "best")
    last = evaluate(base / kind / "run" / "last", kind, files, max_length=32, device="cpu")
    for name, value in last.scores.items():
        assert value == pytest.approx(trained[f"score/{name}"], abs=1e-6), name
    assert found.scores[found.main_metric] >= last.scores[found.main_metric]
    assert found.interval is not None
    assert found.interval.value == pytest.approx(found.scores[found.main_metric])
    assert found.interval.low <= found.scores[found.main_metric] <= found.interval.high
    assert found.examples == sum(one.examples for one in found.by_length) == 40
    assert found.texts_per_second > 0
    assert json.loads(json.dumps(found.to_dict()))["scores"] == found.scores


def test_chunk_size_does_not_change_the_result(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"dev": base / "qa" / "dev.jsonl"}
    whole = evaluate(base / "qa" / "run", "qa", files, max_length=32, device="cpu")
    monkeypatch.setattr(evaluator, "CHUNK", 7)
    parts = evaluate(base / "qa" / "run", "qa", files, max_length=32, device="cpu")
    assert parts.scores == whole.scores
    assert [example.id for example in parts.predictions[0]] == [example.id for example in whole.predictions[0]]


def test_truncated_examples_are_counted(base: Path) -> None:
    task = classification.Config()
    found = evaluate(
        base / "classification" / "run", task, {"dev": base / "classification" / "dev.jsonl"}, max_length=5
    )
    assert found.truncated == found.examples == sum(one.truncated for one in found.by_length)
    assert found.max_length == 5
    assert found.by_length[0].shortest == 1
    assert found.by_length[-1].longest == 16  # lengths are those of whole texts


def test_a_run_folder_needs_no_task_or_files(base: Path, tmp_path: Path) -> None:
    done = call("evaluate", base / "tagging" / "run", "-o", tmp_path / "out", "--device", "cpu", "max_errors=3")
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("never an entity", "COLOUR", "95% interval", "Words", "Support"))
    numbers = json.loads((tmp_path / "out" / "evaluation.json").read_text(encoding="utf-8"))
    assert (numbers["task"], numbers["max_length"], len(numbers["errors"])) == ("tagging", 32, 3)
    assert len((tmp_path / "out" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()) == 40
    assert "COLOUR" in (tmp_path / "out" / "evaluation.html").read_text(encoding="utf-8")
    told = call("evaluate", base / "qa" / "run" / "best", "--dev", base / "qa" / "dev.jsonl", "--json", "-o", tmp_path)
    facts = json.loads(told.stdout)
    assert facts["scores"].keys() == {"exact_match", "f1"}
    assert str(tmp_path / "nbest_predictions.json") in facts["written"]


def copied_run(base: Path, folder: Path, **changes: Any) -> Path:
    """The run of classification with other settings, and files for train only."""
    run = base / "classification" / "run"
    shutil.copytree(run / "best", folder / "best")
    recipe = json.loads((run / "recipe.json").read_text(encoding="utf-8"))
    recipe |= {"files": {"train": recipe["files"]["train"]}, **changes}
    (folder / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    return folder


def test_dev_examples_that_are_a_fraction_of_train_are_evaluated(base: Path, tmp_path: Path) -> None:
    run = copied_run(base, tmp_path / "run", dev_fraction=0.3)
    settings = evaluator.finetune_config_of(run)
    assert settings is not None
    train, dev = train_and_dev(settings, build_task(settings))
    for split, examples in (("dev", dev), ("train", train)):
        done = call("evaluate", run, "--split", split, "--device", "cpu", "-o", tmp_path / split, "--json")
        assert json.loads(done.stdout)["examples"] == len(examples), done.stderr
        lines = (tmp_path / split / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["id"] for line in lines] == [example.id for example in examples]
    file = base / "classification" / "train.jsonl"  # all of a given file
    given = json.loads(call("evaluate", run, "--file", file, "--split", "train", "--device", "cpu", "--json").stdout)
    assert given["examples"] == len(train) + len(dev)


def test_a_run_without_dev_examples_says_what_to_pass(base: Path, tmp_path: Path) -> None:
    run = copied_run(base, tmp_path / "run")
    done = call("evaluate", run, "--device", "cpu")
    assert done.returncode == 65
    assert "this run has no dev examples: pass --dev FILE, or --data DIR, or another --split" in done.stderr
    assert call("evaluate", run, "--dev", base / "classification" / "dev.jsonl", "--device", "cpu").returncode == 0
    moved = copied_run(base, tmp_path / "moved", files={"dev": "dev.csv"})
    assert (
        "dev.csv, the dev data of the run, does not exist here: pass --dev FILE, or" in call("evaluate", moved).stderr
    )
    refused = call("evaluate", run, "dev.csv").stderr
    assert "dev.csv is not a setting: pass a file of examples with --file dev.csv" in refused


def test_predict_reports_truncated_texts(base: Path, tmp_path: Path) -> None:
    run, file = base / "classification" / "run", tmp_path / "new.txt"
    file.write_text("iron\n" + "red iron " * 100 + "\n", encoding="utf-8")
    done = call("predict", run, "--file", file, "max_length=8", "-q")
    assert len(done.stdout.splitlines()) == 2
    assert "1 of 2 examples were truncated at 8 tokens: set max_length=16" in done.stderr


def test_each_line_of_a_text_file_has_a_prediction_with_its_text(base: Path, tmp_path: Path) -> None:
    texts = ["the smith has red iron", "it is gold", "쇠"]
    file, run = tmp_path / "new.txt", base / "classification" / "run"
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    rows = [json.loads(line) for line in call("predict", run, "--file", file, "--with-text", "-q").stdout.splitlines()]
    assert [(row["id"], row["text"]) for row in rows] == [(str(number), text) for number, text in enumerate(texts)]
    call("predict", run, "--file", file, "--with-text", "-o", tmp_path / "out.csv", "-q")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as table:
        assert [(row["text"], row["value"]) for row in csv.DictReader(table)] == [
            (row["text"], row["value"]) for row in rows
        ]
    file.write_bytes("\n".join(texts).encode("cp949"))
    assert "set task.encoding=cp949" in call("predict", run, "--file", file).stderr
    for words in (["task.encoding=cp949"], ["--encoding", "cp949"]):
        done = call("predict", run, *words, "--file", file, "--with-text", "-q").stdout.splitlines()
        assert [json.loads(line) for line in done] == rows


@pytest.mark.parametrize(
    ("kind", "roles"),
    [
        ("pairs", {"first": "sentence1", "second": "sentence2"}),
        ("choice", {"question": "question", "choices": "choices"}),
        ("qa", {"question": "question", "context": "context"}),
    ],
)
def test_predictions_with_several_texts(base: Path, kind: str, roles: dict[str, str]) -> None:
    file = base / kind / "dev.jsonl"
    row = json.loads(call("predict", base / kind / "run", "--file", file, "--with-text", "-q").stdout.splitlines()[0])
    example = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    assert {role: row[role] for role in roles} == {role: example[name] for role, name in roles.items()}


METRICS_FILE = """
def cost(gold, predicted):
    return -sum(5 if a == "iron" else 1 for a, b in zip(gold, predicted) if a != b)

def raises(gold, predicted):
    raise KeyError("zinc")

def words(gold, predicted):
    return "many"
"""


def test_metrics_of_the_users_own(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shopmetrics.py").write_text(METRICS_FILE, encoding="utf-8")
    run, dev = base / "classification" / "run", base / "classification" / "dev.jsonl"
    words = ["evaluate", run, "--dev", dev, "--device", "cpu", "--json", "metrics=shopmetrics:cost", "main_metric=cost"]
    found = json.loads(call(*words).stdout)
    gold = [json.loads(line)["label"] for line in dev.read_text(encoding="utf-8").splitlines()]

    def cost(true: list[str], predicted: list[str]) -> float:
        assert true == gold
        return -float(sum(5 if a == "iron" else 1 for a, b in zip(true, predicted, strict=True) if a != b))

    own = evaluate(run, "classification", {"dev": dev}, metrics={"own": lambda a, b: 2.0}, device="cpu")
    assert (own.scores["own"], own.main_metric) == (2.0, "accuracy")
    assert bertsmith.evaluate(run, dev, metrics={"own": lambda a, b: 3.0}, device="cpu").scores["own"] == 3.0
    predictions = [one.value for one in own.predictions[1]]
    assert found["scores"]["cost"] == cost(gold, predictions)
    assert found["main_metric"] == "cost"
    interval = found["interval"]
    assert interval["low"] < interval["value"] == found["scores"]["cost"] < interval["high"]
    assert found["baseline"]["scores"]["cost"] < 0
    for setting, message in {
        "metrics=shopmetric:cost": f"metrics=shopmetric:cost: no module shopmetric in {tmp_path} or among",
        "metrics=shopmetrics:costs": "shopmetrics has no function costs; did you mean cost?",
        "metrics=cost": "metrics=cost: expected module:function, such as mymetrics:cost",
        "metrics=shopmetrics:raises": f"metric raises: KeyError: 'zinc' ({tmp_path / 'shopmetrics.py'}:6)",
        "metrics=shopmetrics:words": "metric words returned 'many': it must return a finite number",
        "main_metric=acuracy": "main_metric=acuracy is not one of accuracy, macro_f1, matthews; did you mean accuracy?",
        'metrics={accuracy="shopmetrics:cost"}': "accuracy is already a metric of classification",
    }.items():
        done = call(*words[:6], "-q", setting)
        assert (done.returncode, done.stderr.count("\n")) == (78, 1), done.stderr
        assert message in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("kind", "metric"), [("tagging", "accuracy"), ("qa", "exact_match"), ("regression", "spearman")]
)
def test_another_main_metric_has_its_own_interval(kind: str, metric: str, base: Path) -> None:
    found = evaluate(base / kind / "run", kind, {"dev": base / kind / "dev.jsonl"}, main_metric=metric, device="cpu")
    assert found.interval is not None
    assert found.interval.value == pytest.approx(found.scores[metric])
    assert found.interval.low < found.interval.value < found.interval.high or found.interval.value in (0, 1)


def test_a_metric_of_ones_own_selects_the_best_model(base: Path, tmp_path: Path) -> None:
    (tmp_path / "shelfmetrics.py").write_text("def late(gold, predicted):\n    return sum(map(len, predicted))\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        how = ["epochs=2", "learning_rate=2e-3", "metrics=shelfmetrics:late", "main_metric=late"]
        tuning = tuning_of("classification", base / "m", tmp_path, *how)
        found = finetune(tuning, tmp_path / "run", device="cpu", quiet=True)
        with pytest.raises(ConfigError, match=r"main_metric=later is not one of .*, late"):
            finetune(replace(tuning, main_metric="later"), tmp_path / "wrong", device="cpu", quiet=True)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    scores = {event["step"]: event["score/late"] for event in events if "score/late" in event}
    assert (found["main"], scores[found["best_step"]]) == ("late", max(scores.values()))


def test_submission_without_labels(base: Path, tmp_path: Path) -> None:
    words = ["evaluate", base / "cola", "--data", base / "glue", "--split", "test", "--device", "cpu"]
    done = call(*words, "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no labels" in done.stdout
    lines = (tmp_path / "CoLA.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in lines[1:]] == ["0", "1"]
    assert {line.split("\t")[1] for line in lines[1:]} <= {"0", "1"}
    refused = call(*words)
    assert (refused.returncode, refused.stderr.count("\n")) == (65, 1)
    assert "test has no labels" in refused.stderr


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_predictions_for_a_file_without_answers(base: Path, tmp_path: Path) -> None:
    run = base / "classification" / "run"
    rows = made_up("classification", 9, 5)
    texts = [{"id": f"n{number}", "text": row["text"]} for number, row in enumerate(rows)]
    source = write(tmp_path / "new.jsonl", texts)
    assert call("predict", run, "--file", source, "-o", tmp_path / "p.jsonl", "--device", "cpu").returncode == 0
    found = rows_of(tmp_path / "p.jsonl")
    assert [row["id"] for row in found] == [f"n{number}" for number in range(9)]
    for row in found:
        assert row["value"] == max(row["probabilities"], key=row["probabilities"].get)
        assert row["score"] == row["probabilities"][row["value"]]
        assert sum(row["probabilities"].values()) == pytest.approx(1)
    printed = call("predict", run, "--file", source, "--device", "cpu", "--quiet")
    assert [json.loads(line) for line in printed.stdout.splitlines()] == found
    for ending, between in ((".csv", ","), (".tsv", "\t")):
        told = call("predict", run, "--file", source, "-o", tmp_path / f"p{ending}", "--device", "cpu", "--json")
        assert json.loads(told.stdout)["examples"] == 9
        with (tmp_path / f"p{ending}").open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file, delimiter=between))
        assert [(row["id"], row["value"]) for row in table] == [(row["id"], row["value"]) for row in found]
        assert float(table[0]["probability iron"]) == found[0]["probabilities"]["iron"]


def test_predictions_have_offsets(base: Path, tmp_path: Path) -> None:
    asked = write(tmp_path / "qa.jsonl", [{"question": "which metal", "context": "the smith has red gold"}])
    call("predict", base / "qa" / "run", "--file", asked, "-o", tmp_path / "qa.out.jsonl", "--device", "cpu")
    (row,) = rows_of(tmp_path / "qa.out.jsonl")
    assert row["value"] == "the smith has red gold"[row["start"] : row["end"]]
    assert "answers" not in row
    texts = write(tmp_path / "tag.jsonl", [{"tokens": ["red", "gold"]}, {"tokens": ["a", "thing"]}])
    done = call("predict", base / "tagging" / "run", "--file", texts, "-o", tmp_path / "tag.csv", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "tag.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [len(row["value"].split()) for row in table] == [2, 2]
    assert isinstance(json.loads(table[0]["entities"]), list)
    numbers = call("predict", base / "regression" / "run", "--file", base / "regression" / "dev.jsonl", "--quiet")
    assert set(json.loads(numbers.stdout.splitlines()[0])) == {"id", "value"}


def test_a_predictions_file_is_complete_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"

    def rows(count: int, *, fails: bool) -> Iterator[dict[str, Any]]:
        for number in range(count):
            yield {"id": str(number), "value": 'a, "b"\nc', "probabilities": {"x": 0.5}}
        if fails:
            raise DataError("broken")

    assert write_predictions(rows(2, fails=False), path) == 2
    before = path.read_text(encoding="utf-8")
    assert before.splitlines()[0] == "id,value,probability x"
    assert list(csv.reader(before.splitlines(keepends=True)))[2] == ["1", 'a, "b"\nc', "0.5"]
    with pytest.raises(DataError, match="broken"):
        write_predictions(rows(500, fails=True), path)
    assert path.read_text(encoding="utf-8") == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.csv"]


def test_sentences_of_a_document_stay_in_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "CHUNK", 2)
    named = [Sentence(id=str(number), texts=("x",), document=name) for number, name in enumerate("aaabbbbc")]
    assert evaluator._boundaries(named) == [0, 3, 7, 8]
    assert evaluator._boundaries([Sentence(id="0", texts=("x",))] * 5) == [0, 2, 4, 5]
    assert evaluator._boundaries([]) == [0]


def test_non_finite_logits_are_an_error(base: Path, tmp_path: Path) -> None:
    model, tokenizer, _ = open_model(base / "classification" / "run" / "best")
    with torch.no_grad():
        model.encoder.token_embeddings.fill_(float("nan"))
    save_model(model, tokenizer, tmp_path / "broken")
    with pytest.raises(DataError, match="logits are not finite"):
        evaluate(tmp_path / "broken", "classification", {"dev": base / "classification" / "dev.jsonl"}, device="cpu")


def test_a_sweep_knows_its_task(base: Path, tmp_path: Path) -> None:
    (tmp_path / "lr-5e-05-seed-0").mkdir()
    shutil.copy(base / "pairs" / "run" / "recipe.json", tmp_path / "lr-5e-05-seed-0")
    shutil.copytree(base / "pairs" / "run" / "best", tmp_path / "best")
    done = call("evaluate", tmp_path, "--json", "--device", "cpu")
    assert json.loads(done.stdout)["task"] == "pairs"


def test_invalid_calls_are_one_line_errors(base: Path, tmp_path: Path) -> None:
    dev = {"dev": base / "qa" / "dev.jsonl"}
    with pytest.raises(DataError, match=r"has no head for qa .*its heads: classify \(4 labels\)"):
        evaluate(base / "classification" / "run", "qa", dev)
    with pytest.raises(DataError, match="its heads: masked_lm: use a model fine-tuned for it"):
        evaluate(base / "m", "qa", dev)
    with pytest.raises(ConfigError, match="max_length=99 exceeds the 64 positions"):
        evaluate(base / "qa" / "run", "qa", dev, max_length=99)
    with pytest.raises(
        DataError, match="classification has no test file: pass --file FILE --split test, or --data DIR"
    ):
        evaluate(base / "classification" / "run", "classification", dev, split="test")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "recipe.json").write_text("{}", encoding="utf-8")
    lone = shutil.copytree(base / "qa" / "run" / "best", tmp_path / "x" / "lone")
    file = ["--file", dev["dev"]]
    for words, status, message in (
        (["evaluate", lone, *file], 78, "pass --task"),
        (["predict", lone, *file], 78, "pass --task"),
        (["evaluate", tmp_path / "empty", *file], 65, "a run without a model"),
        (["evaluate", base / "qa" / "run", *file, "--dev", dev["dev"]], 2, "pass only one of"),
        (
            ["evaluate", base / "qa" / "run", "--dev", dev["dev"], "--split", "test"],
            2,
            "with --split test pass --file FILE",
        ),
        (["evaluate", base / "qa" / "run", "--split", "tset"], 2, "--split tset must be one of"),
        (["evaluate", base / "qa" / "run", *file, "lenght=3"], 78, "did you mean max_length=3?"),
        (["predict", base / "qa" / "run", *file, "-o", tmp_path / "p.txt"], 2, "the extension must be"),
    ):
        done = call(*words, "--device", "cpu")
        assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
        assert message in done.stderr


def test_predictions_need_no_known_labels(base: Path, tmp_path: Path) -> None:
    """Labels of a file are ignored by predict, and named by evaluate if the model does not know them."""
    for kind, label in (("classification", "wood"), ("tagging", ["B-WOOD"])):
        rows = [json.loads(line) for line in (base / kind / "dev.jsonl").read_text(encoding="utf-8").splitlines()[:3]]
        key = "label" if kind == "classification" else "tags"
        changed = [{**row, key: label if isinstance(label, str) else label * len(row[key])} for row in rows]
        for name, some in (("known", rows), ("unknown", changed)):
            text = "".join(json.dumps(row) + "\n" for row in some)
            (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
        options = ("--device", "cpu", "--file")
        known, unknown = (
            call("predict", base / kind / "run", *options, tmp_path / f"{n}.jsonl") for n in ("known", "unknown")
        )
        assert (unknown.returncode, unknown.stderr) == (0, "")
        assert known.stdout == unknown.stdout != ""
        refused = call("evaluate", base / kind / "run", *options, tmp_path / "unknown.jsonl")
        assert refused.returncode == 65
        assert re.search(r"unknown\.jsonl:1.* is not one of the known labels", refused.stderr)
