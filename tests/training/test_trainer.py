"""The trainer: counts labels before dividing, clips, skips non-finite steps, freezes groups, stops on request."""

from __future__ import annotations

import itertools
import math
import os
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from model_fixtures import (
    SIZE,
    VOCABULARY,
    pretraining_model,
    random_batch,
    random_rows,
    relative_difference,
    small_bert_config,
)
from training.training_fixtures import ROWS, Toy, feed, same, snapshot, toy_batch, trainer

from bertsmith.data.collate import collate
from bertsmith.encoders import awd_lstm, elmo, seq2seq_lstm
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.model import Model
from bertsmith.objectives import classify
from bertsmith.training.distributed import World
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adamw, bert_adam
from bertsmith.training.plan import Schedule, TrainingPlan, Unfreeze
from bertsmith.training.signals import StopSignal
from bertsmith.training.step import DeviceValues, Diverged, Step
from bertsmith.training.trainer import Trainer
from bertsmith.types import Batch, Loss

LEVEL = TrainingPlan(steps=12, learning_rate=0.05, schedule=Schedule("constant_then_decay"))


def bert_feed(micro_batch_size: int, rows: int = 32) -> Any:
    """`rows` rows per step in micro-batches for a real model; a third has no next-sentence label."""

    def of_step(step: int) -> Sequence[Batch]:
        chance = np.random.default_rng(step)
        texts = random_rows(chance.integers(5, 41, rows).tolist(), seed=step)
        labels = np.where(chance.random(rows) < 0.3, -100, chance.integers(0, 2, rows))
        return [
            collate(
                texts[begin : begin + micro_batch_size],
                length=40,
                sample_ids=range(step * rows + begin, step * rows + begin + micro_batch_size),
                labels={"next_sentence": labels[begin : begin + micro_batch_size].tolist()},
            )
            for begin in range(0, rows, micro_batch_size)
        ]

    return of_step


def bert_trainer(micro_batch_size: int, model: Model | None = None, **how: Any) -> Trainer:
    run = model or pretraining_model(layers=2, dropout=0.0, attention_dropout=0.0)
    plan = TrainingPlan(steps=3, learning_rate=1e-3, schedule=Schedule("constant_then_decay"))
    return Trainer(run, bert_feed(micro_batch_size), plan=plan, optimizer=bert_adam.Config(), **how)


def test_four_micro_batches_of_eight_equal_one_of_thirty_two() -> None:
    whole, parts = bert_trainer(32), bert_trainer(8)
    for step, other in zip(whole, parts, strict=True):
        assert (step.number, step.rows, step.tokens) == (other.number, other.rows, other.tokens)
        assert step.scores.counts == other.scores.counts
        assert step.scores.accuracies == pytest.approx(other.scores.accuracies, abs=1e-2)
        assert step.loss == pytest.approx(other.loss, rel=1e-5)
        assert step.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-5)
        for one, two in zip(whole.weights, parts.weights, strict=True):
            if "qkv.bias" not in one.name:  # a third of its gradient is 0 up to rounding
                assert relative_difference(two.tensor.grad, one.tensor.grad) < 1e-4, one.name
    moved = max(
        relative_difference(one.tensor, two)
        for one, two in zip(whole.weights, pretraining_model(layers=2).parameters(), strict=True)
    )
    assert moved > 1e-3
    for one, two in zip(whole.weights, parts.weights, strict=True):
        assert float((one.tensor - two.tensor).detach().abs().max()) < 1e-5, one.name


def test_the_loss_is_the_mean_over_all_labels_not_a_mean_of_means() -> None:
    """The toy's micro-batches have different label counts, so dividing each by its own count would differ."""
    whole, parts = trainer(), trainer(feed=feed(micro_batch_size=2))
    one, two = next(whole), next(parts)
    wrong = np.mean(
        [Toy()(Toy().corrupt(toy_batch(0, slice(begin, begin + 2)))).mean().item() for begin in range(0, ROWS, 2)]
    )
    assert one.loss == pytest.approx(two.loss, rel=1e-6)
    assert abs(wrong - one.loss) > 1e-3
    for own, other in zip(whole.weights, parts.weights, strict=True):
        assert torch.allclose(own.tensor.grad, other.tensor.grad, atol=1e-6)


def test_a_step_has_its_metrics() -> None:
    run = trainer(feed=feed(micro_batch_size=4), plan=TrainingPlan(steps=4, learning_rate=0.5, warmup=0.5))
    expected = Toy()(Toy().corrupt(toy_batch(0)))
    first = next(run)
    assert first.loss == pytest.approx(expected.mean().item(), rel=1e-6)
    for part, total in expected.sums.items():
        count = int(expected.counts[part])
        assert first.scores.counts[part] == count
        assert first.scores.losses[part] == pytest.approx(total.item() / count, rel=1e-6)
        assert first.scores.accuracies[part] == pytest.approx(expected.correct[part].item() / count)
    expected.mean().backward()
    assert (first.number, first.learning_rate, first.rows) == (1, 0.0, ROWS)
    assert first.tokens == int((toy_batch(0).document_ids != 0).sum())
    assert not first.skipped
    assert first.seconds > 0
    rest = list(run)
    assert [step.number for step in rest] == [2, 3, 4]
    assert [step.learning_rate for step in rest] == [0.25, 0.5, 0.25]
    assert run.steps_done == 4
    assert {
        "step",
        "loss",
        "loss/word",
        "accuracy/long",
        "gradient_norm",
        "learning_rate",
        "tokens",
    } <= first.metrics().keys()
    assert run.state().progress["tokens"] == sum(step.tokens for step in [first, *rest])


def test_seconds_are_measured_by_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        """A fake device event at a time in milliseconds, available after synchronization."""

        def __init__(self, moment: float) -> None:
            self.moment, self.waited = moment, False

        def synchronize(self) -> None:
            self.waited = True

        def elapsed_time(self, other: Event) -> float:
            assert other.waited
            return other.moment - self.moment

    plain = DeviceValues(("word",), torch.zeros(1))
    assert plain.seconds() is None
    assert Step(1, 0.1, 8, 0.002, plain, {}).seconds == 0.002
    timed = DeviceValues(("word",), torch.zeros(1), Event(1000.0))  # type: ignore[arg-type]
    monkeypatch.setattr(timed, "_copied", Event(1023.0))
    assert Step(1, 0.1, 8, 0.002, timed, {}).seconds == pytest.approx(0.023)


def test_evaluation_does_not_train() -> None:
    run = trainer(dropout=0.5)
    next(run)
    before = snapshot(run.module.state_dict())
    scores = run.evaluate([toy_batch(7, slice(0, 3)), toy_batch(7, slice(3, ROWS))])
    repeated = run.evaluate([toy_batch(7)])
    assert scores.loss == pytest.approx(repeated.loss, rel=1e-6)
    assert scores.counts == repeated.counts
    assert same(run.module.state_dict(), before)
    assert run.module.eval()(run.model.corrupt(toy_batch(7))).mean().item() == pytest.approx(scores.loss, rel=1e-6)
    next(run)
    assert run.module.training
    with pytest.raises(DataError, match="no batch to evaluate"):
        run.evaluate([])
    with pytest.raises(DataError, match="step 1 has no batch"):
        next(trainer(feed=lambda step: []))


@pytest.mark.parametrize("clip", [0.0, 0.1, 1e6])
def test_gradients_are_clipped_by_their_global_norm(clip: float) -> None:
    """Google's clip: g · clip / max(norm, clip), in one closed-form step of the reference optimizer."""
    run = trainer(plan=LEVEL, optimiser=bert_adam.Config(), compute=ComputeConfig(max_grad_norm=clip))
    twin = Toy()
    twin(twin.corrupt(toy_batch(0))).mean().backward()
    norm = math.sqrt(sum(float(parameter.grad.square().sum()) for parameter in twin.parameters()))
    step = next(run)
    assert step.gradient_norm == pytest.approx(norm, rel=1e-6)
    assert norm > 0.1
    factor = clip / max(norm, clip) if clip else 1.0
    for name, parameter in twin.named_parameters():
        first = 0.1 * parameter.grad * factor
        second = 0.001 * (parameter.grad * factor) ** 2
        decay = 0.01 if parameter.ndim == 2 else 0.0
        expected = parameter - 0.05 * (first / (second.sqrt() + 1e-6) + decay * parameter)
        assert torch.allclose(run.module.state_dict()[name], expected, atol=2e-5), name


def test_frozen_groups_get_no_gradient_no_update_no_weight_decay() -> None:
    plan = TrainingPlan(
        steps=6,
        learning_rate=0.05,
        unfreeze=(Unfreeze(after=0, groups=1), Unfreeze(after=2 / 6, groups=2), Unfreeze(after=4 / 6, groups=3)),
    )
    run = trainer(plan=plan, optimiser=adamw.Config(weight_decay=0.5))
    recorded = []
    before = snapshot(run.module.state_dict())
    for _ in run:
        with_gradient = {weight.group for weight in run.weights if weight.tensor.grad is not None}
        moved = {weight.group for weight in run.weights if not torch.equal(weight.tensor, before[weight.name])}
        assert moved == with_gradient
        recorded.append(moved)
        before = snapshot(run.module.state_dict())
    assert recorded == [{2}, {2}, {1, 2}, {1, 2}, {0, 1, 2}, {0, 1, 2}]


def test_frozen_groups_do_not_count_in_the_gradient_norm() -> None:
    trainable, frozen = (
        trainer(plan=LEVEL),
        trainer(plan=TrainingPlan(steps=2, learning_rate=0.05, unfreeze=(Unfreeze(after=0, groups=1),))),
    )
    assert 0 < next(frozen).gradient_norm < next(trainable).gradient_norm


def test_layer_decay_reduces_updates_of_deeper_groups() -> None:
    """Adam's first bias-corrected update has the size of the learning rate: 0.05 at the top, halved per group below."""
    plan = TrainingPlan(steps=2, learning_rate=0.05, layer_decay=0.5, schedule=Schedule("constant_then_decay"))
    run = trainer(plan=plan, optimiser=adamw.Config(weight_decay=0.0))
    before = snapshot(run.module.state_dict())
    next(run)
    for weight in run.weights:
        moved = (weight.tensor.detach() - before[weight.name]).abs()
        expected = 0.05 * 0.5 ** (2 - weight.group)
        assert moved.max().item() == pytest.approx(expected, rel=1e-2), weight.name


class Poisoned(Toy):
    """Non-finite losses or gradients in some forward passes."""

    def __init__(self, *, where: str, value: float, passes: Sequence[int]) -> None:
        super().__init__()
        self.where, self.value, self.bad, self.calls = where, value, set(passes), 0

    def forward(self, batch: Batch) -> Loss:
        loss = super().forward(batch)
        poisoned, self.calls = self.calls in self.bad, self.calls + 1
        if not poisoned:
            return loss
        if self.where == "loss":
            return Loss({**loss.sums, "word": loss.sums["word"] + self.value}, loss.counts, loss.correct, loss.weights)
        hidden = (self.heads["long"].bias * 0).sum()  # the loss is unchanged, its gradient is not finite
        hidden.register_hook(lambda gradient: gradient * self.value)
        return Loss({**loss.sums, "word": loss.sums["word"] + hidden}, loss.counts, loss.correct, loss.weights)


@pytest.mark.parametrize("micro_batch_size", [ROWS, 4])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_non_finite_steps_are_skipped_and_reported(where: str, value: float, micro_batch_size: int) -> None:
    """Twelve faults: the update is skipped, the true value is reported, the state can still be saved."""
    bad = [2 * ROWS // micro_batch_size + ROWS // micro_batch_size - 1]  # the last forward pass of the third step
    model = Poisoned(where=where, value=value, passes=bad)
    run = trainer(plan=LEVEL, model=model, feed=feed(micro_batch_size=micro_batch_size))
    next(run), next(run)
    before, state = snapshot(run.module.state_dict()), snapshot(run.optimizer.state())
    step = next(run)
    assert step.skipped
    assert step.number == 3
    if where == "loss":
        assert step.loss == value or (math.isnan(value) and math.isnan(step.loss))
    else:
        assert math.isfinite(step.loss)
    assert not math.isfinite(step.gradient_norm if where == "gradient" else step.loss)
    assert same(run.module.state_dict(), before)
    assert same(run.optimizer.state(), state)
    run.state().check_finite()
    following = next(run)
    assert not following.skipped
    assert math.isfinite(following.loss)
    assert not same(run.module.state_dict(), before)


def test_too_many_consecutive_skipped_steps_end_the_run() -> None:
    model = Poisoned(where="loss", value=math.nan, passes=[1, 2, 4, 5, 6, 7])
    run = trainer(plan=LEVEL, model=model, compute=ComputeConfig(max_skipped_steps=3))
    recorded = [step.skipped for step in itertools.islice(run, 7)]
    with pytest.raises(Diverged, match=r"not finite in 3 consecutive steps \(step 7: loss nan, gradient norm"):
        next(run)
    assert recorded == [False, True, True, False, True, True, True]
    with pytest.raises(Diverged):
        next(run)


def test_a_trainer_that_filters_non_finite_values_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken build of F15: without the check, the assertions above fail."""
    monkeypatch.setattr(torch, "isfinite", lambda tensor: torch.ones_like(tensor, dtype=torch.bool))
    with pytest.raises(AssertionError):
        test_non_finite_steps_are_skipped_and_reported("loss", math.nan, ROWS)


def test_dropout_is_a_function_of_seed_step_and_micro_batch() -> None:
    def losses(seed: int, **how: Any) -> list[str]:
        return [step.loss.hex() for step in trainer(dropout=0.5, seed=seed, **how)]

    torch.manual_seed(1)
    first = losses(0)
    torch.manual_seed(2)
    assert losses(0) == first
    assert losses(1) != first
    assert len(set(first)) == len(first)
    assert losses(0, feed=lambda step: [toy_batch(0)])[0] != losses(0, feed=lambda step: [toy_batch(0)])[1]


def test_activation_checkpointing_is_bit_identical() -> None:
    plain = bert_trainer(16, pretraining_model(layers=3))
    repeated = bert_trainer(16, pretraining_model(layers=3), compute=ComputeConfig(activation_checkpointing=True))
    passed = []
    block = repeated.model.layer_groups()[2]
    block.feed_forward.register_forward_hook(lambda *anything: passed.append(1))
    assert [step.loss.hex() for step in plain] == [step.loss.hex() for step in repeated]
    assert same(plain.module.state_dict(), repeated.module.state_dict())
    assert len(passed) == 2 * 2 * 3, "each of two micro-batches of three steps passes twice"


def test_compiled_steps_have_one_graph_and_equal_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    plain, compiled = bert_trainer(16), bert_trainer(16, compute=ComputeConfig(compile=True))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step, other in zip(plain, compiled, strict=True):
            assert other.loss == pytest.approx(step.loss, rel=1e-5)
            assert other.scores.counts == step.scores.counts


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 instructions differs
def test_bf16_losses_are_close() -> None:
    exact, half = bert_trainer(32), bert_trainer(32, precision="bf16")
    one, two = next(exact), next(half)
    assert two.loss == pytest.approx(one.loss, rel=2e-2)
    assert two.loss != one.loss
    assert {weight.tensor.dtype for weight in half.weights} == {torch.float32}


def test_deterministic_algorithms_can_be_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU this makes runs bit-identical (tests/gpu); here the setting is applied and a run still works."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    try:
        run = bert_trainer(32, compute=ComputeConfig(deterministic=True))
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert not next(run).skipped
    finally:
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_invalid_compute_settings() -> None:
    for wrong in ({"max_grad_norm": -1.0}, {"max_skipped_steps": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ComputeConfig(**wrong)


def test_a_run_ends_with_its_plan() -> None:
    run = trainer(plan=TrainingPlan(steps=3, learning_rate=0.05))
    assert len(list(run)) == 3
    assert not run.stopped
    assert list(run) == []


def test_a_stop_request_after_the_last_step_has_no_effect() -> None:
    stopper = StopSignal()
    run = trainer(plan=TrainingPlan(steps=3, learning_rate=0.05), stop_signal=stopper)
    for step in run:
        if step.number == 3:
            stopper.request()
    assert run.steps_done == 3
    assert not run.stopped


def test_the_clock_ends_a_run_and_is_resumed() -> None:
    now = [100.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    run = trainer(plan=TrainingPlan(steps=10**6, learning_rate=1.0, minutes=0.5), clock=clock)
    rates = [step.learning_rate for step in run]
    assert 5 < len(rates) < 30
    assert rates == sorted(rates, reverse=True)
    assert run.seconds >= 30
    halfway = trainer(plan=TrainingPlan(steps=10**6, learning_rate=1.0, minutes=0.5), clock=clock)
    for _ in range(len(rates) // 2):
        next(halfway)
    continued = trainer(plan=TrainingPlan(steps=10**6, learning_rate=1.0, minutes=0.5), clock=clock)
    continued.load(halfway.state())
    now[0] += 10**6  # the time between two runs does not count
    continued.load(halfway.state())
    assert len(rates) // 2 - 3 <= len(list(continued)) <= len(rates) // 2 + 3


@pytest.mark.parametrize("first_step", ["like the others", "compiles the model", "builds kernels"])
def test_the_clock_starts_with_training_and_pauses_during_compilation(
    first_step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    first = feed()

    def slow(step: int) -> Sequence[Batch]:
        now[0] += 1.0 if step or first_step == "like the others" else 1000.0
        return first(step)

    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    plan = TrainingPlan(steps=10**6, learning_rate=1.0, warmup=0.5, minutes=0.5)
    compute = ComputeConfig(compile=first_step == "compiles the model")
    run = trainer(plan=plan, feed=slow, clock=lambda: now[0], compute=compute)
    if first_step == "builds kernels":
        with monkeypatch.context() as patch:
            patch.setattr(run, "world", World(device=torch.device("cuda")))
            assert run.builds_kernels
        monkeypatch.setattr(Trainer, "builds_kernels", True)
    now[0] += 500.0  # time before the first step is not training
    rates = [step.learning_rate for step in run]
    assert 30 <= len(rates) <= 32
    assert rates[1] < 0.2  # still at the start of the warm-up
    assert run.seconds < 32


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_after_the_current_step(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignal() as stopper:
        run = trainer(stop_signal=stopper)
        recorded = []
        for step in run:
            recorded.append(step.number)
            if step.number == 4:
                os.kill(os.getpid(), number)
        assert recorded == [1, 2, 3, 4]
        assert run.stopped
        assert run.state().step == 4
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_a_second_signal_interrupts_immediately() -> None:
    with StopSignal() as stopper:
        stopper.request()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


SIZES = {"width": 8, "vocab_size": SIZE, "dropout": 0.5}
WITH_DROPOUT: dict[str, Any] = {
    "bert": small_bert_config(layers=3, dropout=0.5, attention_dropout=0.5, pooler=False),
    "awd_lstm": awd_lstm.Config(width=8, hidden=12, layers=3, vocab_size=SIZE, weight_dropout=0.5),
    "elmo": elmo.Config(width=6, hidden=10, layers=3, filters=((1, 4), (2, 6)), highway=1, dropout=0.5),
    "seq2seq_lstm": seq2seq_lstm.Config(**SIZES, layers=3, embedding_width=6),
}


@pytest.mark.parametrize("kind", WITH_DROPOUT)
@pytest.mark.parametrize("trainable", [1, 2])
def test_activations_of_frozen_groups_are_those_of_evaluation(kind: str, trainable: int) -> None:
    """With the head alone trainable, that is all of an encoder; with another group, all but its top layer."""
    head = classify.Config(labels=("a", "b"), pooling="mean")
    model = Model.build(WITH_DROPOUT[kind], [head], vocabulary=VOCABULARY)
    if isinstance(model.encoder, seq2seq_lstm.Seq2SeqLSTM):  # the decoder is its top group
        trainable += trainable - 1
    plan = TrainingPlan(steps=2, learning_rate=1e-3, unfreeze=(Unfreeze(after=0, groups=trainable),))
    batch = random_batch([9, 4, 12], length=12, pairs=False)
    batch = batch.replace(labels={"classify": torch.tensor([0, 1, 1])})
    run = Trainer(model, lambda _: [batch], plan=plan, optimizer=bert_adam.Config())
    next(run)
    assert model.training
    frozen = None if trainable == 1 else -1
    in_training = model.encoder(batch, return_layers=True).layers
    in_evaluation = model.eval().encoder(batch, return_layers=True).layers
    own = batch.document_ids.flatten() > 0
    same = [torch.equal(one[own], other[own]) for one, other in zip(in_training, in_evaluation, strict=True)]
    assert all(same[:frozen])


def test_frozen_groups_do_not_use_dropout() -> None:
    unfreezing = TrainingPlan(
        steps=4, learning_rate=1e-3, unfreeze=(Unfreeze(after=0, groups=1), Unfreeze(after=0.5, groups=99))
    )
    model = pretraining_model(layers=2, dropout=0.1, attention_dropout=0.0)
    run = Trainer(model, bert_feed(32), plan=unfreezing, optimizer=bert_adam.Config())
    next(run)
    assert [part.training for part in run.model.layer_groups()] == [False] * (run.groups - 1) + [True]
    next(run)
    next(run)
    assert all(part.training for part in run.model.layer_groups())
