"""`finetune` end to end at the smallest size: every kind of task; a stopped and resumed run has the same bits."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command_line import call
from finetune_fixtures import QUICK, made_up, tiny_model, tuning_of, write
from frozen_fixtures import lm_folder
from sklearn.utils.class_weight import compute_class_weight
from threads import threads

import bertsmith as bs
from bertsmith import config
from bertsmith.encoders import bert
from bertsmith.errors import BertsmithError, ConfigError, DataError, StoppedError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model, save_model
from bertsmith.objectives import classify
from bertsmith.training import finetune as finetuning
from bertsmith.training import loop
from bertsmith.training import sweep as sweeping
from bertsmith.training.distributed import World
from bertsmith.training.finetune import finetune, open_with_head, paper_note
from bertsmith.training.finetune_data import build_task, predict, prepare
from bertsmith.training.finetune_loader import FinetuneLoader, SampleOrder, batches_by_length, make_batch
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.log import last_of_each_step, read_events
from bertsmith.training.plan import Unfreeze
from bertsmith.training.recipe import make_finetune_config
from bertsmith.types import IGNORE_INDEX


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("finetune"))


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    with threads(2):
        yield


CHANCE = {"classification": 0.3, "pairs": 0.65, "regression": 0.3, "tagging": 0.3, "qa": 0.3, "choice": 0.45}
HARDER = {"pairs": ["epochs=30"], "choice": ["epochs=20"], "qa": ["epochs=12"]}
SINGLE, PAIRS = "the model was fine-tuned on single texts", "the model was fine-tuned on pairs of texts"
TEXT_COUNTS = [
    ("classification", "the smith", ("the smith", "has iron"), f"{SINGLE}, and here is a pair: pass one text"),
    ("pairs", ("the smith", "has iron"), "the smith", rf"{PAIRS}, and here is one text: pass a pair \(--second TEXT\)"),
]


@pytest.mark.parametrize("kind", CHANCE)
def test_every_kind_of_task_can_be_fine_tuned(kind: str, model: Path, tmp_path: Path) -> None:
    tuning = tuning_of(kind, model, tmp_path, *HARDER.get(kind, []), count=128)
    results = finetune(tuning, tmp_path / "run", device="cpu", quiet=True)
    assert results[f"score/{results['main']}"] > CHANCE[kind] + 0.25, results
    events = read_events(tmp_path / "run" / "events.jsonl")
    best = max(event[f"score/{results['main']}"] for event in events if event["kind"] == "evaluation")
    kept = next(event for event in events if event["kind"] == "evaluation" and event["step"] == results["best_step"])
    assert kept[f"score/{results['main']}"] == best


def test_the_no_answer_threshold_is_saved_with_the_model(model: Path, tmp_path: Path) -> None:
    tuning = tuning_of("qa", model, tmp_path, "epochs=2", "task.rules=2.0")
    finetune(tuning, tmp_path / "run", device="cpu", quiet=True)
    results, tokenizer, _ = open_model(tmp_path / "run" / "last")
    task = build_task(tuning)
    examples = task.examples("dev")
    output = predict(results, task, examples, tokenizer, length=32)
    assert results.objectives["span"].config.no_answer == pytest.approx(task.threshold(examples, output))


@pytest.mark.parametrize(("kind", "right", "wrong", "message"), TEXT_COUNTS)
def test_the_number_of_texts_is_saved_with_the_model(
    kind: str, right: str | tuple[str, str], wrong: str | tuple[str, str], message: str, model: Path, tmp_path: Path
) -> None:
    finetune(tuning_of(kind, model, tmp_path, "epochs=1"), tmp_path / "run", device="cpu", quiet=True)
    predictor = bs.load(tmp_path / "run", device="cpu")
    assert "label" in predictor.predict(right)
    with pytest.raises(BertsmithError, match=f"^text 1: {message}"):
        predictor.predict([right, wrong])
    if kind == "pairs":
        assert len(predictor.rank("the smith", ["has iron"])) == 1
        return
    with pytest.raises(BertsmithError, match=f"^{SINGLE} and cannot score pairs .*--ignore-heads"):
        predictor.rank("the smith", ["has iron"])
    encoder = bs.load(tmp_path / "run", device="cpu", ignore_heads=True)
    assert len(encoder.rank("the smith", ["has iron"])) == 1


def test_a_regression_model_of_single_texts_is_not_evaluated_on_pairs(model: Path, tmp_path: Path) -> None:
    finetune(tuning_of("regression", model, tmp_path, "epochs=1"), tmp_path / "run", device="cpu", quiet=True)
    pairs = [{"sentence1": row["text"], "sentence2": "it is", "score": 1.0} for row in made_up("regression", 8, 1)]
    wrong = write(tmp_path / "wrong.jsonl", pairs)
    with pytest.raises(DataError, match=rf"wrong.jsonl:1: {SINGLE}, and here is a pair: use examples like"):
        bs.evaluate(tmp_path / "run", wrong, device="cpu", quiet=True)


def losses(folder: Path) -> list[str]:
    return [float(event["loss"]).hex() for event in last_of_each_step(read_events(folder / "events.jsonl"), "step")]


def test_a_resumed_run_is_bit_identical(model: Path, tmp_path: Path) -> None:
    tuning = tuning_of("classification", model, tmp_path)
    finetune(tuning, tmp_path / "whole", device="cpu", quiet=True)
    kept = tmp_path / "whole" / "checkpoints"
    middle = sorted(kept.iterdir())[0]
    finetune(tuning, tmp_path / "again", device="cpu", quiet=True, resume=str(middle))
    steps_done = int(middle.name.removeprefix("step-"))
    assert losses(tmp_path / "again") == losses(tmp_path / "whole")[steps_done:]
    for name in ("best", "last"):
        weights = [(tmp_path / run / name / "model.safetensors").read_bytes() for run in ("whole", "again")]
        assert weights[0] == weights[1]


def test_a_lean_run_writes_only_its_log_and_best_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = tuning_of("classification", model, tmp_path, "epochs=2", "save_every=2")
    finetune(tuning, tmp_path / "whole", device="cpu", quiet=True)
    finetune(tuning, tmp_path / "lean", device="cpu", quiet=True, lean=True)
    assert losses(tmp_path / "lean") == losses(tmp_path / "whole")
    assert list((tmp_path / "lean" / "checkpoints").iterdir()) == []
    assert not (tmp_path / "lean" / "last").exists()
    best = [(tmp_path / run / "best" / "model.safetensors").read_bytes() for run in ("whole", "lean")]
    assert best[0] == best[1]
    # a stopped or long run has checkpoints
    answer = finetuning.predict

    def stops(*given: Any, **how: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return answer(*given, **how)

    monkeypatch.setattr(finetuning, "predict", stops)
    with pytest.raises(StoppedError, match="which is saved"):
        finetune(tuning, tmp_path / "stopped", device="cpu", quiet=True, lean=True)
    monkeypatch.undo()
    finetune(tuning, tmp_path / "stopped", device="cpu", quiet=True, lean=True)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    monkeypatch.setattr(loop, "LEAN_INTERVAL", 0.0)
    finetune(tuning, tmp_path / "long", device="cpu", quiet=True, lean=True)
    assert any((tmp_path / "long" / "checkpoints").iterdir())


def test_a_sweep_keeps_the_best_model_and_repeats_nothing(model: Path, tmp_path: Path) -> None:
    tuning_of("classification", model, tmp_path)
    files = ["--train", tmp_path / "train.jsonl", "--dev", tmp_path / "dev.jsonl"]
    words = ["finetune", model, "-t", "classification", *files, "-o", tmp_path / "s", "--device", "cpu", "--json"]
    words += ["--learning-rates", "3e-3,1e-9", "--seeds", "2", *QUICK[:2], "max_length=32"]
    first = json.loads(call(*words).stdout)
    assert [row["runs"] for row in first["learning_rates"]] == [2, 2]
    assert first["kept"]["learning_rate"] == 3e-3
    assert first["learning_rates"][0]["mean"] > first["learning_rates"][1]["mean"] + 0.2
    marks = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("rate-*/events.jsonl")}
    rerun = json.loads(call(*words).stdout)
    assert rerun["kept"] == first["kept"]
    assert {path: path.stat().st_mtime_ns for path in marks} == marks
    kept = Path(first["kept"]["run"]) / "best" / "model.safetensors"
    assert (tmp_path / "s" / "best" / "model.safetensors").read_bytes() == kept.read_bytes()


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_parallel_and_sequential_sweeps_agree(
    processes: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # threads of the processes: as many as here
    if not processes:  # which are slow to start
        monkeypatch.setattr(
            sweeping, "ordered_map", lambda run, parts, **how: (run(pickle.loads(pickle.dumps(one))) for one in parts)
        )
    tuning = replace(tuning_of("classification", model, tmp_path), epochs=0.5)
    how: dict[str, Any] = {"learning_rates": [3e-3], "seeds": 2, "device": "cpu", "quiet": True, "lean": True}
    one = sweeping.sweep(tuning, tmp_path / "one", **how)
    two = sweeping.sweep(tuning, tmp_path / "two", jobs=2, **how)
    assert [run["scores"] for run in two["runs"]] == [run["scores"] for run in one["runs"]]
    assert two["learning_rates"] == one["learning_rates"]
    weights = [(tmp_path / name / "best" / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] == weights[1]
    assert len(list((tmp_path / "two").glob("lr-*/best"))) == 1  # the models of the others are removed
    monkeypatch.setattr(sweeping, "finetune", None)  # finished runs are read, not prepared again
    monkeypatch.setattr(sweeping, "prepare", None)
    assert sweeping.sweep(tuning, tmp_path / "two", jobs=2, **how) == two


def test_an_interrupted_sweep_ends_its_workers(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between two results, when it is not waiting for them."""
    ended = []

    def run_in_workers(run: Any, parts: list[Any], **how: Any) -> Iterator[None]:
        try:
            yield from [None] * len(parts)
        finally:
            ended.append(how["workers"])

    def interrupt(*given: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "ordered_map", run_in_workers)
    monkeypatch.setattr(sweeping, "is_finished", interrupt)
    tuning = tuning_of("classification", model, tmp_path)
    with pytest.raises(KeyboardInterrupt) as results:  # which keeps frames alive
        sweeping.sweep(tuning, tmp_path / "s", learning_rates=[1e-3], seeds=3, jobs=2, device="cpu", quiet=True)
    assert results.value
    assert ended == [2]


def test_micro_batches_and_ranks_get_the_same_samples(model: Path, tmp_path: Path) -> None:
    tuning = tuning_of("tagging", model, tmp_path)
    task = build_task(tuning)
    _, tokenizer, _ = open_with_head(tuning, task)
    ready = prepare(tuning, task, tokenizer, positions=64)
    order = SampleOrder(len(ready.train), seed=5, batch_size=16)
    shared: dict[str, Any] = {"length": 32, "padding_id": 0, "steps": 4}

    def samples(micro: int, world: World, step: int) -> list[int]:
        feeder = FinetuneLoader(ready.train, ["tag"], order, micro_batch_size=micro, world=world, **shared)
        return [
            int(batch.sample_ids.flatten()[first]) for batch in feeder(step) for first in batch.cls_positions.tolist()
        ]

    for step in (0, 3, 11):
        whole = samples(0, World(), step)
        assert len(set(whole)) == 16
        assert samples(4, World(), step) == whole
        assert samples(4, World(0, 2), step) + samples(4, World(1, 2), step) == whole


def test_an_epoch_has_every_sample_once() -> None:
    order = SampleOrder(10, seed=3)
    taken = order.take(0, 30)
    for epoch in range(3):
        assert sorted(number for sample_id, number in taken if sample_id // 10 == epoch) == list(range(10))
    assert [number for _, number in taken[:10]] != [number for _, number in taken[10:20]]
    assert order.take(17, 5) == taken[17:22]


@pytest.mark.parametrize(("count", "size"), [(1000, 8), (37, 8), (5, 8), (16, 4)])
def test_batches_have_examples_of_similar_length(count: int, size: int) -> None:
    """Also of later epochs, where batches do not begin with the epoch; each epoch still has every sample once."""
    sizes = np.random.default_rng(0).integers(1, 500, count)
    order = SampleOrder(count, seed=3, sizes=sizes, batch_size=size)
    taken = [number for _, number in order.take(0, 5 * count)]
    for epoch in range(5):
        assert sorted(taken[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert [number for _, number in order.take(count - 2, 4)] == taken[count - 2 : count + 2]
    if count < 100:
        whole = {frozenset(taken[first : first + size]) for first in range(0, len(taken) - size + 1, size)}
        if size <= count:
            assert len(whole) == len(taken) // size, "the batches of a small task differ between epochs"
        return
    batches = sizes[taken[: len(taken) // size * size]].reshape(-1, size)
    spread = batches.max(1) - batches.min(1)
    assert np.median(spread) < 20
    assert np.mean(spread > 200) < 0.02, "one batch of each epoch consists of what is left over"
    longest = batches.max(1)
    assert abs(np.corrcoef(longest[:-1], longest[1:])[0, 1]) < 0.2, "short and long batches alternate at random"
    random = [number for _, number in SampleOrder(count, seed=3).take(0, len(taken))]
    padded = [sizes[some[: len(taken) // size * size]].reshape(-1, size).max(1).sum() for some in (taken, random)]
    assert padded[0] < 0.7 * padded[1]


def test_balanced_epochs_draw_each_class_equally_often_and_all_samples_of_it() -> None:
    classes = np.array([0] * 17 + [1] * 4 + [2] * 2)
    order = SampleOrder(23, seed=3, classes=classes)
    taken = order.take(0, 69)
    assert len({sample_id for sample_id, _ in taken}) == 69
    drawn = Counter[int]()
    for epoch in range(3):
        samples = [number for _, number in taken[epoch * 23 : epoch * 23 + 23]]
        counts = np.bincount(classes[samples])
        assert counts.max() - counts.min() <= 1, counts
        assert {*samples} >= {*range(17, 23)}, "rare classes are complete before a sample is repeated"
        drawn.update(samples)
    assert max(drawn[number] for number in range(17)) <= 3
    again = SampleOrder(23, seed=3, classes=classes)
    assert again.take(40, 9) == taken[40:49], "any position is made directly, as resuming needs"
    assert SampleOrder(23, seed=4, classes=classes).take(0, 23) != taken[:23]


def test_balanced_weights_and_sampling_in_a_run(model: Path, tmp_path: Path) -> None:
    tuning = tuning_of("classification", model, tmp_path, "sampling=balanced", "head.class_weights=balanced")
    task = build_task(tuning)
    trained, tokenizer, _ = open_with_head(tuning, task)
    gold = [example.gold for example in task.examples("train")]
    expected = compute_class_weight("balanced", classes=np.array(task.labels), y=np.array(gold))
    head: Any = trained.objectives["classify"]
    assert head.class_weights.tolist() == pytest.approx(expected.tolist())
    data = prepare(tuning, task, tokenizer, positions=64)
    classes = finetuning.sampled_classes(tuning, data)
    assert classes is not None
    order = SampleOrder(len(data.train), seed=0, batch_size=16, classes=classes)
    how: dict[str, Any] = {"length": 32, "padding_id": 0, "steps": 9, "world": World()}
    whole = FinetuneLoader(data.train, ["classify"], order, micro_batch_size=16, **how)
    parts = FinetuneLoader(data.train, ["classify"], order, micro_batch_size=4, **how)
    for step in range(4):
        with torch.no_grad():
            losses = [trained.eval()(batch) for batch in parts(step)]
            (loss,) = [trained(batch) for batch in whole(step)]
        total = losses[0] + losses[1] + losses[2] + losses[3]
        assert float(total.mean()) == pytest.approx(float(loss.mean()), rel=1e-5)
    with pytest.raises(ConfigError, match=r"the head of classification has head.class_weights instead"):
        open_with_head(replace(tuning, head={"positive_weights": "balanced"}), task)
    with pytest.raises(ConfigError, match=r"'irn' is not a label .*; did you mean iron\?"):
        open_with_head(replace(tuning, head={"class_weights": {"irn": 2.0}}), task)
    with pytest.raises(ConfigError, match=r"must be balanced, or a table such as \{copper=2.0\}"):
        open_with_head(replace(tuning, head={"class_weights": "balance"}), task)
    by_table: Any = open_with_head(replace(tuning, head={"class_weights": {"iron": 3.0}}), task)[0]
    assert by_table.objectives["classify"].class_weights.tolist() == [1, 1, 3, 1]
    tagging = tuning_of("tagging", model, tmp_path, "sampling=balanced")
    with pytest.raises(ConfigError, match="sampling=balanced needs one label for each example"):
        finetuning.sampled_classes(tagging, replace(data, task=build_task(tagging)))


def test_batches_by_length_hold_every_sample_once(model: Path, tmp_path: Path) -> None:
    tuning = tuning_of("choice", model, tmp_path)
    task = build_task(tuning)
    _, tokenizer, _ = open_with_head(tuning, task)
    features = task.rows(task.examples("dev"), tokenizer, max_length=32)
    sample_ids: list[int] = []
    for numbers, batch in batches_by_length(features, "choose", length=32, padding_id=0, max_tokens=200):
        assert batch.input_ids.numel() <= 400
        assert len(batch.cls_positions) == sum(len(features[number].rows) for number in numbers)
        sample_ids += numbers
    assert sorted(sample_ids) == list(range(len(features)))
    unknown = make_batch([config.dataclasses.replace(features[0], target=None)], "choose", length=32, padding_id=0)
    assert np.all(unknown.labels["choose"].numpy() == IGNORE_INDEX)


def test_dropout_is_that_of_the_model_folder_by_default(model: Path, tmp_path: Path) -> None:
    tuning = tuning_of("classification", model, tmp_path)
    task = build_task(tuning)
    usual, _, _ = open_with_head(tuning, task)
    other, tokenizer, _ = open_with_head(config.override(tuning, ["dropout=0.3"]), task)
    output = usual.encoder.config
    assert other.encoder.config == replace(output, dropout=0.3, attention_dropout=0.3) != output
    blocks = other.encoder.get_submodule("blocks").children()
    assert {0.3} == {share for block in blocks for share in (block.dropout.p, block.attention.dropout)}
    save_model(other, tokenizer, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["hidden_dropout_prob"] == 0.3
    with pytest.raises(ConfigError, match=r"dropout=1.0 must be at least 0 and less than 1"):
        open_with_head(config.override(tuning, ["dropout=1.0"]), task)


def test_random_init_replaces_the_encoder_weights(model: Path, tmp_path: Path) -> None:
    tuning = tuning_of("classification", model, tmp_path)
    task = build_task(tuning)
    known, _, _ = open_with_head(tuning, task)
    fresh, _, notes = open_with_head(config.override(tuning, ["random_init=true"]), task)
    assert not torch.equal(known.encoder.token_embeddings, fresh.encoder.token_embeddings)
    assert torch.equal(
        known.objectives["classify"].get_parameter("head.weight"),
        fresh.objectives["classify"].get_parameter("head.weight"),
    )
    assert "random weights" in notes[-1]


def test_an_awd_lstm_reads_whole_texts_in_batches_as_wide_as_their_longest(tmp_path: Path) -> None:
    texts = ["the smith has iron", "the smith has a thing and it is gold"] * 8 + ["and a thing " * 300]
    rows: list[dict[str, object]] = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(texts)]
    train = write(tmp_path / "train.jsonl", rows)
    settings = make_finetune_config("classification", lm_folder(tmp_path / "m"), {"train": train}, ["batch_size=4"])
    task = build_task(settings)
    model, words, _ = open_with_head(settings, task)
    data = prepare(settings, task, words, positions=model.encoder.max_positions)
    assert (settings.max_length, data.max_length, data.truncated) == (1400, 1400, 1)
    loader = finetuning._make_loader(settings, data, words, World(), static_shape=False)
    widths: list[tuple[int, int]] = []
    model.encoder.lstms[0].register_forward_pre_hook(lambda _, inputs: widths.append(tuple(inputs[0].shape[:2])))
    longest = []
    for step in range(4):
        taken = [data.train[number] for _, number in loader.order.take(4 * step, 4)]
        longest.append((4, max(len(row) for one in taken for row in one.rows)))
        model(model.corrupt(loader.batch(4 * step, 4)))
    assert widths == longest
    assert sum(width < 100 for _, width in widths) >= 3


def test_random_init_has_no_defaults_that_protect_trained_layers(tmp_path: Path) -> None:
    """Gradual unfreezing would leave random layers frozen for a large part of the run; what is set still counts."""
    model = lm_folder(tmp_path / "m")
    trained, *fresh = (
        make_finetune_config("classification", model, {}, changes)
        for changes in ([], ["random_init=true"], ["random_init = false", "random_init = true"], {"random_init": True})
    )
    assert len(trained.unfreeze) == 4
    assert trained.layer_decay == 1 / 2.6
    for one in fresh:
        assert (one.unfreeze, one.layer_decay, one.optimizer) == ((), 1.0, trained.optimizer)
        assert "unfreeze" not in paper_note(one)[0]
    given = ["layer_decay=0.5", "unfreeze=[{after=0, groups=2}]", "random_init=true"]
    chosen = make_finetune_config("classification", model, {}, given)
    assert (chosen.unfreeze, chosen.layer_decay) == ((Unfreeze(after=0, groups=2),), 0.5)
    assert make_finetune_config("classification", model, {}, [*given[2:], "random_init=false"]) == trained


def test_bad_input(model: Path, tmp_path: Path) -> None:
    tuning = tuning_of("classification", model, tmp_path)
    with pytest.raises(ConfigError, match="max_length=99 exceeds the 64 positions"):
        finetune(config.override(tuning, ["max_length=99"]), tmp_path / "r", device="cpu", quiet=True)
    with pytest.raises(DataError, match="pass --train FILE"):
        finetune(make_finetune_config("classification", model, {}, []), tmp_path / "r", device="cpu", quiet=True)
    with pytest.raises(ConfigError, match="do not divide steps of 16"):
        finetune(config.override(tuning, ["micro_batch_size=5"]), tmp_path / "r", device="cpu", quiet=True)
    one = ["finetune", model, "-t", "classification", "-o", tmp_path / "r", "--device", "cpu"]
    process = call(*one, "--learning-rates", "fast")
    assert (process.returncode, "expected positive numbers, such as 2e-5" in process.stderr) == (78, True)
    process = call(*one, "--seeds", "2", "--resume", "never")
    assert (process.returncode, "--resume is for a single run" in process.stderr) == (2, True)
    process = call("finetune", model, "-t", "classificaton", "-o", tmp_path / "r", "--device", "cpu")
    assert (process.returncode, "did you mean classification?" in process.stderr) == (78, True)


@pytest.mark.parametrize("compiles", [True, False])
def test_batches_have_one_shape_where_the_model_is_compiled(
    compiles: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recurrent layers are not: they would go through the padding of every batch."""

    def loader(*_: Any, static_shape: bool, **__: Any) -> FinetuneLoader:
        raise StoppedError(f"static_shape={static_shape}")

    monkeypatch.setattr(Model, "compiles", property(lambda self: compiles))
    monkeypatch.setattr(finetuning, "FinetuneLoader", loader)
    with pytest.raises(StoppedError, match=f"static_shape={compiles}"):
        finetune(tuning_of("classification", model, tmp_path), tmp_path / "run", device="cpu", quiet=True)


@pytest.mark.parametrize(
    ("peak", "compute", "capturable", "expected"),
    [
        (1e15, ComputeConfig(), True, (True, False)),
        (1e10, ComputeConfig(), True, (True, True)),  # enough steps for compilation to pay off
        (1e6, ComputeConfig(), True, (False, None)),  # steps are long
        (1e15, ComputeConfig(), False, (False, None)),
        (1e15, ComputeConfig(cuda_graphs=True), False, (False, None)),
        (1e15, ComputeConfig(compile=False), True, (True, False)),
        (1e15, ComputeConfig(compile=True), True, (True, True)),
        (1e6, ComputeConfig(cuda_graphs=True), True, (True, True)),
        (1e15, ComputeConfig(cuda_graphs=True), True, (True, False)),
        (1e15, ComputeConfig(cuda_graphs=False), True, (False, None)),
    ],
)
def test_cuda_graphs_and_compilation_follow_the_step_time(
    peak: float,
    compute: ComputeConfig,
    capturable: bool,
    expected: tuple[bool, bool | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finetuning, "cached_peak_flops", lambda *given: peak)
    model = Model.build(bert.Config.size("tiny", vocab_size=30), [classify.Config(labels=("a", "b"))])
    how = {"shape": (4, 8, 1), "length": 64, "steps": 10_000, "batch_size": 8}
    here = SimpleNamespace(world=World(device=torch.device("cuda")), micro_batch_size=8, **how)
    results = finetuning.resolve_compute(compute, model, here, capturable=capturable)
    assert (results.cuda_graphs, results.compile) == expected
    here.micro_batch_size = 4  # steps with two forward passes are not replayed
    assert finetuning.resolve_compute(compute, model, here, capturable=capturable).compile == compute.compile
    here.world = World()
    assert finetuning.resolve_compute(compute, model, here, capturable=capturable).cuda_graphs is False
