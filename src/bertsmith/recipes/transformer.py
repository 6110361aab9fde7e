"""The Transformer for translation (Vaswani et al. 2017, §5), trained on parallel shards."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bertsmith.data.packing import parallel
from bertsmith.encoders import seq2seq
from bertsmith.objectives import translation
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

VOCABULARY = 37_000  # replaced by that of the run's tokenizer
STEPS, WARMUP = 100_000, 4000


def peak_learning_rate(width: int, warmup: int) -> float:
    """The highest value of d^-0.5 · min(s^-0.5, s · W^-1.5), at step W (§5.3): 6.9877e-4 for the base model."""
    return float((width * warmup) ** -0.5)


def sized(size: str = "base", *, steps: int = STEPS, warmup: int = WARMUP) -> Recipe:
    """The recipe of one size of the encoder; `find` names it."""
    encoder = seq2seq.Config.size(size, vocab_size=VOCABULARY)
    return Recipe(
        name="transformer",
        encoder=encoder,
        objectives={"translation": translation.Config()},
        packing=parallel.Config(),
        optimizer=adamw.Config(betas=(0.9, 0.98), epsilon=1e-9, weight_decay=0.0),
        steps=steps,
        learning_rate=peak_learning_rate(encoder.width, warmup),
        warmup=warmup / steps,
        schedule=Schedule("inverse_root"),
        batch_size=200,  # rows of 128 tokens on each side: the paper's 25,000 source and 25,000 target tokens
        max_length=128,
        compute=ComputeConfig(max_grad_norm=0.0),
        keep_checkpoints=5,  # which `bertsmith average` averages (§6.1)
    )


def quick() -> Recipe:
    recipe = sized("small", steps=6000, warmup=1000)
    return replace(
        recipe,
        # a small set of pairs needs more dropout than the paper's 4.5 million
        encoder=replace(recipe.encoder, dropout=0.3, attention_dropout=0.1),
        batch_size=64,
        eval_every=500,
        save_every=300,
    )


def tiny() -> Recipe:
    return replace(sized("tiny", steps=1000, warmup=400), batch_size=16, eval_every=200, save_every=100)


RECIPES = {
    "tiny": ("For minutes on a CPU: 2 + 2 layers of width 128.", tiny),
    "base": ("6 + 6 layers of width 512.", sized),
    "big": ("6 + 6 layers of width 1024.", partial(sized, "big", steps=300_000)),
    "quick": ("For minutes on one GPU and tens of thousands of pairs: 4 + 4 layers of width 256.", quick),
}
