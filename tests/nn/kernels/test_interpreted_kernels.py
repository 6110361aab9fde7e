"""The Triton kernels, interpreted on the CPU: attention with dropout, GELU with its eight bits, guessed words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("kernels")  # one process: its cases are run once
CASES = [
    "several texts",
    "no whole tile at the end",
    "texts that fill tiles",
    "texts that end within a tile",
    "texts that end within a tile, with dropout",
    "with dropout",
    "more dropped than kept",
    "left to right",
    "left to right with dropout",
    "wide heads",
    "a whole bert",
    "a whole modern",
]


EIGHT = ["no whole tile at the end", "texts that fill tiles", "texts that end within a tile"]
SHAPES = ["whole tiles", "rags", "fewer than a tile"]
BY = ["", ", by tanh"]
Off = dict[str, dict[str, float]]  # by case and what is compared


@pytest.fixture(scope="module")
def found() -> dict[str, Off]:
    if find_spec("triton") is None:
        pytest.skip("needs triton")
    script = Path(__file__).with_name("attention_cases.py")
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("case", CASES)
def test_equal_to_masked_attention_there_and_back(case: str, found: dict[str, Off]) -> None:
    assert found["attention"][case]["seen"] < 2e-6
    assert found["attention"][case]["gradient"] < 5e-6


def test_every_case_is_looked_at(found: dict[str, Off]) -> None:
    assert [*found["attention"]] == CASES


@pytest.mark.parametrize("case", EIGHT)
def test_gradients_in_eight_bits_turned_and_summed_up(case: str, found: dict[str, Off]) -> None:
    off = found["eight"][case]
    assert off["seen"] == 0
    assert off["bits of what is seen"] < 0.1  # see `elementwise_cases.eight`
    assert off["bits"] < 0.15
    assert off["turned"] == 0
    assert off["sums"] < 5e-5
    assert 0.001 < off["layer there"] < 0.08
    assert 0.005 < off["layer back"] < 0.2


@pytest.mark.parametrize("case", EIGHT[:2])
def test_queries_and_keys_are_turned_there_and_back(case: str, found: dict[str, Off]) -> None:
    off = found["eight"][f"{case}, rotary"]
    assert off["there"] < 2e-6
    assert off["back"] < 2e-6
    assert off["bits"] < 0.15  # see `elementwise_cases.eight`
    assert off["turned"] == 0
    assert off["sums"] < 5e-5


def test_whole_blocks_are_as_near_as_their_parts(found: dict[str, Off]) -> None:
    off = found["eight"]["blocks"]
    assert 0.005 < off["there"] < 0.05
    assert 0.01 < off["back"] < 0.25
    assert off["there"] < 1.1 * off["parts there"]
    assert off["back"] < 1.1 * off["parts back"]


@pytest.mark.parametrize("way", ["", ", normed", ", with dropout, normed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_norms_there_and_back_with_their_casts_and_sums(shape: str, way: str, found: dict[str, Off]) -> None:
    off = found["norm"][f"{shape}{way}"]
    assert off["there"] < 1e-5
    assert off["back"] < 2e-6
    assert off["sums"] < 1e-6
    assert off["bits"] < 0.1  # see `elementwise_cases.eight`
    assert off["bits back"] < 0.15
    assert off["turned"] == off["turned back"] == 0


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("shape", SHAPES)
def test_gelu_there_and_back_and_the_bias_s_gradient(shape: str, by: str, found: dict[str, Off]) -> None:
    off = found["gelu"][f"{shape}{by}"]
    assert off["there"] < 2e-6
    assert off["back"] < 5e-6
    assert off["sums"] < 5e-5


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("shape", SHAPES)
def test_eight_bits_beside_it(shape: str, by: str, found: dict[str, Off]) -> None:
    off = found["gelu"][f"{shape}, eight bits{by}"]
    assert off["there"] < 0.1  # see `elementwise_cases.eight`
    assert off["cast"] < 0.1
    assert off["back"] < 0.15
    assert off["sums"] < 5e-5
    assert off["turned"] == 0


@pytest.mark.parametrize("shape", ["whole chunks", "a rest", "less than a chunk"])
def test_guessed_words_are_cross_entropy(shape: str, found: dict[str, Off]) -> None:
    off = found["words"][shape]
    assert off["loss"] < 1e-6
    assert off["gradient"] < 1e-5
    assert off["wrong"] == 0
    assert off["right"] >= 1
