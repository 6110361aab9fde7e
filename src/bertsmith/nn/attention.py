"""Self-attention over flat places, by the kernel that device and batch allow.

B rows, L places in a row, T = B*L flat places, R places that are read, S sequences, D width, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bertsmith.nn.rotary import Turns

Kernel = Literal["packed", "variable", "dense", "runs", "masked", "explicit"]
HALF = (torch.bfloat16, torch.float16)
PACKED_WIDTHS = (16, 32, 64, 128)  # of heads, that our own kernel has tiles for
HAS_TRITON = find_spec("triton") is not None  # it comes with torch for CUDA
NOT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
AVOIDED: set[Kernel] = set()  # by runs of this process: see `attention_choice`


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
    runs: tuple[tuple[int, int], ...] = ()  # see `Batch`
    turns: Turns | None = None  # of queries and keys, where these carry the positions
    reach: tuple[Tensor, Tensor] | None = None  # [T] int32 each: where a place's text begins and ends, for "packed"


def choose_kernel(
    *,
    device: str,
    dtype: torch.dtype,
    full: bool,
    head_width: int,
    dropout: float,
    explicit: bool,
    runs: bool = False,
    learns: bool = False,
) -> Kernel:
    """The fastest kernel that gives the right answer."""
    if explicit:
        return "explicit"
    half = device == "cuda" and dtype in HALF
    if half and learns and head_width in PACKED_WIDTHS and HAS_TRITON and "packed" not in AVOIDED:
        return "packed"
    if full:
        return "dense"
    if half and dropout == 0 and head_width % 8 == 0 and head_width <= 256:  # it knows no dropout on probabilities
        return "variable"
    return "runs" if runs else "masked"


def see(
    document: Tensor,
    bounds: Tensor,
    *,
    kernel: Kernel,
    longest: int,
    causal: bool,
    runs: tuple[tuple[int, int], ...] = (),
) -> Sight:
    """The sight of rows whose `document` numbers [B, L] say which places belong together."""
    mask = None
    if kernel in ("masked", "explicit"):
        same_BLL = document[:, :, None] == document[:, None, :]
        mask = (same_BLL.tril() if causal else same_BLL).unsqueeze(1)
    reach = None
    if kernel == "packed":
        place_T = torch.arange(document.numel(), dtype=bounds.dtype, device=bounds.device)
        text_T = torch.searchsorted(bounds, place_T, right=True)
        reach = bounds[text_T - 1], bounds[text_T]
    return Sight(kernel, document.shape[0], causal, bounds, longest, mask, runs, reach=reach)


def look(
    document: Tensor,
    bounds: Tensor,
    *,
    longest: int,
    full: bool,
    causal: bool,
    dtype: torch.dtype,
    head_width: int,
    dropout: float,
    explicit: bool = False,
    runs: tuple[tuple[int, int], ...] = (),
) -> Sight:
    """The sight of rows, by the fastest kernel for weights of that type; see `choose_kernel` and `see`."""
    device = document.device.type
    kernel = choose_kernel(
        device=device,
        dtype=torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else dtype,
        full=full,
        head_width=head_width,
        dropout=dropout,
        explicit=explicit,
        runs=bool(runs),
        learns=torch.is_grad_enabled(),
    )
    return see(document, bounds, kernel=kernel, longest=longest, causal=causal, runs=runs)


class Attention(nn.Module):
    """Multi-head self-attention with one matrix for queries, keys and values (Vaswani et al. 2017, §3.2)."""

    stacks: ClassVar[Mapping[str, int]] = {"qkv.weight": 3}  # see `optimizer.weights_of`

    def __init__(self, *, width: int, heads: int, dropout: float, biases: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=biases)
        self.output = nn.Linear(width, width, bias=biases)

    def forward(self, x_TD: Tensor, sight: Sight, places: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """What each place, or each of `places`, sees [T or R, D]; and the explicit kernel's probabilities."""
        if sight.kernel == "packed" and self.training and hasattr(self.qkv, "attend"):
            return self._in_eight_bits(x_TD, sight, places), None
        qkv_T3HK = self.qkv(x_TD).view(x_TD.shape[0], 3, self.heads, -1)
        q_THK, k_THK, v_THK = qkv_T3HK.unbind(1)
        if sight.turns is not None and sight.kernel != "packed":
            q_THK, k_THK = sight.turns.turn(q_THK), sight.turns.turn(k_THK)
        probabilities_BHLL = None
        if sight.kernel == "packed":
            seen_THK = _packed(qkv_T3HK, sight, self.dropout if self.training else 0.0)
        elif sight.kernel == "variable":
            seen_THK = _variable(q_THK, k_THK, v_THK, sight)
        elif sight.kernel == "runs":
            seen_THK = _by_runs(q_THK, k_THK, v_THK, sight, self.dropout if self.training else 0.0)
        else:
            q_BHLK, k_BHLK, v_BHLK = (_by_rows(part_THK, sight.rows) for part_THK in (q_THK, k_THK, v_THK))
            dropout = self.dropout if self.training else 0.0
            if sight.kernel == "explicit":
                seen_BHLK, probabilities_BHLL = _explicit(q_BHLK, k_BHLK, v_BHLK, sight, dropout)
            else:
                seen_BHLK = _by_mask(q_BHLK, k_BHLK, v_BHLK, sight, dropout)
            seen_THK = seen_BHLK.transpose(1, 2).flatten(0, 1)
        seen_TD = seen_THK.flatten(1)
        if places is not None:
            seen_TD = seen_TD.index_select(0, places)
        return self.output(seen_TD), probabilities_BHLL

    def _in_eight_bits(self, x_TD: Tensor, sight: Sight, places: Tensor | None) -> Tensor:
        """What each place sees [T or R, D], by matrices that cast: see `float8.Float8Qkv` and `Float8Output`."""
        how: dict[str, Any] = {"heads": self.heads, "dropout": self.dropout, "causal": sight.causal}
        seen_TD, seen8_TD = self.qkv.attend(x_TD, sight.reach, turns=sight.turns, **how)  # type: ignore[operator]
        found_TD: Tensor
        if places is None:
            found_TD = self.output.project(seen_TD, seen8_TD)  # type: ignore[operator]
        else:
            found_TD = self.output(seen_TD.index_select(0, places))
        return found_TD


def _packed(qkv_T3HK: Tensor, sight: Sight, dropout: float) -> Tensor:
    from bertsmith.nn.packed_attention import attend  # which needs triton

    assert sight.reach is not None
    return attend(qkv_T3HK, *sight.reach, dropout=dropout, causal=sight.causal, turns=sight.turns)


def _by_rows(part_THK: Tensor, rows: int) -> Tensor:
    return part_THK.view(rows, -1, *part_THK.shape[1:]).transpose(1, 2)


def _variable(q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, sight: Sight) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # brings torch's compiler along: seconds

    window = (-1, 0 if sight.causal else -1)  # how far back and ahead; -1 = to the end
    bounds, longest = sight.bounds, sight.longest
    seen_THK = varlen_attn(q_THK, k_THK, v_THK, bounds, bounds, longest, longest, window_size=window)
    assert isinstance(seen_THK, Tensor)  # a pair only where the sums of exponentials are asked for too
    return seen_THK


def _by_runs(q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, sight: Sight, dropout: float) -> Tensor:
    """Texts of equal length together: nothing is spent on padding, and nothing on a mask."""
    sizes = [texts * length for texts, length in sight.runs]
    seen = []
    for (texts, _), *parts_THK in zip(
        sight.runs, *(torch.split(part, sizes) for part in (q_THK, k_THK, v_THK)), strict=True
    ):
        q_BHLK, k_BHLK, v_BHLK = (_by_rows(part_THK, texts) for part_THK in parts_THK)
        seen_BHLK = F.scaled_dot_product_attention(q_BHLK, k_BHLK, v_BHLK, None, dropout, sight.causal)
        seen.append(seen_BHLK.transpose(1, 2).flatten(0, 1))
    return seen[0] if len(seen) == 1 else torch.cat(seen)


def _by_mask(q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, sight: Sight, dropout: float) -> Tensor:
    if sight.mask is None:
        return F.scaled_dot_product_attention(q_BHLK, k_BHLK, v_BHLK, None, dropout, sight.causal)
    # cuDNN, torch's first choice on an H200, gives NaN for gradients where a mask's rows end amid a tile (2.11)
    with sdpa_kernel(NOT_CUDNN) if q_BHLK.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(q_BHLK, k_BHLK, v_BHLK, sight.mask, dropout)


def _explicit(q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, sight: Sight, dropout: float) -> tuple[Tensor, Tensor]:
    assert sight.mask is not None
    scores_BHLL = q_BHLK @ k_BHLK.transpose(-1, -2) * q_BHLK.shape[-1] ** -0.5
    probabilities_BHLL = scores_BHLL.masked_fill(~sight.mask, -torch.inf).softmax(-1)
    return F.dropout(probabilities_BHLL, dropout) @ v_BHLK, probabilities_BHLL
