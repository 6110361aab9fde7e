"""Reruns one case of a shard campaign, with the command printed by its failure."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from faults.shard_crashes import kills, power_losses, power_losses_after_kills, refusals, removals
from faults.shard_damage import flips, truncations

CAMPAIGNS = (kills, power_losses, power_losses_after_kills, refusals, removals, flips, truncations)


def main(name: str, case: str, *options: str) -> int:
    campaign = next(campaign for campaign in CAMPAIGNS if campaign.__name__ == name)
    numbers = {
        option: int(value) if value.isdigit() else value == "True"
        for option, _, value in (text.partition("=") for text in options)
    }
    with tempfile.TemporaryDirectory() as folder:
        outcome = campaign(Path(folder), only=case, **numbers)  # type: ignore[operator]
    print(outcome, *outcome.failures, sep="\n")
    return 1 if outcome.failures or not outcome.landed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
