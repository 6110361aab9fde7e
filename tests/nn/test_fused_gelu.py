"""The GELU kernels, interpreted on the CPU: GELU there and back, the bias's gradient, and both in eight bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("packed_attention")
SHAPES = ["whole tiles", "rags", "fewer than a tile"]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, float]]:
    if find_spec("triton") is None:
        pytest.skip("needs triton")
    script = Path(__file__).with_name("fused_gelu_cases.py")
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("shape", SHAPES)
def test_gelu_there_and_back_and_the_bias_s_gradient(shape: str, found: dict[str, dict[str, float]]) -> None:
    off = found[shape]
    assert off["there"] < 2e-6
    assert off["back"] < 5e-6
    assert off["sums"] < 5e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_eight_bits_beside_it(shape: str, found: dict[str, dict[str, float]]) -> None:
    off = found[f"{shape}, eight bits"]
    assert off["there"] < 0.1  # see `fused_gelu_cases.eight`
    assert off["back"] < 0.15
    assert off["sums"] < 5e-5
