"""The Triton kernels compile for a Hopper GPU, without one: layouts, casts to FP8, shared memory."""

from __future__ import annotations

import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
MAX_SHARED = 227 * 1024  # bytes of shared memory of a block
TILE = {"F": 768, "BLOCK_M": 128, "BLOCK_N": 64, "EVEN": False}
ATTENTION = {
    "H": 12, "K": 64, "qk_scale": 0.18, "keep_scale": 1 / 0.9, "threshold": 429496730, "DROPOUT": True, "CAUSAL": False,
    "EVEN": False, "FP8": True,
}  # fmt: skip
NORM = {
    "D": 768, "A": 512, "B": 256, "UNMASKED": False, "EVEN": False, "BLOCK_M": 64, "ROWS": 1, "BLOCK_N": 32,
    "STAGES": 3, "DROPOUT": True, "threshold": 1 - 2**31, "keep_scale": 1.1,
}  # fmt: skip
GELU = {**TILE, "TANH": False}
CROSS = {
    "H": 8, "K": 64, "qk_scale": 0.18, "keep_scale": 1 / 0.9, "threshold": 429496730, "DROPOUT": True, "BLOCK_M": 64,
    "BLOCK_N": 64,
}  # fmt: skip
STRIDES = ("q", "gates", "before", "after", "outputs", "cells", "grad", "values")
INTEGERS = dict.fromkeys(["S", "L", "T", "W", "size", *(f"{name}_stride" for name in STRIDES)], "i32")
FLOATS = {"clip": "fp32", "epsilon": "fp32"}
LSTM = {"H": 4096, "BLOCK": 1024}
KERNELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # module.kernel, types of the pointers in order, constants
    "gelu": ("elementwise.gelu_kernel", "bf16 bf16", {"BLOCK_N": 4096, "TANH": False}),
    "gelu backward": (
        "elementwise.gelu_backward_kernel",
        "bf16 bf16 bf16 bf16 fp32",
        {**TILE, "BLOCK_M": 8, "BLOCK_N": 128, "REPEATS": 8, "scale": 1.0, "FP8": False, "TANH": True},
    ),
    "gelu in FP8": ("elementwise.cast_kernel", "bf16 fp8e4nv fp8e4nv", {**GELU, "scale": 8.0, "GELU": True}),
    "gelu backward in FP8": (
        "elementwise.gelu_backward_kernel",
        "bf16 bf16 fp8e5 fp8e5 fp32",
        {**GELU, "scale": 16.0, "REPEATS": 2, "FP8": True},
    ),
    "transpose": ("elementwise.transpose_kernel", "fp8e5 fp8e5", TILE),
    "cast": ("elementwise.cast_kernel", "fp32 fp8e4nv fp8e4nv", {**GELU, "scale": 128.0, "GELU": False}),
    "add and norm": (
        "norm.add_norm_kernel",
        "bf16 fp32 fp32 fp32 fp32 bf16 i32 i32 fp32 fp32 bf16 fp8e4nv fp8e4nv fp32 fp32",
        {**NORM, "scale": 8.0, "eps": 1e-12, "NORMED": True},
    ),
    "add and norm backward": (
        "norm.add_norm_backward_kernel",
        "bf16 bf16 bf16 fp32 fp32 fp32 i32 i32 bf16 fp8e5 fp8e5 fp32",
        {**NORM, "scale": 1048576.0},
    ),
    "cross-entropy": (
        "cross_entropy.cross_entropy_kernel",
        "bf16 i64 fp32 i1 bf16",
        {"V": 30528, "BLOCK_N": 4096, "IGNORE": -100, "SMOOTHING": 0.0},
    ),
    "cross-entropy with label smoothing": (
        "cross_entropy.cross_entropy_kernel",
        "bf16 i64 fp32 i1 bf16",
        {"V": 30528, "BLOCK_N": 4096, "IGNORE": -100, "SMOOTHING": 0.1},
    ),
    "attention": (
        "attention.forward_kernel",
        "bf16 i32 i32 i32 bf16 fp32 fp8e4nv fp8e4nv",
        {**ATTENTION, "BLOCK_M": 128, "BLOCK_N": 64, "fp8_scale": 8.0},
    ),
    "attention backward": (
        "attention.backward_kernel",
        "bf16 i32 i32 i32 bf16 fp32 fp32 fp8e5 fp8e5 fp32",
        {**ATTENTION, "BLOCK_M": 32, "BLOCK_N": 64, "keep_prob": 0.9, "fp8_scale": 16.0},
    ),
    "cross-attention": ("cross_attention.forward_kernel", "bf16 bf16 i32 i32 i32 i32 bf16 fp32", CROSS),
    "cross-attention of few queries": (
        "cross_attention.forward_kernel",
        "bf16 bf16 i32 i32 i32 i32 bf16 fp32",
        {**CROSS, "BLOCK_M": 16, "BLOCK_N": 32, "DROPOUT": False},
    ),
    "cross-attention backward, queries": (
        "cross_attention.backward_query_kernel",
        "bf16 bf16 i32 i32 i32 i32 bf16 bf16 fp32 fp32 bf16",
        {**CROSS, "keep_prob": 0.9},
    ),
    "cross-attention backward, keys": (
        "cross_attention.backward_key_kernel",
        "bf16 bf16 i32 i32 i32 i32 bf16 fp32 fp32 bf16",
        CROSS,
    ),
    "relu backward": (
        "linear_relu.relu_backward_kernel",
        "bf16 bf16 bf16 fp32",
        {"F": 2048, "BLOCK_M": 8, "BLOCK_N": 128, "REPEATS": 8},
    ),
    "attention of a decoding step": (
        "cached_attention.cached_attention_kernel",
        "bf16 bf16 i64 i64 bf16",
        {"H": 8, "K": 64, "qk_scale": 0.18, "BLOCK_N": 32},
    ),
    "rotary backward": (
        "elementwise.rotary_backward_fp8_kernel",
        "bf16 fp32 fp32 fp8e5 fp8e5 fp32",
        {"H": 12, "K": 64, "BLOCK_M": 64, "scale": 16.0, "EVEN": False},
    ),
    "rotary": ("elementwise.rotary_kernel", "bf16 bf16 fp32 fp32", {"H": 12, "K": 64, "BLOCK_M": 64, "sign": 1.0}),
    "gates of an LSTM": ("lstm.gates_forward_kernel", "bf16 fp32 fp32 fp32 bf16", LSTM),
    "gates of an LSTM backward": ("lstm.gates_backward_kernel", "bf16 fp32 fp32 bf16 fp32", LSTM),
    "clipping backward": ("lstm.clip_backward_kernel", "bf16 bf16", {"BLOCK": 1024}),
    "sampled softmax": (
        "sampled_softmax.sampled_softmax_kernel",
        "bf16 fp32 fp32 i64 i64 i1 fp32 i1 fp32",
        {"S": 8192, "BLOCK": 4096},
    ),
    "adagrad": ("adagrad.adagrad_kernel", "fp32 fp32 fp32 fp32 fp32 fp32", {"BLOCK": 1024}),
}


def compiled(name: str, monkeypatch: pytest.MonkeyPatch, *, warps: int = 8, stages: int = 3, **more: Any) -> Any:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # required by later versions
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    path, pointers, constants = KERNELS[name]
    constants = {**constants, **more}
    module, _, function = path.partition(".")
    kernel = getattr(import_module(f"bertsmith.nn.kernels.{module}"), function)
    scalars = {**INTEGERS, **FLOATS}
    others = [argument for argument in kernel.arg_names if argument not in constants and argument not in scalars]
    types = dict(zip(others, (f"*{kind}" for kind in pointers.split()), strict=True))
    types |= dict.fromkeys(constants, "constexpr")
    types = {argument: types.get(argument) or scalars[argument] for argument in kernel.arg_names}
    indices = {(kernel.arg_names.index(argument),): value for argument, value in constants.items()}
    aligned = [index for index, argument in enumerate(kernel.arg_names) if argument not in {**constants, **FLOATS}]
    attributes = {(index,): [["tt.divisibility", 16]] for index in aligned}
    source = ASTSource(fn=kernel, signature=types, constexprs=indices, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_for_hopper(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled(name, monkeypatch)
    assert kernel.asm["ptx"]
    assert kernel.metadata.shared < MAX_SHARED


@pytest.mark.parametrize(
    ("dropout", "causal"),
    [(True, False), (False, True), *(pytest.param(one, one, marks=pytest.mark.slow) for one in (False, True))],
)
@pytest.mark.parametrize("name", ["attention", "attention backward"])
def test_matrix_products_of_attention_are_not_serialised(
    name: str, dropout: bool, causal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Serialised products are each followed by a wait; see the module docstring for their cost."""
    from triton.backends import nvidia

    from bertsmith.nn.kernels import attention

    tiles = dict(attention.FORWARD_TILES if name == "attention" else attention.BACKWARD_TILES)
    warps, stages = tiles.pop("num_warps"), tiles.pop("num_stages")
    flags = {"DROPOUT": dropout, "CAUSAL": causal, "EVEN": True}
    kernel = compiled(name, monkeypatch, warps=warps, stages=stages, **tiles, **flags)
    (tmp_path / "kernel").write_bytes(kernel.asm["cubin"])
    call = [Path(nvidia.__file__).parent / "bin" / "nvdisasm", "-c", tmp_path / "kernel"]
    code = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    products, waits = code.count(" HGMMA."), code.count(" WARPGROUP.DEPBAR")
    assert products >= 8
    assert waits <= products / 2
