"""Time limits of calls."""

from __future__ import annotations

import time

import pytest

from bertsmith.errors import StoppedError
from bertsmith.training.clock import stop_after


def test_the_end_of_the_time_is_not_taken_for_another_error() -> None:
    """The signal arrives inside code that reports any error of its own as, say, a damaged file."""
    handled = []

    def read_for_seconds() -> None:
        with stop_after(0.05):
            try:
                time.sleep(5)
            except Exception as error:
                handled.append(error)

    with pytest.raises(StoppedError, match="run the same command again"):
        read_for_seconds()
    assert handled == []
