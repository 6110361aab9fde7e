"""Activation functions by the names that model folders use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": F.gelu,  # with erf: BERT of October 2018
    "gelu_new": partial(F.gelu, approximate="tanh"),  # BERT's code since February 2019; up to 4.7e-4 away
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def activation(name: str) -> Activation:
    """The function of that name."""
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"activation={name} is unknown: {', '.join(ACTIVATIONS)} are known{did_you_mean(name, ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
