"""The Triton kernels compile for a Hopper GPU, which need not be there: layouts, casts to eight bits, shared memory."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
MOST_SHARED = 227 * 1024  # bytes that a block may have there
TILE = {"F": 768, "M": 128, "N": 64}
HEADS = {"H": 12, "K": 64, "scale": 0.18, "up": 1 / 0.9, "dropped": 429496730, "DROPOUT": True, "CAUSAL": False}
ROW = {"D": 768, "A": 512, "B": 256, "WHOLE": False, "EVEN": False}
NORM = {**ROW, "M": 64, "R": 1, "N": 32, "STAGES": 3, "DROPOUT": True, "least": 1 - 2**31, "up": 1.1}
NUMBERS = {"T": "i32", "W": "i32", "size": "i32"}
KERNELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # module, types of pointers in order, constants
    "gelu": ("gelu_kernels", "bf16 bf16", {"N": 4096, "TANH": False}),
    "gelu_back": (
        "gelu_kernels",
        "bf16 bf16 bf16 bf16 fp32",
        {"F": 768, "M": 8, "N": 128, "TURNS": 8, "scale": 1.0, "EVEN": False, "EIGHT": False, "TANH": True},
    ),
    "cast_eight of GELU": (
        "gelu_kernels",
        "bf16 fp8e4nv fp8e4nv",
        {**TILE, "scale": 8.0, "EVEN": False, "GELU": True, "TANH": False},
    ),
    "gelu_back in eight bits": (
        "gelu_kernels",
        "bf16 bf16 fp8e5 fp8e5 fp32",
        {**TILE, "scale": 16.0, "TURNS": 2, "EVEN": False, "EIGHT": True, "TANH": False},
    ),
    "turn": ("gelu_kernels", "fp8e5 fp8e5", {**TILE, "EVEN": False}),
    "cast_eight": (
        "gelu_kernels",
        "fp32 fp8e4nv fp8e4nv",
        {**TILE, "scale": 128.0, "EVEN": False, "GELU": False, "TANH": False},
    ),
    "norm_forth": (
        "norm_kernels",
        "bf16 fp32 fp32 fp32 fp32 bf16 i32 i32 fp32 fp32 bf16 fp8e4nv fp8e4nv fp32 fp32",
        {**NORM, "scale": 8.0, "epsilon": 1e-12, "NORMED": True},
    ),
    "norm_back": (
        "norm_kernels",
        "bf16 bf16 bf16 fp32 fp32 fp32 i32 i32 bf16 fp8e5 fp8e5 fp32",
        {**NORM, "scale": 1048576.0},
    ),
    "guess": ("words_kernels", "bf16 i64 fp32 i1 bf16", {"V": 30528, "N": 4096, "IGNORE_INDEX": -100}),
    "forward": (
        "attention_kernels",
        "bf16 i32 i32 i32 bf16 fp32 fp8e4nv fp8e4nv",
        {**HEADS, "M": 128, "N": 64, "eight": 8.0, "EVEN": False, "EIGHT": True},
    ),
    "backward": (
        "attention_kernels",
        "bf16 i32 i32 i32 bf16 fp32 fp32 fp8e5 fp8e5 fp32",
        {**HEADS, "M": 32, "N": 64, "down": 0.9, "eight": 16.0, "EVEN": False, "EIGHT": True},
    ),
    "back_eight": (
        "rotary_kernels",
        "bf16 fp32 fp32 fp8e5 fp8e5 fp32",
        {"H": 12, "K": 64, "M": 64, "scale": 16.0, "EVEN": False},
    ),
    "turn_both": ("rotary_kernels", "bf16 bf16 fp32 fp32", {"H": 12, "K": 64, "M": 64, "sign": 1.0}),
}


def compiled(name: str, monkeypatch: pytest.MonkeyPatch, *, warps: int = 8, stages: int = 3, **more: Any) -> Any:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # later versions want to be told
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, pointers, constants = KERNELS[name]
    constants = {**constants, **more}
    kernel = getattr(__import__(f"bertsmith.nn.{module}", fromlist=[name]), name.split()[0])
    others = [argument for argument in kernel.arg_names if argument not in constants and argument not in NUMBERS]
    types = dict(zip(others, (f"*{kind}" for kind in pointers.split()), strict=True))
    types |= dict.fromkeys(constants, "constexpr")
    types = {argument: types.get(argument) or NUMBERS[argument] for argument in kernel.arg_names}
    places = {(kernel.arg_names.index(argument),): value for argument, value in constants.items()}
    divides = [number for number, argument in enumerate(kernel.arg_names) if argument not in constants]
    attributes = {(number,): [["tt.divisibility", 16]] for number in divides}  # as it is in fact
    source = ASTSource(fn=kernel, signature=types, constexprs=places, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("name", KERNELS)
def test_compiles_for_a_gpu_that_is_not_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compiled(name, monkeypatch)
    assert found.asm["ptx"]
    assert found.metadata.shared < MOST_SHARED


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_no_product_in_attention_waits_for_the_one_before(
    name: str, dropout: bool, causal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where they do, a wait stands behind each; what that costs is in `attention_kernels`."""
    from triton.backends import nvidia

    from bertsmith.nn import packed_attention

    tiles = dict(packed_attention.FORWARD if name == "forward" else packed_attention.BACKWARD)
    warps, stages = tiles.pop("num_warps"), tiles.pop("num_stages")
    how = {"DROPOUT": dropout, "CAUSAL": causal, "EVEN": True}
    found = compiled(name, monkeypatch, warps=warps, stages=stages, **tiles, **how)
    (tmp_path / "kernel").write_bytes(found.asm["cubin"])
    call = [Path(nvidia.__file__).parent / "bin" / "nvdisasm", "-c", tmp_path / "kernel"]
    code = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    products, waits = code.count(" HGMMA."), code.count(" WARPGROUP.DEPBAR")
    assert products >= 8
    assert waits <= products / 2
