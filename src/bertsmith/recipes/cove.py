"""CoVe's translation model (McCann et al. 2017, §3), whose encoder gives context vectors to other tasks."""

from __future__ import annotations

from dataclasses import replace

from bertsmith.data.packing import parallel
from bertsmith.encoders import seq2seq_lstm
from bertsmith.objectives import translation
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adamw, sgd
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

TOKENS = 20  # of a target sentence: the paper's code divides the loss of a batch by its sentences, we by its tokens
HALVING = Schedule("reduce_on_plateau", every=True)  # at each evaluation from the first without improvement on


def paper() -> Recipe:
    """For the 209,772 pairs of IWSLT 2016, with one evaluation per epoch."""
    epoch = 3300
    return Recipe(
        name="cove",
        encoder=seq2seq_lstm.Config(fixed_embeddings=True),
        objectives={"translation": translation.Config(label_smoothing=0.0, tie_output=False)},
        packing=parallel.Config(),
        optimizer=sgd.Config(),
        learning_rate=1.0 * TOKENS,
        schedule=HALVING,
        compute=ComputeConfig(max_grad_norm=5.0 / TOKENS),
        batch_size=11,  # rows of 128 tokens on each side: the paper's 64 sentences
        max_length=128,
        steps=13 * epoch,
        eval_every=epoch,
        save_every=epoch,
    )


def quick() -> Recipe:
    """Adam needs fewer epochs."""
    recipe = paper()
    return replace(
        recipe,
        encoder=replace(recipe.encoder, fixed_embeddings=False),
        optimizer=adamw.Config(weight_decay=0.0),
        learning_rate=1e-3,
        schedule=Schedule("linear"),
        warmup=0.05,
        compute=ComputeConfig(max_grad_norm=1.0),
        batch_size=24,
        steps=3000,
        eval_every=300,
        save_every=300,
    )


def tiny() -> Recipe:
    recipe = quick()
    narrow = {"width": 128, "embedding_width": 64, "initializer_range": 0.3}  # larger weights for the small fan-in
    return replace(recipe, encoder=replace(recipe.encoder, **narrow), batch_size=16, steps=1000)


RECIPES = {
    "tiny": ("2 + 2 LSTM layers of width 128.", tiny),
    "paper": ("CoVe's translation model: 2 + 2 LSTM layers of width 600, fixed word vectors (vectors=FILE).", paper),
    "quick": ("For minutes on one GPU and tens of thousands of pairs: the paper's sizes, learned word vectors.", quick),
}
