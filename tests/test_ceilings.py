"""What a device can do at most: everything is measured, in units that hang together."""

from __future__ import annotations

import pytest
import torch
from command_line import call

from bertsmith import ceilings, terminal
from bertsmith.ceilings import SHAPES, measure


def test_every_kind_of_work_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "RUNS", 3)
    said: list[str] = []
    found = measure(torch.device("cpu"), size=64, tokens=512, say=said.append)
    assert len(said) == len(found)
    assert all(one["value"] > 0 for one in found)
    kinds = [one["what"].split(",")[0].split(" ")[0] for one in found]
    assert kinds.count("product") == 1 + len(SHAPES)
    assert kinds.count("copy") == 1
    assert {one["unit"] for one in found if one["what"].startswith("attention")} == {"ms"}
    long, short = (next(one for one in found if f"rows of {length}, plain" in one["what"]) for length in (512, 128))
    assert long["value"] > short["value"]  # the same tokens see four times as many others
    terminal.ceilings(found)
    shown = capsys.readouterr().out
    assert "product 64 × 64 × 64" in shown
    assert "TFLOP/s" in shown


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_one_line_says_so() -> None:
    done = call("doctor", "--gpu")
    assert done.returncode == 2
    assert "finds only cpu here" in done.stderr
