"""ELMo (Peters et al. 2018): a bidirectional language model of words read as characters, over columns of text."""

from __future__ import annotations

from dataclasses import replace

from bertsmith.data.packing import columns
from bertsmith.encoders import elmo
from bertsmith.objectives import bidirectional_lm
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adagrad, adamw
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

UNROLL = 20  # tokens of a row
ROWS = 3 * 128  # of three GPUs
TINY_FILTERS = ((1, 16), (2, 16), (3, 32), (4, 32))


def original() -> Recipe:
    """As the published models were trained (bilm: bin/train_elmo.py)."""
    return Recipe(
        name="elmo",
        encoder=elmo.Config(),
        objectives={"bidirectional_lm": bidirectional_lm.Config(weight=float(UNROLL))},
        packing=columns.Config(),
        max_length=UNROLL,
        optimizer=adagrad.Config(initial=1.0),
        steps=1_000_840,  # 10 epochs of 768,648,884 tokens
        learning_rate=0.2,
        schedule=Schedule("constant_then_decay", floor=1.0),
        batch_size=ROWS,
        compute=ComputeConfig(max_grad_norm=10.0),
    )


def small() -> Recipe:
    """The small published model: 1,024 cells, 128 wide (13.6 million parameters)."""
    recipe = original()
    return replace(recipe, encoder=replace(recipe.encoder, width=128, hidden=1024, highway=1))


def quick() -> Recipe:
    """The small model for minutes on one GPU, with AdamW instead of Adagrad."""
    return replace(
        small(),
        optimizer=adamw.Config(weight_decay=0.01),
        learning_rate=2e-3,
        warmup=0.05,
        schedule=Schedule("linear"),
        steps=30_000,
        minutes=9.0,
    )


def tiny() -> Recipe:
    recipe = original()
    encoder = replace(recipe.encoder, width=64, hidden=256, filters=TINY_FILTERS, highway=1)
    samples = {"bidirectional_lm": bidirectional_lm.Config(weight=float(UNROLL), samples=1024)}
    return replace(recipe, encoder=encoder, objectives=samples, steps=1000, batch_size=32)


RECIPES = {
    "tiny": ("2 layers of 256 cells, 64 wide in each direction.", tiny),
    "small": ("The small published model: 2 layers of 1,024 cells, 128 wide.", small),
    "original": ("The published model: 2 layers of 4,096 cells, 512 wide.", original),
    "quick": ("For minutes on one GPU: 1,024 cells, 128 wide.", quick),
}
