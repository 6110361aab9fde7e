"""BERT's pre-training (P-BERT A.2): batch size 256, learning rate 1e-4, 1 M steps; ablations (§5); bert/quick."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from bertsmith.data.packing import full_sentences, pairs
from bertsmith.encoders import bert, roformer
from bertsmith.objectives import causal_lm, masked_lm, next_sentence
from bertsmith.training.optimizers import adamw, bert_adam
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

VOCABULARY = 30_522  # replaced by that of the run's tokenizer


def sized(size: str = "base", **encoder_changes: Any) -> Recipe:
    """The recipe of one size of the encoder; `find` names it."""
    return Recipe(
        name="bert",
        encoder=replace(bert.Config.size(size, vocab_size=VOCABULARY), **encoder_changes),
        objectives={"masked_lm": masked_lm.Config(), "next_sentence": next_sentence.Config()},
        # 128 tokens for nine tenths of the steps, then 512 in a second run that starts from the first
        packing=pairs.Config(),
        optimizer=bert_adam.Config(),
        steps=1_000_000,
        learning_rate=1e-4,
        warmup=10_000 / 1_000_000,
        schedule=Schedule("bert"),
        batch_size=256,
    )


def masked(share: float, kept: float) -> Recipe:
    """`share` of the selected tokens become [MASK], `kept` stay, and the others become random tokens."""
    recipe = sized()
    objectives = {**recipe.objectives, "masked_lm": masked_lm.Config(mask_token_share=share, keep_share=kept)}
    return replace(recipe, objectives=objectives)


def no_nsp() -> Recipe:
    return replace(sized(), objectives={"masked_lm": masked_lm.Config()}, packing=full_sentences.Config())


def ltr() -> Recipe:
    return replace(sized(causal=True), objectives={"causal_lm": causal_lm.Config()}, packing=full_sentences.Config())


def quick() -> Recipe:
    encoder = roformer.Config.size("medium", vocab_size=VOCABULARY)
    return Recipe(
        name="bert",
        # every choice but the schedule was measured in runs of a minute: LOG.md, "Ten minutes"
        encoder=replace(encoder, dropout=0.0, attention_dropout=0.0),
        objectives={"masked_lm": masked_lm.Config(mask_probability=0.3)},
        packing=full_sentences.Config(),
        optimizer=adamw.Config(weight_decay=0.1),
        steps=36_000,
        minutes=9.0,
        learning_rate=1e-3,
        warmup=0.05,
        schedule=Schedule("linear"),
        batch_size=256,
    )


def quick_pairs() -> Recipe:
    recipe = quick()
    return replace(
        recipe,
        encoder=replace(recipe.encoder, pooler=True),
        objectives={**recipe.objectives, "next_sentence": next_sentence.Config()},
        packing=pairs.Config(),
        steps=4_000,
        minutes=1.0,
        learning_rate=3e-4,
        after="bert/quick",
    )


RECIPES = {
    "tiny": ("2 layers of width 128.", partial(sized, "tiny")),
    "mini": ("4 layers of width 256.", partial(sized, "mini")),
    "small": ("4 layers of width 512.", partial(sized, "small")),
    "medium": ("8 layers of width 512.", partial(sized, "medium")),
    "base": ("12 layers of width 768.", sized),
    "large": ("24 layers of width 1024.", partial(sized, "large")),
    "ltr": ("Left to right, without next-sentence prediction (P-BERT Table 5).", ltr),
    "mask_0_0_100": ("Selected tokens: 100 % random (P-BERT Table 8).", partial(masked, 0.0, 0.0)),
    "mask_0_20_80": ("Selected tokens: 20 % kept, 80 % random (P-BERT Table 8).", partial(masked, 0.0, 0.2)),
    "mask_100_0_0": ("Selected tokens: 100 % [MASK] (P-BERT Table 8).", partial(masked, 1.0, 0.0)),
    "mask_80_0_20": ("Selected tokens: 80 % [MASK], 20 % random (P-BERT Table 8).", partial(masked, 0.8, 0.0)),
    "mask_80_20_0": ("Selected tokens: 80 % [MASK], 20 % kept (P-BERT Table 8).", partial(masked, 0.8, 0.2)),
    "no_nsp": ("Without next-sentence prediction (P-BERT Table 5).", no_nsp),
    "quick": (
        "For minutes on one GPU: 8 layers of width 512, rotary positions, 30 % masked; then bert/quick_pairs.",
        quick,
    ),
    "quick_pairs": (
        "Second stage, with --start RUN of bert/quick: sentence pairs with next-sentence prediction.",
        quick_pairs,
    ),
    "size_12_1024_16": (
        "12 layers of width 1024, 16 heads (P-BERT Table 6).",
        partial(sized, layers=12, width=1024, heads=16),
    ),
    "size_3_768_12": ("3 layers of width 768, 12 heads (P-BERT Table 6).", partial(sized, layers=3)),
    "size_6_768_12": ("6 layers of width 768, 12 heads (P-BERT Table 6).", partial(sized, layers=6)),
    "size_6_768_3": ("6 layers of width 768, 3 heads (P-BERT Table 6).", partial(sized, layers=6, heads=3)),
}
