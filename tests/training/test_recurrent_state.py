"""The state of a stateful encoder: carried from row to row, in checkpoints, undisturbed by evaluation."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from data.packing.packing_fixtures import make_shards, some_documents
from training.column_fixtures import COLUMNS, column_model, column_trainer, packing_of
from training.test_pretrain import losses, stop_after

from bertsmith import recipes
from bertsmith.data.collate import from_packed
from bertsmith.data.shards import Shards
from bertsmith.errors import ConfigError
from bertsmith.training.distributed import World
from bertsmith.training.pretrain import make_trainer, pretrain
from bertsmith.training.pretrain_data import PretrainData, PretrainLoader
from bertsmith.training.recipe import Recipe, with_overrides
from bertsmith.training.signals import StopSignal
from bertsmith.training.trainer import Trainer

SMALL = [
    *("encoder.layers=2", "encoder.width=12", "encoder.hidden=16", "encoder.dropout_scale=1", "max_length=16"),
    *("steps=40", "batch_size=4", "eval_every=10", "eval_rows=16", "save_every=10", "learning_rate=3e-3"),
]


def recipe(*changes: str) -> Recipe:
    return with_overrides(recipes.find("awd_lstm/tiny"), [*SMALL, *changes])


@pytest.fixture(scope="module")
def shard_set(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return make_shards(tmp_path_factory.mktemp("columns") / "set", some_documents(11, documents=60))


def test_windows_with_carried_state_equal_one_long_row(shard_set: Shards) -> None:
    packing, model = packing_of(shard_set), column_model().eval()
    windows = [from_packed(packing.batch(step, batch_size=COLUMNS)) for step in range(5)]
    joined = windows[0].replace(
        input_ids=torch.cat([window.input_ids for window in windows], 1),
        position_ids=torch.cat([window.position_ids for window in windows], 1),
        document_ids=torch.cat([window.document_ids for window in windows], 1),
        max_seqlen=50,
        next_ids=windows[-1].next_ids,
    )
    state, total = None, torch.zeros(())
    with torch.no_grad():
        for window in windows:
            loss = model(model.corrupt(window), state)
            state, total = loss.state, total + loss.sums["causal_lm"]
        long = model(model.corrupt(joined))
    assert int(long.counts["causal_lm"]) == COLUMNS * 50, "every token has a label, also those at row ends"
    assert torch.allclose(total, long.sums["causal_lm"], rtol=1e-6)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(state, long.state, strict=True))


def test_a_row_at_the_start_of_a_column_ignores_the_state(shard_set: Shards) -> None:
    packing, model = packing_of(shard_set), column_model().eval()
    first, later = (from_packed(packing.batch(step, batch_size=COLUMNS)) for step in (0, 1))
    with torch.no_grad():
        state = model(model.corrupt(later)).state
        fresh, given = (model(model.corrupt(first), before).sums["causal_lm"] for before in (None, state))
        assert torch.equal(fresh, given)
        fresh, given = (model(model.corrupt(later), before).sums["causal_lm"] for before in (None, state))
        assert not torch.equal(fresh, given)


def test_a_skipped_step_keeps_the_state(tmp_path: Path) -> None:
    trainer = column_trainer(World(), tmp_path)
    next(trainer)
    before = [tensor.clone() for tensor in trainer.state().recurrent]
    with torch.no_grad():
        trainer.module.objectives["causal_lm"].bias[5] = torch.nan
    assert next(trainer).skipped
    assert all(torch.equal(one, other) for one, other in zip(before, trainer.recurrent_state.gather(), strict=True))


def test_micro_batches_and_evaluation_change_nothing(tmp_path: Path, shard_set: Shards) -> None:
    held_out = [from_packed(packing_of(shard_set).batch(0, batch_size=4))] * 2
    whole, parts = column_trainer(World(), tmp_path / "a"), column_trainer(World(), tmp_path / "b", micro_batch_size=2)
    for _ in range(4):
        expected, step = next(whole), next(parts)
        assert step.loss == pytest.approx(expected.loss, rel=1e-5)
        parts.evaluate(held_out)
    one, other = whole.state().recurrent, parts.state().recurrent
    assert [tensor.shape for tensor in one] == [(8, 12), (8, 12), (8, 8), (8, 8)]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one, other, strict=True))


def test_a_stopped_and_resumed_run_is_bit_identical(shards: Path, tmp_path: Path) -> None:
    """With dropout, penalties and random lengths, over the end of an epoch, evaluated in one of the runs only."""
    changes = ["encoder.dropout_scale=1", "packing.mean_length=12", "steps=24", "batch_size=32"]
    made, uninterrupted = recipe(*changes), tmp_path / "uninterrupted"
    pretrain(recipe(*changes, "eval_every=0"), shards, uninterrupted, device="cpu", quiet=True)
    for steps in (5, 13):
        stop_after(steps, lambda: pretrain(made, shards, tmp_path / "run", device="cpu", quiet=True))
    result = pretrain(made, shards, tmp_path / "run", device="cpu", quiet=True)
    assert losses(tmp_path / "run") == losses(uninterrupted)
    states = [sorted((tmp_path / run).rglob("recurrent_state.safetensors"))[-1] for run in ("run", "uninterrupted")]
    assert states[0].read_bytes() == states[1].read_bytes()
    assert result["tokens"] > Shards.open(shards).tokens, "more than an epoch"


@pytest.mark.slow
def test_a_killed_run_resumes_bit_identically(shards: Path, tmp_path: Path) -> None:
    """SIGKILL at several moments, in processes of their own."""
    (tmp_path / "recipe.json").write_bytes(recipe("packing.mean_length=12", "steps=60", "save_every=7").to_json())
    command = [sys.executable, "-m", "bertsmith", "pretrain", str(tmp_path / "recipe.json"), "--data", str(shards)]
    command += ["--device", "cpu", "-q", "-o"]
    subprocess.run([*command, str(tmp_path / "uninterrupted")], check=True)
    events = tmp_path / "run" / "events.jsonl"
    for after in (4, 19, 38):
        process = subprocess.Popen([*command, str(tmp_path / "run")])
        while process.poll() is None:
            if events.exists() and events.read_text().count('"kind": "step"') >= after:
                process.kill()
            time.sleep(0.01)
        assert process.returncode == -signal.SIGKILL
    subprocess.run([*command, str(tmp_path / "run")], check=True)
    assert losses(tmp_path / "run") == losses(tmp_path / "uninterrupted")
    states = [sorted((tmp_path / run).rglob("recurrent_state.safetensors"))[-1] for run in ("run", "uninterrupted")]
    assert states[0].read_bytes() == states[1].read_bytes()


def test_held_out_text_shorter_than_a_row_gives_no_evaluation(shards: Path) -> None:
    held_out = Shards.open(shards, "held-out")
    length = held_out.tokens + held_out.documents  # with the end token of each document
    data = PretrainData.open(shards)
    assert data.held_out(recipe(f"max_length={length}", "batch_size=1"), World())
    assert data.held_out(recipe(f"max_length={length + 1}", "batch_size=1"), World()) == []


def test_encoder_and_packing_must_fit(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^awd_lstm carries its state from row to row: set packing\.kind=columns$"):
        pretrain(recipe("packing.kind=stream"), shards, tmp_path, device="cpu", quiet=True)
    gpt = with_overrides(recipes.find("gpt/tiny"), ["packing.kind=columns", "max_length=16", "steps=2", "batch_size=4"])
    with pytest.raises(ConfigError, match=r"is for recurrent encoders, not for gpt: set packing\.kind=stream$"):
        pretrain(gpt, shards, tmp_path, device="cpu", quiet=True)
    with pytest.raises(ConfigError, match="batch_size_warmup: the columns"):
        recipe("batch_size_warmup={initial=2, steps=2}")


def trainer_of(made: Recipe, shards: Path) -> Trainer:
    data = PretrainData.open(shards)
    made = data.with_vocabulary(made)
    loader = PretrainLoader(made, data.packing(made), World(), source=data.folder)
    return make_trainer(made, data, loader, World(), StopSignal())


def test_the_token_table_of_a_target_language_model_trains_like_its_head(shards: Path) -> None:
    """fastai's `awd_lstm_lm_split`: an LSTM per group; the tied table is in the last one, with the decoder.

    Adam's first update has the size of the learning rate, whatever the size of the gradient.
    """
    target = with_overrides(
        recipes.find("awd_lstm/target"), [*SMALL, "packing.mean_length=0", "learning_rate=4e-3", "warmup=0"]
    )
    run = trainer_of(target, shards)
    before = {weight.name: weight.tensor.detach().clone() for weight in run.weights}
    next(run)
    moved = {weight.name: (weight.tensor.detach() - before[weight.name]).abs().max().item() for weight in run.weights}
    table, bias = moved.pop("encoder.embeddings.weight"), moved.pop("objectives.causal_lm.bias")
    assert [table, bias] == pytest.approx([4e-3, 4e-3], rel=1e-2)
    for name, value in moved.items():
        below = 2 - int(name.split(".")[2])
        assert value == pytest.approx(4e-3 / 2.6**below, rel=1e-2), name


def test_the_token_table_is_trained_with_the_head_while_layers_are_frozen(shards: Path) -> None:
    run = trainer_of(recipe("unfreeze=[{after=0, groups=1}]"), shards)
    next(run)
    updated = {weight.name for weight in run.weights if weight.tensor.grad is not None}
    assert updated == {"encoder.embeddings.weight", "objectives.causal_lm.bias"}


def test_the_learning_rate_of_a_step_is_scaled_by_the_length_of_its_rows(shards: Path) -> None:
    """Plain gradient descent: the change of a weight divided by its gradient is the learning rate."""
    changes = ["packing.mean_length=12", "learning_rate=0.1", "warmup=0", "schedule.kind=constant_then_decay"]
    plain = ["optimizer.kind=sgd", "compute.max_grad_norm=0"]
    run = trainer_of(recipe(*changes, *plain), shards)
    (matrix,) = (weight for weight in run.weights if weight.name == "encoder.lstms.1.weight_ih")
    lengths = []
    for number in range(8):
        lengths.append(run.batches(number)[0].input_ids.shape[1])
        before = matrix.tensor.detach().clone()
        step = next(run)
        rate = 0.1 * lengths[-1] / 12
        assert step.learning_rate == pytest.approx(rate)
        assert torch.allclose(before - matrix.tensor.detach(), rate * matrix.gradient, rtol=1e-3, atol=1e-7)
    assert len(set(lengths)) > 3
