"""Several ways of the same work, timed one after the other: how a run finds out what is fastest where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Times = dict[str, float | None]  # by way; None where it does not run
Clock = Callable[[Callable[[], object]], float]  # the seconds that something takes
ROUNDS = 3  # in turn, of which the shortest counts: another process may be in the way


def seconds_of(ways: Mapping[str, Callable[[], object]], clock: Clock) -> Times:
    """The seconds of each."""
    found: Times = {}
    for name in [*ways] * ROUNDS:
        if found.get(name, 0.0) is None:
            continue
        try:
            seconds = clock(ways[name])
            found[name] = min(seconds, found.get(name) or seconds)
        except Exception:  # no room for its tiles, no such instruction: torch, triton and CUDA each have their own
            found[name] = None
    return found
