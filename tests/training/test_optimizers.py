"""Optimizers equal their closed forms; all of them skip, freeze and resume as the contract requires."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from training.training_fixtures import Toy, same, snapshot, toy_weights

from bertsmith import config
from bertsmith.errors import ConfigError, DataError
from bertsmith.nn.attention import Attention
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.sparse_rows import sum_rows
from bertsmith.nn.transformer import FeedForward, GatedFeedForward
from bertsmith.training import optimizers
from bertsmith.training.optimizers import (
    DeviceLearningRate,
    Optimizer,
    Weight,
    adagrad,
    adamw,
    bert_adam,
    lamb,
    muon,
    sgd,
)

KINDS = config.kinds(optimizers.FOLDER)
ONE, ZERO = torch.ones(()), torch.zeros(())
WITH_STATE: dict[str, dict[str, Any]] = {"sgd": {"momentum": 0.9}}  # where the defaults have none


def build(kind: str, weights: list[Weight], **settings: Any) -> Optimizer:
    return config.find_kind(optimizers.FOLDER, kind).Config(**WITH_STATE.get(kind, {}), **settings).build(weights)


def gradients(weights: list[Weight], seed: int) -> dict[str, Tensor]:
    """New random gradients of every weight, set and returned in double precision."""
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.tensor.grad = torch.randn(weight.tensor.shape, generator=generator)
    return {weight.name: weight.tensor.grad.double() for weight in weights}


def history(weights: list[Weight], steps: int, divisor: float) -> Iterator[tuple[int, float, dict[str, Tensor]]]:
    """(step, learning rate, gradients in double precision) with changing learning rates."""
    for step in range(steps):
        grads = gradients(weights, seed=step)
        yield step, 0.01 * (1 + step % 3), {name: value / divisor for name, value in grads.items()}


def exact(weights: list[Weight]) -> dict[str, Tensor]:
    return {weight.name: weight.tensor.detach().double().clone() for weight in weights}


def max_difference(weights: list[Weight], expected: dict[str, Tensor]) -> float:
    return max(float((weight.tensor.detach().double() - expected[weight.name]).abs().max()) for weight in weights)


def test_bert_adam_equals_the_closed_form_of_googles_code() -> None:
    """SPEC §2.1, §3.9: to 1e-6 over 20 steps, at a hundred times BERT's learning rate."""
    weights = toy_weights()
    actual, made = exact(weights), bert_adam.Config().build(weights)
    first = {name: torch.zeros_like(value) for name, value in actual.items()}
    second = {name: torch.zeros_like(value) for name, value in actual.items()}
    for _, rate, grads in history(weights, 20, divisor=2.0):
        for weight in weights:
            name, value = weight.name, grads[weight.name]
            first[name] = 0.9 * first[name] + 0.1 * value
            second[name] = 0.999 * second[name] + 0.001 * value**2
            decay = 0.0 if "bias" in name or "middle.2" in name else 0.01
            actual[name] -= rate * (first[name] / (second[name].sqrt() + 1e-6) + decay * actual[name])
        made.step([rate] * 3, divisor=torch.tensor(2.0), skip=ZERO)
    assert max_difference(weights, actual) < 1e-6
    assert max_difference(toy_weights(), actual) > 0.1


def test_adamw_equals_torch() -> None:
    weights, other = toy_weights(), toy_weights(Toy())
    made = adamw.Config(betas=(0.8, 0.98), weight_decay=0.1).build(weights)
    decayed = [weight.tensor for weight in other if weight.tensor.ndim == 2]
    rest = [weight.tensor for weight in other if weight.tensor.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, betas=(0.8, 0.98), eps=1e-8, foreach=False)
    for _, rate, _ in history(weights, 20, divisor=1.0):
        for own, twin in zip(weights, other, strict=True):
            twin.tensor.grad = own.tensor.grad.clone()
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
        made.step([rate] * 3, divisor=ONE, skip=ZERO)
    assert max_difference(weights, exact(other)) < 1e-6
    assert max_difference(toy_weights(), exact(other)) > 0.1


def test_lamb_equals_its_closed_form() -> None:
    """SPEC §2.2, also where a weight or its update is 0."""
    model = Toy()
    with torch.no_grad():
        model.heads["long"].weight.zero_()
    weights = toy_weights(model)
    actual, made = exact(weights), lamb.Config().build(weights)
    first = {name: torch.zeros_like(value) for name, value in actual.items()}
    second = {name: torch.zeros_like(value) for name, value in actual.items()}
    for step, rate, grads in history(weights, 20, divisor=4.0):
        for weight in weights:
            name, value = weight.name, grads[weight.name]
            first[name] = 0.9 * first[name] + 0.1 * value
            second[name] = 0.999 * second[name] + 0.001 * value**2
            update = first[name] / (second[name].sqrt() + 1e-6)
            ratio = 1.0
            if value.ndim == 2:
                update = update + 0.01 * actual[name]
                norms = float(actual[name].norm()), float(update.norm())
                ratio = norms[0] / norms[1] if all(norms) else 1.0
                assert (ratio == 1) == (step == 0 and name == "heads.long.weight")
            actual[name] -= ratio * rate * update
        made.step([rate] * 3, divisor=torch.tensor(4.0), skip=ZERO)
    assert max_difference(weights, actual) < 2e-6
    assert max_difference(toy_weights(model), actual) < 2e-6
    assert max_difference(toy_weights(), actual) > 0.1


@pytest.mark.parametrize("shape", [(5, 32, 32), (3, 96, 32), (4, 32, 128)])
def test_muon_makes_matrices_nearly_orthogonal(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    orthogonal = muon.orthogonal(matrices)
    values = torch.linalg.svdvals(orthogonal)[
        torch.linalg.svdvals(matrices / matrices.norm(dim=(1, 2), keepdim=True)) > 1e-3
    ]
    assert values.numel() > 0.99 * shape[0] * min(shape[1:])
    assert values.min() > 0.84
    assert values.max() < 1.15
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    cosines = (orthogonal * (left @ right)).sum((1, 2)) / orthogonal.norm(dim=(1, 2)) / (left @ right).norm(dim=(1, 2))
    assert cosines.min() > 0.98
    alone = torch.cat([muon.orthogonal(matrix[None]) for matrix in matrices])
    assert torch.allclose(orthogonal, alone, atol=1e-5)


class Tower(nn.Module):
    """Embeddings, three inner layers, two of them of the same shape, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            [nn.Embedding(9, 8), nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 16), nn.Linear(16, 9)]
        )
        for number, parameter in enumerate(self.parameters()):
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(number))

    def weights(self) -> list[Weight]:
        return optimizers.weights_of(dict(self.named_parameters()), list(self.parts))


def test_muon_moves_inner_matrices_by_their_orthogonal_momentum_and_the_rest_by_adamw() -> None:
    model = Tower()
    weights = model.weights()
    inner = {weight.name for weight in weights if weight.inner}
    assert inner == {"parts.1.weight", "parts.2.weight", "parts.3.weight"}
    twin = [weight for weight in Tower().weights() if not weight.inner]
    made = muon.Config(weight_decay=0.1).build(weights)
    adam = adamw.Config(betas=(0.9, 0.98), weight_decay=0.1).build(twin)
    actual = {name: value for name, value in exact(weights).items() if name in inner}
    kept = {name: torch.zeros_like(value) for name, value in actual.items()}
    for _, rate, grads in history(weights, 5, divisor=2.0):
        for weight in twin:
            weight.tensor.grad = grads[weight.name].float() * 2
        for name in inner:
            kept[name] = 0.95 * kept[name] + grads[name]
            direction = muon.orthogonal((grads[name] + 0.95 * kept[name])[None])[0]
            actual[name] = (1 - rate * 0.1) * actual[name] - rate * 0.2 * max(direction.shape) ** 0.5 * direction
        adam.step([rate] * 5, divisor=torch.tensor(2.0), skip=ZERO)
        made.step([rate] * 5, divisor=torch.tensor(2.0), skip=ZERO)
    assert max_difference([weight for weight in weights if weight.inner], actual) < 1e-5
    assert max_difference([weight for weight in weights if not weight.inner], exact(twin)) < 1e-6


class Stack(nn.Linear):
    stacks: ClassVar[dict[str, int]] = {"weight": 2}


def test_muon_splits_stacked_matrices() -> None:
    """Queries, keys and values, and the halves of a gated layer, are orthogonalized separately."""
    parts = [nn.Linear(1, 1), Stack(8, 32, bias=False), nn.Linear(1, 1)]
    halves = [nn.Linear(1, 1), nn.ModuleList(nn.Linear(8, 16, bias=False) for _ in range(2)), nn.Linear(1, 1)]
    remaining = optimizers.weights_of(dict(nn.ModuleList(halves).named_parameters()), halves)
    whole = optimizers.weights_of(dict(nn.ModuleList(parts).named_parameters()), parts)
    assert [weight.stacked for weight in whole if weight.inner] == [2]
    for apart in (True, False):
        inner, *both = parts[1].weight, *halves[1].parameters()
        for actual, reference in zip(inner.detach().chunk(2), both, strict=True):
            reference.data.copy_(actual)
        made, separately = muon.Config(split_stacked=apart).build(whole), muon.Config().build(remaining)
        for step in range(3):
            gradients(whole, seed=step)
            for weight, part in zip(both, inner.grad.chunk(2), strict=True):
                weight.grad = part.clone()
            for each in (made, separately):
                each.step([0.1] * 3, divisor=ONE, skip=ZERO)
        assert torch.allclose(inner, torch.cat(both), atol=1e-5) == apart


def test_attention_and_gated_layers_declare_stacked_matrices() -> None:
    layer_config = LayerConfig()
    block = nn.ModuleDict(
        {
            "attention": Attention(width=8, heads=2, dropout=0.0),
            "gated": GatedFeedForward(width=8, inner=16, layer_config=layer_config),
            "plain": FeedForward(width=8, inner=16, layer_config=layer_config),
        }
    )
    parts = [nn.Linear(1, 1), block, nn.Linear(1, 1)]
    weights = optimizers.weights_of(dict(nn.ModuleList(parts).named_parameters()), parts)
    updated = {weight.name.removeprefix("1."): weight.stacked for weight in weights if weight.stacked > 1}
    assert updated == {"attention.qkv.weight": 3, "gated.expand.weight": 2}


def test_muon_updates_have_the_rms_of_adamw() -> None:
    """RMS of about 0.2 · learning rate for a matrix of any shape, so that one learning rate suits both."""
    for shape in ((64, 64), (256, 64)):
        parts = [nn.Linear(1, 1), nn.Linear(shape[1], shape[0], bias=False), nn.Linear(1, 1)]
        weights = optimizers.weights_of(dict(nn.ModuleList(parts).named_parameters()), parts)
        before, made = parts[1].weight.detach().clone(), muon.Config(weight_decay=0.0).build(weights)
        gradients(weights, seed=1)
        made.step([0.01] * 3, divisor=ONE, skip=ZERO)
        assert float((parts[1].weight.detach() - before).square().mean().sqrt()) == pytest.approx(0.002, rel=0.2)


@pytest.mark.parametrize("kind", KINDS)
class TestEveryOptimizer:
    def test_non_finite_gradients_change_nothing(self, kind: str) -> None:
        model = Tower()
        weights = model.weights()
        made = build(kind, weights)
        for step in range(2):
            gradients(weights, seed=step)
            made.step([0.1] * 5, divisor=ONE, skip=ZERO)
        before, state = snapshot(model.state_dict()), snapshot(made.state())
        for value in (torch.nan, torch.inf):
            gradients(weights, seed=5)
            for weight in weights:
                weight.tensor.grad[0] = value
            made.step([0.1] * 5, divisor=ONE, skip=ONE)
            assert same(model.state_dict(), before)
            assert same(made.state(), state)
        gradients(weights, seed=6)
        made.step([0.1] * 5, divisor=ONE, skip=ZERO)
        assert not any(torch.equal(before[name], value) for name, value in model.state_dict().items())

    def test_frozen_groups_are_not_updated(self, kind: str) -> None:
        model = Tower()
        weights = model.weights()
        made = build(kind, weights, weight_decay=0.5)
        before = snapshot(model.state_dict())
        for step in range(3):
            gradients(weights, seed=step)
            made.step([None, None, 0.1, 0.1, 0.1], divisor=ONE, skip=ZERO)
        for weight in weights:
            assert torch.equal(weight.tensor, before[weight.name]) == (weight.group < 2), weight.name
            assert any(key.endswith(f"/{weight.name}") for key in made.state()) == (weight.group >= 2)

    def test_weights_without_a_gradient_are_not_updated(self, kind: str) -> None:
        model = Tower()
        weights = model.weights()
        before, made = snapshot(model.state_dict()), build(kind, weights, weight_decay=0.5)
        gradients(weights, seed=0)
        for weight in weights[::2]:
            weight.tensor.grad = None
        made.step([0.1] * 5, divisor=ONE, skip=ZERO)
        for number, weight in enumerate(weights):
            assert torch.equal(weight.tensor, before[weight.name]) == (number % 2 == 0), weight.name

    def test_a_restored_optimizer_continues(self, kind: str) -> None:
        model, twin = Tower(), Tower()
        weights, remaining = model.weights(), twin.weights()
        made = build(kind, weights)
        rates = [None, 0.1, 0.1, 0.05, 0.1]
        for step in range(3):
            gradients(weights, seed=step)
            made.step(rates, divisor=ONE, skip=ZERO)
        twin.load_state_dict(model.state_dict())
        continued = build(kind, remaining)
        continued.load(snapshot(made.state()))
        for step in range(3, 6):
            for group, each in ((weights, made), (remaining, continued)):
                gradients(group, seed=step)
                each.step([0.1] * 5, divisor=ONE, skip=ZERO)
        assert same(twin.state_dict(), model.state_dict())
        assert same(continued.state(), made.state())

    def test_a_loaded_state_is_a_copy(self, kind: str) -> None:
        weights = Tower().weights()
        made = build(kind, weights)
        gradients(weights, seed=0)
        made.step([0.1] * 5, divisor=ONE, skip=ZERO)
        given = snapshot(made.state())
        kept = snapshot(given)
        made.load(given)
        gradients(weights, seed=1)
        made.step([0.1] * 5, divisor=ONE, skip=ZERO)
        assert same(given, kept)

    def test_another_models_state_is_refused(self, kind: str) -> None:
        weights = Tower().weights()
        made = build(kind, weights)
        gradients(weights, seed=0)
        made.step([0.1] * 5, divisor=ONE, skip=ZERO)
        key = next(key for key in made.state() if "/" in key)
        with pytest.raises(DataError, match=r"holds .* of shape \[2\], but .* has the shape"):
            build(kind, weights).load({key: torch.zeros(2)})
        with pytest.raises(DataError, match="but other is not a weight of this model"):
            build(kind, weights).load({f"{key.partition('/')[0]}/other": torch.zeros(2)})

    def test_groups_have_their_own_learning_rates(self, kind: str) -> None:
        lengths = []
        for rates in ([0.1] * 5, [0.1, 0.05, 0.1, 0.1, 0.1]):
            model = Tower()
            weights = model.weights()
            before, made = snapshot(model.state_dict()), build(kind, weights, weight_decay=0.0)
            gradients(weights, seed=0)
            made.step(rates, divisor=ONE, skip=ZERO)
            lengths.append(
                {weight.name: float((weight.tensor.detach() - before[weight.name]).norm()) for weight in weights}
            )
        for name, length in lengths[1].items():
            assert length == pytest.approx(lengths[0][name] * (0.5 if name.startswith("parts.1.") else 1), rel=1e-4)

    def test_the_tensor_of_a_device_learning_rate_counts(self, kind: str) -> None:
        """As in a replayed CUDA graph, whose recorded learning rate is that of another step."""
        updated = []
        for held in (False, True):
            weights = toy_weights()
            made, tensor = build(kind, weights), torch.zeros(())
            for step, rate in enumerate((0.5, 0.25, 0.125)):
                gradients(weights, seed=step)
                rates = [DeviceLearningRate(9.0, tensor)] * 3 if held else [rate] * 3
                tensor.fill_(rate)
                made.step(rates, divisor=ONE, skip=ZERO)
            updated.append(snapshot({weight.name: weight.tensor for weight in weights}))
        assert same(*updated)

    def test_wrong_settings(self, kind: str) -> None:
        module = config.find_kind(optimizers.FOLDER, kind)
        for wrong in ({"betas": (0.9, 1.0)}, {"epsilon": 0.0}, {"weight_decay": -0.1}):
            if not hasattr(module.Config, next(iter(wrong))):
                continue
            with pytest.raises(ConfigError, match=next(iter(wrong))):
                module.Config(**wrong)


def test_bias_correction_counts_from_the_first_update_of_a_group() -> None:
    """Adam's first bias-corrected update has the size of the learning rate, whatever the gradient."""
    model = Tower()
    weights = model.weights()
    made = adamw.Config(weight_decay=0.0).build(weights)
    for step in range(30):
        gradients(weights, seed=step)
        made.step([None, *[0.1] * 4], divisor=ONE, skip=ZERO)
    before = snapshot(model.state_dict())
    gradients(weights, seed=30)
    made.step([0.1] * 5, divisor=ONE, skip=ZERO)
    moved = (model.parts[0].weight - before["parts.0.weight"]).abs()
    assert torch.allclose(moved, torch.full_like(moved, 0.1), rtol=1e-3)


def test_all_optimizers_are_registered() -> None:
    assert KINDS == ["adagrad", "adamw", "bert_adam", "lamb", "muon", "sgd"]


def test_muons_own_settings() -> None:
    with pytest.raises(ConfigError, match="momentum=1"):
        muon.Config(momentum=1.0)


def test_adagrad_equals_its_closed_form_with_dense_and_sparse_gradients() -> None:
    dense, sparse = (nn.Parameter(torch.ones(9, 4)) for _ in range(2))
    pair = [Weight(name="table", tensor=tensor, group=0, decays=True, inner=False) for tensor in (dense, sparse)]
    made = [adagrad.Config(initial=0.5).build([weight]) for weight in pair]
    expected, sums = torch.ones(9, 4, dtype=torch.float64), torch.full((9, 4), 0.5, dtype=torch.float64)
    for step in range(6):
        rows = torch.randint(0, 9, (20,), generator=torch.Generator().manual_seed(step))  # most of them several times
        values = torch.randn(20, 4, generator=torch.Generator().manual_seed(step))
        dense.grad = torch.zeros(9, 4).index_add_(0, rows, values)
        gradient = torch.sparse_coo_tensor(rows[None], values, (9, 4), check_invariants=True)
        (sparse.grad,), (norm,) = sum_rows([gradient])
        assert norm.item() == pytest.approx(dense.grad.norm().item())
        for optimizer in made:
            optimizer.step([0.1], divisor=2 * ONE, skip=ONE if step == 3 else ZERO)
        if step != 3:
            gradient = dense.grad.double() / 2
            sums += gradient.square()
            expected -= 0.1 * gradient / (sums.sqrt() + 1e-12)
    assert torch.allclose(dense.double(), expected, atol=1e-6)
    assert torch.allclose(sparse, dense, atol=1e-6)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_equals_torch(momentum: float, nesterov: bool) -> None:
    weights, other = toy_weights(), toy_weights(Toy())
    made = sgd.Config(momentum=momentum, nesterov=nesterov).build(weights)
    reference = torch.optim.SGD([weight.tensor for weight in other], lr=0.01, momentum=momentum, nesterov=nesterov)
    for _ in range(6):
        gradients(weights, seed=1)
        for own, twin in zip(weights, other, strict=True):
            twin.tensor.grad = own.tensor.grad / 2
        made.step([0.01] * 3, divisor=2 * ONE, skip=ZERO)
        reference.step()
    for own, twin in zip(weights, other, strict=True):
        assert torch.allclose(own.tensor, twin.tensor, atol=1e-7)


def test_sgd_updates_only_the_rows_of_a_sparse_gradient() -> None:
    table = nn.Parameter(torch.ones(5, 2))
    made = sgd.Config().build([Weight(name="table", tensor=table, group=0, decays=True, inner=False)])
    assert made.sparse
    rows = torch.tensor([[3, 1, 3]])
    (table.grad,), _ = sum_rows([torch.sparse_coo_tensor(rows, torch.ones(3, 2), (5, 2), check_invariants=True)])
    made.step([0.5], divisor=ONE, skip=ZERO)
    made.step([0.5], divisor=ONE, skip=ONE)
    assert table[:, 0].tolist() == [1.0, 0.5, 1.0, 0.0, 1.0]
    with pytest.raises(ConfigError, match=r"^nesterov=true needs momentum: write momentum=0.9$"):
        sgd.Config(nesterov=True)
