"""Comparisons of `bench/loss_curves.py` on synthetic curves and on files of curves."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from model_fixtures import random_batch

from bertsmith.nn import attention

ROOT = Path(__file__).resolve().parents[2]
STEPS, STRETCH, NOISE = 400, 20, 0.02  # NOISE: by which seeds lie apart
PROVENANCE = {"recipe": {"name": "made up"}, "data": {"data": "none"}, "compute": {}}


@pytest.fixture(scope="module", autouse=True)
def bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(ROOT))
    yield
    sys.path.remove(str(ROOT))


def curves(variant: str, *, more: Sequence[float] | float = 0.0, held_out: float = 0.0, seeds: int = 3) -> list[Any]:
    """Falling curves with common row noise; seeds are offset by -1, 0, 1 times NOISE, with signs swapped half-way."""
    from bench.loss_curves import Curve

    step = np.arange(STEPS)
    common = 5 + 3 * np.exp(-step / 100) + np.random.default_rng(0).normal(0, 0.3, STEPS)
    result = []
    for seed in range(seeds):
        side = NOISE * (seed - 1) * np.where(step < STEPS // 2, 1, -1)
        result.append(
            Curve(
                variant, seed, (common + side + more).tolist(), 4.5 + NOISE * (seed - 1) + held_out, 1000.0, PROVENANCE
            )
        )
    return result


def test_a_small_difference_is_within_noise_and_a_large_one_is_not() -> None:
    from bench.loss_curves import compare

    plain_curves = curves("plain-bf16")
    small = compare(curves("fast", more=0.5 * NOISE, held_out=-0.25 * NOISE), plain_curves, stretch=STRETCH)
    assert small.within
    assert small.largest == pytest.approx(0.5)
    assert small.held_out == pytest.approx(0.25)
    assert small.seed_distance == pytest.approx(2.0)
    assert (small.difference, small.mean) == (pytest.approx(0.5 * NOISE), pytest.approx(0.5 * NOISE))
    assert "fast against plain-bf16: within noise: largest difference 0.50 standard deviations" in str(small)
    large = compare(curves("fast", more=3.5 * NOISE), plain_curves, stretch=STRETCH)
    assert not large.within
    assert large.largest == pytest.approx(3.5)
    assert "NOT within noise" in str(large)
    assert not compare(curves("fast", held_out=4 * NOISE), plain_curves, stretch=STRETCH).within


def test_the_window_with_the_largest_difference_is_reported() -> None:
    from bench.loss_curves import compare

    bump = np.zeros(STEPS)
    bump[240:260] = -4 * NOISE
    result = compare(curves("fast", more=bump.tolist()), curves("plain-bf16"), stretch=STRETCH)
    assert (result.within, result.at) == (False, 260)
    assert result.difference == pytest.approx(-4 * NOISE)
    assert compare(curves("fast", more=(bump / 2).tolist()), curves("plain-bf16"), stretch=STRETCH).within
    bump[250] = math.nan
    broken = compare(curves("fast", more=bump.tolist()), curves("plain-bf16"), stretch=STRETCH)
    assert not broken.within
    assert "not finite by step 260" in str(broken)


def test_noise_common_to_all_ways_is_not_counted() -> None:
    """Losses vary by 0.3 between steps in all variants; only the variation over seeds counts."""
    from bench.loss_curves import deviation, smoothed

    result = deviation(np.stack([smoothed(curve.losses, STRETCH) for curve in curves("plain-bf16")]))
    assert result == pytest.approx(np.full(STEPS // STRETCH, NOISE))
    lone = np.zeros((2, 9))
    lone[1, 4] = 1.0  # a variance of 0.5 at one stretch is spread over five
    assert deviation(lone) ** 2 == pytest.approx([0, 0, 1 / 10, 1 / 10, 1 / 10, 1 / 10, 1 / 10, 0, 0])


def test_curve_files_are_compared_in_a_later_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bench.loss_curves import main

    runs = [*curves("fast", seeds=2), *curves("plain-bf16"), *curves("plain-fp32", more=5 * NOISE)]
    for curve in runs:
        (tmp_path / f"{curve.variant}-{curve.seed}.json").write_text(json.dumps(asdict(curve)), encoding="utf-8")
    words = ["--compare", str(tmp_path), "--stretch", str(STRETCH)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(runs) + 3
    assert lines[-3].startswith("fast against plain-bf16: within noise: largest difference 0.00")
    assert lines[-3].endswith("2 seeds")
    assert lines[-2].startswith("fast against plain-fp32: NOT within noise: largest difference 5.00")
    assert lines[-1].startswith("plain-bf16 against plain-fp32: NOT within noise")
    assert len(json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))["comparisons"]) == 3
    for name in ("curves", "differences-plain-bf16", "differences-plain-fp32"):
        ElementTree.parse(tmp_path / f"{name}.svg")
    other = replace(runs[0], provenance={**PROVENANCE, "data": {"data": "other"}})
    (tmp_path / "fast-0.json").write_text(json.dumps(asdict(other)), encoding="utf-8")
    assert main(words) == 78
    assert "compare them separately" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        lambda curve: {"way": curve.pop("variant"), **curve},
        lambda curve: {
            **curve,
            "provenance": {"passes": {}, **{n: curve["provenance"][n] for n in ("recipe", "data")}},
        },
        lambda curve: {**curve, "provenance": None},
        lambda curve: [curve],
    ],
)
def test_a_curve_of_another_format_is_one_line(change: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bench.loss_curves import main

    (stored,) = curves("fast", seeds=1)
    path = tmp_path / "fast-0.json"
    path.write_text(json.dumps(change(asdict(stored))), encoding="utf-8")
    assert main(["--compare", str(tmp_path)]) == 65
    shown = capsys.readouterr().err
    assert (
        shown == f"error: {path} is not a curve in the format of this version: remove it and run that variant again\n"
    )


def test_a_plain_way_needs_two_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bench.loss_curves import show

    show([*curves("fast"), *curves("plain-bf16", seeds=1)], stretch=STRETCH, folder=tmp_path)
    assert "fast against plain-bf16: not compared: plain-bf16 needs two seeds at least" in capsys.readouterr().out


def test_curves_at_the_unigram_loss_give_a_warning() -> None:
    from bench.loss_curves import unigram_lines

    ignorant, learned = (
        [replace(one, words=words, unigram_loss=6.0) for one in curves("plain-bf16")] for words in (6, 5)
    )
    assert unigram_lines(learned) == ["plain-bf16 has a held-out loss of 5.00 on words; unigram loss 6.00"]
    assert "an error in attention would not show" in unigram_lines(ignorant)[1]
    assert unigram_lines(curves("plain-bf16")) == []


def test_a_plain_way_uses_only_torch_attention() -> None:
    from bench.loss_curves import plain

    usual = {"device": "cuda", "dtype": torch.bfloat16, "head_width": 64, "dropout": 0.0, "requires_grad": True}
    chosen = attention.choose_kernel
    with plain():
        assert attention.choose_kernel(**usual, dense=False, return_attentions=False) == "masked"  # type: ignore[arg-type]
        assert attention.choose_kernel(**usual, dense=True, return_attentions=False) == "dense"  # type: ignore[arg-type]
        batch = random_batch([4, 3], length=8, pack=True).replace(equal_length_runs=((1, 4), (1, 3)))
        shape = attention.AttentionShape(heads=1, head_width=64, dropout=0.0, causal=False)
        context = attention.make_attention_context(batch, shape, dtype=torch.float32, training=True)
        assert context.kernel == "masked"
    assert attention.choose_kernel is chosen
