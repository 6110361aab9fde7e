"""`pretrain` end to end at the smallest size: the loss falls; stopped or killed, a run ends with the same bits."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call
from threads import threads

from bertsmith import config, recipes
from bertsmith.data import prepare
from bertsmith.data.shards import Shards
from bertsmith.errors import BertsmithError, ConfigError, DataError, StoppedError
from bertsmith.model_io.model_folder import open_model
from bertsmith.tokenizers.wordpiece import Config
from bertsmith.training import pretrain as pretraining
from bertsmith.training import pretrain_data
from bertsmith.training.distributed import World
from bertsmith.training.log import last_of_each_step, read_events
from bertsmith.training.loop import recipe_changes
from bertsmith.training.pretrain import pretrain, resolve_auto
from bertsmith.training.pretrain_data import PretrainData
from bertsmith.training.recipe import Recipe, with_overrides
from bertsmith.training.trainer import Trainer

SMALL = [
    "encoder.width=32",
    "encoder.heads=2",
    "encoder.layers=2",
    "max_length=32",
    "steps=16",
    "warmup=0.25",
    "learning_rate=3e-3",
    "batch_size=16",
    "micro_batch_size=8",
    "eval_every=8",
    "eval_rows=16",
    "save_every=4",
]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Sums with one and with two threads differ in their last bits, and other tests may have changed the number."""
    with threads(2):
        yield


def recipe(*changes: str, name: str = "bert/tiny") -> Recipe:
    return with_overrides(recipes.find(name), [*SMALL, *changes])


def curve(folder: Path) -> list[float]:
    return [float(event["loss"]) for event in last_of_each_step(read_events(folder / "events.jsonl"), "step")]


def losses(folder: Path) -> list[str]:
    return [loss.hex() for loss in curve(folder)]


def stop_after(steps: int, work: Callable[[], Any]) -> None:
    """Runs until some steps are done, then requests a stop as SIGTERM does."""
    with pytest.MonkeyPatch.context() as patch:
        before = Trainer.__next__

        def stopping(trainer: Trainer) -> Any:
            if trainer.steps_done == steps:
                trainer.stop_signal.request()
            return before(trainer)

        patch.setattr(Trainer, "__next__", stopping)
        with pytest.raises(StoppedError, match=f"stopped after step {steps}"):
            work()


@pytest.fixture(scope="module")
def uninterrupted(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    with threads(2):
        result = pretrain(recipe(), shards, folder, device="cpu", quiet=True)
    assert result["steps"] == 16
    return folder


def test_a_run_reduces_the_loss_and_saves_models(uninterrupted: Path) -> None:
    events = read_events(uninterrupted / "events.jsonl")
    steps = last_of_each_step(events, "step")
    assert [event["step"] for event in steps] == list(range(1, 17))
    assert steps[-1]["loss/masked_lm"] < steps[0]["loss/masked_lm"] - 0.5
    assert [event["step"] for event in last_of_each_step(events, "evaluation")] == [8, 16]
    for name in ("best", "last"):
        result = json.loads(call("fill-mask", uninterrupted / name, "the smith [MASK] iron", "--json").stdout)
        assert len(result["fillings"][0]) == 5
    assert config.read_file(Recipe, uninterrupted / "recipe.json").steps == 16


def test_a_stopped_and_resumed_run_is_bit_identical(uninterrupted: Path, shards: Path, tmp_path: Path) -> None:
    program = "import sys\nfrom bertsmith.cli import main\nif __name__ == '__main__':\n    main()\n"
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py"), "pretrain", str(uninterrupted / "recipe.json")]
    command += ["--data", str(shards), "--device", "cpu", "-q", "-o"]
    threads = os.environ | {"OMP_NUM_THREADS": "2"}
    reference, folder = tmp_path / "reference", tmp_path / "run"
    subprocess.run([*command, str(reference)], check=True, env=threads)  # like the others in a subprocess
    events = folder / "events.jsonl"
    for kill, after in ((signal.SIGTERM, 5), (signal.SIGKILL, 10)):
        process = subprocess.Popen([*command, str(folder)], stderr=subprocess.PIPE, text=True, env=threads)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if events.exists() and events.read_text().count('"kind": "step"') >= after:
                break
            time.sleep(0.02)
        os.kill(process.pid, kill)
        _, message = process.communicate()
        assert process.returncode == (75 if kill == signal.SIGTERM else -signal.SIGKILL), message
        if kill == signal.SIGTERM:
            assert "the same command resumes from there" in message
    subprocess.run([*command, str(folder)], check=True, env=threads)
    assert losses(folder) == losses(reference)
    for name in ("model.safetensors", "config.json", "vocab.txt"):
        assert (folder / "last" / name).read_bytes() == (reference / "last" / name).read_bytes()


def test_ranks_with_sharded_weights_evaluate_equally_many_batches(shards: Path) -> None:
    data = PretrainData.open(shards)
    sharded = data.with_vocabulary(recipe("compute.fsdp=true", "eval_rows=13", "micro_batch_size=4"))
    worlds = [World(rank, 2) for rank in range(2)]
    assert [len(data.held_out(sharded, world)) for world in worlds] == [2, 2]
    assert [len(data.held_out(recipe("eval_rows=20", "micro_batch_size=4"), world)) for world in worlds] == [3, 2]


@pytest.mark.parametrize("name", ["bert/no_nsp", "bert/ltr"])
def test_ablation_recipes_train(name: str, shards: Path, tmp_path: Path) -> None:
    result = pretrain(recipe("steps=6", "warmup=0.34", name=name), shards, tmp_path / "run", device="cpu", quiet=True)
    assert result["steps"] == 6


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_round_trips_through_json(name: str, tmp_path: Path) -> None:
    made = recipes.find(name)
    assert made.name == name
    (tmp_path / "recipe.json").write_bytes(made.to_json())
    assert recipes.find(str(tmp_path / "recipe.json")) == made


def test_another_recipe_in_the_same_folder_is_refused(uninterrupted: Path, shards: Path) -> None:
    with pytest.raises(ConfigError, match=r"learning_rate was 0\.003 and is now 0\.001"):
        pretrain(recipe("learning_rate=1e-3"), shards, uninterrupted, device="cpu", quiet=True)


def test_more_steps_continue_a_finished_run(uninterrupted: Path, shards: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    before = losses(folder)
    result = pretrain(recipe("steps=18"), shards, folder, device="cpu", quiet=True)
    assert result["steps"] == 18
    assert losses(folder)[:16] == before
    events = read_events(folder / "events.jsonl")
    start = [event for event in events if event["kind"] == "start"][-1]
    assert (start["step"], "of steps=16 continues to steps=18" in start["notes"][0]) == (16, True)
    rates = [event["learning_rate"] for event in events if event["kind"] == "step"][-2:]
    assert rates == [pytest.approx(recipe("steps=18").plan.learning_rates(step / 18, groups=1)[0]) for step in (16, 17)]
    with pytest.raises(ConfigError, match="steps was 18 and is now 16"):
        pretrain(recipe(), shards, folder, device="cpu", quiet=True)
    again = pretrain(recipe("steps=2"), shards, folder, device="cpu", quiet=True, overwrite=True)
    assert (again["steps"], len(losses(folder))) == (2, 2)


BAD: dict[str, tuple[list[str], int, str]] = {
    "unknown recipe": (["pretrain", "bert/tinny", "-d", "{s}", "-o", "{t}/r"], 78, "did you mean bert/tiny?"),
    "unknown key": (
        ["pretrain", "bert/tiny", "-d", "{s}", "-o", "{t}/r", "encoder.layer=4"],
        78,
        "did you mean encoder.layers=4?",
    ),
    "length over positions": (
        ["pretrain", "bert/tiny", "-d", "{s}", "-o", "{t}/r", "max_length=600"],
        78,
        "encoder.max_positions",
    ),
    "no shards": (["pretrain", "bert/tiny", "-d", "{t}", "-o", "{t}/r"], 65, "index.json"),
    "uneven micro-batches": (["pretrain", "bert/tiny", "-d", "{s}", "-o", "{t}/r", "micro_batch_size=7"], 78, "7 rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_reported_in_one_line(case: str, shards: Path, tmp_path: Path) -> None:
    words, status, part = BAD[case]
    done = call(*[word.format(s=shards, t=tmp_path) for word in words], "--device", "cpu")
    assert done.returncode == status, done.stderr
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_running_out_of_memory_gives_advice(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(pretraining, "run_training", exhausted)
    with pytest.raises(BertsmithError, match="8 rows in one forward: resume with micro_batch_size=4"):
        pretrain(recipe(), shards, tmp_path / "run", device="cpu", quiet=True)


def test_mfu_and_baselines_are_in_the_log(uninterrupted: Path) -> None:
    events = read_events(uninterrupted / "events.jsonl")
    facts = next(event for event in events if event["kind"] == "facts")
    # 6 layers' matrices (4 D² + 2 D F) + 12 layers D L + head; the head has 15 % of the positions and a few more
    body = 6 * 2 * (4 * 32**2 + 2 * 32 * 128) + 12 * 2 * 32 * 32
    head = 6 * (128 * 32 + 32**2) * 0.15
    assert body + 0.8 * head < facts["flops_per_token"] < body + 1.4 * head + 500
    assert facts["peak_flops"] > 1e9
    assert 0 <= facts["padding"] < 0.3
    assert 2 < facts["unigram"]["masked_lm"] < 4.5  # nats; 90 tokens at most
    assert events[-1]["kind"] == "finish"
    assert all(event["data_seconds"] >= 0 for event in events if event["kind"] == "step")


def test_unigram_loss_is_the_cross_entropy_of_frequencies(shards: Path) -> None:
    data = PretrainData.open(shards)
    held_out = Shards.open(shards, "held-out")
    counts = Counter(data.shards.read(0, data.shards.tokens).tolist())
    total = data.shards.tokens + data.tokenizer.vocab_size
    tokens = held_out.read(0, held_out.tokens).tolist()
    expected = -sum(math.log((counts[token] + 1) / total) for token in tokens) / len(tokens)
    assert data.unigram_loss() == pytest.approx(expected, rel=1e-12)


def test_settings_without_effect_on_the_result_may_change_on_resume(shards: Path, tmp_path: Path) -> None:
    """The advice after running out of memory is another micro_batch_size, which must be accepted on resume."""
    half = recipe("steps=8", "eval_every=0", "encoder.dropout=0", "encoder.attention_dropout=0")
    stop_after(4, lambda: pretrain(half, shards, tmp_path / "run", device="cpu", quiet=True))
    pretrain(with_overrides(half, ["micro_batch_size=4"]), shards, tmp_path / "run", device="cpu", quiet=True)
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [event["notes"] for event in events if event["kind"] == "start"][-1] == [
        "micro_batch_size was 8 and is now 4"
    ]
    assert config.read_file(Recipe, tmp_path / "run" / "recipe.json").micro_batch_size == 4
    pretrain(half, shards, tmp_path / "reference", device="cpu", quiet=True)
    folders = [curve(tmp_path / name) for name in ("run", "reference")]
    assert folders[0] == pytest.approx(folders[1], rel=1e-5)
    assert folders[0][:4] == folders[1][:4]


def test_resume_never_and_from_a_checkpoint(uninterrupted: Path, shards: Path, tmp_path: Path) -> None:
    made = config.read_file(Recipe, uninterrupted / "recipe.json")
    with pytest.raises(ConfigError, match=r"already holds a run \(step-00000016\)"):
        pretrain(made, shards, uninterrupted, device="cpu", quiet=True, resume="never")
    middle = uninterrupted / "checkpoints" / "step-00000012"
    with pytest.raises(ConfigError, match=r"newer checkpoint than .*step-00000016"):
        pretrain(made, shards, uninterrupted, device="cpu", quiet=True, resume=str(middle))
    pretrain(made, shards, tmp_path / "branch", device="cpu", quiet=True, resume=str(middle))
    assert losses(tmp_path / "branch") == losses(uninterrupted)[12:]
    with pytest.raises(DataError, match="manifest"):
        pretrain(made, shards, tmp_path / "other", device="cpu", quiet=True, resume=str(tmp_path / "nowhere"))


def test_a_second_stage_without_start_is_reported(uninterrupted: Path, shards: Path, tmp_path: Path) -> None:
    made = recipe("steps=2", "warmup=0", "after=bert/quick")
    pretrain(made, shards, tmp_path / "anew", device="cpu", quiet=True)
    (note,) = read_events(tmp_path / "anew" / "events.jsonl")[0]["notes"]
    assert note == f"{made.name} is a second stage, but starts with new weights: --start it from a run of bert/quick"
    pretrain(replace(made, after=""), shards, tmp_path / "first", device="cpu", quiet=True)
    assert losses(tmp_path / "anew") == losses(tmp_path / "first")
    started = replace(made, start=str(uninterrupted / "last"))
    pretrain(started, shards, tmp_path / "started", device="cpu", quiet=True)
    assert "begins anew" not in str(read_events(tmp_path / "started" / "events.jsonl")[0]["notes"])


def test_a_second_stage_starts_from_the_weights_of_the_first(uninterrupted: Path, shards: Path, tmp_path: Path) -> None:
    longer = recipe("max_length=64", "steps=2", "warmup=0", "learning_rate=0", f"start={uninterrupted / 'last'}")
    pretrain(longer, shards, tmp_path / "second", device="cpu", quiet=True)
    first, second = (folder / "last" / "model.safetensors" for folder in (uninterrupted, tmp_path / "second"))
    assert first.read_bytes() == second.read_bytes()  # the learning rate is 0: no weight has changed
    notes = read_events(tmp_path / "second" / "events.jsonl")[0]["notes"]
    assert notes == [f"started from the weights of {uninterrupted / 'last'}"]
    without = recipe(
        "steps=2", "warmup=0", "encoder.pooler=false", f"start={uninterrupted / 'last'}", name="bert/no_nsp"
    )
    pretrain(without, shards, tmp_path / "third", device="cpu", quiet=True)
    notes = read_events(tmp_path / "third" / "events.jsonl")[0]["notes"]
    assert notes[1] == f"the head next_sentence of {uninterrupted / 'last'} is not used"
    assert notes[2] == f"the pooler of {uninterrupted / 'last'} is not used"
    rerun = recipe("steps=2", "warmup=0", "learning_rate=0", f"start={tmp_path / 'third' / 'last'}")
    pretrain(rerun, shards, tmp_path / "pairs", device="cpu", quiet=True)
    notes = read_events(tmp_path / "pairs" / "events.jsonl")[0]["notes"]
    assert notes[1:] == [f"{part} is new" for part in ("the head next_sentence", "the pooler")]
    third, pairs = (open_model(tmp_path / name / "last")[0].state_dict() for name in ("third", "pairs"))
    assert third.keys() < pairs.keys()
    assert all(torch.equal(pairs[name], value) for name, value in third.items())
    wider = recipe("encoder.width=64", f"start={uninterrupted / 'last'}")
    with pytest.raises(ConfigError, match=r"encoder.width=64 contradicts .*, where it is 32"):
        pretrain(wider, shards, tmp_path / "fourth", device="cpu", quiet=True)


def test_patience_stops_a_run_early(shards: Path, tmp_path: Path) -> None:
    still = recipe("learning_rate=0", "warmup=0", "eval_every=2", "patience=2")
    result = pretrain(still, shards, tmp_path / "run", device="cpu", quiet=True)
    assert (result["steps"], result["best_step"]) == (6, 2)
    assert pretrain(still, shards, tmp_path / "run", device="cpu", quiet=True)["steps"] == 6  # nor is it resumed


def test_shards_of_another_tokenizer_are_refused(shards: Path, tmp_path: Path) -> None:
    """A tokenizer replaced in the shards' folder, and shards replaced under a resumed run."""
    base = shards.parent
    shutil.copytree(shards, tmp_path / "mixed")
    prepare.train_tokenizer(
        [base / "text.txt"], tmp_path / "t", settings=Config(), vocab_size=130, workers=1, quiet=True
    )
    shutil.rmtree(tmp_path / "mixed" / "tokenizer")
    shutil.copytree(tmp_path / "t", tmp_path / "mixed" / "tokenizer")
    done = call("pretrain", "bert/tiny", "-d", tmp_path / "mixed", "-o", tmp_path / "r", "--device", "cpu")
    assert (done.returncode, done.stderr.count("\n")) == (65, 1)
    assert "is not of the tokenizer that wrote" in done.stderr
    short = recipe("steps=4", "warmup=0.25", "eval_every=0")
    pretrain(short, shards, tmp_path / "run", device="cpu", quiet=True)
    prepare.prepare([base / "text.txt"], tmp_path / "other", tokenizer=base / "t", held_out=0.2, workers=1, quiet=True)
    with pytest.raises(ConfigError, match="was trained with another data"):
        pretrain(short, tmp_path / "other", tmp_path / "run", device="cpu", quiet=True)


def test_a_run_resumes_with_equal_shards_from_another_path(uninterrupted: Path, shards: Path, tmp_path: Path) -> None:
    base = shards.parent
    (tmp_path / "moved").mkdir()
    shutil.copy(base / "text.txt", tmp_path / "moved" / "words.txt")
    rerun = {"tokenizer": base / "t", "held_out": 0.1, "workers": 1, "quiet": True}
    prepare.prepare([tmp_path / "moved" / "words.txt"], tmp_path / "again", **rerun)
    stop_after(4, lambda: pretrain(recipe(), shards, tmp_path / "run", device="cpu", quiet=True))
    pretrain(recipe(), tmp_path / "again", tmp_path / "run", device="cpu", quiet=True)
    assert losses(tmp_path / "run") == losses(uninterrupted)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_a_resumed_run_keeps_its_precision(shards: Path, tmp_path: Path) -> None:
    begun = pretrain(recipe("precision=bf16", "steps=5"), shards, tmp_path, device="cpu", quiet=True)
    rerun = pretrain(recipe("steps=5"), shards, tmp_path, device="cpu", quiet=True)
    assert rerun["loss"] == begun["loss"]
    opened = config.read_file(Recipe, tmp_path / "recipe.json")
    assert opened.precision == "bf16"
    assert recipe_changes(tmp_path, with_overrides(opened, ["precision=auto"])) == []
    with pytest.raises(ConfigError, match=r"precision was \"bf16\" and is now \"fp32\""):
        pretrain(recipe("precision=fp32", "steps=5"), shards, tmp_path, device="cpu", quiet=True)


@pytest.mark.parametrize(("seconds", "expected"), [({"bf16": 2.0, "fp8": 1.0}, "fp8"), ({}, "bf16")])
def test_auto_precision_on_cuda_is_the_faster_one(
    seconds: dict[str, float], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "_time_precisions", lambda *given: seconds)
    monkeypatch.setattr(pretraining, "measure_peak_flops", lambda *given: 1e15)
    monkeypatch.setattr(World, "scalar", lambda self, value: torch.tensor(float(value)))
    result, facts = resolve_auto(recipe(), tmp_path, World(device=torch.device("cuda")))
    assert result.precision == expected
    assert facts == ({"precision_seconds": seconds} if seconds else {})
    assert resolve_auto(recipe("precision=fp32"), tmp_path, World())[0].precision == "fp32"
    assert resolve_auto(recipe(), tmp_path, World())[0].precision == "auto"  # on a CPU


@pytest.mark.parametrize(
    ("peak", "words", "size", "expected"),
    [
        (1e15, [], 1, True),
        (1e6, [], 1, False),  # steps are long
        (1e15, ["compute.compile=false"], 1, False),
        (1e15, [], 2, False),
        (1e15, ["compute.cuda_graphs=false"], 1, False),
        (1e6, ["compute.cuda_graphs=true"], 1, True),
    ],
)
def test_auto_cuda_graphs_are_for_short_steps(
    peak: float, words: list[str], size: int, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "measure_peak_flops", lambda *given: peak)
    stopping, world = recipe("precision=bf16", *words), World(size=size, device=torch.device("cuda"))
    assert resolve_auto(stopping, tmp_path, world)[0].compute.cuda_graphs is expected
    assert resolve_auto(recipe(), tmp_path, World())[0].compute.cuda_graphs == "auto"  # on a CPU


def test_batches_of_worker_processes_are_equal_and_survive_their_death(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, world, small = PretrainData.open(shards), World(), recipe()
    here = pretrain_data.PretrainLoader(small, data.packing(small), world)
    monkeypatch.setattr(pretrain_data, "_worker_count", lambda world: 2)
    there = pretrain_data.PretrainLoader(small, data.packing(small), world)
    assert there.steps == 3
    for step in (0, 1, 2, 7, 3):
        for ours, theirs in zip(there(step), here(step), strict=True):
            assert torch.equal(ours.input_ids, theirs.input_ids)
            assert torch.equal(ours.labels["next_sentence"], theirs.labels["next_sentence"])
    assert there._workers is not None
    for process in there._workers._processes:
        process.kill()
    with pytest.warns(UserWarning, match="was killed: batches are made in this process now"):
        result = there(20)
    assert torch.equal(result[0].input_ids, here(20)[0].input_ids)
    assert there._workers is None
