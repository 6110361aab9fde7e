"""Rates at the listed steps, parts that sleep and wake, runs driven by the clock, rows that grow."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bertsmith import config
from bertsmith.errors import ConfigError
from bertsmith.training.plan import Plan, Rows, Thaw
from bertsmith.training.schedules import (
    constant_then_decay,
    cosine,
    inverse_root,
    linear,
    product,
    reference,
    schedule,
    slanted_triangle,
)

KINDS = config.kinds(schedule.FOLDER)
STEPS = (0, 1, 99, 100, 101, 500, 999)


def rates(made: Any, at: tuple[int, ...], **how: Any) -> list[float]:
    plan = Plan(schedule=made, **how)
    return [plan.rate * plan.factor(plan.progress(step, seconds=0.0)) for step in at]


def test_googles_rates() -> None:
    """SPEC §2.1: from step 0, with the jump after the warm-up."""
    found = rates(reference.Config(), STEPS, rate=1e-4, steps=1000, warmup=100)
    assert found == pytest.approx([0, 1e-6, 9.9e-5, 9.0e-5, 8.99e-5, 5e-5, 1e-7], rel=1e-12)


def test_transformers_rates() -> None:
    found = rates(linear.Config(), STEPS, rate=1e-4, steps=1000, warmup=0.1)
    assert found == pytest.approx([0, 1e-6, 9.9e-5, 1e-4, 8.99e-5 / 0.9, 5.5556e-5, 1e-7 / 0.9], rel=1e-5)


def test_electras_rates() -> None:
    found = rates(product.Config(), STEPS, rate=1e-4, steps=1000, warmup=100)
    expected = [1e-4 * (1 - step / 1000) * min(1, step / 100) for step in STEPS]
    assert found == pytest.approx(expected, rel=1e-12)


def test_gpts_fine_tuning_rates() -> None:
    """SPEC §2.5: x = 0, .001, .002, .0021, .5, .999."""
    found = rates(product.Config(), (0, 10, 20, 21, 5000, 9990), rate=1.0, steps=10_000, warmup=0.002)
    assert found == pytest.approx([0, 0.4995, 0.998, 0.9979, 0.5, 0.001], rel=1e-9)


def test_cosine_rates() -> None:
    found = rates(cosine.Config(), (0, 50, 100, 325, 550, 775, 1000), rate=2.0, steps=1000, warmup=100)
    assert found == pytest.approx([0, 1, 2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5), 0], abs=1e-12)
    assert rates(cosine.Config(floor=0.1), (1000,), rate=2.0, steps=1000)[0] == pytest.approx(0.2)


def test_constant_then_decay_rates() -> None:
    steps = (0, 5, 10, 500, 900, 925, 950, 1000)
    found = rates(constant_then_decay.Config(decay=0.1), steps, rate=1.0, steps=1000, warmup=10)
    assert found == pytest.approx([0, 0.5, 1, 1, 1, 0.75, 0.5, 0], abs=1e-12)
    rooted = rates(constant_then_decay.Config(shape="root", floor=0.2), (900, 925, 1000), rate=1.0, steps=1000)
    assert rooted == pytest.approx([1, 0.6, 0.2], abs=1e-12)


def test_the_transformers_own_rates() -> None:
    """SPEC §2.6: d^-.5 · min(s^-.5, s · 4000^-1.5), highest 6.9877e-4 at 4000 for width 512."""
    highest = 512**-0.5 * 4000**-0.5
    assert highest == pytest.approx(6.9877e-4, rel=1e-5)
    steps = (1, 1000, 4000, 8000, 100_000)
    found = rates(inverse_root.Config(), steps, rate=highest, steps=100_000, warmup=4000)
    assert found == pytest.approx([512**-0.5 * min(step**-0.5, step * 4000**-1.5) for step in steps], rel=1e-12)
    with pytest.raises(ConfigError, match=r"inverse_root falls from where the warm-up ends: set plan\.warmup"):
        Plan(steps=10, rate=1.0, schedule=inverse_root.Config())


def test_ulmfits_rates() -> None:
    """SPEC §2.10, the vector of STLR."""
    found = rates(slanted_triangle.Config(), (0, 50, *STEPS[2:]), rate=0.01, steps=1000, warmup=0.1)
    listed = [0.0003125, 0.00515625, 0.00990313, 0.01, 0.00998924, 0.00569444, 0.00032326]
    assert found == pytest.approx(listed, abs=6e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_every_schedule(kind: str) -> None:
    """Never over 1 or under 0, up during the warm-up and not up after it; the same by minutes as by steps."""
    made = config.find_kind(schedule.FOLDER, kind).Config()
    by_steps = Plan(steps=200, rate=1.0, schedule=made, warmup=20)
    by_minutes = Plan(steps=200, rate=1.0, schedule=made, warmup=0.1, minutes=5.0)
    found = [by_steps.factor(by_steps.progress(step, 0.0)) for step in range(201)]
    assert all(0 <= factor <= 1 for factor in found)
    assert found[:20] == sorted(set(found[:20]))
    assert found[20:] == sorted(found[20:], reverse=True)
    assert max(found) >= 0.9
    for step in (0, 7, 20, 111, 200):
        clock = by_minutes.progress(step=10**6, seconds=300 * step / 200)
        assert by_minutes.factor(clock) == pytest.approx(found[step], rel=1e-9)


def test_the_seven_are_there() -> None:
    assert len(KINDS) == 7


def test_deeper_parts_learn_more_slowly() -> None:
    """ELECTRA's multipliers: d^(L+2-depth), embeddings at depth 0, layers, then pooler and heads (SPEC §2.4)."""
    plan = Plan(steps=10, rate=1e-3, depth_decay=0.8)
    found = plan.rates(0.0, parts=15)
    assert found == pytest.approx([1e-3 * 0.8 ** (14 - depth) for depth in range(15)])
    assert Plan(steps=10, rate=1e-3).rates(0.0, parts=3) == [1e-3] * 3


def test_parts_wake_from_the_top() -> None:
    """ULMFiT: the last part for one epoch, the last two for one, then all (SPEC §2.10)."""
    thaw = (Thaw(after=0, parts=1), Thaw(after=100, parts=2), Thaw(after=0.2, parts=99))
    plan = Plan(steps=1000, rate=1.0, thaw=thaw, schedule=constant_then_decay.Config())

    def awake(step: int) -> list[bool]:
        return [rate is not None for rate in plan.rates(plan.progress(step, 0.0), parts=4)]

    assert awake(0) == awake(99) == [False, False, False, True]
    assert awake(100) == awake(199) == [False, False, True, True]
    assert awake(200) == awake(999) == [True] * 4
    frozen = Plan(steps=10, rate=1.0, thaw=(Thaw(after=0, parts=1),))
    assert frozen.rates(0.5, parts=3)[:2] == [None, None]


def test_the_clock_can_drive() -> None:
    plan = Plan(steps=1000, rate=1.0, warmup=100, minutes=2.0)
    assert [plan.progress(step=7, seconds=seconds) for seconds in (0, 30, 120, 999)] == [0, 0.25, 1, 1]
    assert plan.factor(0.05) == pytest.approx(0.5), "a warm-up in steps is that share of the run"
    assert Plan(steps=4, rate=1.0).progress(step=1, seconds=1e9) == 0.25


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"minutes": -1.0}, "minutes=-1"),
        ({"rate": -1.0}, "rate=-1"),
        ({"depth_decay": 0.0}, "depth_decay=0.0 over 0"),
        ({"warmup": 10}, "warmup=10 must be less than the run of steps=10"),
        ({"warmup": -0.1}, "warmup=-0.1"),
        ({"thaw": (Thaw(after=1, parts=1),)}, "thaw must begin with after=0"),
        ({"thaw": (Thaw(after=0, parts=1), Thaw(after=0, parts=2))}, "each entry come after"),
        ({"thaw": (Thaw(after=0, parts=0),)}, "at least parts=1 must learn"),
    ],
)
def test_plans_that_cannot_be_meant(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan(**{"steps": 10, "rate": 1.0, **wrong})


def test_a_plan_is_settings() -> None:
    plan = config.override(Plan(steps=10, rate=1.0), ["schedule.kind=cosine", "rate=3e-5"])
    plan = config.override(plan, ["schedule.floor=0.1"])
    assert plan == Plan(steps=10, rate=3e-5, schedule=cosine.Config(floor=0.1))
    thawing = Plan(steps=10, rate=1.0, thaw=(Thaw(after=0, parts=1), Thaw(after=0.5, parts=9)))
    assert config.from_dict(Plan, config.to_dict(thawing)) == thawing
    with pytest.raises(ConfigError, match=r"did you mean schedule\.floor"):
        config.override(plan, ["schedule.flor=0.2"])


def test_rows_grow_in_whole_micro_batches() -> None:
    rows = Rows(full=64, first=16, warmup=10, multiple=8)
    found = [rows.at(step) for step in range(12)]
    assert found == [16, 16, 24, 24, 32, 40, 40, 48, 48, 56, 64, 64]
    assert [rows.before(step) for step in range(12)] == [sum(found[:step]) for step in range(12)]
    assert rows.before(10**6) == sum(found[:10]) + (10**6 - 10) * 64
    for size in (4, 8):
        numbers = [number for step in range(30) for number in rows.micro_batches(step, size)]
        assert numbers == list(range(len(numbers))), "every micro-batch once, in order"
        assert all(len(rows.micro_batches(step, size)) * size == rows.at(step) for step in range(30))
    assert list(Rows(full=64).micro_batches(3, 32)) == [6, 7]
    with pytest.raises(ConfigError, match="micro-batches of 16 rows on all ranks do not divide steps of 64 rows"):
        rows.micro_batches(0, 16)
    with pytest.raises(ConfigError, match="micro-batches of 48 rows"):
        Rows(full=64).micro_batches(0, 48)


@pytest.mark.parametrize(
    "wrong", [{"full": 0}, {"first": 300, "warmup": 5}, {"first": 8}, {"warmup": 5}, {"multiple": 7}]
)
def test_rows_that_cannot_be_meant(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="rows must be"):
        Rows(**{"full": 256, **wrong})
