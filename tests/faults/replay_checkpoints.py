"""Reruns one case of a checkpoint campaign, with the command printed by its failure."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from faults.checkpoint_crashes import (
    kills,
    kills_at_random,
    power_losses,
    power_losses_after_kills,
    refusals,
    terminations,
)
from faults.checkpoint_damage import flips, truncations

CRASHES = (kills, kills_at_random, power_losses, power_losses_after_kills, refusals, terminations)
CAMPAIGNS = (*CRASHES, flips, truncations)


def main(name: str, case: str, *options: str) -> int:
    torch.set_num_threads(1)
    campaign = next(campaign for campaign in CAMPAIGNS if campaign.__name__ == name)
    given = dict(option.split("=") for option in options)
    numbers = {option: int(value) if value.isdigit() else value == "True" for option, value in given.items()}
    with tempfile.TemporaryDirectory() as folder:
        outcome = campaign(Path(folder), only=case, **numbers)  # type: ignore[operator]
    print(outcome, *outcome.failures, sep="\n")
    return 1 if outcome.failures or not outcome.landed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
