"""ModernBERT's pre-training, its first stage of 1.7 T tokens in rows of 1,024 (P-ModernBERT §2.2.2, Table 3)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bertsmith.data.packing import full_sentences
from bertsmith.encoders import modern
from bertsmith.objectives import masked_lm
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

VOCABULARY = 50_368  # replaced by that of the run's tokenizer
LENGTH = 1024
LEARNING_RATE = 8e-4
WEIGHT_DECAY = 1e-5  # per step at the highest learning rate; the paper does not scale it by the learning rate (A.3)


def sized(size: str) -> Recipe:
    """The recipe of one size of the encoder; `find` names it."""
    encoder = modern.Config.size(size, vocab_size=VOCABULARY)
    return Recipe(
        name="modern",
        encoder=replace(encoder, max_positions=LENGTH, depth_scaled=True),
        objectives={"masked_lm": masked_lm.Config(mask_probability=0.3)},
        packing=full_sentences.Config(),
        max_length=LENGTH,
        # differs from the paper: gradients are clipped, not updates as in StableAdamW; no batch size warm-up; the
        # learning rate decays at the end of this stage, before two stages of longer rows; no dropout after attention
        optimizer=adamw.Config(betas=(0.9, 0.98), epsilon=1e-6, weight_decay=WEIGHT_DECAY / LEARNING_RATE),
        steps=364_000,
        learning_rate=LEARNING_RATE,
        warmup=636 / 364_000,
        schedule=Schedule("constant_then_decay", decay=0.03, shape="root"),
        batch_size=4608,
        micro_batch_size=32,
    )


RECIPES = {
    "small": ("4 layers of width 512.", partial(sized, "small")),
    "base": ("22 layers of width 768.", partial(sized, "base")),
}
