"""Word vectors by skip-gram with negative sampling (Mikolov et al. 2013), with word2vec's window and negatives."""

from __future__ import annotations

from functools import partial

from bertsmith.data.packing import stream
from bertsmith.encoders import word_vectors
from bertsmith.objectives import skip_gram
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adagrad
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe


def sized(width: int, *, minutes: float = 0.0, steps: int = 2_000) -> Recipe:
    """The recipe of one width of the vectors; `find` names it."""
    return Recipe(
        name="word_vectors",
        encoder=word_vectors.Config(width=width),
        objectives={"skip_gram": skip_gram.Config()},
        packing=stream.Config(),
        optimizer=adagrad.Config(),
        max_length=512,
        batch_size=32,
        steps=steps,
        minutes=minutes,
        learning_rate=0.15,  # measured beside 0.05: LOG.md, "Word vectors"
        schedule=Schedule("linear"),
        compute=ComputeConfig(max_grad_norm=0.0),
    )


RECIPES = {
    "tiny": ("Vectors of width 100, 2,000 steps of 16,384 words.", partial(sized, 100)),
    "quick": ("Vectors of width 200, for minutes on a CPU.", partial(sized, 200, minutes=9.0)),
}
