"""Learning rates at the listed steps, frozen layer groups, runs driven by the clock, batch size warm-up."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest

from bertsmith import config, recipes
from bertsmith.errors import ConfigError
from bertsmith.training.plan import BatchSizes, BatchSizeWarmup, Schedule, ScheduleKind, TrainingPlan, Unfreeze

KINDS = get_args(ScheduleKind)
STEPS = (0, 1, 99, 100, 101, 500, 999)


def rates(built_plan: Any, at: tuple[int, ...], **how: Any) -> list[float]:
    plan = TrainingPlan(schedule=built_plan, **how)
    return [plan.learning_rate * plan.factor(plan.progress(step, seconds=0.0)) for step in at]


def test_googles_learning_rates() -> None:
    """SPEC §2.1: from step 0, with the jump after the warm-up."""
    factors = rates(Schedule("bert"), STEPS, learning_rate=1e-4, steps=1000, warmup=0.1)
    assert factors == pytest.approx([0, 1e-6, 9.9e-5, 9.0e-5, 8.99e-5, 5e-5, 1e-7], rel=1e-12)


def test_transformers_learning_rates() -> None:
    factors = rates(Schedule("linear"), STEPS, learning_rate=1e-4, steps=1000, warmup=0.1)
    assert factors == pytest.approx([0, 1e-6, 9.9e-5, 1e-4, 8.99e-5 / 0.9, 5.5556e-5, 1e-7 / 0.9], rel=1e-5)


def test_electras_learning_rates() -> None:
    factors = rates(Schedule("product"), STEPS, learning_rate=1e-4, steps=1000, warmup=0.1)
    expected = [1e-4 * (1 - step / 1000) * min(1, step / 100) for step in STEPS]
    assert factors == pytest.approx(expected, rel=1e-12)


def test_gpts_fine_tuning_learning_rates() -> None:
    """SPEC §2.5: x = 0, .001, .002, .0021, .5, .999."""
    factors = rates(Schedule("product"), (0, 10, 20, 21, 5000, 9990), learning_rate=1.0, steps=10_000, warmup=0.002)
    assert factors == pytest.approx([0, 0.4995, 0.998, 0.9979, 0.5, 0.001], rel=1e-9)


def test_cosine_learning_rates() -> None:
    factors = rates(Schedule("cosine"), (0, 50, 100, 325, 550, 775, 1000), learning_rate=2.0, steps=1000, warmup=0.1)
    assert factors == pytest.approx([0, 1, 2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5), 0], abs=1e-12)
    assert rates(Schedule("cosine", floor=0.1), (1000,), learning_rate=2.0, steps=1000)[0] == pytest.approx(0.2)


def test_constant_then_decay_learning_rates() -> None:
    steps = (0, 5, 10, 500, 900, 925, 950, 1000)
    factors = rates(Schedule("constant_then_decay", decay=0.1), steps, learning_rate=1.0, steps=1000, warmup=0.01)
    assert factors == pytest.approx([0, 0.5, 1, 1, 1, 0.75, 0.5, 0], abs=1e-12)
    rooted = rates(
        Schedule("constant_then_decay", shape="root", floor=0.2), (900, 925, 1000), learning_rate=1.0, steps=1000
    )
    assert rooted == pytest.approx([1, 0.6, 0.2], abs=1e-12)


def test_the_learning_rates_of_the_transformer_paper() -> None:
    """SPEC §2.6: d^-.5 · min(s^-.5, s · 4000^-1.5), highest 6.9877e-4 at 4000 for width 512."""
    highest = 512**-0.5 * 4000**-0.5
    assert highest == pytest.approx(6.9877e-4, rel=1e-5)
    steps = (1, 1000, 4000, 8000, 100_000)
    factors = rates(Schedule("inverse_root"), steps, learning_rate=highest, steps=100_000, warmup=0.04)
    assert factors == pytest.approx([512**-0.5 * min(step**-0.5, step * 4000**-1.5) for step in steps], rel=1e-12)
    with pytest.raises(ConfigError, match=r"inverse_root decays from the end of the warm-up: set warmup"):
        TrainingPlan(steps=10, learning_rate=1.0, schedule=Schedule("inverse_root"))


def test_ulmfits_learning_rates() -> None:
    """SPEC §2.10, the vector of STLR."""
    factors = rates(Schedule("slanted_triangle"), (0, 50, *STEPS[2:]), learning_rate=0.01, steps=1000, warmup=0.1)
    listed = [0.0003125, 0.00515625, 0.00990313, 0.01, 0.00998924, 0.00569444, 0.00032326]
    assert factors == pytest.approx(listed, abs=6e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_every_schedule_is_bounded_and_unimodal(kind: ScheduleKind) -> None:
    """Within 0 and 1, rising during warm-up and not after it; equal by minutes and by steps."""
    built_plan = Schedule(kind)
    by_steps = TrainingPlan(steps=200, learning_rate=1.0, schedule=built_plan, warmup=0.1)
    by_minutes = TrainingPlan(steps=200, learning_rate=1.0, schedule=built_plan, warmup=0.1, minutes=5.0)
    factors = [by_steps.factor(by_steps.progress(step, 0.0)) for step in range(201)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert factors[:20] == sorted(set(factors[:20]))
    assert factors[20:] == sorted(factors[20:], reverse=True)
    assert max(factors) >= 0.9
    for step in (0, 7, 20, 111, 200):
        clock = by_minutes.progress(step=10**6, seconds=300 * step / 200)
        assert by_minutes.factor(clock) == pytest.approx(factors[step], rel=1e-9)


def test_settings_of_another_schedule_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.floor does not apply to schedule\.kind=linear"):
        Schedule("linear", floor=0.1)
    with pytest.raises(ConfigError, match=r"schedule\.ratio=0\.5 must be at least 1"):
        Schedule("slanted_triangle", ratio=0.5)


def test_layer_decay_lowers_the_learning_rate_of_deeper_groups() -> None:
    """ELECTRA's multipliers: d^(L+2-depth), embeddings at depth 0, layers, then pooler and heads (SPEC §2.4)."""
    plan = TrainingPlan(steps=10, learning_rate=1e-3, layer_decay=0.8)
    factors = plan.learning_rates(0.0, groups=15)
    assert factors == pytest.approx([1e-3 * 0.8 ** (14 - depth) for depth in range(15)])
    assert TrainingPlan(steps=10, learning_rate=1e-3).learning_rates(0.0, groups=3) == [1e-3] * 3


def test_layer_groups_are_unfrozen_from_the_top() -> None:
    """ULMFiT: the last group for one epoch, the last two for one, then all (SPEC §2.10)."""
    unfreeze = (Unfreeze(after=0, groups=1), Unfreeze(after=0.1, groups=2), Unfreeze(after=0.2, groups=99))
    plan = TrainingPlan(steps=1000, learning_rate=1.0, unfreeze=unfreeze, schedule=Schedule("constant_then_decay"))

    def trainable(step: int) -> list[bool]:
        return [rate is not None for rate in plan.learning_rates(plan.progress(step, 0.0), groups=4)]

    assert trainable(0) == trainable(99) == [False, False, False, True]
    assert trainable(100) == trainable(199) == [False, False, True, True]
    assert trainable(200) == trainable(999) == [True] * 4
    frozen = TrainingPlan(steps=10, learning_rate=1.0, unfreeze=(Unfreeze(after=0, groups=1),))
    assert frozen.learning_rates(0.5, groups=3)[:2] == [None, None]


def test_minutes_drive_the_progress() -> None:
    plan = TrainingPlan(steps=1000, learning_rate=1.0, warmup=0.1, minutes=2.0)
    assert [plan.progress(step=7, seconds=seconds) for seconds in (0, 30, 120, 999)] == [0, 0.25, 1, 1]
    assert plan.factor(0.05) == pytest.approx(0.5), "a warm-up is a share of the minutes"
    assert TrainingPlan(steps=4, learning_rate=1.0).progress(step=1, seconds=1e9) == 0.25


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"minutes": -1.0}, "minutes=-1"),
        ({"learning_rate": -1.0}, "learning_rate=-1"),
        ({"layer_decay": 0.0}, "layer_decay=0 must be above 0"),
        ({"warmup": 10}, "warmup=10 must be a share of the run"),
        ({"warmup": -0.1}, "warmup=-0.1"),
        ({"unfreeze": (Unfreeze(after=0.5, groups=1),)}, "the first entry must have after=0"),
        ({"unfreeze": (Unfreeze(after=0, groups=1), Unfreeze(after=0, groups=2))}, "increasing shares"),
        ({"unfreeze": (Unfreeze(after=0, groups=1), Unfreeze(after=3, groups=2))}, "increasing shares below 1"),
        ({"unfreeze": (Unfreeze(after=0, groups=0),)}, "groups must be at least 1"),
    ],
)
def test_invalid_plans(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingPlan(**{"steps": 10, "learning_rate": 1.0, **changes})


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("bert/base", 10_000),
        ("roberta/base", 24_000),
        ("roberta/large", 30_000),
        ("roberta/full_sentences", 10_000),
        ("albert/base", 3125),
        ("electra/base", 10_000),
        ("electra/large", 10_000),
        ("modern/base", 636),
    ],
)
def test_the_warm_up_of_a_recipe_has_the_steps_of_the_paper(name: str, steps: int) -> None:
    plan = recipes.find(name).plan
    assert plan.share(plan.warmup) * plan.steps == pytest.approx(steps, abs=1e-6)


def test_a_recipe_with_few_steps_is_valid() -> None:
    recipe = config.override(recipes.find("bert/tiny"), ["steps=20"])
    assert recipe.plan.learning_rates(0.0, groups=2) == [1e-4, 1e-4], "no step is left for the warm-up"


def test_a_recipe_has_the_settings_of_its_plan() -> None:
    recipe = config.override(recipes.find("bert/tiny"), ["schedule.kind=cosine", "learning_rate=3e-5"])
    recipe = config.override(recipe, ["schedule.floor=0.1", "unfreeze=[{after=0, groups=1}, {after=0.5, groups=9}]"])
    assert recipe.plan.schedule == Schedule("cosine", floor=0.1)
    assert recipe.plan.unfreeze == (Unfreeze(after=0, groups=1), Unfreeze(after=0.5, groups=9))
    assert config.from_dict(type(recipe), config.to_dict(recipe)) == recipe
    with pytest.raises(ConfigError, match=r"did you mean schedule\.floor"):
        config.override(recipe, ["schedule.flor=0.2"])


def test_batches_grow_in_whole_micro_batches() -> None:
    rows = BatchSizes(64, BatchSizeWarmup(initial=16, steps=10, multiple=8))
    sizes = [rows.at(step) for step in range(12)]
    assert sizes == [16, 16, 24, 24, 32, 40, 40, 48, 48, 56, 64, 64]
    assert [rows.before(step) for step in range(12)] == [sum(sizes[:step]) for step in range(12)]
    assert rows.before(10**6) == sum(sizes[:10]) + (10**6 - 10) * 64
    for size in (4, 8):
        numbers = [number for step in range(30) for number in rows.micro_batches(step, size)]
        assert numbers == list(range(len(numbers))), "every micro-batch once, in order"
        assert all(len(rows.micro_batches(step, size)) * size == rows.at(step) for step in range(30))
    assert list(BatchSizes(64).micro_batches(3, 32)) == [6, 7]
    with pytest.raises(ConfigError, match="micro-batches of 16 rows on all ranks do not divide steps of 64 rows"):
        rows.micro_batches(0, 16)
    with pytest.raises(ConfigError, match="micro-batches of 48 rows"):
        BatchSizes(64).micro_batches(0, 48)


@pytest.mark.parametrize(
    "change",
    [
        "batch_size=0",
        "batch_size_warmup={initial=300, steps=5}",
        "batch_size_warmup={initial=8, steps=0}",
        "batch_size_warmup={initial=0, steps=5}",
        "batch_size_warmup={initial=8, steps=5, multiple=7}",
    ],
)
def test_invalid_batch_sizes(change: str) -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        config.override(recipes.find("bert/tiny"), [change])
