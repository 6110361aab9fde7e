"""Weight initialisation and activations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bertsmith.errors import ConfigError
from bertsmith.nn.activations import get_activation
from bertsmith.nn.layer_config import LayerConfig


def parts() -> nn.ModuleDict:
    torch.manual_seed(0)
    made = nn.ModuleDict({"table": nn.Embedding(2000, 100), "matrix": nn.Linear(500, 500), "norm": nn.LayerNorm(8)})
    for parameter in made.parameters():
        nn.init.constant_(parameter, 7.0)
    return made


@pytest.mark.parametrize("name", ["table", "matrix"])
@pytest.mark.parametrize(("truncate", "deviation", "most"), [(True, 0.01759, 0.04), (False, 0.02, 0.2)])
def test_initial_weights_as_in_the_reference(name: str, truncate: bool, deviation: float, most: float) -> None:
    """A normal distribution truncated at two standard deviations: 0.01759 (SPEC.md §2.1)."""
    made = parts()
    LayerConfig(truncated_init=truncate).init_weights(made)
    weight = made[name].weight
    assert weight.std().item() == pytest.approx(deviation, rel=0.01)
    assert weight.mean().abs() < 2e-4
    assert weight.abs().max() <= most
    assert truncate or weight.abs().max() > 0.06, "a distribution without truncation has tails"


def test_biases_and_norms() -> None:
    made = parts()
    LayerConfig().init_weights(made)
    assert (made["matrix"].bias == 0).all()
    assert (made["norm"].weight == 1).all()
    assert (made["norm"].bias == 0).all()


def test_gelu_and_gelu_new_differ() -> None:
    x = torch.linspace(-6, 6, 10_001, dtype=torch.float64)
    exact = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    tanh = x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    assert (get_activation("gelu")(x) - exact).abs().max() < 1e-12
    assert (get_activation("gelu_new")(x) - tanh).abs().max() < 1e-12
    assert (exact - tanh).abs().max() == pytest.approx(4.7e-4, rel=0.02)


def test_wrong_settings_are_one_line_errors() -> None:
    with pytest.raises(
        ConfigError, match=r"activation=gelu_nwe is unknown: expected one of gelu, .*; did you mean gelu_new"
    ):
        LayerConfig(activation="gelu_nwe")
    with pytest.raises(ConfigError, match="layer_norm_eps=0"):
        LayerConfig(layer_norm_eps=0)
