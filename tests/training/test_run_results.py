"""What fine-tuning and pre-training say about their result, and how a run in a folder is replaced or extended."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import call
from finetune_fixtures import QUICK, made_up, tiny_model, write

from bertsmith import config, recipes
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.reports import terminal_runs
from bertsmith.reports.run_summary import training_data
from bertsmith.system.durable import Disk
from bertsmith.training import loop
from bertsmith.training.finetune import finetune
from bertsmith.training.log import read_events
from bertsmith.training.recipe import FinetuneConfig, find_task, make_finetune_config, with_overrides
from bertsmith.training.run import remove_run


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, training examples of which every fifth is long, and the finished run of one epoch in `run`."""
    base = tmp_path_factory.mktemp("results")
    tiny_model(base)
    rows = made_up("classification", 40, 0)
    long = [{**row, "text": f"{row['text']} {'the smith ' * 20}"} if i % 5 == 0 else row for i, row in enumerate(rows)]
    write(base / "train.jsonl", [{"review": row["text"], "stars": row["label"]} for row in long])
    assert call(*command(base), "-q").returncode == 0
    return base


def command(base: Path, *changes: object, output: Path | None = None) -> list[object]:
    files = ["-t", "classification", "--train", base / "train.jsonl", "-o", output or base / "run", "--device", "cpu"]
    return ["finetune", base / "m", *files, *QUICK[1:], "epochs=1", *changes]


@pytest.fixture
def copied(base: Path, tmp_path: Path) -> Path:
    return shutil.copytree(base / "run", tmp_path / "run")


def loop_run(best: int, steps: int, folder: Path = Path("run")) -> Any:
    """A run whose best evaluation had the score 0.9."""
    return SimpleNamespace(
        folder=folder,
        best=(best, -0.9),
        best_metrics={"cost": -0.9, "score/accuracy": 0.9},
        trainer=SimpleNamespace(steps_done=steps),
        closing_notes=list,
    )


def test_the_result_has_the_scores_of_the_best_model_and_the_last_ones_apart() -> None:
    result = loop._result(loop_run(8, 16), {"cost": -0.5, "score/accuracy": 0.5})
    assert result == {
        "model": "run/best",
        "best_step": 8,
        "score/accuracy": 0.9,
        "last": {"step": 16, "score/accuracy": 0.5},
        "notes": [],
    }
    assert "last" not in loop._result(loop_run(16, 16), {"cost": -0.9, "score/accuracy": 0.9})
    assert "last" not in loop._result(loop_run(8, 16), {"cost": -0.9, "score/accuracy": 0.9})
    diverged = loop._result(loop_run(0, 16), {"loss": float("nan")})
    assert (diverged["model"], diverged["last"]["step"]) == ("run/last", 16)


def test_the_summary_shows_the_best_scores_before_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    result = loop._result(loop_run(8, 16), {"cost": -0.5, "score/accuracy": 0.5})
    terminal_runs.training_result({"run": "run", "steps": 16, "tokens": 100, "seconds": 2.0, **result})
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "best accuracy 0.9000 at step 8" in lines
    assert "last accuracy 0.5000 at step 16" in lines


def test_a_run_without_dev_examples_says_so_and_counts_what_was_truncated(base: Path, tmp_path: Path) -> None:
    shown = call(*command(base, output=tmp_path / "r"))
    for stream in (shown.stdout, shown.stderr):  # in the summary, and at the start
        assert "40 training, no dev" in stream
        assert "text = review, label = stars" in stream
        assert "copper" in stream
    assert f"no dev examples, so no best/ model: the model is in {tmp_path / 'r' / 'last'}" in shown.stdout
    assert "8 of 40 training examples were truncated at 32 tokens: set max_length=64" in shown.stdout
    assert (tmp_path / "r" / "last").is_dir()
    assert not (tmp_path / "r" / "best").exists()


def test_the_advised_max_length_is_enough_or_all_that_the_model_has(base: Path) -> None:
    advised = json.loads(call(*command(base, "max_length=64", "--dry-run", "--json"), "--overwrite").stdout)
    assert advised["truncated"] == 0
    assert not any("truncated" in note for note in advised["notes"])


def test_many_classes_are_listed_by_frequency() -> None:
    classes = {f"c{number}": 100 - number for number in range(25)}
    texts = training_data({"examples": 2000, "dev_examples": 1, "columns": {}, "classes": classes})
    assert texts["classes"].startswith("c0 100, c1 99, ")
    assert texts["classes"].endswith("c9 91 and 15 more")
    assert "columns" not in texts


def test_a_dry_run_reports_the_plan_and_writes_nothing(base: Path, tmp_path: Path) -> None:
    words = command(base, "--limit", 10, "--seed", 5, "--dry-run", "--json", output=tmp_path / "none")
    plan = json.loads(call(*words).stdout)
    assert (plan["examples"], plan["steps"], plan["truncated"]) == (10, 1, 2)
    assert sum(plan["classes"].values()) == 10
    assert list(tmp_path.iterdir()) == []


def test_more_epochs_continue_a_finished_run(base: Path, copied: Path) -> None:
    done = call(*command(base, "epochs=2", output=copied))
    assert done.returncode == 0, done.stderr
    note = "the finished run of epochs=1 continues to epochs=2 with the learning rates of the longer run"
    assert note in done.stderr
    events = read_events(copied / "events.jsonl")
    assert [event["step"] for event in events if event["kind"] == "step"] == [1, 2, 3, 4, 5]
    start = [event for event in events if event["kind"] == "start"][-1]
    assert start["step"] == 3
    assert note in start["notes"][0]
    assert json.loads((copied / "recipe.json").read_text())["epochs"] == 2
    rates = [event["learning_rate"] for event in events if event["kind"] == "step"][3:]
    plan = make_finetune_config("classification", "m", {}, [*QUICK[1:], "epochs=2"]).plan(40)
    assert rates == [pytest.approx(plan.learning_rate * plan.factor(step / 5)) for step in (3, 4)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["epochs=0.5"], r"epochs was 1.0 and is now 0.5.*--overwrite"),
        (["epochs=2", "learning_rate=1e-3"], r"learning_rate was 0.003"),
        (["epochs=2", "--seed", "1"], "seed was 0 and is now 1"),
    ],
)
def test_other_settings_still_conflict(changes: list[str], says: str, base: Path) -> None:
    refused = call(*command(base, *changes))
    assert refused.returncode == 78
    assert re.search(says, refused.stderr)


def test_the_same_files_seen_from_another_working_directory(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = "or run this command in the folder where that run was started"
    monkeypatch.chdir(tmp_path)
    for name in ("m", "train.jsonl"):
        (tmp_path / name).symlink_to(base / name)
    assert call(*command(Path(), "-q")).returncode == 0
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    for above in (Path(".."), tmp_path):
        refused = call(*command(above, output=Path("../run")))
        assert refused.returncode == 78
        assert (
            f'files.train was "train.jsonl" and is now {json.dumps(str(above / "train.jsonl"))[:70]}' in refused.stderr
        )
        assert refused.stderr.endswith(f"pass --overwrite to replace it, {advice}\n")
    (tmp_path / "other.jsonl").symlink_to(base / "train.jsonl")
    for changes in (["learning_rate=1e-5"], ["--train", "../other.jsonl"]):
        refused = call(*command(Path(".."), *changes, output=Path("../run")))
        assert refused.stderr.endswith("pass --overwrite to replace it\n")
    from_recipe = call("finetune", "../m", "-t", "../run/recipe.json", "-o", "../again", "--device", "cpu")
    assert from_recipe.returncode == 65
    assert from_recipe.stderr == (
        "bertsmith: train.jsonl, files.train of ../run/recipe.json, does not exist here: pass --train FILE, or run "
        "this command in the folder where its paths start\n"
    )
    again = ["--train", "../train.jsonl", "-o", "../again", "--device", "cpu", "-q"]
    assert call("finetune", "../m", "-t", "../run/recipe.json", *again).returncode == 0


def test_an_unfinished_run_is_finished_before_it_gets_longer(base: Path, copied: Path) -> None:
    events = (copied / "events.jsonl").read_text().splitlines(keepends=True)
    (copied / "events.jsonl").write_text("".join(line for line in events if '"finish"' not in line))
    refused = call(*command(base, "epochs=2", output=copied))
    assert "or finish it with epochs=1 first" in refused.stderr


def test_a_finished_run_without_checkpoints_cannot_continue(base: Path, copied: Path) -> None:
    shutil.rmtree(copied / "checkpoints")
    refused = call(*command(base, "epochs=2", output=copied))
    assert refused.returncode == 78
    assert "checkpoints were removed" in refused.stderr
    assert json.loads((copied / "recipe.json").read_text())["epochs"] == 1


def test_overwrite_replaces_the_run_and_keeps_other_files(base: Path, copied: Path) -> None:
    (copied / "notes.txt").write_text("mine")
    shutil.copytree(copied / "last", copied / "other" / "model")
    done = call(*command(base, "--overwrite", "--seed", 7, "--limit", 16, "-q", output=copied))
    assert done.returncode == 0, done.stderr
    events = read_events(copied / "events.jsonl")
    assert [event["step"] for event in events if event["kind"] == "step"] == [1]
    assert json.loads((copied / "recipe.json").read_text())["seed"] == 7
    assert (copied / "notes.txt").read_text() == "mine"
    assert (copied / "other" / "model" / "model.safetensors").exists()


def test_overwrite_refuses_what_is_not_such_a_run(base: Path, copied: Path, tmp_path: Path) -> None:
    settings = config.read_file(FinetuneConfig, copied / "recipe.json")
    remove_run(tmp_path / "absent", settings)
    for folder, what in ((base, settings), (copied, recipes.find("bert/tiny"))):
        kind = "fine-tuning" if what is settings else "pre-training"
        with pytest.raises(ConfigError, match=f"is not a {kind} run: --overwrite replaces nothing else"):
            remove_run(folder, what)
    with Disk().lock(copied), pytest.raises(BertsmithError, match="another process is using"):
        remove_run(copied, settings)
    inside = config.override(settings, [f"model={copied / 'last'}"])
    with pytest.raises(ConfigError, match="which --overwrite would remove"):
        remove_run(copied, inside)
    with pytest.raises(ConfigError, match="leave out --resume"):
        finetune(settings, copied, device="cpu", quiet=True, overwrite=True, resume="never")
    assert {path.name for path in copied.iterdir()} == {"checkpoints", "events.jsonl", "last", "recipe.json"}


def test_overwrite_replaces_only_a_tokenizer(base: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(base / "t", tmp_path / "t")
    words = ["tokenizer", "train", base / "text.txt", "-q", "--vocab-size", 150, "--kind", "unigram"]
    assert "pass --overwrite" in call(*words, "-o", folder).stderr
    assert call(*words, "-o", folder, "--overwrite").returncode == 0
    assert not (folder / "vocab.txt").exists()  # of the tokenizer before
    refused = call(*words, "-o", base / "m", "--overwrite")
    assert "--overwrite replaces only a tokenizer" in refused.stderr
    assert (base / "m" / "vocab.txt").exists()


def examples_of(*words: str) -> list[str]:
    """The SETTING=VALUE pairs and the names after `e.g.` or `such as` in a help text."""
    text = " ".join(call(*words, "--help").stdout.split())
    found = [part.partition(". ")[0] for part in text.replace("such as", "e.g.").split("e.g. ")[1:]]
    return [word.strip(",.;") for part in found for word in part.split(" ")]


def settings_in(words: list[str]) -> list[str]:
    return [word for word in words if "=" in word]


@pytest.mark.parametrize("verb", ["pretrain", "check", "init"])
def test_the_settings_in_the_help_of_pre_training_work_for_every_recipe(verb: str) -> None:
    examples = examples_of(verb)
    assert "bert/base" in examples
    settings = settings_in(examples)
    assert len(settings) == 2
    for recipe in map(recipes.find, recipes.names()):
        own = [one for one in settings if not one.startswith("encoder.layers") or hasattr(recipe.encoder, "layers")]
        with_overrides(recipe, own)


def test_the_settings_and_tasks_in_other_help_texts_work() -> None:
    for verb in ("finetune", "features", "evaluate", "predict"):
        examples = examples_of(verb)
        settings = settings_in(examples)
        assert settings, verb
        task = "tagging" if verb == "features" else "classification"
        make_finetune_config(task, "m", {}, settings)
        for name in (word for word in examples if "/" in word and "=" not in word):
            assert recipes.find_finetuning(name) or find_task(name)
    settings = settings_in(examples_of("tokenizer", "train"))
    assert settings
    config.override(config.find_kind("bertsmith.tokenizers", "wordpiece").Config(), settings)
