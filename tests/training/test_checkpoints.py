"""Checkpoints: contents, retention and selection; a resumed run equals an uninterrupted one."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import pretraining_model
from training.test_trainer import bert_feed
from training.training_fixtures import same, snapshot, trainer

from bertsmith import config
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.training import optimizers
from bertsmith.training.checkpoints import Checkpoint, Checkpoints, TrainingState
from bertsmith.training.plan import TrainingPlan, Unfreeze
from bertsmith.training.trainer import Trainer


def state(step: int, **changes: Any) -> TrainingState:
    tensors = {"a": torch.full((3, 2), float(step)), "b": torch.arange(step, step + 4)}
    progress = {"step": step, "seconds": 1.5, "tokens": 10 * step}
    return TrainingState(
        **{"weights": tensors, "optimizer": {"first/a": torch.ones(3, 2)}, "progress": progress, **changes}
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


UNFREEZING = TrainingPlan(
    steps=8,
    learning_rate=1e-2,
    warmup=2 / 8,
    layer_decay=0.9,
    unfreeze=(Unfreeze(after=0, groups=2), Unfreeze(after=3 / 8, groups=9)),
)


def bert_run(kind: str) -> Trainer:
    """BERT with dropout, two micro-batches per step and gradual unfreezing."""
    model = pretraining_model(layers=2, dropout=0.1, attention_dropout=0.1)
    settings = config.find_kind(optimizers.FOLDER, kind).Config()
    return Trainer(model, bert_feed(4, rows=8), plan=UNFREEZING, optimizer=settings, seed=3)


@pytest.mark.parametrize("kind", config.kinds(optimizers.FOLDER))
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path: Path, kind: str) -> None:
    uninterrupted = bert_run(kind)
    losses = [step.loss.hex() for step in uninterrupted]
    begun, first_losses = bert_run(kind), []
    with Checkpoints(tmp_path) as checkpoints:
        for step in begun:
            first_losses.append(step.loss.hex())
            if step.number in (2, 5):  # before and after unfreezing
                checkpoints.save(begun.state())
            if step.number == 6:
                break  # progress since the checkpoint is discarded
    for number, at in ((5, None), (2, "step-00000005")):
        if at:
            damage(tmp_path / "checkpoints" / at / "weights.safetensors")
        torch.manual_seed(99)
        continued = bert_run(kind)
        with Checkpoints(tmp_path) as checkpoints:
            resumed = checkpoints.resume()
            assert continued.load(resumed.state) == ()
        assert continued.steps_done == number
        assert [*first_losses[:number], *(step.loss.hex() for step in continued)] == losses
        assert same(continued.module.state_dict(), uninterrupted.module.state_dict())
        assert same(continued.optimizer.state(), uninterrupted.optimizer.state())
        assert continued.state().progress["tokens"] == uninterrupted.state().progress["tokens"]


def test_without_the_optimizer_state_a_resumed_run_differs() -> None:
    """The test above can fail: a checkpoint without moments gives different losses."""
    uninterrupted, begun = bert_run("adamw"), bert_run("adamw")
    losses = [step.loss.hex() for step in uninterrupted]
    for step in begun:
        if step.number == 5:
            break
    continued, kept = bert_run("adamw"), begun.state()
    continued.load(TrainingState(kept.weights, {}, kept.progress, kept.environment))
    assert [step.loss.hex() for step in continued] != losses[5:]


def test_environment_differences_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = trainer()
    next(begun)
    kept = begun.state()
    notes = trainer().load(
        TrainingState(kept.weights, kept.optimizer, kept.progress, {**kept.environment, "threads": 77})
    )
    assert notes == (f"threads was 77, now {torch.get_num_threads()}",)
    assert {"torch", "device", "threads", "ranks", "onednn"} <= kept.environment.keys()
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", not kept.environment["onednn"])
    notes = trainer().load(kept)
    assert notes == (f"onednn was {kept.environment['onednn']}, now {not kept.environment['onednn']}",)
    with pytest.raises(DataError, match=r"belongs to another model: heads.long.bias is in only one"):
        trainer().load(
            TrainingState(
                {name: value for name, value in kept.weights.items() if name != "heads.long.bias"}, {}, kept.progress
            )
        )


def test_a_checkpoint_is_complete_and_deterministic(tmp_path: Path) -> None:
    begun = trainer()
    next(begun)
    files = {"recipe.json": b"{}", "vocab.txt": b"a\nb\n"}
    contents = []
    for run in ("one", "two"):
        with Checkpoints(tmp_path / run, files=files, facts={"tokenizer": "3f9a"}) as checkpoints:
            path = checkpoints.save(begun.state())
            resumed = checkpoints.resume()
        assert resumed.state is not None
        assert same(resumed.state.weights, begun.module.state_dict())
        assert same(resumed.state.optimizer, begun.optimizer.state())
        assert resumed.state.progress == begun.state().progress
        assert resumed.checkpoint is not None
        assert resumed.checkpoint.facts == {"tokenizer": "3f9a"}
        assert resumed.checkpoint.read("vocab.txt") == b"a\nb\n"
        contents.append({file.name: file.read_bytes() for file in path.iterdir()})
    assert path.name == "step-00000001"
    assert contents[0] == contents[1]
    assert sorted(contents[0]) == [
        "manifest.json",
        "optimizer.safetensors",
        "progress.json",
        "recipe.json",
        "vocab.txt",
        "weights.safetensors",
    ]
    manifest = json.loads(contents[0]["manifest.json"])
    assert set(manifest["files"]) == set(contents[0]) - {"manifest.json"}
    assert manifest["made_with"]["threads"] == torch.get_num_threads()


def test_non_finite_states_are_never_saved(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(1))
        for wrong in (
            {"weights": {"a": torch.tensor([1.0, torch.nan])}},
            {"optimizer": {"m": torch.tensor(torch.inf)}},
        ):
            with pytest.raises(BertsmithError, match="is not finite after step 2: nothing was saved"):
                checkpoints.save(state(2, **wrong))
        assert names(checkpoints.folder) == ["step-00000001"]


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.training.checkpoints.FORMAT", 2)
    with Checkpoints(tmp_path) as checkpoints:
        path = checkpoints.save(state(1))
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"manifest.json: format 2 is not supported by this version"):
        Checkpoint(path)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        assert checkpoints.resume().state is None
        for step in (5, 10, 99_999_999, 100_000_000, 100_000_001):
            checkpoints.save(state(step))
        assert [int(path.name.split("-")[1]) for path in checkpoints.all()] == [99_999_999, 100_000_000, 100_000_001]
        assert checkpoints.resume().state.step == 100_000_001
    with pytest.raises(ConfigError, match="keep_checkpoints=1 must be at least 2"):
        Checkpoints(tmp_path, keep=1)


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "progress.json", "manifest.json"])
def test_a_damaged_checkpoint_is_skipped_and_reported(tmp_path: Path, name: str) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(state(step))
    damage(tmp_path / "checkpoints/step-00000002" / name)
    with Checkpoints(tmp_path) as checkpoints:
        resumed = checkpoints.resume()
        assert resumed.state.step == 1
        assert len(resumed.skipped) == 1
        assert resumed.skipped[0].startswith("step-00000002 was skipped: ")
        assert name in resumed.skipped[0]
        checkpoints.save(state(2))  # the run reaches it again
        assert checkpoints.resume().state.step == 2
    (tmp_path / "checkpoints/step-00000001" / name).unlink()
    damage(tmp_path / "checkpoints/step-00000002" / name)
    with (
        Checkpoints(tmp_path) as checkpoints,
        pytest.raises(DataError, match=r"no checkpoint in .* can be resumed"),
    ):
        checkpoints.resume()


def test_damaged_checkpoints_do_not_count_among_those_kept(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=4) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(state(step))
    damage(tmp_path / "checkpoints/step-00000003/progress.json")
    damage(tmp_path / "checkpoints/step-00000002/progress.json")
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(4))
        assert [path.name[-1] for path in checkpoints.all()] == ["1", "2", "3", "4"]
        checkpoints.save(state(5))
        assert [path.name[-1] for path in checkpoints.all()] == ["4", "5"]
    damage(tmp_path / "checkpoints/step-00000005/progress.json")
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(6))
        assert [path.name[-1] for path in checkpoints.all()] == ["4", "5", "6"]


def test_checkpoints_after_the_one_resumed_from_are_removed(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        for step in (10, 20, 30):
            checkpoints.save(state(step))
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        Checkpoint(checkpoints.all()[0]).state()  # of step 10, by name
        checkpoints.save(state(20, optimizer={"first/a": torch.full((3, 2), 7.0)}))
        assert [path.name[-2:] for path in checkpoints.all()] == ["10", "20"]
        assert float(checkpoints.resume().state.optimizer["first/a"][0, 0]) == 7.0


def test_a_step_is_saved_once(tmp_path: Path) -> None:
    """At the end of a run, or when stopped right after a checkpoint, it is not written again."""
    with Checkpoints(tmp_path) as checkpoints:
        path = checkpoints.save(state(1))
        before = (path / "manifest.json").stat().st_ino
        assert checkpoints.save(state(1)) == path
        assert (path / "manifest.json").stat().st_ino == before


def test_temporary_folders_are_removed_and_other_files_kept(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(1))
        (checkpoints.folder / "step-00000002.partial" / "deep").mkdir(parents=True)
        (checkpoints.folder / "step-00000002.partial" / "deep" / "x").write_text("half")
        (checkpoints.folder / "notes.txt").write_text("mine")
    with Checkpoints(tmp_path) as checkpoints:
        assert names(checkpoints.folder) == ["notes.txt", "step-00000001"]


def _second(run: Path, messages: Any) -> None:
    try:
        with Checkpoints(run):
            messages.put("opened")
    except BertsmithError as error:
        messages.put(str(error))


def test_a_second_trainer_is_refused(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    messages = context.Queue()
    with Checkpoints(tmp_path) as checkpoints:
        (checkpoints.folder / "step-00000002.partial").mkdir()  # belongs to the first: the second must not remove it
        child = context.Process(target=_second, args=(tmp_path, messages))
        child.start()
        assert f"another process is using {tmp_path}" in messages.get(timeout=20)
        child.join()
        assert names(checkpoints.folder) == ["step-00000002.partial"]
    child = context.Process(target=_second, args=(tmp_path, messages))
    child.start()
    assert messages.get(timeout=20) == "opened"
    child.join()


def test_a_saved_state_is_not_changed_by_later_steps() -> None:
    """A state holds the trainer's own tensors: tests must copy it."""
    begun = trainer()
    next(begun), next(begun)
    kept, copied = begun.state().weights, snapshot(begun.state().weights)
    next(begun)
    assert same(kept, begun.module.state_dict())
    assert not same(copied, kept)
