"""The contract of every objective. A new file in objectives/ is tested here automatically."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import SIZE, VOCABULARY, random_labels, random_rows, randomize_weights
from model_fixtures import small_bert_config as encoder_config

from bertsmith import config
from bertsmith.data.collate import collate
from bertsmith.encoders import elmo, seq2seq
from bertsmith.model_io.model import Model
from bertsmith.objectives import objective as objectives
from bertsmith.objectives import skip_gram
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss

KINDS = config.kinds(objectives.FOLDER)
LENGTHS = [12, 9, 23, 7, 40, 5, 31, 16, 40, 38, 22, 17]
LABELS, PLACES = random_labels(random_rows(LENGTHS))  # choices 0 1, 2 3 4, 5 6, 7 8 9 and 10 11 belong together


def build(kind: str, **change: Any) -> Model:
    module = config.find_kind(objectives.FOLDER, kind)
    (cls,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, objectives.Objective) and value.__module__ == module.__name__
    ]
    encoder: Any = encoder_config(causal=cls.causal, dropout=0.0, attention_dropout=0.0)
    if cls.reads_target:
        encoder = seq2seq.Config(layers=2, width=32, heads=4, vocab_size=SIZE, max_positions=40, dropout=0.0)
    if cls.separate_directions:
        encoder = elmo.Config(width=8, hidden=12, filters=((1, 4), (2, 8)), max_positions=40, dropout=0.0)
    fields = {field.name for field in dataclasses.fields(module.Config)}
    change = {**dict.fromkeys({"dropout", "label_smoothing"} & fields, 0.0), **change}
    return randomize_weights(Model.build(encoder, [module.Config(**change)], vocabulary=VOCABULARY, seed=5)).train()


def batch_of(numbers: list[int], **how: Any) -> Batch:
    """Some of the same twelve texts, independent of the rest of the batch."""
    rows = random_rows(LENGTHS)
    labels, positions = (
        {name: [values[number] for number in numbers] for name, values in table.items()} for table in (LABELS, PLACES)
    )
    some = [rows[number] for number in numbers]
    return with_target(collate(some, length=40, sample_ids=numbers, labels=labels, indices=positions, **how))


def with_target(batch: Batch) -> Batch:
    """The batch with its own texts as targets."""
    return batch.replace(target=batch.replace(labels={}, indices={}))


def nothing(labels: torch.Tensor) -> torch.Tensor:
    return torch.full_like(labels, math.nan if labels.is_floating_point() else IGNORE_INDEX)


def guesses(
    objective: objectives.Objective, labels: torch.Tensor, real: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Perfect logits for all labels, and wrong ones with a loss of about 50."""
    if isinstance(objective, skip_gram.SkipGram):  # the first columns are pairs, the others noise
        right = torch.where(torch.arange(real.shape[1]) < objective.columns, 50.0, -50.0).expand_as(real)
        return right, -right
    if labels.is_floating_point() and labels.ndim == 2:  # labels of their own
        return labels * 100 - 50, 50 - labels * 100
    if labels.is_floating_point():  # numbers
        return labels[:, None], labels[:, None] + 50**0.5
    if real.shape[1] == 1:  # texts that compete
        return (labels == 0)[:, None] * 50.0, (labels != 0)[:, None] * 50.0
    choices = real.shape[1]
    right = F.one_hot(labels.clamp(min=0), choices) * 50.0
    right = right if labels.ndim == 1 else right.transpose(1, 2)
    return right, right.roll(1, dims=1)


def gradients(model: Model, parts: list[Batch]) -> tuple[dict[str, torch.Tensor], Loss]:
    """Gradients of the mean over all objectives, as in the trainer: counts first, one division."""
    model.zero_grad()
    corrupted = [model.corrupt(part) for part in parts]
    counts = {name: sum(model.counts(part)[name] for part in corrupted) for name in model.counts(corrupted[0])}
    losses = [model(part) for part in corrupted]
    for loss in losses:
        loss.total(counts).backward()
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, total


@pytest.mark.parametrize("kind", KINDS)
class TestEveryObjective:
    def test_counts_are_those_of_the_loss(self, kind: str) -> None:
        model = build(kind)
        corrupted = model.corrupt(batch_of(list(range(12)), shape=(14, 15)))
        loss = model(corrupted)
        assert (
            set(loss.sums) == set(loss.counts) == set(loss.weights) == set(model.counts(corrupted)) >= set(loss.correct)
        )
        for name, count in model.counts(corrupted).items():
            assert int(count) == int(loss.counts[name]) > 0
            assert 0 <= int(loss.correct.get(name, 0)) <= int(count)
            assert loss.sums[name] > 0

    def test_micro_batches_give_the_gradient_of_the_batch(self, kind: str) -> None:
        model = build(kind).double()
        whole, loss = gradients(model, [batch_of(list(range(12)))])
        parts, same = gradients(
            model, [batch_of([7, 8, 9, 0, 1]), batch_of([10, 11, 5, 6], pack=True), batch_of([2, 3, 4], shape=(6, 7))]
        )
        assert set(whole) == set(parts)
        for name, gradient in whole.items():
            # a shift common to all choices has no effect: such gradients are zero up to rounding
            assert torch.allclose(parts[name], gradient, rtol=0, atol=1e-9 * gradient.abs().max().item() + 1e-15), name
        for name in loss.sums:
            assert same.sums[name].item() == pytest.approx(loss.sums[name].item(), rel=1e-12)
            assert int(same.counts[name]) == int(loss.counts[name])
            assert name not in loss.correct or int(same.correct[name]) == int(loss.correct[name])
        assert same.mean().item() == pytest.approx(loss.mean().item(), rel=1e-12)

    def test_correct_logits_have_no_loss_and_wrong_ones_have_much(
        self, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = build(kind)
        objective = model.objectives[kind]
        corrupted = model.corrupt(batch_of(list(range(12))))
        real = model.predict(corrupted, kind)
        right, wrong = guesses(objective, corrupted.labels[kind], real)
        encoding = Encoding(last_hidden=torch.zeros(1, 32), selections={}, target=Encoding(torch.zeros(1, 32), {}))
        for logits, correct, cost in ((right, 1.0, 0.0), (wrong, 0.0, 50.0)):
            for name in {"predict", "logits"} & {*dir(objective)}:  # a language model's loss calls the second
                monkeypatch.setattr(objective, name, lambda *_, logits=logits: logits)
            loss = objective.loss(encoding, corrupted, model.encoder.token_embeddings)
            assert (loss.sums[kind] / loss.counts[kind]).item() == pytest.approx(cost, abs=0.02 * cost + 1e-4)
            assert kind not in loss.correct or int(loss.correct[kind]) == correct * int(loss.counts[kind])

    def test_corruption_is_seeded_and_spares_special_tokens(self, kind: str) -> None:
        model, batch = build(kind), batch_of(list(range(12)))
        corrupted, repeated = model.corrupt(batch), model.corrupt(batch)
        assert torch.equal(corrupted.input_ids, repeated.input_ids)
        assert torch.equal(corrupted.labels[kind], repeated.labels[kind])
        assert torch.equal(corrupted.input_ids[batch.special_mask], batch.input_ids[batch.special_mask])
        for field in dataclasses.fields(batch):
            if isinstance(before := getattr(batch, field.name), torch.Tensor) and field.name != "input_ids":
                assert torch.equal(getattr(corrupted, field.name), before), field.name
        assert set(batch.labels) == set(LABELS), "the batch itself is unchanged"

    def test_shapes_do_not_depend_on_values(self, kind: str) -> None:
        model = build(kind)
        batches = []
        for lengths in ([40] * 6, [5, 9, 33, 12, 5, 40]):
            rows = random_rows(lengths)
            labels, positions = random_labels(rows)
            how: dict[str, Any] = {"shape": (6, 6), "labels": labels, "indices": positions}
            batches.append(model.corrupt(with_target(collate(rows, length=40, **how))))
        one, other = batches
        assert one.labels[kind].shape == other.labels[kind].shape
        assert {name: positions.shape for name, positions in one.indices.items()} == {
            name: positions.shape for name, positions in other.indices.items()
        }

    def test_the_weight_scales_the_loss(self, kind: str) -> None:
        light, heavy = build(kind), build(kind, weight=3.0)
        batch = batch_of(list(range(12)))
        assert heavy(heavy.corrupt(batch)).mean().item() == pytest.approx(
            3 * light(light.corrupt(batch)).mean().item(), rel=1e-5
        )

    def test_a_batch_without_labels_has_zero_loss(self, kind: str) -> None:
        model = build(kind)
        corrupted = model.corrupt(batch_of([0, 1]))
        loss = model(corrupted.replace(labels={name: nothing(labels) for name, labels in corrupted.labels.items()}))
        assert loss.mean().item() == 0

    def test_corrupt_and_forward_compile_to_one_graph(self, kind: str) -> None:
        model = build(kind).eval()
        if not model.compiles:
            pytest.skip("its encoder declares that it does not compile")

        def step(batch: Batch) -> tuple[torch.Tensor, Loss]:
            corrupted = model.corrupt(batch)
            return model.counts(corrupted)[kind], model(corrupted)

        torch.compiler.reset()  # objectives share code, and torch limits recompilations of the same code
        compiled = torch.compile(step, fullgraph=True, backend="eager")
        batch = batch_of(list(range(12)), pack=True)
        count, loss = compiled(batch)
        assert int(count) == int(model.counts(model.corrupt(batch))[kind])
        assert loss.mean().item() == pytest.approx(model(model.corrupt(batch)).mean().item(), rel=1e-6)


def test_berts_objectives_are_included() -> None:
    assert {"masked_lm", "next_sentence", "causal_lm"} <= set(KINDS)
