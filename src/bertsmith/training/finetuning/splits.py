"""Which examples are learned from and which a run is judged by."""

from __future__ import annotations

import hashlib

from bertsmith.errors import ConfigError
from bertsmith.tasks.task import Example, Task
from bertsmith.training.finetuning.tuning import FinetuneConfig

WHOLE = 2**64


def train_and_dev(tuning: FinetuneConfig, task: Task) -> tuple[list[Example], list[Example]]:
    """The task's own splits, or those that `dev_fraction` makes of train where there are no dev examples."""
    train, share = task.examples("train"), tuning.dev_fraction
    if task.has_split("dev"):
        if share:
            raise ConfigError(f"{tuning.name} has dev examples of its own: leave out dev_fraction={share:g}")
        return train, task.examples("dev")
    if not share:
        return train, []
    aside = [set_aside(example, share) for example in train]
    learned = [example for example, out in zip(train, aside, strict=True) if not out]
    dev = [example for example, out in zip(train, aside, strict=True) if out]
    if not (learned and dev):
        raise ConfigError(
            f"dev_fraction={share:g} leaves {len(learned):,} of {len(train):,} examples to learn from, and sets "
            f"{len(dev):,} aside: some of both are needed"
        )
    return learned, dev


def dev_examples(tuning: FinetuneConfig, task: Task) -> list[Example]:
    """The dev examples alone; train is read only where they come from it."""
    return task.examples("dev") if task.has_split("dev") else train_and_dev(tuning, task)[1]


def set_aside(example: Example, share: float) -> bool:
    """Whether an example is one of that share: by its longest text, so that questions on one passage stay together.

    Neither order nor seed nor the other examples matter.
    """
    longest = max(example.texts, key=lambda text: (len(text), text))
    number = int.from_bytes(hashlib.blake2b(longest.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
    return number < share * WHOLE
