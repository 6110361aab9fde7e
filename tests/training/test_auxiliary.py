"""Fine-tuning as in GPT-1: an auxiliary language model, pairs in both orders, a learning rate of the heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from finetune_fixtures import tiny_gpt, tiny_model, tuning_of
from threads import threads

from bertsmith.errors import ConfigError
from bertsmith.model_io.model_folder import open_model
from bertsmith.training.finetune import finetune, open_with_head
from bertsmith.training.finetune_data import build_task, make_batch, prepare
from bertsmith.training.log import last_of_each_step, read_events
from bertsmith.types import Batch


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("auxiliary")
    return {"bert": tiny_model(base), "gpt": tiny_gpt(base)}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


def steps(folder: Path) -> list[dict[str, Any]]:
    return last_of_each_step(read_events(folder / "events.jsonl"), "step")


def opened(tuning: Any, size: int = 8) -> tuple[Any, Batch]:
    """The model of a run and a batch of its training data."""
    task = build_task(tuning)
    model, tokenizer, _ = open_with_head(tuning, task)
    data = prepare(tuning, task, tokenizer, positions=64)
    batch = make_batch(data.train[:size], task.objective, length=32, padding_id=tokenizer.padding_id)
    return model, model.corrupt(batch)


@pytest.mark.parametrize(("family", "name"), [("gpt", "causal_lm"), ("bert", "masked_lm")])
def test_weight_0_is_fine_tuning_without_it_bit_for_bit(
    family: str, name: str, models: dict[str, Path], tmp_path: Path
) -> None:
    tuning = replace(tuning_of("classification", models[family], tmp_path, "epochs=1"), auxiliary={})
    weights = {}
    for run, auxiliary in {"none": {}, "zero": {name: 0.0}, "half": {name: 0.5}}.items():
        finetune(replace(tuning, auxiliary=auxiliary), tmp_path / run, device="cpu", quiet=True)
        weights[run] = (tmp_path / run / "last" / "model.safetensors").read_bytes()
    assert weights["none"] == weights["zero"] != weights["half"]
    assert [one["loss"] for one in steps(tmp_path / "none")] == [one["loss"] for one in steps(tmp_path / "zero")]
    losses = [one[f"loss/{name}"] for one in steps(tmp_path / "half")]
    assert losses[-1] < losses[0]
    saved, _, _ = open_model(tmp_path / "half" / "last")
    assert list(saved.objectives) == ["classify"]


def test_the_total_is_the_task_and_half_of_the_language_model(models: dict[str, Path], tmp_path: Path) -> None:
    tuning = tuning_of("classification", models["gpt"], tmp_path, "auxiliary.causal_lm=0.5")
    model, batch = opened(tuning)
    model.eval()
    loss, labels = model(batch), batch.labels["causal_lm"]
    plain = F.cross_entropy(model.predict(batch, "classify"), batch.labels["classify"])
    language = F.cross_entropy(model.predict(batch, "causal_lm"), labels)
    assert loss.mean().item() == pytest.approx((plain + 0.5 * language).item(), rel=1e-5)


def test_with_masked_lm_the_task_reads_uncorrupted_texts(models: dict[str, Path], tmp_path: Path) -> None:
    tuning = tuning_of("classification", models["bert"], tmp_path, "auxiliary.masked_lm=0.5")
    model, batch = opened(tuning, size=32)
    model.eval()
    masked = batch.copies["masked_lm"]
    assert not torch.equal(masked, batch.input_ids)
    loss = model(batch)
    plain = F.cross_entropy(model.predict(batch, "classify"), batch.labels["classify"])
    assert (loss.sums["classify"] / loss.counts["classify"]).item() == pytest.approx(plain.item(), rel=1e-5)
    logits = model.predict(batch.replace(input_ids=masked), "masked_lm")
    expected = F.cross_entropy(logits, batch.labels["masked_lm"])
    assert (loss.sums["masked_lm"] / loss.counts["masked_lm"]).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["regression", "tagging", "qa", "choice"])
def test_every_kind_of_task_takes_an_auxiliary_loss(kind: str, models: dict[str, Path], tmp_path: Path) -> None:
    for family, name in (("gpt", "causal_lm"), ("bert", "masked_lm")):
        model, batch = opened(tuning_of(kind, models[family], tmp_path, f"auxiliary.{name}=0.5"))
        loss = model(batch)
        assert set(loss.sums) >= {name}
        assert len(loss.sums) == 2
        loss.mean().backward()


def test_a_run_with_an_auxiliary_loss_resumes_bit_identically(models: dict[str, Path], tmp_path: Path) -> None:
    tuning = tuning_of("classification", models["bert"], tmp_path, "auxiliary.masked_lm=0.5", "epochs=2")
    finetune(tuning, tmp_path / "whole", device="cpu", quiet=True)
    middle = sorted((tmp_path / "whole" / "checkpoints").iterdir())[0]
    finetune(tuning, tmp_path / "again", device="cpu", quiet=True, resume=str(middle))
    done = int(middle.name.removeprefix("step-"))
    assert [one["loss"] for one in steps(tmp_path / "again")] == [
        one["loss"] for one in steps(tmp_path / "whole")[done:]
    ]


def test_unfitting_auxiliary_objectives_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    for family, name, message in (
        ("bert", "causal_lm", "has a bidirectional encoder: write auxiliary.masked_lm=0.5"),
        ("gpt", "masked_lm", "has a causal encoder: write auxiliary.causal_lm=0.5"),
        ("bert", "next_sentence", "write auxiliary.masked_lm=0.5"),
    ):
        tuning = tuning_of("classification", models[family], tmp_path, f"auxiliary.{name}=0.5")
        with pytest.raises(ConfigError, match=message):
            open_with_head(tuning, build_task(tuning))
    with pytest.raises(ConfigError, match=r"auxiliary\.masked_lm=-1 must be at least 0"):
        tuning_of("classification", models["bert"], tmp_path, "auxiliary.masked_lm=-1")
    tuning = tuning_of("classification", models["bert"], tmp_path, "epochs=0.1")
    finetune(tuning, tmp_path / "run", device="cpu", quiet=True)
    second = replace(tuning, model=str(tmp_path / "run" / "last"), auxiliary={"masked_lm": 0.5})
    with pytest.raises(ConfigError, match=r"has no head masked_lm \(heads: classify\): fine-tune a model that has one"):
        open_with_head(second, build_task(second))
