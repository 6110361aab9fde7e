"""Learning rates that react to evaluations: as torch's scheduler, as CoVe's halving, and exactly resumed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from training.training_fixtures import snapshot
from training.training_fixtures import trainer as toy_trainer

from bertsmith.errors import ConfigError
from bertsmith.training.plan import Schedule, TrainingPlan
from bertsmith.training.plateau import Plateau
from bertsmith.training.trainer import Trainer

COSTS = [5.0, 4.0, 4.5, 3.9, 3.9, 4.2, 3.0, 3.1, 3.2, 3.3, 2.0]


def factors(costs: list[float], **settings: Any) -> list[float]:
    plateau, found = Plateau(Schedule("reduce_on_plateau", **settings)), []
    for cost in costs:
        plateau.observe(cost)
        found.append(plateau.factor)
    return found


@pytest.mark.parametrize("patience", [0, 1, 2])
def test_equal_to_torchs_scheduler(patience: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    how: dict[str, Any] = {"factor": 0.1, "patience": patience, "threshold": 0.0, "eps": 0.0}
    reference, expected = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **how), []
    for cost in COSTS:
        reference.step(cost)
        expected.append(optimizer.param_groups[0]["lr"])
    assert factors(COSTS, reduction=0.1, patience=patience) == pytest.approx(expected, rel=1e-12)
    assert expected[-1] < 1


def test_coves_learning_rate_is_halved_at_every_evaluation_after_the_first_rise() -> None:
    assert factors(COSTS[:6], every=True) == [1, 1, 0.5, 0.25, 0.125, 0.0625]


def test_the_lowest_factor() -> None:
    assert factors([1.0, 2.0, 2.0, 2.0], floor=0.2) == [1, 0.5, 0.25, 0.2]


def test_at_the_lowest_factor_nothing_is_reduced() -> None:
    plateau = Plateau(Schedule("reduce_on_plateau", floor=0.5))
    assert [plateau.observe(cost) for cost in (1.0, 2.0, 2.0, 2.0)] == [False, True, False, False]


def test_evaluations_that_are_not_finite_are_not_improvements() -> None:
    nan = float("nan")
    assert factors([nan, 2.0, nan, 1.0]) == [1, 1, 0.5, 0.5]


def test_warm_up_and_then_1() -> None:
    plan = TrainingPlan(steps=10, learning_rate=2.0, warmup=0.2, schedule=Schedule("reduce_on_plateau"))
    assert [plan.factor(plan.progress(step, seconds=0.0)) for step in range(4)] == [0, 0.5, 1, 1]


def trainer() -> Trainer:
    return toy_trainer(plan=TrainingPlan(steps=9, learning_rate=0.1, schedule=Schedule("reduce_on_plateau")))


def test_the_state_is_in_checkpoints_and_a_resumed_run_has_the_same_learning_rates() -> None:
    costs, whole, rates, saved = [3.0, 2.0, 2.5, 1.0, 1.1, 0.9, 2.0, 2.0, 2.0], trainer(), [], None
    for number, step in enumerate(whole):
        rates.append(step.learning_rate)
        whole.plateau.observe(costs[number])
        if number == 4:
            saved = whole.state()
            saved = type(saved)(
                snapshot(saved.weights),
                snapshot(saved.optimizer),
                json.loads(json.dumps(saved.progress, allow_nan=False)),
            )
    again = trainer()
    again.load(saved)
    resumed = []
    for number, step in enumerate(again, start=5):
        resumed.append(step.learning_rate)
        again.plateau.observe(costs[number])
    assert resumed == rates[5:]
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0125, 0.00625])


def test_other_schedules_do_not_react() -> None:
    plateau = Plateau(Schedule("linear"))
    assert not plateau.observe(1.0)
    assert not plateau.observe(2.0)
    assert (plateau.factor, plateau.state()) == (1.0, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "reduce_on_plateau", "reduction": 1.0}, "schedule.reduction=1 and schedule.patience=0: "),
        ({"kind": "linear", "every": True}, "schedule.every does not apply to schedule.kind=linear: leave it out"),
    ],
)
def test_settings_that_make_no_schedule(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule(**settings)


def test_a_schedule_that_reacts_needs_evaluations() -> None:
    with pytest.raises(ConfigError, match=r"reacts to evaluations, but eval_every=0: write eval_every=1$"):
        Schedule("reduce_on_plateau").check_evaluations("eval_every", 0)
