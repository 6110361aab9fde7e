"""Roofline of a device: all ceilings are measured, in consistent units."""

from __future__ import annotations

import time

import pytest
import torch
from command_line import call

from bertsmith.reports import terminal
from bertsmith.system import devices
from bertsmith.system.devices import measure_peak_flops
from bertsmith.training import roofline
from bertsmith.training.roofline import SHAPES, measure


def test_every_kind_of_ceiling_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "RUNS", 3)
    lines: list[str] = []
    ceilings = measure(torch.device("cpu"), size=64, tokens=512, say=lines.append)
    assert len(lines) == len(ceilings)
    assert all(one["value"] > 0 for one in ceilings)
    kinds = [one["what"].split(",")[0].split(" ")[0] for one in ceilings]
    assert kinds.count("product") == 1 + len(SHAPES)
    assert kinds.count("copy") == 1
    assert {one["unit"] for one in ceilings if one["what"].startswith("attention")} == {"ms"}
    long, short = (next(one for one in ceilings if f"rows of {length}, plain" in one["what"]) for length in (512, 128))
    assert long["value"] > short["value"]  # the same tokens attend to four times as many
    terminal.device_limits(ceilings)
    shown = capsys.readouterr().out
    assert "product 64 × 64 × 64" in shown
    assert "TFLOP/s" in shown


def test_a_device_without_cuda_graphs_is_timed_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "RUNS", 3)
    assert 0.002 <= roofline.device_seconds(lambda: time.sleep(0.002), torch.device("cpu")) < 0.1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_reported_in_one_line() -> None:
    process = call("doctor", "--gpu")
    assert process.returncode == 2
    assert "finds only cpu" in process.stderr


@pytest.mark.parametrize("slow", [0, 2, 3])
def test_a_slow_matrix_product_does_not_lower_the_peak(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first matrix product initializes libraries; later ones may overlap with other processes."""
    sizes: list[int] = []

    def seconds(left: torch.Tensor) -> float:
        sizes.append(len(left))
        time.sleep(0.001)
        return 1.0 if len(sizes) - 1 == slow else 0.001

    monkeypatch.setattr(devices, "_product_seconds", seconds)
    assert devices.measure_peak_flops(torch.device("cpu"), torch.float32) == 2 * 1024**3 / 0.001
    assert set(sizes) == {128, 256, 512, 1024}


def test_the_peak_measurement_is_short_and_does_not_change_random_states() -> None:
    """bfloat16 is a hundred times slower on a CPU without instructions for it."""
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    for dtype in (torch.float32, torch.bfloat16):
        began = time.monotonic()
        assert measure_peak_flops(torch.device("cpu"), dtype) > 1e6
        assert time.monotonic() - began < 10
    assert torch.equal(torch.rand(1), expected)


def test_a_process_measures_the_peak_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[torch.dtype] = []

    def measure(device: torch.device, dtype: torch.dtype) -> float:
        measured.append(dtype)
        return 5.0 * len(measured)

    monkeypatch.setattr(devices, "measure_peak_flops", measure)
    devices.cached_peak_flops.cache_clear()
    device, dtypes = torch.device("cpu"), (torch.float32, torch.bfloat16, torch.float32)
    assert [devices.cached_peak_flops(device, dtype) for dtype in dtypes] == [5.0, 10.0, 5.0]
    assert measured == [torch.float32, torch.bfloat16]
    devices.cached_peak_flops.cache_clear()


def test_formatted_numbers() -> None:
    numbers = {0.0: "0.000", 0.25: "0.250", 12.34567: "12.346", 1e-12: "1e-12", -0.0004: "-0.0004", 12_000: "12,000"}
    assert {value: terminal.formatted("epsilon", value) for value in numbers} == numbers
    assert terminal.formatted("unknown_rate", 0.0123) == "1.23%"
