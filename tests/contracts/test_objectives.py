"""What every objective keeps to. A new file in objectives/ is tested here without being named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_world import VOCABULARY, apart, random_batch, random_rows, shaken
from model_world import config as encoder_config

from bertsmith import config
from bertsmith.batching import collate
from bertsmith.model import Model
from bertsmith.objectives import objective as objectives
from bertsmith.types import NOT_ASKED, Batch, Encoding, Loss

KINDS = config.names(objectives.FOLDER)
LENGTHS = [12, 9, 23, 7, 40, 5, 31, 16, 40, 38, 22, 17]
LABELS = {"next_sentence": [number % 2 for number in range(len(LENGTHS))]}


def build(kind: str, **change: Any) -> Model:
    module = config.find(objectives.FOLDER, kind)
    (cls,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, objectives.Objective) and value.__module__ == module.__name__
    ]
    encoder = encoder_config(causal=cls.causal, dropout=0.0, attention_dropout=0.0)
    return shaken(Model.build(encoder, [module.Config(**change)], vocabulary=VOCABULARY, seed=5)).train()


def batch_of(numbers: list[int], **how: Any) -> Batch:
    """Some of the same twelve texts, whatever else is in the batch."""
    rows = random_rows(LENGTHS)
    labels = {name: [values[number] for number in numbers] for name, values in LABELS.items()}
    return collate([rows[number] for number in numbers], length=40, samples=numbers, labels=labels, **how)


def gradients(model: Model, parts: list[Batch]) -> tuple[dict[str, torch.Tensor], Loss]:
    """Of the mean over all parts, as a trainer takes it: counts first, one division."""
    model.zero_grad()
    hidden = [model.hide(part) for part in parts]
    counts = {name: sum(model.counts(part)[name] for part in hidden) for name in model.objectives}
    losses = [model(part) for part in hidden]
    for loss in losses:
        loss.over(counts).backward()
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, total


@pytest.mark.parametrize("kind", KINDS)
class TestEveryObjective:
    def test_counts_are_what_score_sums(self, kind: str) -> None:
        model = build(kind)
        hidden = model.hide(batch_of(list(range(12)), shape=(14, 15)))
        loss = model(hidden)
        assert set(loss.sums) == set(loss.counts) == set(loss.correct) == set(loss.weights) == set(model.counts(hidden))
        for name, count in model.counts(hidden).items():
            assert int(count) == int(loss.counts[name]) > 0
            assert 0 <= int(loss.correct[name]) <= int(count)
            assert loss.sums[name] > 0

    def test_parts_of_a_batch_give_the_gradient_of_the_whole(self, kind: str) -> None:
        model = build(kind).double()
        whole, loss = gradients(model, [batch_of(list(range(12)))])
        parts, same = gradients(
            model, [batch_of([0, 5, 9]), batch_of([1, 2, 3, 4], pack=True), batch_of([11, 10, 8, 7, 6], shape=(6, 7))]
        )
        assert set(whole) == set(parts)
        for name, gradient in whole.items():
            assert apart(parts[name], gradient) < 1e-9, name
        for name in loss.sums:
            assert same.sums[name].item() == pytest.approx(loss.sums[name].item(), rel=1e-12)
            assert int(same.counts[name]) == int(loss.counts[name])
            assert int(same.correct[name]) == int(loss.correct[name])
        assert same.mean().item() == pytest.approx(loss.mean().item(), rel=1e-12)

    def test_perfect_guesses_cost_nothing_and_bad_ones_much(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model = build(kind)
        objective = model.objectives[kind]
        hidden = model.hide(batch_of(list(range(12))))
        real = model.answer(hidden, kind)
        right = F.one_hot(hidden.labels[kind].clamp(min=0), real.shape[1]) * 50.0
        encoding = Encoding(top=torch.zeros(1, 32), reads={})
        for logits, correct, cost in ((right, 1.0, 0.0), (right.roll(1, dims=1), 0.0, 50.0)):
            monkeypatch.setattr(objective, "answer", lambda *_, logits=logits: logits)
            loss = objective.score(encoding, hidden, model.encoder.table)
            assert loss.mean().item() == pytest.approx(cost, abs=1e-4)
            assert int(loss.correct[kind]) == correct * int(loss.counts[kind])

    def test_hiding_is_seeded_and_spares_special_tokens(self, kind: str) -> None:
        model, batch = build(kind), batch_of(list(range(12)))
        hidden, again = model.hide(batch), model.hide(batch)
        assert torch.equal(hidden.ids, again.ids)
        assert torch.equal(hidden.labels[kind], again.labels[kind])
        assert torch.equal(hidden.ids[batch.special], batch.ids[batch.special])
        for field in dataclasses.fields(batch):
            if isinstance(before := getattr(batch, field.name), torch.Tensor) and field.name != "ids":
                assert torch.equal(getattr(hidden, field.name), before), field.name
        assert batch.labels == {"next_sentence": batch.labels["next_sentence"]}, "the batch itself is as it was"

    def test_shapes_do_not_depend_on_values(self, kind: str) -> None:
        model = build(kind)
        one = model.hide(random_batch([40] * 6, length=40, seed=1))
        other = model.hide(random_batch([5, 9, 33, 12, 5, 40], length=40, seed=2))
        assert one.labels[kind].shape == other.labels[kind].shape
        assert {name: places.shape for name, places in one.places.items()} == {
            name: places.shape for name, places in other.places.items()
        }

    def test_a_weight_weighs(self, kind: str) -> None:
        light, heavy = build(kind), build(kind, weight=3.0)
        batch = batch_of(list(range(12)))
        assert heavy(heavy.hide(batch)).mean().item() == pytest.approx(
            3 * light(light.hide(batch)).mean().item(), rel=1e-5
        )

    def test_nothing_asked_is_no_division_by_zero(self, kind: str) -> None:
        model = build(kind)
        hidden = model.hide(batch_of([0, 1]))
        loss = model(hidden.replace(labels={kind: torch.full_like(hidden.labels[kind], NOT_ASKED)}))
        assert loss.mean().item() == 0

    def test_hide_forward_and_score_compile_whole(self, kind: str) -> None:
        model = build(kind).eval()

        def step(batch: Batch) -> tuple[torch.Tensor, Loss]:
            hidden = model.hide(batch)
            return model.counts(hidden)[kind], model(hidden)

        compiled = torch.compile(step, fullgraph=True, backend="eager")
        batch = batch_of(list(range(12)), pack=True)
        count, loss = compiled(batch)
        assert int(count) == int(model.counts(model.hide(batch))[kind])
        assert loss.mean().item() == pytest.approx(model(model.hide(batch)).mean().item(), rel=1e-6)


def test_the_three_of_bert_are_among_them() -> None:
    assert {"masked_lm", "next_sentence", "causal_lm"} <= set(KINDS)
