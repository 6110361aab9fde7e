"""Self-attention over flat places, by the kernel that device and batch allow.

B rows, L places in a row, T = B*L flat places, R places that are read, S sequences, D width, H heads, K head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

Kernel = Literal["variable", "dense", "masked", "explicit"]
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Sight:
    """Who sees whom in a batch: made once, shared by all layers.

    Places of a row see each other where their document numbers are equal. A run of padding sees itself, so that no
    place sees nothing; what comes of it is read by nobody.
    """

    kernel: Kernel
    rows: int
    causal: bool
    bounds: Tensor  # [S+1] int32
    longest: int
    mask: Tensor | None  # [B, 1, L, L] bool, where the kernel needs one


def choose_kernel(
    *, device: str, dtype: torch.dtype, full: bool, head_width: int, dropout: float, explicit: bool
) -> Kernel:
    """The fastest kernel that gives the right answer."""
    if explicit:
        return "explicit"
    if full:
        return "dense"
    # The variable-length kernel knows no dropout on probabilities: the paper's 0.1 costs the masked kernel in training.
    if device == "cuda" and dtype in HALF and dropout == 0 and head_width % 8 == 0 and head_width <= 256:
        return "variable"
    return "masked"


def see(document: Tensor, bounds: Tensor, *, kernel: Kernel, longest: int, causal: bool) -> Sight:
    """The sight of rows whose `document` numbers [B, L] say which places belong together."""
    mask = None
    if kernel in ("masked", "explicit"):
        same_BLL = document[:, :, None] == document[:, None, :]
        mask = (same_BLL.tril() if causal else same_BLL).unsqueeze(1)
    return Sight(kernel, len(document), causal, bounds, longest, mask)


class Attention(nn.Module):
    """Multi-head self-attention with one matrix for queries, keys and values (Vaswani et al. 2017, §3.2)."""

    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x_TD: Tensor, sight: Sight, places: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """What each place, or each of `places`, sees [T or R, D]; and the explicit kernel's probabilities."""
        q_THK, k_THK, v_THK = self.qkv(x_TD).view(len(x_TD), 3, self.heads, -1).unbind(1)
        probabilities_BHLL = None
        if sight.kernel == "variable":
            seen_THK = _variable(q_THK, k_THK, v_THK, sight)
        else:
            q_BHLK, k_BHLK, v_BHLK = (_by_rows(part_THK, sight.rows) for part_THK in (q_THK, k_THK, v_THK))
            dropout = self.dropout if self.training else 0.0
            if sight.kernel == "explicit":
                seen_BHLK, probabilities_BHLL = _explicit(q_BHLK, k_BHLK, v_BHLK, sight, dropout)
            else:
                causal = sight.causal and sight.mask is None
                seen_BHLK = F.scaled_dot_product_attention(q_BHLK, k_BHLK, v_BHLK, sight.mask, dropout, causal)
            seen_THK = seen_BHLK.transpose(1, 2).flatten(0, 1)
        seen_TD = seen_THK.flatten(1)
        if places is not None:
            seen_TD = seen_TD.index_select(0, places)
        return self.output(seen_TD), probabilities_BHLL


def _by_rows(part_THK: Tensor, rows: int) -> Tensor:
    return part_THK.view(rows, -1, *part_THK.shape[1:]).transpose(1, 2)


def _variable(q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, sight: Sight) -> Tensor:
    window = (-1, 0 if sight.causal else -1)  # how far back and ahead; -1 = to the end
    bounds, longest = sight.bounds, sight.longest
    seen_THK = varlen_attn(q_THK, k_THK, v_THK, bounds, bounds, longest, longest, window_size=window)
    assert isinstance(seen_THK, Tensor)  # a pair only where the sums of exponentials are asked for too
    return seen_THK


def _explicit(q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, sight: Sight, dropout: float) -> tuple[Tensor, Tensor]:
    assert sight.mask is not None
    scores_BHLL = q_BHLK @ k_BHLK.transpose(-1, -2) * q_BHLK.shape[-1] ** -0.5
    probabilities_BHLL = scores_BHLL.masked_fill(~sight.mask, -torch.inf).softmax(-1)
    return F.dropout(probabilities_BHLL, dropout) @ v_BHLK, probabilities_BHLL
