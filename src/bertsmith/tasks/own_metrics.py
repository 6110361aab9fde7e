"""Metrics of the user's own: functions of gold and predicted values, given as such or by name."""

from __future__ import annotations

import importlib
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, cast

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError, MetricError

Metric = Callable[[list[Any], list[Any]], float]  # gold and predicted values -> a number, better if higher
Metrics = str | Mapping[str, str | Metric]  # `module:function`, several with commas; or such names or functions by name


def named_metrics(metrics: Metrics) -> dict[str, Metric]:
    """The functions of metrics by name."""
    if isinstance(metrics, str):
        specs = [spec.strip() for spec in metrics.split(",") if spec.strip()]
        metrics = {spec.rpartition(":")[2]: spec for spec in specs}
    found = {name: find_metric(one) if isinstance(one, str) else one for name, one in metrics.items()}
    for name in found:
        if not name.isidentifier():
            raise ConfigError(f"metrics: {name!r} is not a name: use letters, digits and underscores")
    return found


def find_metric(name: str) -> Metric:
    """The function `package.module:function`; modules are also found in the working directory."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ConfigError(f"metrics={name}: expected module:function, such as mymetrics:cost for mymetrics.py")
    path, folder = sys.path.copy(), os.getcwd()
    sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(f"metrics={name}: {module} cannot be imported: {error}") from error
        raise ConfigError(f"metrics={name}: no module {module} in {folder} or among the installed packages") from None
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(f"metrics={name}: {module} cannot be imported: {_described(error)}") from error
    finally:
        sys.path[:] = path
    metric: Any = getattr(found, function, None)
    if not callable(metric):
        functions = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"metrics={name}: {module} has no function {function}{did_you_mean(function, functions)}")
    return cast(Metric, metric)


def call_metric(name: str, metric: Metric, gold: list[Any], predicted: list[Any]) -> float:
    """The value of a user's metric; a MetricError if it raises an error or does not return a finite number."""
    try:
        value: Any = metric(gold, predicted)
    except Exception as error:
        raise MetricError(f"metric {name}: {_described(error)}") from error
    try:
        number = math.nan if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise MetricError(f"metric {name} returned {str(value)[:40]!r}: it must return a finite number")
    return number


def _described(error: Exception) -> str:
    """The kind of an error, its message, and the line of the user's file that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if frame.filename == __file__ else f" ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
