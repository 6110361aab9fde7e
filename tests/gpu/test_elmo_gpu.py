"""On CUDA: the LSTM's kernels and CUDA graphs equal the arithmetic of the CPU; a language model trains with them."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from encoders.test_awd_lstm import rows
from torch import Tensor, nn

from bertsmith.encoders import elmo
from bertsmith.model_io.model import Model
from bertsmith.nn.projected_lstm import ProjectedLSTM
from bertsmith.nn.sparse_rows import sum_rows
from bertsmith.objectives import bidirectional_lm
from bertsmith.training.optimizers import Weight, adagrad
from bertsmith.types import Vocabulary

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def outputs_and_gradients(lstm: ProjectedLSTM, x: Tensor, state: tuple[Tensor, Tensor]) -> list[Tensor]:
    lstm.zero_grad()
    given = x.clone().requires_grad_()
    outputs, after = lstm(given, state)
    (outputs * torch.linspace(-1, 1, outputs.numel(), device=x.device).view_as(outputs)).sum().backward()
    found = [outputs, *after, given.grad, *(weight.grad for weight in lstm.parameters())]
    return [each.detach().cpu().clone() for each in found]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("clips", [{}, {"cell_clip": 0.4, "projection_clip": 0.3}])
def test_kernels_and_graphs(captured: bool, clips: dict[str, float]) -> None:
    torch.manual_seed(0)
    lstm = ProjectedLSTM(24, 96, 24, **clips).train()
    with torch.no_grad():
        for weight in lstm.parameters():
            weight.normal_(0, 0.3)
    x = torch.randn(2, 7, 10, 24)
    state = torch.randn(2, 10, 24) * 0.2, torch.randn(2, 10, 96) * 0.3
    other = copy.deepcopy(lstm).cuda()
    assert other.captured is not None
    other.captured.enabled = captured
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # where the capture fails
        for scale in (1.0, 0.5, 1.0):
            found = outputs_and_gradients(other, x.cuda() * scale, tuple(part.cuda() for part in state))
    assert bool(other.captured._by_shape) == captured
    for one, expected in zip(found, outputs_and_gradients(lstm, x, state), strict=True):
        assert (one - expected).norm() < 1e-4 * expected.norm()


def test_a_second_forward_before_the_backward() -> None:
    torch.manual_seed(0)
    lstm, x = ProjectedLSTM(8, 16, 8).cuda().train(), torch.randn(2, 5, 3, 8, device="cuda")
    one, other = lstm(x)[0], lstm(2 * x)[0]
    (one.square().sum() + other.square().sum()).backward()
    together = [weight.grad.clone() for weight in lstm.parameters()]
    lstm.zero_grad()
    for scale in (1, 2):
        lstm(scale * x)[0].square().sum().backward()
    for weight, expected in zip(lstm.parameters(), together, strict=True):
        assert (weight.grad - expected).norm() < 1e-4 * expected.norm()


def test_a_language_model_trains_in_bfloat16() -> None:
    torch.manual_seed(0)
    encoder = elmo.Config(width=32, hidden=64, filters=((1, 16), (2, 16)), dropout=0.0)
    model = Model.build(encoder, [bidirectional_lm.Config(samples=16)], vocabulary=Vocabulary(size=97)).cuda().train()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    batch = model.corrupt(rows(torch.randint(5, 97, (8, 12)).tolist()).to("cuda"))
    losses, state = [], None
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(batch, state)
        loss.mean().backward()
        optimizer.step()
        losses.append(float(loss.mean()))
    assert losses[-1] < 0.5 * losses[0]


def test_sampled_softmax() -> None:
    """The kernel beside the arithmetic of the CPU, on the same draws."""
    torch.manual_seed(0)
    encoder = elmo.Config(width=32, hidden=64, filters=((1, 16), (2, 16)), dropout=0.0)
    settings = bidirectional_lm.Config(samples=300, dropout=0.0)
    model = Model.build(encoder, [settings], vocabulary=Vocabulary(size=5000)).train()
    batch = model.corrupt(rows(torch.randint(5, 5000, (8, 12)).tolist()))
    results = []
    for device in ("cpu", "cuda"):
        model.zero_grad()
        model.to(device)
        loss = model(batch.to(device))
        loss.mean().backward()
        gradients = [weight.grad.cpu().clone() for weight in model.parameters()]
        results.append((loss.mean().item(), int(loss.correct["bidirectional_lm"]), gradients))
    (expected, right, references), (found, correct, gradients) = results
    assert found == pytest.approx(expected, rel=1e-4)
    assert correct == right
    for one, other in zip(gradients, references, strict=True):
        assert (one - other).norm() < 1e-3 * other.norm()


def test_adagrad_equals_that_of_the_cpu() -> None:
    torch.manual_seed(0)
    results = []
    for device in ("cpu", "cuda"):
        draw, ones = torch.Generator().manual_seed(0), torch.ones((), device=device)
        table, bias = (nn.Parameter(torch.randn(shape, generator=draw).to(device)) for shape in ((3000, 5), (77,)))
        weights = [
            Weight(name=name, tensor=tensor, group=0, decays=True, inner=False)
            for name, tensor in (("table", table), ("bias", bias))
        ]
        optimizer = adagrad.Config(initial=0.5).build(weights)
        for step in range(4):
            rows = torch.randint(0, 3000, (900,), generator=draw)
            values = torch.randn(900, 5, generator=draw).to(device)
            indices = rows[None].to(device)
            gradient = torch.sparse_coo_tensor(indices, values, (3000, 5), check_invariants=True)
            (table.grad,), _ = sum_rows([gradient])
            bias.grad = torch.randn(77, generator=draw).to(device) / (0.0 if step == 2 else 1.0)
            optimizer.step([0.1], divisor=2 * ones, skip=ones * (step == 2))
        results.append([table.detach().cpu(), bias.detach().cpu()])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
