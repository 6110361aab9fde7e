"""`check`: its results match those of a run, and it writes nothing."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from command_line import call

from bertsmith import recipes
from bertsmith.data import prepare
from bertsmith.data.collate import from_packed
from bertsmith.errors import BertsmithError, ConfigError, DataError, StorageError
from bertsmith.system.durable import Disk
from bertsmith.tokenizers.wordpiece import Config
from bertsmith.training import preflight as preflight_module
from bertsmith.training import preflight_trial as trial
from bertsmith.training.forward_backward import ForwardBackward
from bertsmith.training.preflight import preflight, summary
from bertsmith.training.preflight_trial import Finding
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretrain_data import PretrainData, build_model
from bertsmith.training.recipe import Recipe, with_overrides

SMALL = [
    "encoder.width=32",
    "encoder.heads=2",
    "encoder.layers=2",
    "max_length=32",
    "steps=40",
    "warmup=0.1",
    "batch_size=16",
    "micro_batch_size=8",
    "eval_every=8",
    "eval_rows=16",
    "save_every=2",
]
DATA_CHECKS = ["recipe", "micro-batches", "shards", "tokenizer", "rows", "held out"]
WORDS = ["the", "smith", "heats", "iron", "and", "strikes", "an", "anvil", "쇠를", "두드린다"]


def prepared(base: Path, *, documents: int, sentences: int, held_out: float = 0.1) -> Path:
    draw = random.Random(0)
    texts = [" ".join(" ".join(draw.choices(WORDS, k=7)) + "." for _ in range(sentences)) for _ in range(documents)]
    (base / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    prepare.train_tokenizer([base / "text.txt"], base / "t", settings=Config(), vocab_size=160, workers=1, quiet=True)
    prepare.prepare(
        [base / "text.txt"], base / "shards", tokenizer=base / "t", held_out=held_out, workers=1, quiet=True
    )
    return base / "shards"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("check"), documents=120, sentences=6)


@pytest.fixture(scope="module")
def begun(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unfinished run of four steps."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertsmith.training.plan.TrainingPlan.progress", lambda plan, step, seconds: float(step >= 4))
        pretrain(recipe(), shards, folder, device="cpu", quiet=True)
    return folder


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MAX_STEPS", 2)


def recipe(*changes: str, name: str = "bert/tiny") -> Recipe:
    return with_overrides(recipes.find(name), [*SMALL, *changes])


def run_preflight(*args: Any, until: str = "disk", **options: Any) -> dict[str, Finding]:
    findings: dict[str, Finding] = {}
    for finding in preflight(*args, device="cpu", **options):
        findings[finding.name] = finding
        if finding.name == until:
            break
    return findings


def files(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_a_valid_run_passes_and_nothing_is_written(shards: Path, tmp_path: Path) -> None:
    before = files(shards.parent)
    result = run_preflight(recipe(), shards, output=tmp_path / "run")
    assert {name: one.state for name, one in result.items()} == dict.fromkeys(
        [*DATA_CHECKS, "run folder", "model", "memory", "step", "speed", "disk"], "ok"
    )
    assert files(shards.parent) == before
    assert list(tmp_path.iterdir()) == []


def test_the_figures_are_those_of_the_run(shards: Path) -> None:
    result = {name: one.facts for name, one in run_preflight(recipe(), shards).items()}
    data = PretrainData.open(shards)
    complete_run = data.with_vocabulary(recipe())
    packing, model = data.packing(complete_run), build_model(complete_run, data.tokenizer)
    weights = sum(weight.numel() for weight in model.parameters())
    assert result["shards"]["tokens"] == data.shards.tokens
    assert result["rows"]["rows_per_epoch"] == packing.rows_per_epoch
    assert result["rows"]["epochs"] == pytest.approx(40 * 16 / packing.rows_per_epoch)
    assert result["rows"]["padding"] == pytest.approx(packing.padding_fraction, abs=0.05)
    assert result["rows"]["random"] == pytest.approx(0.5, abs=0.2)
    assert result["model"]["parameters"] == weights == sum(result["model"]["parameters_by_module"].values())
    assert result["step"]["expected/masked_lm"] == math.log(complete_run.encoder.vocab_size)
    assert result["step"]["loss/masked_lm"] == pytest.approx(math.log(complete_run.encoder.vocab_size), abs=0.3)
    assert result["step"]["loss/next_sentence"] == pytest.approx(math.log(2), abs=0.3)
    assert result["step"]["gradient_norm"] > 0
    assert result["speed"]["run_seconds"] == pytest.approx(40 * 16 / result["speed"]["rows_per_second"])
    assert result["disk"]["model_bytes"] == 4 * weights
    assert 0 <= result["disk"]["checkpoint_bytes"] - 12 * weights < 100  # weights, two moments, counters
    assert result["disk"]["needed_bytes"] == 3 * result["disk"]["checkpoint_bytes"] + 12 * weights


def test_activation_bytes_are_measured(shards: Path) -> None:
    """Twice the width gives about twice the activations, and per row they match the tensors saved by autograd."""
    by_width = {
        width: run_preflight(recipe(f"encoder.width={width}"), shards, until="memory")["memory"].facts[
            "activations_bytes"
        ]
        for width in (32, 64)
    }
    assert 1.3 < by_width[64] / by_width[32] < 2.1
    data = PretrainData.open(shards)
    model = build_model(data.with_vocabulary(recipe()), data.tokenizer).train()
    batch = model.corrupt(from_packed(data.packing(recipe()).rows(0, 8)))
    known = {id(weight) for weight in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(batch)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    real = sum(one.untyped_storage().nbytes() for offset, one in kept.items() if offset not in weights)
    assert by_width[32] == pytest.approx(real, rel=0.25)


def test_the_trial_on_a_cpu_has_few_rows(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "CPU_TOKENS", 512)
    result = run_preflight(
        recipe("batch_size=65536", "micro_batch_size=65536", "encoder.layers=3"), shards, until="step"
    )
    rows = result["step"].facts["rows"]
    assert rows == 512 // 32
    assert f"{rows:,} rows (of the recipe's 65,536)" in result["step"].text
    assert result["memory"].facts["activations_bytes"] > 10**9  # of all rows, not only of the measured ones


def test_minutes_are_checked_like_steps(shards: Path) -> None:
    result = run_preflight(recipe("minutes=3"), shards)
    assert "epochs" not in result["rows"].facts
    rows = result["speed"].facts["rows_per_second"] * 180
    assert result["speed"].facts["epochs"] == pytest.approx(rows / result["rows"].facts["rows_per_epoch"])


@pytest.mark.parametrize("planned", ["steps=4000", "minutes=1000"])
def test_many_epochs_without_dropout_give_a_note(shards: Path, planned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TOO_MANY_EPOCHS", 10**9)
    line = "rows" if "steps" in planned else "speed"
    dry = ("encoder.dropout=0", "encoder.attention_dropout=0")
    repeated = run_preflight(recipe(planned, *dry), shards, until=line)[line]
    assert repeated.facts["epochs"] > 20
    assert repeated.state == "note"
    assert repeated.text.endswith("dropout may help: encoder.dropout=0.1 encoder.attention_dropout=0.1")
    assert run_preflight(recipe(planned), shards, until=line)[line].state == "ok"  # with dropout
    assert run_preflight(recipe(*dry), shards, until="rows")["rows"].state == "ok"  # fewer epochs


def test_too_many_epochs_or_days_are_a_warning_with_the_setting_to_change(shards: Path) -> None:
    result = run_preflight(recipe("steps=2000000000"), shards, until="speed")
    assert [name for name, one in result.items() if one.state == "warning"] == ["rows", "speed"]
    epochs = result["rows"].facts["epochs"]
    (steps,) = re.findall(r"set steps=(\d+), or add text", result["rows"].text)
    assert int(steps) / 2e9 * epochs == pytest.approx(200, rel=0.01)
    (steps,) = re.findall(r"days, without .* set steps=(\d+) for 14 days, or minutes=60", result["speed"].text)
    assert int(steps) / 2e9 * result["speed"].facts["run_seconds"] == pytest.approx(14 * 86_400, rel=0.01)
    facts = summary(list(result.values()))
    assert (facts["ok"], len(facts["warnings"])) == (True, 2)


def test_a_second_stage_without_start_gives_a_note(shards: Path) -> None:
    result = run_preflight(recipe("after=bert/quick"), shards, until="model")["model"]
    assert result.state == "note"
    assert result.text.endswith("is a second stage, but starts with new weights: --start it from a run of bert/quick")


def test_a_plan_of_one_step_is_valid(shards: Path) -> None:
    assert run_preflight(recipe("steps=1", "warmup=0"), shards)["speed"].state == "note"


def test_a_resumable_run_is_reported(begun: Path, shards: Path) -> None:
    before = files(begun)
    result = run_preflight(recipe(), shards, output=begun, until="run folder")["run folder"]
    assert (result.state, result.facts["resumes_at"]) == ("ok", 4)
    assert "resumes after step 4 of 40" in result.text
    assert (
        run_preflight(recipe("micro_batch_size=4"), shards, output=begun, until="run folder")["run folder"].state
        == "note"
    )
    assert files(begun) == before


def test_a_folder_of_another_run_is_reported(begun: Path, shards: Path, tmp_path: Path) -> None:
    result = run_preflight(recipe("learning_rate=1e-3"), shards, output=begun, until="run folder")["run folder"]
    assert isinstance(result.error, ConfigError)
    assert "learning_rate was 0.0001 and is now 0.001" in result.text
    other = run_preflight(recipe(), prepared(tmp_path, documents=120, sentences=7), output=begun, until="run folder")[
        "run folder"
    ]
    assert isinstance(other.error, ConfigError)


def test_a_locked_folder_or_a_file_is_refused(begun: Path, shards: Path, tmp_path: Path) -> None:
    with Disk().lock(begun):
        assert "another process" in run_preflight(recipe(), shards, output=begun, until="run folder")["run folder"].text
    (tmp_path / "file").touch()
    assert (
        "is a file" in run_preflight(recipe(), shards, output=tmp_path / "file", until="run folder")["run folder"].text
    )


def test_a_damaged_checkpoint_is_skipped(begun: Path, shards: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    newest = sorted((folder / "checkpoints").iterdir())[-1] / "weights.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    result = run_preflight(recipe(), shards, output=folder, until="run folder")["run folder"]
    assert (result.state, result.facts["resumes_at"]) == ("note", 2)
    assert len(result.facts["skipped"]) == 1


def test_a_disk_that_is_too_small_is_reported(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int = 1000

    monkeypatch.setattr(preflight_module.shutil, "disk_usage", lambda offset: Usage())
    result = run_preflight(recipe(), shards, output=tmp_path / "run")["disk"]
    assert isinstance(result.error, StorageError)
    assert "0.0 MB free" in result.text


def test_one_checkpoint_alone_is_refused(shards: Path) -> None:
    assert "keep_checkpoints=1" in run_preflight(recipe("keep_checkpoints=1"), shards)["disk"].text


@pytest.fixture
def copied(shards: Path, tmp_path: Path) -> Path:
    shutil.copytree(shards, tmp_path / "shards")
    return tmp_path / "shards"


def test_a_damaged_shard_does_not_stop_other_checks(copied: Path) -> None:
    path = copied / "train-00000.shard"
    data = bytearray(path.read_bytes())
    data[-len(data) // 2] ^= 1
    path.write_bytes(data)
    result = run_preflight(recipe("micro_batch_size=7"), copied)
    assert [name for name, one in result.items() if one.state == "problem"] == ["micro-batches", "shards"]
    assert isinstance(result["shards"].error, DataError)
    assert "does not match its checksum" in result["shards"].text
    assert set(result) == {"recipe", "micro-batches", "shards"}


def test_another_tokenizer_is_reported(copied: Path, tmp_path: Path) -> None:
    prepare.train_tokenizer(
        [write(tmp_path / "x.txt", "quite other words here")],
        tmp_path / "other",
        settings=Config(),
        vocab_size=160,
        workers=1,
        quiet=True,
    )
    shutil.rmtree(copied / "tokenizer")
    shutil.copytree(tmp_path / "other", copied / "tokenizer")
    result = run_preflight(recipe(), copied)
    assert set(result) == {"recipe", "micro-batches", "shards", "tokenizer"}
    assert "is not of the tokenizer that wrote" in result["tokenizer"].text


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("documents", "sentences", "changes", "part"),
    [
        (1, 40, [], "only one document"),
        (60, 1, ["packing.random_next=0"], "no text of"),
        (60, 4, ["packing.kind=full_sentences", "max_length=32"], "but packing.kind=full_sentences"),
    ],
    ids=["one document", "one sentence", "no pairs"],
)
def test_missing_next_sentence_labels_are_reported(
    documents: int, sentences: int, changes: list[str], part: str, tmp_path: Path
) -> None:
    result = run_preflight(recipe(*changes), prepared(tmp_path, documents=documents, sentences=sentences, held_out=0.0))
    assert result["rows"].state == "problem"
    assert part in result["rows"].text
    assert "step" not in result


def test_no_held_out_rows_give_a_note(tmp_path: Path) -> None:
    result = run_preflight(recipe(), prepared(tmp_path, documents=60, sentences=4, held_out=0.0))
    assert result["held out"].state == "note"
    assert summary(list(result.values()))["ok"]


def test_too_little_memory_names_a_micro_batch_size_that_fits(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = run_preflight(recipe(), shards, until="memory")["memory"].facts
    fixed, per_row = facts["estimated_bytes"] - facts["activations_bytes"], facts["activations_bytes"] / 8
    monkeypatch.setattr(trial, "available_bytes", lambda device: int(fixed + 2.5 * per_row))
    result = run_preflight(recipe(), shards, until="step")
    assert result["memory"].text.endswith("set micro_batch_size=2")
    assert isinstance(result["memory"].error, BertsmithError)
    assert result["step"].state == "ok"  # with fewer rows
    monkeypatch.setattr(trial, "available_bytes", lambda device: 1000)
    assert "compute.activation_checkpointing=true" in run_preflight(recipe(), shards, until="memory")["memory"].text


def test_running_out_of_memory_gives_advice(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ForwardBackward, "accumulate_gradients", exhausted)
    result = run_preflight(recipe(), shards, until="step")["step"]
    assert result.text == "out of memory with 8 rows in one forward: set micro_batch_size=4"
    assert result.error is not None


def test_first_losses_far_from_chance_give_a_note(shards: Path) -> None:
    far = run_preflight(recipe("encoder.initializer_range=2"), shards, until="step")["step"]
    assert far.state == "note"
    assert "far from chance" in far.text
    wild = run_preflight(
        recipe("encoder.initializer_range=1e38", "encoder.truncated_init=false"), shards, until="step"
    )["step"]
    assert wild.state == "problem"
    assert "not finite" in wild.text
    json.dumps(summary([wild]), allow_nan=False)


def test_the_command_line_prints_a_checklist(shards: Path, tmp_path: Path) -> None:
    done = call("check", "bert/tiny", "-d", shards, "-o", tmp_path / "run", *SMALL, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 12
    result = json.loads(call("check", "bert/tiny", "-d", shards, *SMALL, "--device", "cpu", "--json").stdout)
    assert result["ok"]
    assert {one["check"] for one in result["checks"]} >= {"rows", "memory", "speed"}


BAD: dict[str, tuple[list[str], int, str]] = {
    "unknown recipe": (["bert/tinny", "-d", "{s}"], 78, "did you mean bert/tiny?"),
    "length over positions": (["bert/tiny", "-d", "{s}", "max_length=600"], 78, "encoder.max_positions"),
    "no shards": (["bert/tiny", "-d", "{t}"], 65, "index.json"),
    "uneven micro-batches": (["bert/tiny", "-d", "{t}", "micro_batch_size=7"], 78, "7 rows"),
    "no such device": (["bert/tiny", "-d", "{s}", "--device", "abacus"], 2, "abacus"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_reported_in_one_line(case: str, shards: Path, tmp_path: Path) -> None:
    words, status, part = BAD[case]
    device = [] if "--device" in words else ["--device", "cpu"]
    done = call("check", *[word.format(s=shards, t=tmp_path) for word in words], *device)
    assert done.returncode == status, done.stderr
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
