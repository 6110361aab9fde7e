"""Runs the Triton kernels on the CPU by triton's interpreter, in a process of its own, and prints how far off they are.

    TRITON_INTERPRET=1 python tests/nn/packed_attention_cases.py

The reference computes whole masked rows of probabilities in float64, and draws by numpy what the kernels drop.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import cross_entropy_cases
import elementwise_cases
import norm_cases
import numpy as np
import torch
from model_fixtures import VOCABULARY, random_batch
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime import interpreter

from bertsmith.encoders import bert, modern
from bertsmith.model_io.model import Model
from bertsmith.nn import attention
from bertsmith.nn.attention import rotary_embedding
from bertsmith.nn.fp8 import enable_fp8, materialize, ops
from bertsmith.nn.kernels import attention as kernels
from bertsmith.nn.kernels import elementwise
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import make_block
from bertsmith.objectives import masked_lm

CASES: dict[str, dict[str, Any]] = {
    "several texts": {"bounds": [0, 23, 32, 64, 96, 96]},
    "no whole tile at the end": {"bounds": [0, 23, 33, 64, 75]},
    "texts that fill tiles": {"bounds": [0, 32, 64, 128]},
    "texts that end within a tile": {"bounds": [0, 55, 64, 121, 128]},
    "texts that end within a tile, with dropout": {"bounds": [0, 55, 64, 121, 128], "dropout": 0.1},
    "with dropout": {"bounds": [0, 32, 50, 64, 128], "dropout": 0.1},
    "more dropped than kept": {"bounds": [0, 32, 50, 64, 75], "dropout": 0.7},
    "left to right": {"bounds": [0, 23, 64, 75], "causal": True},
    "left to right with dropout": {"bounds": [0, 23, 64, 75], "causal": True, "dropout": 0.3},
    "wide heads": {"bounds": [0, 40, 64], "width": 32},
}
SEED, HEADS = 5, 2
EIGHT = ("no whole tile at the end", "texts that fill tiles", "texts that end within a tile")


def mixed(numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        numbers = (numbers ^ (numbers >> np.uint32(shift))) * np.uint32(factor)
    return numbers ^ (numbers >> np.uint32(16))


def kept(places: int, dropout: float) -> Tensor:
    """Which pairs of queries and keys of each head are not dropped [H, T, T]."""
    torch.manual_seed(SEED)
    drawn = int(torch.randint(-(2**31), 2**31 - 1, (1,), dtype=torch.int32)) % 2**32
    place, salts = np.arange(places, dtype=np.uint32), (0, 0x5BF03635)
    of_queries, of_keys = (mixed(place ^ np.uint32((drawn + salt) % 2**32)) | np.uint32(1) for salt in salts)
    found = []
    for head in range(HEADS):
        of_head = mixed(np.array([(head * 0x9E3779B9 + 0x5BF03635) % 2**32], np.uint32)) | np.uint32(1)
        found.append(of_head * of_queries[:, None] * of_keys >= np.uint32(round(dropout * 2**32)))
    return torch.from_numpy(np.stack(found))


def reach_of(bounds: list[int]) -> tuple[Tensor, Tensor]:
    """Where the text of each place begins and ends [T]."""
    bound = torch.tensor(bounds, dtype=torch.int32)
    text = torch.searchsorted(bound, torch.arange(bounds[-1], dtype=torch.int32), right=True)
    return bound[text - 1], bound[text]


def off(bounds: list[int], *, dropout: float = 0.0, causal: bool = False, width: int = 16) -> dict[str, float]:
    """How far what is seen and the gradients are from the reference's."""
    places, (begin, end) = bounds[-1], reach_of(bounds)
    draw = torch.Generator().manual_seed(0)
    qkv = torch.randn(places, 3, HEADS, width, generator=draw).requires_grad_()
    gradient = torch.randn(places, HEADS, width, generator=draw)
    torch.manual_seed(SEED)
    found = kernels.attend(qkv, begin, end, dropout=dropout, causal=causal)
    (ours,) = torch.autograd.grad(found, qkv, gradient)
    q, k, v = (part.transpose(0, 1).double() for part in qkv.unbind(1))
    seen = begin[:, None] == begin
    seen = seen.tril() if causal else seen
    share = (q @ k.transpose(1, 2) * width**-0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    if dropout:
        share = share * kept(places, dropout) / (1 - dropout)
    expected = (share @ v).transpose(0, 1)
    (theirs,) = torch.autograd.grad(expected, qkv, gradient.double())
    return {"seen": (found - expected).abs().max().item(), "gradient": (ours - theirs).abs().max().item()}


def whole(kind: str) -> dict[str, float]:
    """How far a whole model's loss and gradients are from those by masks, with texts of all lengths in its rows."""
    narrow = {"layers": 2, "width": 32, "heads": 2, "feed_forward": 32, "dropout": 0.0, "attention_dropout": 0.0}
    encoder = {"bert": bert, "modern": modern}[kind].Config(**narrow, vocab_size=VOCABULARY.size, max_positions=40)
    torch.manual_seed(0)
    model = Model.build(encoder, [masked_lm.Config()], vocabulary=VOCABULARY, seed=3)
    batch = model.corrupt(random_batch([12, 9, 23, 7, 40, 5, 31], length=40, pack=True))
    found = {}
    for kernel in ("masked", "triton"):
        attention.choose_kernel = lambda kernel=kernel, **how: kernel
        model.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        gradients = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
        found[kernel] = loss.item(), gradients
    (ours, mine), (theirs, right) = found["triton"], found["masked"]
    return {"seen": abs(ours - theirs), "gradient": (mine - right).abs().max().item()}


def eight(bounds: list[int], *, width: int = 16) -> dict[str, float]:
    """How far gradients in eight bits are from those that are not: shares of bits, places, sums; and a whole layer."""
    places, reach, draw = bounds[-1], reach_of(bounds), torch.Generator().manual_seed(0)
    qkv = torch.randn(places, 3, HEADS, width, generator=draw)
    back, none = torch.randn(places, HEADS, width, generator=draw), torch.zeros(1, dtype=torch.int32)
    seen = kernels.attention_forward(qkv, *reach, none, 0.0, False)
    exact = kernels.attention_backward(back, qkv, *reach, none, *seen, 0.0, False).flatten(1)
    small, turned, sums = kernels.attention_backward_fp8(back, qkv, *reach, none, *seen, 0.0, False, 16.0)
    *again, cast, cast_turned = kernels.attention_forward_fp8(qkv, *reach, none, 0.0, False, 8.0)
    return {
        "seen": max((one - other).abs().max().item() for one, other in zip(seen, again, strict=True)),
        "bits of what is seen": (cast.float() != (seen[0].flatten(1) * 8).to(cast.dtype).float()).float().mean().item(),
        "bits": (small.float() != (exact * 16).to(small.dtype).float()).float().mean().item(),
        "turned": max(elementwise_cases.wrongly_turned(*each) for each in ((small, turned), (cast, cast_turned))),
        "sums": (sums.sum(0) - exact.sum(0)).abs().max().item(),
        **layer(reach, places, HEADS * width, draw),
    }


def turned(bounds: list[int], *, width: int = 16) -> dict[str, float]:
    """How far queries and keys that are turned by kernels are from those turned by torch, there and back."""
    places, (begin, _), draw = bounds[-1], reach_of(bounds), torch.Generator().manual_seed(0)
    qkv = torch.randn(places, 3, HEADS, width, generator=draw).requires_grad_()
    turn = rotary_embedding(torch.arange(places) - begin, head_width=width, theta=100.0)
    q, k, v = qkv.unbind(1)
    right = torch.stack((turn.rotate(q), turn.rotate(k), v), 1)
    found = elementwise.rotate_qk(qkv, turn.cos, turn.sin)
    whole = torch.randn(right.shape, generator=draw)
    (ours,), (theirs,) = (torch.autograd.grad(each, qkv, whole, retain_graph=True) for each in (found, right))
    small, over, sums = elementwise.rotary_backward_fp8(whole, turn.cos, turn.sin, 16.0)
    exact = theirs.flatten(1)
    return {
        "there": (found - right).abs().max().item(),
        "back": (ours - theirs).abs().max().item(),
        "bits": (small.float() != (exact * 16).to(small.dtype).float()).float().mean().item(),
        "turned": elementwise_cases.wrongly_turned(small, over),
        "sums": (sums.sum(0) - exact.sum(0)).abs().max().item(),
    }


def layer(reach: tuple[Tensor, Tensor], places: int, width: int, draw: torch.Generator) -> dict[str, float]:
    """How far a layer that learns in eight bits is from a plain one, as a share."""
    torch.manual_seed(0)
    plain = attention.Attention(width=width, heads=HEADS, dropout=0.0).train()
    other = copy.deepcopy(plain)
    assert enable_fp8(other, blocks=False) == 2
    x, back = (torch.randn(places, width, generator=draw) for _ in range(2))
    context = attention.AttentionContext("triton", 1, False, reach[0], places, None, sequence_bounds=reach)
    found = []
    for each in (plain, other):
        mine = x.clone().requires_grad_()
        out, _ = each(mine, context)
        out.backward((back / places).to(out.dtype))
        found.append([out, mine.grad, *(weight.grad for weight in each.parameters())])
    offs = [
        float((ours - theirs).detach().norm() / theirs.detach().norm()) for theirs, ours in zip(*found, strict=True)
    ]
    return {"layer there": offs[0], "layer back": max(offs[1:])}


def blocks(bounds: list[int], *, width: int = 32) -> dict[str, float]:
    """How far two whole blocks in eight bits are from plain ones and from those whose parts are in eight bits."""
    places, reach, draw = bounds[-1], reach_of(bounds), torch.Generator().manual_seed(0)
    context = attention.AttentionContext("triton", 1, False, reach[0], places, None, sequence_bounds=reach)
    torch.manual_seed(0)
    plain = torch.nn.ModuleList(
        make_block(width=width, heads=HEADS, inner=48, layer_config=LayerConfig()) for _ in range(2)
    ).train()
    for weight in plain.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.2, generator=draw)
    parts, whole = copy.deepcopy(plain), copy.deepcopy(plain)
    assert enable_fp8(parts, blocks=False) == enable_fp8(whole) == 8
    x, back = (torch.randn(places, width, generator=draw) for _ in range(2))
    found = []
    for chain in (plain, parts, whole):
        mine = x.clone().requires_grad_()
        out = mine
        for block in chain:
            out, _ = block(out, context)
        assert isinstance(out, Tensor) == (chain is not whole)
        out = materialize(out)
        out.backward((back / places).to(out.dtype))
        found.append([out.detach(), mine.grad, *(weight.grad for weight in chain.parameters())])
    offs = [
        [float((ours - theirs).norm() / theirs.norm()) for theirs, ours in zip(found[0], each, strict=True)]
        for each in found[1:]
    ]
    return dict(zip(("parts there", "parts back", "there", "back"), (*_ends(offs[0]), *_ends(offs[1])), strict=True))


def _ends(offs: list[float]) -> tuple[float, float]:
    return offs[0], max(offs[1:])


def hurry_the_interpreter() -> None:
    """At each call of a function by a kernel the interpreter goes through the whole language: a third of its time.

    And of each sum and product it computes whether it overflows, of which it says nothing unless it is debugging.
    """
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    original, known = interpreter.InterpretedFunction.__call__, set[Any]()

    def call(function: Any, *given: Any, **named: Any) -> Any:
        if function in known:
            return function.rewrite()(*given, **named)
        known.add(function)
        return original(function, *given, **named)

    interpreter.InterpretedFunction.__call__ = call


def main() -> None:
    hurry_the_interpreter()
    kernels.FORWARD_TILES.update(BLOCK_M=32, BLOCK_N=16)
    kernels.BACKWARD_TILES.update(BLOCK_M=16, BLOCK_N=32)
    found = {name: off(**case) for name, case in CASES.items()}
    found |= {f"a whole {kind}": whole(kind) for kind in ("bert", "modern")}
    matmul, matmul_dx = ops.matmul, ops.matmul_dx
    ops.matmul = lambda *given: matmul(*given).float()  # the interpreter multiplies no bfloat16
    in_eight = {name: eight(CASES[name]["bounds"]) for name in EIGHT}
    in_eight |= {f"{name}, rotary": turned(CASES[name]["bounds"]) for name in EIGHT[:2]}
    ops.matmul_dx = lambda *given: matmul_dx(*given).float()
    in_eight["blocks"] = blocks(CASES[EIGHT[0]]["bounds"])
    others = {"gelu": elementwise_cases.found(), "words": cross_entropy_cases.found(), "norm": norm_cases.found()}
    print(json.dumps({"attention": found, "eight": in_eight, **others}))


if __name__ == "__main__":
    main()
