"""The Triton kernels, interpreted on the CPU, against references in torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("kernels")  # all cases run once, in one process
CASES = [
    "several texts",
    "partial last tile",
    "texts that fill tiles",
    "texts that end within a tile",
    "texts that end within a tile, with dropout",
    "with dropout",
    "more dropped than kept",
    "causal",
    "causal with dropout",
    "wide heads",
    "bert model",
    "modern model",
]


FP8_CASES = ["partial last tile", "texts that fill tiles", "texts that end within a tile"]
SHAPES = ["whole tiles", "partial tiles", "fewer than a tile"]
VARIANTS = ["", ", tanh"]
Errors = dict[str, dict[str, float]]  # by case and quantity


@pytest.fixture(scope="module")
def results() -> dict[str, Errors]:
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
def test_attention_equals_masked_attention(case: str, results: dict[str, Errors]) -> None:
    assert results["attention"][case]["output"] < 2e-6
    assert results["attention"][case]["gradient"] < 5e-6


def test_every_case_is_tested(results: dict[str, Errors]) -> None:
    assert [*results["attention"]] == CASES


@pytest.mark.parametrize("case", FP8_CASES)
def test_fp8_attention_with_transposes_and_sums(case: str, results: dict[str, Errors]) -> None:
    errors = results["fp8"][case]
    assert errors["output"] == 0
    assert errors["fp8 output"] < 0.1  # see `elementwise_cases.fp8_errors`
    assert errors["fp8 gradient"] < 0.15
    assert errors["transposed"] == 0
    assert errors["sums"] < 5e-5
    assert 0.001 < errors["layer forward"] < 0.08
    assert 0.005 < errors["layer backward"] < 0.2


@pytest.mark.parametrize("case", FP8_CASES[:2])
def test_rotary_forward_and_backward(case: str, results: dict[str, Errors]) -> None:
    errors = results["fp8"][f"{case}, rotary"]
    assert errors["forward"] < 2e-6
    assert errors["backward"] < 2e-6
    assert errors["fp8 gradient"] < 0.15  # see `elementwise_cases.fp8_errors`
    assert errors["transposed"] == 0
    assert errors["sums"] < 5e-5


def test_fp8_blocks_are_as_exact_as_fp8_layers(results: dict[str, Errors]) -> None:
    errors = results["fp8"]["blocks"]
    assert 0.005 < errors["forward"] < 0.05
    assert 0.01 < errors["backward"] < 0.25
    assert errors["forward"] < 1.1 * errors["layers forward"]
    assert errors["backward"] < 1.1 * errors["layers backward"]


@pytest.mark.parametrize("variant", ["", ", normed", ", with dropout, normed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_add_norm_forward_and_backward(shape: str, variant: str, results: dict[str, Errors]) -> None:
    errors = results["norm"][f"{shape}{variant}"]
    assert errors["forward"] < 1e-5
    assert errors["backward"] < 2e-6
    assert errors["sums"] < 1e-6
    assert errors["fp8 output"] < 0.1  # see `elementwise_cases.fp8_errors`
    assert errors["fp8 gradient"] < 0.15
    assert errors["transposed"] == errors["transposed gradient"] == 0


@pytest.mark.parametrize("by", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gelu_forward_backward_and_bias_gradient(shape: str, by: str, results: dict[str, Errors]) -> None:
    errors = results["gelu"][f"{shape}{by}"]
    assert errors["forward"] < 2e-6
    assert errors["backward"] < 5e-6
    assert errors["sums"] < 5e-5


@pytest.mark.parametrize("by", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gelu_in_fp8(shape: str, by: str, results: dict[str, Errors]) -> None:
    errors = results["gelu"][f"{shape}, FP8{by}"]
    assert errors["forward"] < 0.1  # see `elementwise_cases.fp8_errors`
    assert errors["cast"] < 0.1
    assert errors["backward"] < 0.15
    assert errors["sums"] < 5e-5
    assert errors["transposed"] == 0


CHUNKS = ["whole chunks", "partial last chunk", "less than a chunk", "without a bias", "with label smoothing"]


@pytest.mark.parametrize("shape", CHUNKS)
def test_cross_entropy(shape: str, results: dict[str, Errors]) -> None:
    errors = results["cross-entropy"][shape]
    assert errors["loss"] < 1e-6
    assert errors["gradient"] < 1e-5
    assert errors["wrong"] == 0
    assert errors["correct"] >= 1


@pytest.mark.parametrize("how", ["", ", clipped"])
@pytest.mark.parametrize("shape", ["several blocks", "less than a block"])
def test_lstm_steps(shape: str, how: str, results: dict[str, Errors]) -> None:
    errors = results["lstm"][f"{shape}{how}"]
    assert errors["forward"] < 2e-6
    assert errors["backward"] < 1e-5
    assert (errors["clipped"] > 0.05) == bool(how)


@pytest.mark.parametrize("shape", ["whole blocks", "partial last block", "less than a block"])
def test_sampled_softmax(shape: str, results: dict[str, Errors]) -> None:
    errors = results["sampled softmax"][shape]
    assert errors["loss"] < 1e-6
    assert errors["gradient"] < 1e-5
    assert errors["wrong"] == 0
    assert errors["correct"] >= 1


@pytest.mark.parametrize("shape", ["whole blocks", "partial last block", "less than a block"])
def test_adagrad(shape: str, results: dict[str, Errors]) -> None:
    errors = results["adagrad"][shape]
    assert errors["weights"] < 1e-6
    assert errors["sums"] < 1e-6
    assert errors["skipped"] == 0


PACKED = ["one pair per row", "padding on both sides", "several pairs per row", "padding of the target alone"]


@pytest.mark.parametrize("case", [*PACKED, "with dropout"])
def test_cross_attention_equals_masked_attention(case: str, results: dict[str, Errors]) -> None:
    errors = results["cross-attention"][case]
    assert errors["output"] < 2e-6
    assert errors["gradient"] < 5e-6
    assert errors["finite"] == 1, "padding too"


def test_a_translation_model_by_ranges_equals_masks(results: dict[str, Errors]) -> None:
    assert results["cross-attention"]["translation model"]["output"] < 2e-6
    assert results["cross-attention"]["translation model"]["gradient"] < 5e-6


@pytest.mark.parametrize("case", ["reordered hypotheses", "linear layer with ReLU"])
def test_other_kernels_of_the_transformer(case: str, results: dict[str, Errors]) -> None:
    assert results["cross-attention"][case]["output"] < 1e-5
