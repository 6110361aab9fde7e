"""Batch normalisation over texts: torch's own, without the rows of empty slots; fastai's classifier."""

from __future__ import annotations

import torch
from encoders.test_awd_lstm import formula
from torch import nn

from bertsmith.nn.batch_norm_head import BatchNormHead, MaskedBatchNorm


def test_statistics_leave_out_empty_slots() -> None:
    torch.manual_seed(0)
    masked, plain, x_NW = MaskedBatchNorm(5), nn.BatchNorm1d(5), torch.randn(9, 5) * 3 + 1
    used = torch.tensor([True, False, True, True, True, False, True, True, True])
    for _ in range(3):
        assert torch.allclose(masked(x_NW, used)[used], plain(x_NW[used]), atol=1e-6)
    assert torch.allclose(masked.running_mean, plain.running_mean, atol=1e-6)
    assert torch.allclose(masked.running_var, plain.running_var, atol=1e-6)
    assert torch.allclose(masked.eval()(x_NW, used), plain.eval()(x_NW), atol=1e-6)


def test_values_that_are_not_finite_do_not_reach_the_running_statistics() -> None:
    norm = MaskedBatchNorm(2)
    norm(torch.tensor([[1.0, torch.nan], [2.0, 3.0]]), torch.tensor([True, True]))
    assert norm.running_mean.tolist() == [0, 0]
    assert norm.running_var.tolist() == [1, 1]


def test_equals_fastai() -> None:
    """Recorded from fastai 2.8.12: `PoolingLinearClassifier([18, 5, 2], ps=[0.4, 0.1]).layers`, eval mode."""
    head = BatchNormHead(18, 5, 2, dropout=0.4, hidden_dropout=0.1).eval()
    with torch.no_grad():
        head.norm.weight.copy_(formula((18,), 50) + 1)
        head.norm.bias.copy_(formula((18,), 51))
        head.norm.running_mean.copy_(formula((18,), 52))
        head.norm.running_var.copy_(formula((18,), 53).abs() + 0.5)
        head.hidden.weight.copy_(formula((5, 19), 55)[:, :18])
        head.hidden_norm.weight.copy_(formula((5,), 56) + 1)
        head.hidden_norm.bias.copy_(formula((5,), 57))
        head.hidden_norm.running_mean.copy_(formula((5,), 58))
        head.hidden_norm.running_var.copy_(formula((5,), 59).abs() + 0.5)
        head.output.weight.copy_(formula((2, 5), 61))
        logits = head(4 * formula((3, 19), 70)[:, :18], torch.ones(3, dtype=torch.bool))
    assert torch.allclose(logits, torch.tensor(RECORDED), atol=1e-6)


RECORDED = [[5.22921085, -11.1250029], [7.26373005, -10.5396223], [3.5228672, -4.26681185]]
