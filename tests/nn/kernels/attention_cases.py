"""Runs the Triton kernels on the CPU with triton's interpreter, in a separate process, and prints their errors.

    TRITON_INTERPRET=1 python tests/nn/kernels/attention_cases.py

The reference computes masked attention in float64, and dropout with numpy.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import adagrad_cases
import cross_attention_cases
import cross_entropy_cases
import elementwise_cases
import lstm_cases
import norm_cases
import numpy as np
import sampled_softmax_cases
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
    "several texts": {"cu_seqlens": [0, 23, 32, 64, 96, 96]},
    "partial last tile": {"cu_seqlens": [0, 23, 33, 64, 75]},
    "texts that fill tiles": {"cu_seqlens": [0, 32, 64, 128]},
    "texts that end within a tile": {"cu_seqlens": [0, 55, 64, 121, 128]},
    "texts that end within a tile, with dropout": {"cu_seqlens": [0, 55, 64, 121, 128], "dropout": 0.1},
    "with dropout": {"cu_seqlens": [0, 32, 50, 64, 128], "dropout": 0.1},
    "more dropped than kept": {"cu_seqlens": [0, 32, 50, 64, 75], "dropout": 0.7},
    "causal": {"cu_seqlens": [0, 23, 64, 75], "causal": True},
    "causal with dropout": {"cu_seqlens": [0, 23, 64, 75], "causal": True, "dropout": 0.3},
    "wide heads": {"cu_seqlens": [0, 40, 64], "width": 32},
}
SEED, HEADS = 5, 2
FP8_CASES = ("partial last tile", "texts that fill tiles", "texts that end within a tile")


def hash_uint32(numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        numbers = (numbers ^ (numbers >> np.uint32(shift))) * np.uint32(factor)
    return numbers ^ (numbers >> np.uint32(16))


def kept(tokens: int, dropout: float) -> Tensor:
    """Which query-key pairs of each head dropout keeps [H, T, T]."""
    torch.manual_seed(SEED)
    seed = int(torch.randint(-(2**31), 2**31 - 1, (1,), dtype=torch.int32)) % 2**32
    index, salts = np.arange(tokens, dtype=np.uint32), (0, 0x5BF03635)
    of_queries, of_keys = (hash_uint32(index ^ np.uint32((seed + salt) % 2**32)) | np.uint32(1) for salt in salts)
    results = []
    for head in range(HEADS):
        of_head = hash_uint32(np.array([(head * 0x9E3779B9 + 0x5BF03635) % 2**32], np.uint32)) | np.uint32(1)
        results.append(of_head * of_queries[:, None] * of_keys >= np.uint32(round(dropout * 2**32)))
    return torch.from_numpy(np.stack(results))


def sequence_bounds(cu_seqlens: list[int]) -> tuple[Tensor, Tensor]:
    """Begin and end of each token's text [T]."""
    bound = torch.tensor(cu_seqlens, dtype=torch.int32)
    text = torch.searchsorted(bound, torch.arange(cu_seqlens[-1], dtype=torch.int32), right=True)
    return bound[text - 1], bound[text]


def attention_errors(
    cu_seqlens: list[int], *, dropout: float = 0.0, causal: bool = False, width: int = 16
) -> dict[str, float]:
    """Errors of outputs and gradients."""
    tokens, (begin, end) = cu_seqlens[-1], sequence_bounds(cu_seqlens)
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(tokens, 3, HEADS, width, generator=generator).requires_grad_()
    gradient = torch.randn(tokens, HEADS, width, generator=generator)
    torch.manual_seed(SEED)
    out = kernels.attend(qkv, begin, end, dropout=dropout, causal=causal)
    (actual,) = torch.autograd.grad(out, qkv, gradient)
    q, k, v = (part.transpose(0, 1).double() for part in qkv.unbind(1))
    visible = begin[:, None] == begin
    visible = visible.tril() if causal else visible
    probabilities = (q @ k.transpose(1, 2) * width**-0.5).masked_fill(~visible, -torch.inf).softmax(-1)
    if dropout:
        probabilities = probabilities * kept(tokens, dropout) / (1 - dropout)
    expected = (probabilities @ v).transpose(0, 1)
    (reference,) = torch.autograd.grad(expected, qkv, gradient.double())
    return {"output": (out - expected).abs().max().item(), "gradient": (actual - reference).abs().max().item()}


def model_errors(kind: str) -> dict[str, float]:
    """Errors of a model's loss and gradients relative to the masked kernel."""
    narrow = {"layers": 2, "width": 32, "heads": 2, "feed_forward": 32, "dropout": 0.0, "attention_dropout": 0.0}
    encoder = {"bert": bert, "modern": modern}[kind].Config(**narrow, vocab_size=VOCABULARY.size, max_positions=40)
    torch.manual_seed(0)
    model = Model.build(encoder, [masked_lm.Config()], vocabulary=VOCABULARY, seed=3)
    batch = model.corrupt(random_batch([12, 9, 23, 7, 40, 5, 31], length=40, pack=True))
    results = {}
    for kernel in ("masked", "triton"):
        attention.choose_kernel = lambda kernel=kernel, **how: kernel
        model.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        gradients = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
        results[kernel] = loss.item(), gradients
    (actual, actual_gradients), (reference, expected) = results["triton"], results["masked"]
    return {"output": abs(actual - reference), "gradient": (actual_gradients - expected).abs().max().item()}


def fp8_errors(cu_seqlens: list[int], *, width: int = 16) -> dict[str, float]:
    """Errors of FP8 outputs and gradients, their transposes and sums, and of an FP8 layer."""
    tokens, bounds_of_tokens, generator = cu_seqlens[-1], sequence_bounds(cu_seqlens), torch.Generator().manual_seed(0)
    qkv = torch.randn(tokens, 3, HEADS, width, generator=generator)
    back, none = torch.randn(tokens, HEADS, width, generator=generator), torch.zeros(1, dtype=torch.int32)
    outputs = kernels.attention_forward(qkv, *bounds_of_tokens, none, 0.0, False)
    exact = kernels.attention_backward(back, qkv, *bounds_of_tokens, none, *outputs, 0.0, False).flatten(1)
    dqkv8, transposed, sums = kernels.attention_backward_fp8(
        back, qkv, *bounds_of_tokens, none, *outputs, 0.0, False, 16.0
    )
    *again, out8, out8_t = kernels.attention_forward_fp8(qkv, *bounds_of_tokens, none, 0.0, False, 8.0)
    return {
        "output": max((one - other).abs().max().item() for one, other in zip(outputs, again, strict=True)),
        "fp8 output": (out8.float() != (outputs[0].flatten(1) * 8).to(out8.dtype).float()).float().mean().item(),
        "fp8 gradient": (dqkv8.float() != (exact * 16).to(dqkv8.dtype).float()).float().mean().item(),
        "transposed": max(elementwise_cases.transpose_errors(*each) for each in ((dqkv8, transposed), (out8, out8_t))),
        "sums": (sums.sum(0) - exact.sum(0)).abs().max().item(),
        **layer_errors(bounds_of_tokens, tokens, HEADS * width, generator),
    }


def rotary_errors(cu_seqlens: list[int], *, width: int = 16) -> dict[str, float]:
    """Errors of rotated queries and keys and of their gradients."""
    tokens, (begin, _), generator = cu_seqlens[-1], sequence_bounds(cu_seqlens), torch.Generator().manual_seed(0)
    qkv = torch.randn(tokens, 3, HEADS, width, generator=generator).requires_grad_()
    rotary = rotary_embedding(torch.arange(tokens) - begin, head_width=width, theta=100.0)
    q, k, v = qkv.unbind(1)
    expected = torch.stack((rotary.rotate(q), rotary.rotate(k), v), 1)
    out = elementwise.rotate_qk(qkv, rotary.cos, rotary.sin)
    dqkv = torch.randn(expected.shape, generator=generator)
    (actual,), (reference,) = (torch.autograd.grad(each, qkv, dqkv, retain_graph=True) for each in (out, expected))
    dqkv8, transposed_dqkv8, sums = elementwise.rotary_backward_fp8(dqkv, rotary.cos, rotary.sin, 16.0)
    exact = reference.flatten(1)
    return {
        "forward": (out - expected).abs().max().item(),
        "backward": (actual - reference).abs().max().item(),
        "fp8 gradient": (dqkv8.float() != (exact * 16).to(dqkv8.dtype).float()).float().mean().item(),
        "transposed": elementwise_cases.transpose_errors(dqkv8, transposed_dqkv8),
        "sums": (sums.sum(0) - exact.sum(0)).abs().max().item(),
    }


def layer_errors(
    bounds_of_tokens: tuple[Tensor, Tensor], tokens: int, width: int, generator: torch.Generator
) -> dict[str, float]:
    """Relative errors of an FP8 attention layer."""
    torch.manual_seed(0)
    plain = attention.Attention(width=width, heads=HEADS, dropout=0.0).train()
    other = copy.deepcopy(plain)
    assert enable_fp8(other, blocks=False) == 2
    x, back = (torch.randn(tokens, width, generator=generator) for _ in range(2))
    context = attention.AttentionContext(
        "triton", 1, False, bounds_of_tokens[0], tokens, None, sequence_bounds=bounds_of_tokens
    )
    results = []
    for each in (plain, other):
        x_grad = x.clone().requires_grad_()
        out, _ = each(x_grad, context)
        out.backward((back / tokens).to(out.dtype))
        results.append([out, x_grad.grad, *(weight.grad for weight in each.parameters())])
    errors = [
        float((actual - reference).detach().norm() / reference.detach().norm())
        for reference, actual in zip(*results, strict=True)
    ]
    return {"layer forward": errors[0], "layer backward": max(errors[1:])}


def block_errors(cu_seqlens: list[int], *, width: int = 32) -> dict[str, float]:
    """Relative errors of two FP8 blocks, and of two blocks of FP8 layers."""
    tokens, bounds_of_tokens, generator = cu_seqlens[-1], sequence_bounds(cu_seqlens), torch.Generator().manual_seed(0)
    context = attention.AttentionContext(
        "triton", 1, False, bounds_of_tokens[0], tokens, None, sequence_bounds=bounds_of_tokens
    )
    torch.manual_seed(0)
    plain = torch.nn.ModuleList(
        make_block(width=width, heads=HEADS, inner=48, layer_config=LayerConfig()) for _ in range(2)
    ).train()
    for weight in plain.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.2, generator=generator)
    by_layer, model_errors = copy.deepcopy(plain), copy.deepcopy(plain)
    assert enable_fp8(by_layer, blocks=False) == enable_fp8(model_errors) == 8
    x, back = (torch.randn(tokens, width, generator=generator) for _ in range(2))
    results = []
    for chain in (plain, by_layer, model_errors):
        x_grad = x.clone().requires_grad_()
        out = x_grad
        for block in chain:
            out, _ = block(out, context)
        assert isinstance(out, Tensor) == (chain is not model_errors)
        out = materialize(out)
        out.backward((back / tokens).to(out.dtype))
        results.append([out.detach(), x_grad.grad, *(weight.grad for weight in chain.parameters())])
    errors = [
        [
            float((actual - reference).norm() / reference.norm())
            for reference, actual in zip(results[0], each, strict=True)
        ]
        for each in results[1:]
    ]
    return dict(
        zip(
            ("layers forward", "layers backward", "forward", "backward"),
            (*_ends(errors[0]), *_ends(errors[1])),
            strict=True,
        )
    )


def _ends(errors: list[float]) -> tuple[float, float]:
    return errors[0], max(errors[1:])


def speed_up_interpreter() -> None:
    """Skips two steps of the interpreter: patching the language at every call of a function, and overflow checks."""
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    original, known = interpreter.InterpretedFunction.__call__, set[Any]()

    def call(function: Any, *given: Any, **named: Any) -> Any:
        if function in known:
            return function.rewrite()(*given, **named)
        known.add(function)
        return original(function, *given, **named)

    interpreter.InterpretedFunction.__call__ = call


def main() -> None:
    speed_up_interpreter()
    kernels.FORWARD_TILES.update(BLOCK_M=32, BLOCK_N=16)
    kernels.BACKWARD_TILES.update(BLOCK_M=16, BLOCK_N=32)
    results = {name: attention_errors(**case) for name, case in CASES.items()}
    results |= {f"{kind} model": model_errors(kind) for kind in ("bert", "modern")}
    matmul, matmul_dx = ops.matmul, ops.matmul_dx
    ops.matmul = lambda *given: matmul(*given).float()  # the interpreter does not support bfloat16 products
    fp8 = {name: fp8_errors(CASES[name]["cu_seqlens"]) for name in FP8_CASES}
    fp8 |= {f"{name}, rotary": rotary_errors(CASES[name]["cu_seqlens"]) for name in FP8_CASES[:2]}
    ops.matmul_dx = lambda *given: matmul_dx(*given).float()
    fp8["blocks"] = block_errors(CASES[FP8_CASES[0]]["cu_seqlens"])
    others = {
        "gelu": elementwise_cases.all_errors(),
        "cross-entropy": cross_entropy_cases.all_errors(),
        "norm": norm_cases.all_errors(),
        "lstm": lstm_cases.all_errors(),
        "sampled softmax": sampled_softmax_cases.all_errors(),
        "adagrad": adagrad_cases.all_errors(),
        "cross-attention": cross_attention_cases.all_errors(),
    }
    print(json.dumps({"attention": results, "fp8": fp8, **others}))


if __name__ == "__main__":
    main()
