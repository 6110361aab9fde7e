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

import bertsmith as bs
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.export.graph import OnnxModule
from bertsmith.model_io.model_folder import open_model
from bertsmith.training.finetune import finetune, open_with_head, paper_note
from bertsmith.training.finetune_data import build_task, prepare
from bertsmith.training.finetune_loader import make_batch
from bertsmith.training.log import last_of_each_step, read_events
from bertsmith.training.recipe import make_finetune_config
from bertsmith.types import IGNORE_INDEX, Batch

MARKS = {1: "start", 2: "delimiter", 3: "classify"}


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


def test_pairs_in_both_orders_have_equal_logits_from_the_sum_of_both(models: dict[str, Path], tmp_path: Path) -> None:
    tuning = tuning_of("pairs", models["gpt"], tmp_path, "epochs=1", "head.both_orders=true")
    model, batch = opened(tuning)
    model.eval()
    assert batch.labels["classify"].tolist()[1::2] == [IGNORE_INDEX] * 8
    logits, head = model.predict(batch, "classify"), model.objectives["classify"]
    hidden = model.encoder(batch).last_hidden[head.indices(batch)]
    expected = head.head(hidden.view(8, 2, -1).sum(1))
    assert torch.allclose(logits[::2], expected, atol=1e-5)
    assert torch.equal(logits[::2], logits[1::2])
    ends, ids = zip(batch.cls_positions.tolist(), head.indices(batch).tolist(), strict=True), batch.input_ids.flatten()
    first, second, *_ = (ids[begin : last + 1].tolist() for begin, last in ends)
    assert sorted(first) == sorted(second)
    assert first != second


def test_a_model_that_reads_both_orders_predicts_the_same_for_either(models: dict[str, Path], tmp_path: Path) -> None:
    tuning = tuning_of("pairs", models["gpt"], tmp_path, "epochs=2", "head.both_orders=true")
    results = finetune(tuning, tmp_path / "run", device="cpu", quiet=True)
    predictor = bs.load(tmp_path / "run", device="cpu")
    pairs = [("the smith has red iron", "it is iron"), ("the smith has " + "red gold and " * 40, "it is iron")]
    there = predictor.predict(pairs)
    back = predictor.predict([pair[::-1] for pair in pairs])
    assert [one["score"] for one in there] == pytest.approx([one["score"] for one in back], abs=1e-6)
    assert there[1]["windows"] > 1
    scored = bs.evaluate(tmp_path / "run", device="cpu", quiet=True)
    assert scored.scores["accuracy"] == results["score/accuracy"]
    with pytest.raises(BertsmithError, match="text 0: the model was fine-tuned on pairs of texts"):
        predictor.predict("one text")
    with pytest.raises(BertsmithError, match="both orders"):
        OnnxModule(predictor.model)
    with pytest.raises(DataError, match=r"train.jsonl:1: head.both_orders=true needs two texts"):
        opened(tuning_of("classification", models["gpt"], tmp_path, "head.both_orders=true"))


def test_a_gpt_has_the_settings_of_its_paper_unless_others_are_given(models: dict[str, Path], tmp_path: Path) -> None:
    tuning = make_finetune_config("glue/mrpc", models["gpt"], {}, [])
    assert (tuning.learning_rate, tuning.warmup, tuning.schedule.kind) == (6.25e-5, 0.002, "product")
    assert (tuning.auxiliary, tuning.batch_size, tuning.epochs) == ({"causal_lm": 0.5}, 32, 3)
    paper = "defaults of this encoder: learning_rate=6.25e-5 warmup=0.002 schedule.kind=product"
    assert paper_note(tuning) == [f"{paper} auxiliary.causal_lm=0.5"]
    own = make_finetune_config("glue/mrpc", models["gpt"], {}, ["lr=1e-4", "auxiliary.causal_lm=0"])
    assert (own.learning_rate, own.auxiliary_weights, own.warmup) == (1e-4, {}, 0.002)
    assert make_finetune_config("glue/mrpc", models["bert"], {}, []).learning_rate == 5e-5
    head: dict[str, Any] = {}
    for family in models:
        task = build_task(make_finetune_config("glue/mrpc", models[family], {}, []))
        model, _, _ = open_with_head(make_finetune_config("glue/mrpc", models[family], {}, []), task)
        head[family] = model.objectives["classify"].config.both_orders
    assert head == {"bert": False, "gpt": True}


def test_heads_may_have_a_learning_rate_of_their_own(models: dict[str, Path], tmp_path: Path) -> None:
    tuning = tuning_of("classification", models["bert"], tmp_path, "epochs=1", "learning_rate=0", "warmup=0")
    finetune(replace(tuning, head_learning_rate=1e-2), tmp_path / "run", device="cpu", quiet=True)
    before, _, _ = open_with_head(tuning, build_task(tuning))
    after, _, _ = open_model(tmp_path / "run" / "last")
    same = {name: torch.equal(value, after.state_dict()[name]) for name, value in before.state_dict().items()}
    assert {name for name in same if not same[name]} == {
        "objectives.classify.head.weight",
        "objectives.classify.head.bias",
    }
    with pytest.raises(ConfigError, match="head_learning_rate=-1 must be at least 0"):
        replace(tuning, head_learning_rate=-1.0)


def test_rows_of_a_gpt_have_the_layouts_of_its_paper(models: dict[str, Path], tmp_path: Path) -> None:
    layouts = {"classification": [1, 3], "pairs": [1, 2, 3], "choice": [1, 2, 3]}
    for kind, layout in layouts.items():
        tuning = tuning_of(kind, models["gpt"], tmp_path)
        model, batch = opened(tuning)
        tokenizer = open_model(models["gpt"])[1]
        marks = {tokenizer.token_to_id(f"_{name}_"): number for number, name in MARKS.items()}
        head = model.objectives[build_task(tuning).objective]
        ids, ends = batch.input_ids.flatten(), head.indices(batch).tolist()
        for begin, last in zip(batch.cls_positions.tolist(), ends, strict=True):
            assert [marks[one] for one in ids[begin : last + 1].tolist() if one in marks] == layout
            assert marks[int(ids[begin])] == 1
            assert marks[int(ids[last])] == 3
