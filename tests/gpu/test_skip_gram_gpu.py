"""On CUDA: a training step of skip-gram equals the CPU's, with dense and with sparse gradients; it trains in bf16."""

from __future__ import annotations

import pytest
import torch
from objectives.test_skip_gram import batch, model

from bertsmith.model_io.model import Model
from bertsmith.training.distributed import World
from bertsmith.training.forward_backward import ComputeConfig, Precision
from bertsmith.training.optimizers import adagrad
from bertsmith.training.plan import Schedule, TrainingPlan
from bertsmith.training.trainer import Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
# with a decay, the gradients are dense
OPTIMIZERS = [adagrad.Config(initial=1e-8), adagrad.Config(initial=1e-8, weight_decay=0.01)]


def trained(
    device: str, optimizer: adagrad.Config, *, steps: int = 1, precision: Precision = "fp32"
) -> tuple[Model, list[float]]:
    """The model after some steps on one batch, and its losses."""
    made = model(subsample=1e-2).float()
    plan = TrainingPlan(steps=steps, learning_rate=0.05, schedule=Schedule("linear"))
    trainer = Trainer(
        made,
        lambda step: [batch().to(device)],
        plan=plan,
        optimizer=optimizer,
        world=World(device=torch.device(device)),
        precision=precision,
        compute=ComputeConfig(max_grad_norm=0.0, compile=False),
    )
    return made, [float(next(trainer).loss) for _ in range(steps)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sparse", "dense"])
def test_a_step_equals_that_of_the_cpu(optimizer: adagrad.Config) -> None:
    (expected, (reference,)), (found, (loss,)) = (trained(device, optimizer) for device in ("cpu", "cuda"))
    assert loss == pytest.approx(reference, rel=1e-4)
    before = dict(model(subsample=1e-2).float().named_parameters())
    others = dict(found.named_parameters())
    for name, weight in expected.named_parameters():
        change = (weight - before[name]).detach()
        assert change.any()
        assert (others[name].detach().cpu() - weight).norm() < 1e-3 * change.norm(), name


def test_a_model_trains_in_bfloat16() -> None:
    _, losses = trained("cuda", OPTIMIZERS[0], steps=30, precision="bf16")
    assert losses[-1] < 0.9 * losses[0]
