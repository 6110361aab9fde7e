"""Reruns one case of a campaign against `pretrain`, with the command printed by its failure."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from faults.pretrain_fixtures import Scene
from faults.pretrain_kills import (
    files_too_large,
    kills_at_changes,
    kills_at_models,
    kills_at_phases,
    kills_at_random,
    refusals,
)
from faults.pretrain_ranks import signal_to_one_rank, worlds
from faults.pretrain_signals import (
    failing_batches,
    failing_shards,
    impatient_signals,
    not_finite,
    rivals,
    signals,
    signals_at_random,
)

KILLS = (kills_at_random, kills_at_changes, kills_at_phases, kills_at_models, refusals, files_too_large)
CAMPAIGNS = (*KILLS, signals, impatient_signals, signals_at_random, failing_batches, failing_shards, not_finite, rivals)
CAMPAIGNS += (worlds, signal_to_one_rank)


def main(name: str, case: str, *options: str) -> int:
    campaign = next(campaign for campaign in CAMPAIGNS if campaign.__name__ == name)
    given = dict(option.split("=", 1) for option in options)
    values = {option: int(value) if value.isdigit() else value for option, value in given.items()}
    with tempfile.TemporaryDirectory() as folder, Scene(Path(folder)) as scene:
        outcome = campaign(scene, only=case, **values)  # type: ignore[operator]
    print(outcome, *outcome.failures, sep="\n")
    return 1 if outcome.failures or not outcome.landed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
