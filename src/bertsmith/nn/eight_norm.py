"""Sums, their norms and what products want of them in eight bits, by kernels of our own where they run.

T places, W the next multiple of 16, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bertsmith.nn import dropout
from bertsmith.nn import eight_bits as eight
from bertsmith.nn.attention import HAS_TRITON
from bertsmith.nn.normed import written


def norm_forth(
    x_TD: Tensor, x_norm: list[Tensor], more_TD: Tensor, draws: list[Tensor], weight_D: Tensor, bias_D: Tensor,
    epsilon: float, dropped: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x + more [T, D], its mean and 1 / deviation [T], its norm in eight bits, and that turned [D, W].

    `x_norm`: what makes the norm of x where that is meant; `draws`: see `dropout.draw`, none without dropout.
    """
    if more_TD.is_cuda and HAS_TRITON:
        from bertsmith.nn import fused_norm  # which needs triton

        given = x_TD, x_norm, more_TD, draws, weight_D, bias_D
        found: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
        found = fused_norm.norm_forth(*given, epsilon, dropped, eight.INPUT)
        return found
    before_TD = written(x_TD, *x_norm) if x_norm else x_TD.float()
    added_TD = dropout.dropped(more_TD.float(), draws, dropped) if draws else more_TD.float()
    total_TD = (before_TD + added_TD).to(more_TD.dtype)
    variance_T, mean_T = torch.var_mean(total_TD.float(), 1, correction=0)
    rise_T = torch.rsqrt(variance_T + epsilon)
    small_TD = eight.cast_in(written(total_TD, mean_T, rise_T, weight_D, bias_D))
    return total_TD, mean_T, rise_T, small_TD, eight.transpose(small_TD)


def norm_back(
    one_TD: Tensor, two_TD: Tensor, total_TD: Tensor, mean_T: Tensor, rise_T: Tensor, weight_D: Tensor,
    draws: list[Tensor], dropped: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradient of a sum [T, D]; that of `more` in eight bits, and that turned [D, W]; sums over places [3, D].

    `one` and `two`: gradients of the norm, to be added. Sums: the weight's gradient, the bias's, and that of `more`.
    """
    scale = eight.GRADIENT * len(total_TD)
    if total_TD.is_cuda and HAS_TRITON:
        from bertsmith.nn import fused_norm

        given = one_TD, two_TD, total_TD, mean_T, rise_T, weight_D, draws
        gradient_TD, small_TD, turned_DW, sums_P3D = fused_norm.norm_back(*given, dropped, scale)
        return gradient_TD, small_TD, turned_DW, sums_P3D.sum(0)
    coming_TD = one_TD.float() + two_TD.float()
    value_TD = (total_TD.float() - mean_T[:, None]) * rise_T[:, None]
    of_weight_D, of_bias_D = (coming_TD * value_TD).sum(0), coming_TD.sum(0)
    coming_TD = coming_TD * weight_D
    along_T, level_T = (coming_TD * value_TD).mean(1, keepdim=True), coming_TD.mean(1, keepdim=True)
    gradient_TD = (coming_TD - level_T - value_TD * along_T) * rise_T[:, None]
    of_more_TD = dropout.dropped(gradient_TD, draws, dropped) if draws else gradient_TD
    small_TD = eight.cast(of_more_TD, scale, eight.BACKWARD)
    sums_3D = torch.stack((of_weight_D, of_bias_D, of_more_TD.sum(0)))
    return gradient_TD.to(total_TD.dtype), small_TD, eight.transpose(small_TD), sums_3D
