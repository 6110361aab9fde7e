"""On CUDA: the fused cross-entropy equals torch's, and a compiled model uses it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import VOCABULARY, random_batch
from torch import Tensor

from bertsmith.encoders import bert
from bertsmith.model_io.model import Model
from bertsmith.objectives import masked_lm
from bertsmith.types import IGNORE_INDEX

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("tokens", [30528, 5001])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("compiles", [False, True])
def test_equal_to_cross_entropy(tokens: int, compiles: bool, smoothing: float) -> None:
    from bertsmith.nn.kernels.cross_entropy import linear_cross_entropy

    torch.manual_seed(0)
    h = torch.randn(1001, 256, device="cuda")
    table, bias = torch.randn(tokens, 256, device="cuda") / 16, torch.randn(tokens, device="cuda")
    labels = torch.randint(0, tokens, (1001,), device="cuda")
    labels[::7] = IGNORE_INDEX

    def plain(h: Tensor, table: Tensor, bias: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        logits = F.linear(h.bfloat16(), table.bfloat16(), bias.bfloat16())
        how: dict[str, Any] = {"ignore_index": IGNORE_INDEX, "reduction": "sum", "label_smoothing": smoothing}
        total = F.cross_entropy(logits.float(), labels, **how)
        return total, (logits.argmax(-1) == labels) & (labels != IGNORE_INDEX)

    result = []
    for run in (torch.compile(linear_cross_entropy, fullgraph=True) if compiles else linear_cross_entropy, plain):
        given = [each.clone().requires_grad_() for each in (h, table, bias)]
        total, right = run(*given, labels, smoothing)
        (total / 858).backward()
        result.append((total.detach(), right, [each.grad for each in given]))
    (actual, own_value, gradients), (reference, right, expected) = result
    assert float(actual) == pytest.approx(float(reference), rel=1e-4)
    assert torch.equal(own_value, right)
    for one, other in zip(gradients, expected, strict=True):
        assert (one - other).norm() < 0.01 * other.norm()


def test_a_compiled_model_has_the_same_loss_and_gradients() -> None:
    losses = []
    for compiles in (False, True):
        torch.manual_seed(0)
        encoder = bert.Config(
            vocab_size=VOCABULARY.size, layers=2, width=64, heads=2, feed_forward=128, max_positions=64
        )
        model = Model.build(encoder, [masked_lm.Config()], vocabulary=VOCABULARY, seed=3).cuda().eval()
        batch = model.corrupt(random_batch([60, 40, 24, 64], length=64, pack=True).to(torch.device("cuda")))
        run = torch.compile(model, fullgraph=True) if compiles else model
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(batch)
        total = loss.mean()
        total.backward()
        size = torch.stack([each.grad.norm() for each in model.parameters() if each.grad is not None]).norm()
        losses.append((float(total.detach()), float(size), int(loss.correct["masked_lm"])))
    assert losses[1][0] == pytest.approx(losses[0][0], rel=5e-3)
    assert losses[1][1] == pytest.approx(losses[0][1], rel=3e-2)
    assert abs(losses[1][2] - losses[0][2]) <= 1
