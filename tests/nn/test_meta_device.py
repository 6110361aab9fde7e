"""Modules on the meta device have shapes without memory, and torch's compiler is not imported for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bertsmith import recipes
from bertsmith.model_io.model import Model
from bertsmith.nn.meta_device import on_meta_device

STARTED = """
import sys
import bertsmith.training.preflight, bertsmith.evaluation
import bertsmith.training.finetune, bertsmith.training.pretrain
import bertsmith.inference.predictor, bertsmith.studies.ablations, bertsmith.model_io.model_folder
from bertsmith import recipes
from bertsmith.training.preflight_trial import count_parameters
print(*(count_parameters(recipes.find(name)) for name in ("bert/quick", "electra/tiny", "albert/tiny", "modern/small")))
print(*sorted({"sympy", "torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "triton"} & set(sys.modules)))
"""


@pytest.mark.parametrize("name", ["bert/large", "albert/xxlarge", "electra/base", "modern/base"])
def test_modules_have_names_and_shapes_without_memory(name: str) -> None:
    recipe, before = recipes.find(name), torch.get_rng_state()
    with on_meta_device():
        model = Model.build(recipe.encoder, recipe.objectives.values())
        recurrent = nn.LSTM(4, 1 << 20)
    tensors = [*model.parameters(), *recurrent.parameters()]
    assert all(tensor.is_meta for tensor in tensors)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.empty(1).is_meta


@pytest.mark.parametrize("draw", [nn.init.normal_, nn.init.kaiming_uniform_, nn.init.xavier_uniform_, Tensor.uniform_])
def test_initialisers_do_nothing_on_the_meta_device(draw: Callable[[Tensor], Tensor]) -> None:
    meta_model = torch.full((3, 2), 7.0)
    with on_meta_device():
        assert draw(meta_model) is meta_model
    assert torch.equal(meta_model, torch.full((3, 2), 7.0))
    assert not torch.equal(draw(meta_model), torch.full((3, 2), 7.0))


def test_real_tensors_are_still_changed() -> None:
    meta_model = torch.full((3, 2), 8.0)
    with on_meta_device():
        nowhere = torch.empty(3, 2)
        assert nowhere.div_(2) is nowhere
        assert meta_model.div_(2) is meta_model
        assert nn.init.zeros_(nowhere) is nowhere
    assert torch.equal(meta_model, torch.full((3, 2), 4.0))


def test_the_compiler_of_torch_is_not_imported() -> None:
    """The import takes two seconds of every command."""
    output = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True).stdout
    sizes, loaded = output.split("\n")[:2]
    assert loaded == ""
    assert sizes.split()[0] == "41142586"
