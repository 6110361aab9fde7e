"""`bench/ten_minutes` at the smallest size: every command, the clocks, the held-out evaluation, the table."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from finetune_fixtures import COLOURS, METALS, tiny_model, tuning_of
from studies.study_fixtures import mrpc
from threads import threads

from bertsmith.data.shards import Shards
from bertsmith.errors import BertsmithError, ConfigError, StoppedError
from bertsmith.model_io.model_folder import open_model
from bertsmith.tokenizers.tokenizer import load
from bertsmith.training import finetune as work
from bertsmith.training.distributed import World
from bertsmith.training.finetune import build_task, prepare
from bertsmith.training.pretrain_data import PretrainData, PretrainLoader
from bertsmith.training.signals import StopSignal
from bertsmith.types import Batch

pytestmark = pytest.mark.xdist_group("ten_minutes")  # one process: its contestants are trained once
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 3.0  # of learning: six steps fit in on a busy machine too
SMALL_TASKS = ["encoder.layers=2", "encoder.width=64", "encoder.heads=2", "encoder.max_positions=64", "batch_size=16"]
SMALL_TASKS += ["max_length=32", "eval_rows=16", "learning_rate=1e-3"]
EVAL_PREFIX = ["--eval-rows", "24", "--eval-length", "32", "--every", "0.3"]


@pytest.fixture(scope="module", autouse=True)
def bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(ROOT))
    with threads(1):
        yield
    sys.path.remove(str(ROOT))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of a small text in base/t/shards."""
    folder, draw = tmp_path_factory.mktemp("ten"), random.Random(0)
    documents = [
        "\n".join(
            f"the smith has {draw.choice(COLOURS)} {draw.choice(METALS)} and a thing of {draw.choice(METALS)}."
            for _ in range(draw.randint(2, 20))
        )
        for _ in range(150)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    arguments = ["text", folder / "text.txt", "-o", folder / "t", "--vocab-size", 160, "--held-out", 0.2]
    assert call(*arguments, "--workers", 1, "--quiet") == 0
    return folder


def call(*arguments: object) -> int:
    from bench.ten_minutes.command_line import main

    return int(main([str(word) for word in arguments]))


def run_arguments(base: Path, *more: object) -> list[object]:
    return ["--data", base / "t" / "shards", "-o", base / "out", "--minutes", SECONDS / 60, *EVAL_PREFIX, *more]


def bertsmith_run(base: Path, name: str, *more: object) -> list[object]:
    changes = [word for setting in SMALL_TASKS for word in ("--set", setting)]
    return ["pretrain", name, *run_arguments(base, *changes, "--quiet", *more)]


def baseline_run(base: Path, name: str, *more: object) -> list[object]:
    return ["baseline", name, *run_arguments(base, "--size", "2x64", "--rows", 16, "--length", 32, *more)]


def read_result(base: Path, name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((base / "out" / name / "result.json").read_text(encoding="utf-8"))
    return result


class Watched:
    """Records the step times of one trainer and sends a signal in the middle of the first call."""

    def __init__(self, patch: pytest.MonkeyPatch, module: str, kind: str, step: str) -> None:
        owner = getattr(import_module(f"bench.ten_minutes.{module}"), kind)
        original, self.seconds = getattr(owner, step), list[float]()

        def watched(run: Any, *given: Any) -> Any:
            began = time.monotonic()
            try:
                return original(run, *given)
            finally:
                self.seconds.append(time.monotonic() - began)
                if len(self.seconds) == 6:
                    os.kill(os.getpid(), signal.SIGTERM)

        patch.setattr(owner, step, watched)


@pytest.fixture(scope="module")
def contest(base: Path) -> Path:
    """bertsmith and the baseline, each trained in two calls."""
    steppers = {"quick": ("pretraining", "TimedTrainer", "__next__"), "baseline": ("baseline", "Run", "step")}
    for name, arguments in (("quick", bertsmith_run(base, "quick")), ("baseline", baseline_run(base, "baseline"))):
        with pytest.MonkeyPatch.context() as patch:
            watched = Watched(patch, *steppers[name])
            assert call(*arguments, "--stop-after", 60) == 75
            assert not (base / "out" / name / "result.json").exists()
            assert call(*arguments) == 0
        (base / f"{name}.json").write_text(json.dumps(watched.seconds), encoding="utf-8")
    return base


@pytest.mark.parametrize("name", ["quick", "baseline"])
def test_minutes_continue_over_calls(contest: Path, name: str) -> None:
    result = read_result(contest, name)
    steps = json.loads((contest / f"{name}.json").read_text(encoding="utf-8"))
    assert result["calls"] == 2
    assert result["steps"] > 6
    late = 0.1 + 2 * max(steps)  # the last step may begin just before the end
    assert SECONDS <= result["seconds"] < SECONDS + late
    assert sum(steps) < result["seconds"] + late  # of both calls together
    positions = [point["seconds"] for point in result["curve"]]
    assert positions == sorted(positions)
    assert len(positions) >= 3
    assert [point["step"] for point in result["curve"]][-1] == result["steps"]
    assert result["final"]["nats_per_piece"] < result["curve"][0]["nats_per_piece"]
    assert result["tokens_per_second"] == pytest.approx(result["tokens"] / result["seconds"])
    assert result["share_of_peak"] > 0


def test_a_finished_contestant_is_not_trained_again(contest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (contest / "out" / "quick" / "result.json").stat().st_mtime_ns
    assert call(*bertsmith_run(contest, "quick")) == 0
    assert call(*baseline_run(contest, "baseline", "--rate", 2e-3)) == 78
    assert "other settings" in capsys.readouterr().err
    assert (contest / "out" / "quick" / "result.json").stat().st_mtime_ns == before


def test_the_pipeline_consists_of_resumable_parts(tmp_path: Path) -> None:
    from bench.ten_minutes import command_line, pipeline
    from bench.ten_minutes.tasks import GROUPS

    arguments = ["pipeline", "a.txt", "b.txt", "--data", "tasks", "-o", str(tmp_path), "--minutes", "3", "--jobs", "8"]
    arguments += ["--set", "encoder.dropout=0.1", "--set", "encoder.attention_dropout=0.1"]
    given = command_line._parser().parse_args(arguments)
    made = pipeline.PipelineConfig(**{name: value for name, value in vars(given).items() if name != "command"})
    parts = pipeline.parts(made)
    assert [part[0] for part in parts] == ["text", *["pretrain"] * 4, "baseline", *["tasks"] * 4, "table"]
    read = [command_line._parser().parse_args(part) for part in parts]  # every part is a command
    learning = {item.name: item.minutes for item in read if hasattr(item, "minutes")}
    assert list(learning)[:2] == ["quick", "quick-pairs"]  # a stage comes after the one that it begins with
    assert learning.pop("quick") + learning.pop("quick-pairs") == pytest.approx(3)
    assert set(learning.values()) == {3}
    assert [item.set for item in read[1:5]] == [["encoder.dropout=0.1", "encoder.attention_dropout=0.1"]] * 4
    assert {item.every for item in read if hasattr(item, "every")} == {9}  # seconds, also in a last stage
    tuned = read[6:10]
    assert [item.names for item in tuned] == [[*pipeline.DEFAULT_CONTESTANTS, "quick-pairs+fresh"]] * 2 + [
        ["baseline"]
    ] * 2
    assert [item.transformers for item in tuned] == [False, False, True, True]
    assert [sorted(item.task + other.task) for item, other in (tuned[:2], tuned[2:])] == [sorted(GROUPS["english"])] * 2
    assert [item.rates for item in tuned] == ["", "1e-4,2e-4"] * 2
    assert read[10].only == [*tuned[0].names, "baseline"]
    for status, error in ((75, StoppedError), (70, BertsmithError)):
        called: list[str] = []

        def call(arguments: Sequence[str], called: list[str] = called, status: int = status) -> int:
            called.append(arguments[0])
            return status if arguments[0] == "baseline" else 0

        with pytest.raises(error, match="run the same command again to resume"):
            pipeline.run_pipeline(made, call)
        assert called == ["text", *["pretrain"] * 4, "baseline"]


def test_books_become_documents(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "b.txt").write_text("Iron\nand fire.\n \n\nThe end.\n", encoding="utf-8")
    (tmp_path / "books" / "a.txt").write_bytes("Caf\xe9\n".encode("latin-1"))
    assert call("books", tmp_path / "books", "-o", tmp_path / "books.jsonl") == 0
    result = [json.loads(line)["text"] for line in (tmp_path / "books.jsonl").read_text(encoding="utf-8").splitlines()]
    assert result == ["Café", "Iron and fire.\nThe end."]
    assert call("books", tmp_path, "-o", tmp_path / "none.jsonl") != 0


def test_a_second_stage_adds_the_minutes_of_the_first(base: Path, contest: Path) -> None:
    arguments = bertsmith_run(base, "longer", "--recipe", "bert/quick", "--after", "quick", "--set", "max_length=64")
    assert call(*arguments) == 0
    first, result = read_result(base, "quick"), read_result(base, "longer")
    for key in ("minutes", "seconds", "steps", "tokens"):
        assert result[key] > first[key]
    assert result["minutes"] == pytest.approx(2 * first["minutes"])
    assert result["curve"][: len(first["curve"])] == first["curve"]
    assert all(item["seconds"] <= other["seconds"] for item, other in pairwise(result["curve"]))
    assert result["final"]["tokens"] == result["tokens"]
    assert result["after"] == "quick"
    assert result["settings"]["start"].endswith("quick/last")
    again = read_result(base, "longer")
    assert call(*arguments) == 0
    assert read_result(base, "longer") == again
    assert call(*bertsmith_run(base, "lost", "--recipe", "bert/medium", "--after", "nobody")) != 0


def test_quick_pairs_starts_from_quick_by_default(base: Path, contest: Path) -> None:
    assert call(*bertsmith_run(base, "quick-pairs")) == 0
    first, result = read_result(base, "quick"), read_result(base, "quick-pairs")
    assert result["after"] == "quick"
    assert result["settings"]["start"].endswith("quick/last")
    assert result["settings"]["packing"]["kind"] == "pairs"
    assert result["minutes"] == pytest.approx(2 * first["minutes"])
    assert "next_sentence" not in first["final"]
    assert 0 <= result["final"]["next_sentence"] <= 1
    assert call(*bertsmith_run(base, "pairs", "--recipe", "bert/quick_pairs")) == 0  # any other name begins anew
    assert "after" not in read_result(base, "pairs")
    who = import_module("bench.ten_minutes.contestants").before
    assert who("quick-pairs", recipe="", after="") == "quick"
    assert who("quick-pairs", recipe="", after="other") == "other"
    assert who("quick-pairs", recipe="bert/medium", after="") == ""  # another recipe begins anew
    assert who("mine", recipe="bert/quick_pairs", after="") == ""


def test_all_contestants_have_the_same_evaluation(contest: Path) -> None:
    """The baseline's folder, opened by bertsmith, has the scores computed by transformers."""
    from bench.ten_minutes.held_out import HeldOutEvaluator

    evaluator = HeldOutEvaluator.of(PretrainData.open(contest / "t" / "shards"), length=32, rows=24, seed=0)
    for name in ("quick", "baseline"):
        result = read_result(contest, name)
        assert result["judge"]["fingerprint"] == evaluator.fingerprint
        model, _, _ = open_model(contest / "out" / name / "last")
        scores = evaluator.evaluate_model(model, torch.device("cpu"))
        assert scores is not None
        assert scores.nats_per_piece == pytest.approx(result["final"]["nats_per_piece"], rel=1e-4)
        assert scores.accuracy == result["final"]["accuracy"]


def test_the_evaluator_counts_nats_per_piece_and_byte(base: Path) -> None:
    from bench.ten_minutes.held_out import HeldOutEvaluator, piece_bytes

    data = PretrainData.open(base / "t" / "shards")
    evaluator = HeldOutEvaluator.of(data, length=32, rows=24, seed=0)
    sizes, tokenizer = piece_bytes(data.tokenizer), data.tokenizer
    assert sizes[tokenizer.token_to_id("the")] == 3
    assert sizes[tokenizer.token_to_id("##h")] == 1
    size = tokenizer.vocab_size

    def right(batch: Batch) -> torch.Tensor:
        return torch.nn.functional.one_hot(batch.labels["masked_lm"], size).float() * 100

    def anything(batch: Batch) -> torch.Tensor:
        return torch.zeros(len(batch.labels["masked_lm"]), size)

    known, ignorant = (
        evaluator.score_logits(right, torch.device("cpu")),
        evaluator.score_logits(anything, torch.device("cpu")),
    )
    assert (known.nats_per_piece, known.accuracy) == (pytest.approx(0, abs=1e-6), 1.0)
    assert ignorant.nats_per_piece == pytest.approx(math.log(size))
    masked = torch.cat([batch.labels["masked_lm"] for batch in evaluator.batches]).tolist()
    text = sum(len(tokenizer.id_to_token(number).removeprefix("##").encode()) for number in masked)
    assert (evaluator.pieces, evaluator.bytes) == (len(masked), text)
    assert ignorant.nats_per_byte == pytest.approx(math.log(size) * len(masked) / text)
    inputs = torch.cat([batch.input_ids.flatten()[batch.indices["masked_lm"]] for batch in evaluator.batches])
    assert 0.6 < float((inputs == tokenizer.mask_id).float().mean()) < 0.95
    assert evaluator.fingerprint != HeldOutEvaluator.of(data, length=32, rows=24, seed=1).fingerprint


def test_whole_word_masking_makes_vocabularies_comparable(
    base: Path, contest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.ten_minutes.held_out import MASK_RATE, HeldOutEvaluator

    few = ["text", base / "text.txt", "-o", base / "few", "--vocab-size", 130, "--held-out", 0.2, "--workers", 1]
    assert call(*few, "--quiet") == 0
    data = PretrainData.open(base / "few" / "shards")
    evaluator = HeldOutEvaluator.of(data, length=32, rows=60, seed=0, words=True)
    continues, text = data.tokenizer.is_continuation(), []
    assert continues is not None
    for batch in evaluator.batches:
        positions, labels = batch.indices["masked_lm"], batch.labels["masked_lm"]
        ids = batch.input_ids.flatten().clone()
        assert bool((ids[positions] == data.tokenizer.mask_id).all())
        ids[positions] = labels
        inputs = torch.zeros(len(ids), dtype=torch.bool)
        inputs[positions] = True
        within = torch.from_numpy(continues)[ids]
        assert int(within.sum()) > 20
        assert bool((inputs[1:] == inputs[:-1])[within[1:]].all())  # a word is masked completely or not at all
        text.append(inputs[~within & (ids > 4)].float().mean())
    assert float(sum(text) / len(text)) == pytest.approx(MASK_RATE, abs=0.05)

    arguments = ["evaluate", "quick", f"other={contest / 'out' / 'baseline' / 'last'}", "--data", base / "t" / "shards"]
    arguments += ["-o", contest / "out", "--eval-rows", 24, "--eval-length", 32, "--device", "cpu"]
    capsys.readouterr()
    assert call(*arguments) == 0
    output = capsys.readouterr().out
    *_, quick, other, last = output.splitlines()
    assert [line.split(" | ")[0] for line in (quick, other)] == ["| quick", "| other"]
    shards = PretrainData.open(base / "t" / "shards")
    pieces, words_masked = (
        HeldOutEvaluator.of(shards, length=32, rows=24, seed=0, words=words) for words in (False, True)
    )
    assert last == (
        f"predicted word pieces: {pieces.pieces} ({pieces.fingerprint}) and "
        f"{words_masked.pieces} ({words_masked.fingerprint})"
    )
    model, _, _ = open_model(contest / "out" / "quick" / "last")
    scores = [evaluator.evaluate_model(model, torch.device("cpu")) for evaluator in (pieces, words_masked)]
    values = [float(cell.rstrip("%")) for cell in quick.strip("| ").split(" | ")[1:]]
    for number, item in enumerate(scores):
        assert item is not None
        expected = [item.nats_per_piece, item.nats_per_byte, 100 * item.accuracy]
        assert values[3 * number : 3 * number + 3] == pytest.approx(expected, abs=0.06)
    assert call(*arguments[:2], *arguments[3:], "--split", "train") == 0
    *_, quick, last = capsys.readouterr().out.splitlines()
    read = HeldOutEvaluator.of(shards, length=32, rows=24, seed=0, split="train")
    assert f"{read.pieces} ({read.fingerprint})" in last
    assert read.fingerprint != pieces.fingerprint
    scores = read.evaluate_model(model, torch.device("cpu"))
    assert scores is not None
    assert float(quick.split(" | ")[1]) == pytest.approx(scores.nats_per_piece, abs=0.001)
    assert call("evaluate", "quick", "--data", base / "few" / "shards", "-o", contest / "out") == 78
    assert "quick has another tokenizer" in capsys.readouterr().err
    assert call("evaluate", f"quick={contest / 'out' / 'quick' / 'last'}", "quick+fresh", *arguments[3:]) == 78
    assert "only saved models can be evaluated" in capsys.readouterr().err


def test_a_run_on_part_of_the_text_can_be_evaluated_on_all_of_it(base: Path) -> None:
    from bench.ten_minutes.pretraining import EvaluatorConfig

    arguments = ["text", base / "text.txt", "-o", base / "other", "--vocab-size", 130, "--held-out", 0.2]
    assert call(*arguments, "--workers", 1, "--quiet") == 0
    (base / "part.txt").write_text((base / "text.txt").read_text(encoding="utf-8")[:5000], encoding="utf-8")
    arguments = ["text", base / "part.txt", "-o", base / "part", "--tokenizer", base / "t" / "tokenizer"]
    assert call(*arguments, "--held-out", 0.2, "--workers", 1, "--quiet") == 0
    part, all_of_it = PretrainData.open(base / "part" / "shards"), base / "t" / "shards"
    assert part.shards.tokens < PretrainData.open(all_of_it).shards.tokens / 2
    own, evaluator = (
        EvaluatorConfig(rows=24).build(part),
        EvaluatorConfig(rows=24, data=str(all_of_it)).build(part),
    )
    assert (
        evaluator.fingerprint
        == EvaluatorConfig(rows=24).build(PretrainData.open(all_of_it)).fingerprint
        != own.fingerprint
    )
    with pytest.raises(ConfigError, match="by different tokenizers"):
        EvaluatorConfig(data=str(base / "other" / "shards")).build(part)


def test_blocks_are_concatenated_documents(base: Path) -> None:
    from bench.ten_minutes.blocks import MaskingCollator, Order, grouped
    from bench.ten_minutes.held_out import document_bounds

    shards, tokenizer = Shards.open(base / "t" / "shards"), load(base / "t" / "shards" / "tokenizer")
    bounds = document_bounds(shards)
    assert len(bounds) == shards.documents + 1
    joined: list[int] = []
    for begin, end in pairwise(bounds):
        joined += [tokenizer.start_id, *shards.read(begin, end - begin).tolist(), tokenizer.separator_id]
    blocks = grouped(shards, tokenizer, 32)
    assert blocks.flatten().tolist() == joined[: len(joined) // 32 * 32]
    order = Order(len(blocks), seed=3)
    taken = np.concatenate([order.take(step, 7) for step in range(2 * len(blocks))])
    for epoch in range(3):
        assert sorted(taken[epoch * len(blocks) : (epoch + 1) * len(blocks)]) == list(range(len(blocks)))
    ids = torch.from_numpy(blocks).long()
    inputs, labels = MaskingCollator(tokenizer, torch.device("cpu"))(ids, seed=1)
    masked = labels != -100
    special = torch.isin(ids, torch.tensor(sorted(tokenizer.special_ids)))
    assert not (masked & special).any()
    assert torch.equal(labels[masked], ids[masked])
    assert torch.equal(inputs[~masked], ids[~masked])
    assert float(masked.sum() / (~special).sum()) == pytest.approx(0.15, abs=0.02)
    assert float((inputs[masked] == tokenizer.mask_id).float().mean()) == pytest.approx(0.8, abs=0.05)
    assert float((inputs[masked] == ids[masked]).float().mean()) == pytest.approx(0.1, abs=0.04)


def test_points_of_a_killed_call_are_dropped() -> None:
    from bench.ten_minutes.pretraining import curve

    def evaluated(step: int, loss: float) -> dict[str, Any]:
        return {"kind": "evaluation", "step": step, "held_out/step": step, "held_out/nats_per_byte": loss}

    def start(step: int) -> dict[str, Any]:
        return {"kind": "start", "step": step}

    events = [start(0), evaluated(3, 5.0), evaluated(7, 4.0), start(3), evaluated(6, 3.5)]
    assert curve(events) == [{"step": 3, "nats_per_byte": 5.0}, {"step": 6, "nats_per_byte": 3.5}]


def test_compilation_is_not_counted(base: Path) -> None:
    """Where steps are compiled, the first one of a call costs nothing, and says so to the run.

    On a busy machine too, where time passes after each look at the clock: none of it counts as compiling and learning.
    """
    from bench.ten_minutes.contestants import recipe_of
    from bertsmith.training.clock import Stopwatch
    from bertsmith.training.pretrain import make_trainer
    from bertsmith.training.timed import TimedTrainer

    class Busy(Stopwatch):
        def __call__(self) -> float:
            seconds = super().__call__()
            time.sleep(0.01)
            return seconds

    data = PretrainData.open(base / "t" / "shards")
    recipe = data.with_vocabulary(recipe_of("quick", recipe="", changes=SMALL_TASKS, minutes=1, seed=0))
    world = World()
    feeder = PretrainLoader(recipe, data.packing(recipe), world)
    make = partial(TimedTrainer, clock=Busy(world.device))
    trainer = make_trainer(recipe, data, feeder, world, StopSignal(), make)
    assert isinstance(trainer, TimedTrainer)
    trainer.forward_backward.compiles = True
    trainer.batches = lambda step: (time.sleep(0 if step else 1), feeder(step))[1]
    before = time.monotonic()
    steps = [next(trainer) for _ in range(4)]
    assert trainer.compile_seconds is not None
    assert 1 <= trainer.compile_seconds <= time.monotonic() - before
    assert steps[0].numbers["seconds"] == 0
    counted = trainer.elapsed
    assert 0 < steps[3].numbers["seconds"] <= counted <= time.monotonic() - before - trainer.compile_seconds


def test_runs_with_a_lock_train_one_at_a_time(tmp_path: Path) -> None:
    from bertsmith.training.clock import TrainingLock

    first, second, gone = (TrainingLock(tmp_path / "lock") for _ in range(3))
    first.acquire(lambda: False)
    tries = iter([False, False, True])
    gone.acquire(lambda: next(tries))  # gives up
    began = time.monotonic()
    threading.Timer(0.2, first.close).start()
    second.acquire(lambda: False)
    assert 0.2 <= time.monotonic() - began < 5
    TrainingLock().acquire(lambda: pytest.fail("waits without a lock file"))


def test_a_stopwatch_can_be_paused() -> None:
    from bertsmith.training.clock import Stopwatch, stop_after

    watch, began = Stopwatch(torch.device("cpu")), time.monotonic()
    before = watch()
    with watch.paused():
        still = watch()
        time.sleep(0.2)
        assert watch() == still
    assert before <= still <= watch()
    assert watch() - before <= time.monotonic() - began - 0.2
    with pytest.raises(StoppedError, match="to resume"), stop_after(0.05):
        time.sleep(5)


KINDS = {"classification": 0.9, "regression": 0.9, "choice": 0.6, "qa": 0.8, "tagging": 0.9}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    "kind", [kind if kind in ("classification", "qa") else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_transformers_can_be_fine_tuned_on_every_kind_of_task(kind: str, tiny: Path, tmp_path: Path) -> None:
    from bench.ten_minutes.transformers_finetune import Finetuner

    tuning = tuning_of(kind, tiny, tmp_path, "epochs=12", count=96)
    task, tokenizer = build_task(tuning), load(tiny)
    ready = prepare(tuning, task, tokenizer, positions=64)
    result = Finetuner(tiny, tuning, ready, tokenizer, torch.device("cpu")).run(rate=3e-3, seed=0)
    assert result[task.main_metric] > KINDS[kind]


def test_tasks_and_table(contest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "cached_peak_flops", lambda device, dtype: 1e9)
    mrpc(contest / "tasks" / "glue", 32)
    nsmc(contest / "tasks" / "nsmc")
    arguments = [
        "--data",
        contest / "tasks",
        "-o",
        contest / "out",
        "--seeds",
        2,
        "--set",
        "epochs=1",
        "--set",
        "batch_size=16",
    ]
    arguments += ["--set", "max_length=32", "--rates", "1e-4,1e-3", "-t", "glue/mrpc"]
    assert call("tasks", "quick", "quick+fresh", *arguments, "--quiet") == 0
    assert "quick+fresh on glue/mrpc: f1" in capsys.readouterr().out
    assert call("tasks", "baseline", *arguments, "--transformers") == 0
    assert call("tasks", "baseline", *arguments, "--quiet") == 78
    assert "has scores on glue/mrpc by transformers: choose another name" in capsys.readouterr().err
    assert call("tasks", "quick", *arguments[:-1], "korean/nsmc", "--quiet") == 0
    result = json.loads((contest / "out/scores/baseline/glue-mrpc.json").read_text(encoding="utf-8"))
    assert (result["code"], result["seeds"], len(result["runs"])) == ("transformers", [0, 1], 4)
    assert call("table", contest / "out") == 0
    text = capsys.readouterr().out
    assert "no pre-training (quick)" in text
    assert "Google's small" in text
    assert "- quick is ahead of no pre-training (quick) on " in text
    assert "NSMC" in text
    ElementTree.parse(contest / "out" / "curves.svg")
    monkeypatch.setattr("bench.ten_minutes.transformers_finetune.Finetuner.run", None)  # no run is repeated
    assert call("tasks", "baseline", *arguments, "--transformers") == 0


def run_in_order(function: Any, units: Any, **how: Any) -> Iterator[Any]:
    """Replaces worker processes, which are slow to start; units are still pickled."""
    assert how["workers"] == 2
    for unit in units:
        yield function(pickle.loads(pickle.dumps(unit)))


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("own", [False, True])
def test_scores_of_parallel_jobs_are_collected(
    own: bool, processes: bool, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mrpc(tmp_path / "glue", 32)
    tasks = import_module("bench.ten_minutes.tasks")
    arguments = ["tasks", f"tiny={tiny}", "--data", tmp_path, "-o", tmp_path / "out", "--seeds", 2, "--jobs", 2]
    arguments += [
        "-t",
        "glue/mrpc",
        "--set",
        "epochs=1",
        "--set",
        "batch_size=16",
        "--set",
        "max_length=32",
        "--device",
        "cpu",
    ]
    beside = tasks._run_in_parallel
    parts: list[int] = []

    def run_none(work: Any, jobs: int) -> None:
        parts.append(sum(len(unit.parts) for unit in work))
        beside(work, jobs)
        monkeypatch.setattr("bench.ten_minutes.transformers_finetune.Finetuner.run", None)  # only scores are collected
        monkeypatch.setattr("bertsmith.training.sweep.finetune", None)

    monkeypatch.setattr(tasks, "_run_in_parallel", run_none)
    if not processes:
        monkeypatch.setattr(tasks, "ordered_map", run_in_order)
    assert call(*arguments, *(["--transformers"] if own else [])) == 0
    assert parts == [2]  # seeds
    result = json.loads((tmp_path / "out/scores/tiny/glue-mrpc.json").read_text(encoding="utf-8"))
    assert (result["code"], result["seeds"]) == ("transformers" if own else "bertsmith", [0, 1])
    assert len(result["scores"]["f1"]) == 2


def nsmc(folder: Path) -> None:
    """Files in the format of NSMC."""
    folder.mkdir(parents=True)
    for name in ("ratings_train.txt", "ratings_test.txt"):
        rows = [f"{number}\tthe smith has {METALS[number % 4]}\t{number % 2}" for number in range(24)]
        (folder / name).write_text("\n".join(["id\tdocument\tlabel", *rows]) + "\n", encoding="utf-8")


def test_times_to_the_loss_of_another_run_are_listed() -> None:
    from bench.ten_minutes.standings import times_to_loss

    def run(*losses: float, **more: Any) -> dict[str, Any]:
        curve = [{"seconds": 10.0 * (place + 1), "nats_per_byte": loss} for place, loss in enumerate(losses)]
        return {"curve": curve, "final": curve[-1], "seconds": curve[-1]["seconds"], **more}

    result = {(item["who"], item["whom"]): item for item in times_to_loss({"a": run(3, 2, 1), "b": run(4, 3, 2)})}
    assert (result["a", "b"]["seconds"], result["a", "b"]["share"]) == (20.0, pytest.approx(2 / 3))
    assert result["b", "a"]["seconds"] is None
    assert not times_to_loss({"a": run(3, 2, 1), "b": run(4, 3, 2, judge={"fingerprint": "another"})})
    assert not times_to_loss({"a": run(3, 2, 1), "b": run(4, 3, 2, after="a")})


def test_standings_list_tasks_ahead_and_behind() -> None:
    from bench.ten_minutes.standings import standings

    def scores(main: str, **measured: float) -> dict[str, Any]:
        return {"main": main, "scores": {name: [value - 0.01, value + 0.01] for name, value in measured.items()}}

    runs = {"mine": {"code": "bertsmith"}, "theirs": {"code": "transformers"}, "unscored": {"code": "bertsmith"}}
    table = {
        ("mine", "glue/sts-b"): scores("spearman", pearson=0.90, spearman=0.77),
        ("mine", "codah"): scores("accuracy", accuracy=0.5),
        ("theirs", "glue/sts-b"): scores("spearman", pearson=0.95, spearman=0.70),
        ("theirs", "codah"): scores("accuracy", accuracy=0.6),
        ("mine+fresh", "codah"): scores("accuracy", accuracy=0.4),
    }
    result = {item["whom"]: item for item in standings(runs, table, ["glue/sts-b", "codah"])}
    assert {item["who"] for item in result.values()} == {"mine"}
    assert result["theirs"]["ahead"] == ["glue/sts-b"]
    (behind,) = result["theirs"]["behind"]
    assert (behind["task"], behind["mine"], behind["theirs"]) == ("codah", pytest.approx(50), pytest.approx(60))
    assert result["mine+fresh"]["ahead"] == ["codah"]
    small, medium = result["Google's small, 4×512 (test)"], result["Google's medium, 8×512 (test)"]
    assert [lost["theirs"] for lost in small["behind"]] == [77.0], "an equal run is not ahead"
    assert [lost["theirs"] for lost in medium["behind"]] == [78.4]


def test_of_two_bertsmith_runs_the_one_ahead_on_more_tasks_is_listed() -> None:
    from bench.ten_minutes.standings import standings

    def scores(value: float) -> dict[str, Any]:
        return {"main": "accuracy", "scores": {"accuracy": [value, value]}}

    runs = {name: {"code": "bertsmith"} for name in ("first", "second", "third")}
    known = {"first": (0.5, 0.5, 0.8), "second": (0.6, 0.7, 0.7), "third": (0.5, 0.5, 0.8)}
    tasks = ["a", "b", "c"]
    table = {(name, task): scores(item) for name, of in known.items() for task, item in zip(tasks, of, strict=True)}
    result = {(item["who"], item["whom"]): item for item in standings(runs, table, tasks)}
    assert ("first", "second") not in result, "the run that is ahead on more tasks is listed"
    assert (result["second", "first"]["ahead"], result["second", "third"]["ahead"]) == (["a", "b"], ["a", "b"])
    assert [lost["task"] for lost in result["second", "first"]["behind"]] == ["c"]
    assert result["first", "third"]["ahead"] == result["third", "first"]["ahead"] == [], "neither is ahead"


VARIANTS = """
recipe = "bert/tiny"
set = ["batch_size=16"]
[variants]
first = {}
second = { set = ["learning_rate=5e-4"] }
third = { recipe = "bert/mini" }
"""
FAKE = """
import json, pathlib, sys, time
out, name, loss, status = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
(out / f"{name}.began").write_text("")
time.sleep(0.3)
final = {"nats_per_byte": loss, "nats_per_piece": 4 * loss, "seconds": 60.0}
told = {"name": name, "tokens": 5e7, "tokens_per_second": 9e5, "share_of_peak": 0.5, "final": final}
if not status:
    (out / name).mkdir()
    told["curve"] = [{"nats_per_byte": 2 * loss, "seconds": 30.0}, final]
    (out / name / "result.json").write_text(json.dumps(told))
sys.exit(status)
"""


def proxies(folder: Path, losses: dict[str, float], *more: object, status: int = 0) -> int:
    """`proxies` with fake runs; `status` is the exit status of the third."""
    module = import_module("bench.ten_minutes.proxies")
    (folder / "v.toml").write_text(VARIANTS, encoding="utf-8")
    original = module._words

    def pretended(item: Any, output: Path, arguments: list[str], minutes: float) -> list[str]:
        real = original(item, output, arguments, minutes)
        assert ("learning_rate=5e-4" in real) == (item.name == "second")
        assert real[real.index("--recipe") + 1] == ("bert/mini" if item.name == "third" else "bert/tiny")
        ends = str(status if item.name == "third" else 0)
        return [sys.executable, "-c", FAKE, str(output), item.name, str(losses[item.name]), ends]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_words", pretended)
        patch.setattr(module, "PATIENCE", 0.02)
        return call("proxies", folder / "v.toml", "--data", folder, "-o", folder / "out", *more)


def test_proxies_run_once_and_are_sorted_by_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = {"first": 1.0, "second": 0.9, "third": 1.2}
    assert proxies(tmp_path, losses, "--only", "first", "second") == 0
    assert not (tmp_path / "out" / "third").exists()
    (tmp_path / "out" / "first.began").unlink()
    assert proxies(tmp_path, losses, "--together", 1) == 0
    assert not (tmp_path / "out" / "first.began").exists()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")][-3:]
    assert [row.split()[1] for row in rows] == ["second", "first", "third"]
    assert "learning_rate=5e-4" in rows[0]
    assert "+0.1000 | 60.0 s |" in rows[0]
    assert "bert/mini" in rows[2]
    assert "-0.2000 | – |" in rows[2]
    assert (tmp_path / "out" / "proxies.md").read_text(encoding="utf-8").count("\n") == 5


def test_the_end_of_a_plateau_is_detected() -> None:
    off_plateau = import_module("bench.ten_minutes.pretraining").off_plateau
    losses = [9.0] * 20 + [5.6] * 20 + [5.3] * 40
    steps = [
        {"kind": "step", "step": number, "seconds": 60.0 if number in (1, 31) else 0.5, "loss/masked_lm": loss}
        for number, loss in enumerate(losses, 1)
    ]
    about = {"unigram": {"masked_lm": 7.0}}
    # the mean of twenty is under 5.5 when seven of them are 5.3; steps 1 and 31 compile and are not counted
    assert off_plateau(steps, {1, 31}, about) == 45 * 0.5
    assert off_plateau(steps[:46], {1, 31}, about) is None
    assert off_plateau([{**steps[0], "loss/masked_lm": "nan"}, *steps[1:]], {1, 31}, about) == 45 * 0.5
    assert off_plateau(steps, {1, 31}, {"unigram": {}}) is None


@pytest.mark.parametrize(
    ("first", "second", "expected"), [(20.0, 1.0, 20.0), (20.0, None, 20.0), (None, 1.0, 61.0), (None, None, None)]
)
def test_a_plateau_may_be_left_in_the_second_stage(
    first: float | None, second: float | None, expected: float | None
) -> None:
    pretraining = import_module("bench.ten_minutes.pretraining")
    point = {"seconds": 60.0, "step": 9, "tokens": 900}
    stage = {
        **dict.fromkeys(pretraining.SPENT, 1.0),
        **point,
        "steps": 9,
        "tokens_per_second": 15.0,
        "share_of_peak": 0.5,
        "peak_flops": 8.0,
    }
    stage |= {"name": "short", "curve": [], "final": point}
    result = pretraining.joined({**stage, "off_plateau": first}, {**stage, "off_plateau": second, "peak_flops": 10.0})
    assert result["off_plateau"] == expected
    assert result["peak_flops"] == 10.0
    assert result["share_of_peak"] == pytest.approx((0.4 + 0.5) / 2)  # the first was measured beside something else


def test_a_proxy_without_a_result_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = dict.fromkeys(("first", "second", "third"), 1.0)
    for status in (75, 1):
        assert proxies(tmp_path, losses, status=status) == 2
        output = capsys.readouterr()
        assert f"third: no result, exit status {status}" in output.out
        assert "error: no result of third: see their .log" in output.err
        assert "| first |" in output.out


def test_proxies_that_run_out_of_time_exit_like_other_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = dict.fromkeys(("first", "second", "third"), 1.0)
    assert proxies(tmp_path, losses, "--together", 1, "--stop-after", 0.2) == 75
    assert "error: stopped; finished work is kept" in capsys.readouterr().err
    assert proxies(tmp_path, losses) == 0
    assert (tmp_path / "out" / "third" / "result.json").exists()


def test_stopped_proxies_stop_their_runs(tmp_path: Path) -> None:
    proxies_module = import_module("bench.ten_minutes.proxies")
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    begun: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            begun.append(self)
            if len(begun) == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    given = [proxies_module.Variant(name, "bert/tiny", (), ()) for name in ("first", "second", "third")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proxies_module, "_words", lambda *given: sleeps)
        patch.setattr(proxies_module.subprocess, "Popen", Noted)
        with pytest.raises(StoppedError):
            proxies_module.run_all(given, tmp_path, [], together=2)
    assert len(begun) == 2
    assert all(process.returncode == -signal.SIGTERM for process in begun)


def test_invalid_proxy_files_give_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "v.toml"
    for text, values in (
        ("variants = 3 3", "cannot be read"),
        ("recipe = 'bert/tiny'", "names no variants"),
        (VARIANTS + "bad = { set = ['steps=0.3'] }", "v.toml, bad: steps=0.3 must be an integer"),
    ):
        file.write_text(text, encoding="utf-8")
        assert call("proxies", file, "--data", tmp_path, "-o", tmp_path / "out") == 78
        assert values in capsys.readouterr().err
    file.write_text(VARIANTS, encoding="utf-8")
    assert call("proxies", file, "--only", "secnd", "--data", tmp_path, "-o", tmp_path / "out") == 78
    assert "has no variant secnd; did you mean second?" in capsys.readouterr().err


STAGES = """
recipe = "electra/tiny"
judge = ["glue/cola"]
tuning = ["glue/cola:epochs=1"]

[variants]
reference = {}
generator = { share = 0.25, set = ["objectives.replaced_token.discriminator_weight=0"] }
warm = { after = "generator", share = 0.75 }
"""


def test_a_second_stage_waits_for_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module("bench.ten_minutes.proxies")
    (tmp_path / "v.toml").write_text(STAGES, encoding="utf-8")
    given = module.variants(tmp_path / "v.toml", ["warm"])
    assert [one.name for one in given] == ["generator", "warm"]  # and the stage that it starts from
    called: list[list[str]] = []
    original = module._words

    def pretended(item: Any, output: Path, words: list[str], minutes: float) -> list[str]:
        called.append(original(item, output, words, minutes))
        assert item.name != "warm" or (output / "generator" / "result.json").exists()
        return [sys.executable, "-c", FAKE, str(output), item.name, "1.0", "0"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_words", pretended)
        patch.setattr(module, "PATIENCE", 0.02)
        module.run_all(given, tmp_path / "out", [], together=2, minutes=8.0)
    assert [words[words.index("--minutes") + 1] for words in called] == ["2", "6"]
    assert called[1][called[1].index("--after") + 1] == "generator"
    assert "--after" not in called[0]
    (tmp_path / "v.toml").write_text(STAGES.replace('after = "generator"', 'after = "later"'), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"v\.toml, warm: after=later is not a variant above it"):
        module.variants(tmp_path / "v.toml")


def test_variants_are_sorted_by_the_scores_of_the_judge(tmp_path: Path) -> None:
    module, results = (import_module(f"bench.ten_minutes.{name}") for name in ("proxies", "results"))
    (tmp_path / "v.toml").write_text(STAGES, encoding="utf-8")
    assert module.judge(tmp_path / "v.toml").tuning == ("glue/cola:epochs=1",)
    given = module.variants(tmp_path / "v.toml")
    run: dict[str, Any] = {"curve": [], "tokens": 1e6, "tokens_per_second": 1e3, "share_of_peak": 0.5}
    for name, loss, score in (("reference", 3.0, 0.1), ("generator", 2.0, None), ("warm", 4.0, 0.2)):
        final = {"generator_nats_per_piece": loss, "generator_nats_per_byte": loss / 4}
        final |= {"replaced_token": 0.88, "base_rate": 0.86} if name == "warm" else {}
        results.write(tmp_path / "out" / name / "result.json", {"name": name, "final": final, **run})
        if score is not None:
            path = results.scores_path(tmp_path / "out", name, "glue/cola")
            results.write(path, {"summary": {"mean": score}})
    rows = module.table(given, tmp_path / "out", ["glue/cola"]).splitlines()[2:]
    assert [row.split()[1] for row in rows] == ["warm", "reference", "generator"]
    assert rows[0].endswith("| +2.00 | 20.0 | 20.0 |")
    assert "| after generator |" in rows[0]
    assert rows[2].endswith("| – | – | – |")
    assert "| 4.0000 | 1.0000 | -0.2500 |" in rows[0]  # the generator's loss
    by_loss = module.table(given, tmp_path / "out").splitlines()[2:]
    assert [row.split()[1] for row in by_loss] == ["generator", "reference", "warm"]


def test_other_objectives_are_compared_by_their_own_loss(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that predict neither masked nor next tokens, such as ELMo's or skip-gram's."""
    (base / "vectors.toml").write_text(
        """
recipe = "word_vectors/tiny"
set = ["encoder.width=8", "batch_size=8", "max_length=32", "eval_rows=16"]
[variants]
first = {}
second = { set = ["learning_rate=1e-9"] }
""",
        encoding="utf-8",
    )
    arguments = ["--data", base / "t" / "shards", "-o", base / "vectors", "--minutes", 0.02, "--device", "cpu"]
    assert call("proxies", base / "vectors.toml", *arguments) == 0
    told = capsys.readouterr().out
    assert re.search(r"^first: 0\.\d+ nats$", told, re.MULTILINE)
    rows = [line for line in told.splitlines() if line.startswith("|")][2:]
    assert [row.split()[1] for row in rows] == ["first", "second"]
    result = json.loads((base / "vectors" / "first" / "result.json").read_text(encoding="utf-8"))
    assert f"| {result['final']['own_loss']:.4f} | – | +0.0000 |" in rows[0]
    assert len(result["curve"]) > 1
    assert call("table", base / "vectors") == 0
    told = capsys.readouterr().out
    assert "- second: cpu, bertsmith" in told
    assert "held-out set" not in told


def test_tasks_need_a_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "v.toml").write_text(VARIANTS, encoding="utf-8")
    assert call("proxies", tmp_path / "v.toml", "--data", tmp_path, "-o", tmp_path / "out", "--tasks", tmp_path) == 78
    assert "v.toml names no tasks: write judge = " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "count"),
    [
        *(("proxies.toml", 28), ("plateau.toml", 22), ("rotary.toml", 17), ("masking.toml", 13), ("quick.toml", 35)),
        *(("electra.toml", 25), ("albert.toml", 10), ("roberta.toml", 9), ("gpt.toml", 11), ("awd_lstm.toml", 10)),
        *(("elmo.toml", 10), ("word_vectors.toml", 10), ("cove.toml", 10)),
    ],
)
def test_every_proxy_file_has_valid_recipes(file: str, count: int) -> None:
    recipe_of = import_module("bench.ten_minutes.contestants").recipe_of
    given = import_module("bench.ten_minutes.proxies").variants(ROOT / "bench" / "ten_minutes" / file)
    assert len(given) >= count
    for item in given:
        made = recipe_of(item.name, recipe=item.recipe, changes=item.changes, minutes=1.0, seed=0)
        steps = [made.batch_sizes.micro_batches(step, made.rank_rows(1)) for step in (0, 1, 10**5)]
        assert all(len(step) > 0 for step in steps), item.name


def test_user_errors_give_one_line(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*bertsmith_run(base, "nobody")) == 78
    assert "any other name needs --recipe" in capsys.readouterr().err
    assert call(*baseline_run(base, "odd", "--size", "huge")) == 78
    assert "such as 8x512" in capsys.readouterr().err
