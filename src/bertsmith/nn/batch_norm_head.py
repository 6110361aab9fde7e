"""A classifier with batch normalisation and one hidden layer over vectors of texts. N texts, W width, K outputs."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

MOMENTUM, EPSILON = 0.1, 1e-5  # of batch normalisation, as in torch


class MaskedBatchNorm(nn.Module):
    """Batch normalisation whose statistics leave out the rows of empty text slots."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x_NW: Tensor, used_N: Tensor) -> Tensor:
        """[N, W], and which of the rows are texts [N] -> [N, W]."""
        x_NW = x_NW.to(self.weight.dtype)
        if not self.training:
            return F.batch_norm(x_NW, self.running_mean, self.running_var, self.weight, self.bias, eps=EPSILON)
        weight_N1 = used_N[:, None].to(x_NW.dtype)
        count = weight_N1.sum().clamp(min=1)
        mean_W = (weight_N1 * x_NW).sum(0) / count
        variance_W = (weight_N1 * (x_NW - mean_W).square()).sum(0) / count
        self._track(mean_W.detach(), (variance_W * count / (count - 1).clamp(min=1)).detach())
        return (x_NW - mean_W) * (variance_W + EPSILON).rsqrt() * self.weight + self.bias

    @torch.no_grad()
    def _track(self, mean_W: Tensor, variance_W: Tensor) -> None:
        """Updates the running statistics, on all ranks alike; values that are not finite do not count."""
        batch_2W = torch.stack((mean_W, variance_W))
        if dist.is_initialized():
            dist.all_reduce(batch_2W)
            batch_2W /= dist.get_world_size()
        finite = torch.isfinite(batch_2W).all()
        for running_W, value_W in zip((self.running_mean, self.running_var), batch_2W, strict=True):
            running_W.copy_(torch.where(finite, running_W.lerp(value_W, MOMENTUM), running_W))


class BatchNormHead(nn.Module):
    """Norm, dropout, linear layer, ReLU; norm, dropout, linear layer (P-ULMFiT §3.3; fastai: text/models/core.py)."""

    def __init__(self, width: int, hidden: int, outputs: int, *, dropout: float, hidden_dropout: float) -> None:
        super().__init__()
        self.norm, self.hidden_norm = MaskedBatchNorm(width), MaskedBatchNorm(hidden)
        self.dropout, self.hidden_dropout = nn.Dropout(dropout), nn.Dropout(hidden_dropout)
        self.hidden = nn.Linear(width, hidden, bias=False)
        self.output = nn.Linear(hidden, outputs, bias=False)

    def forward(self, x_NW: Tensor, used_N: Tensor) -> Tensor:
        """[N, W], and which of the rows are texts [N] -> logits [N, K]."""
        hidden_NH = torch.relu(self.hidden(self.dropout(self.norm(x_NW, used_N))))
        logits_NK: Tensor = self.output(self.hidden_dropout(self.hidden_norm(hidden_NH, used_N)))
        return logits_NK
