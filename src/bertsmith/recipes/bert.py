"""BERT's pre-training (P-BERT A.2): 256 rows, rate 1e-4, 10,000 steps of warm-up, 1 M steps; and its ablations (§5)."""

from __future__ import annotations

from dataclasses import replace

from bertsmith.corpus.packing import full_sentences, pairs
from bertsmith.encoders import bert
from bertsmith.objectives import causal_lm, masked_lm, next_sentence
from bertsmith.recipe import Recipe
from bertsmith.train.optimizers import reference as reference_adam
from bertsmith.train.plan import Plan, Rows
from bertsmith.train.schedules import reference as reference_schedule

VOCABULARY = 30_522  # a run takes that of its own tokenizer


def tiny() -> Recipe:
    """2 layers of width 128."""
    return _sized("tiny")


def mini() -> Recipe:
    """4 layers of width 256."""
    return _sized("mini")


def small() -> Recipe:
    """4 layers of width 512."""
    return _sized("small")


def medium() -> Recipe:
    """8 layers of width 512."""
    return _sized("medium")


def base() -> Recipe:
    """12 layers of width 768."""
    return _sized("base")


def large() -> Recipe:
    """24 layers of width 1024."""
    return _sized("large")


def no_nsp() -> Recipe:
    """Without next-sentence prediction (P-BERT Table 5)."""
    recipe = base()
    return replace(
        recipe,
        name="bert/no_nsp",
        objectives={"masked_lm": masked_lm.Config()},
        packing=full_sentences.Config(length=recipe.packing.length),
    )


def ltr() -> Recipe:
    """Left to right, without next-sentence prediction (P-BERT Table 5)."""
    recipe = base()
    return replace(
        recipe,
        name="bert/ltr",
        encoder=replace(recipe.encoder, causal=True),
        objectives={"causal_lm": causal_lm.Config()},
        packing=full_sentences.Config(length=recipe.packing.length),
    )


def _sized(size: str) -> Recipe:
    return Recipe(
        name=f"bert/{size}",
        encoder=bert.Config.size(size, vocabulary_size=VOCABULARY),
        objectives={"masked_lm": masked_lm.Config(), "next_sentence": next_sentence.Config()},
        # 128 for nine tenths of the steps, then 512 as a second run that starts from the first one's folder
        packing=pairs.Config(length=128),
        optimizer=reference_adam.Config(),
        plan=Plan(steps=1_000_000, rate=1e-4, warmup=10_000, schedule=reference_schedule.Config()),
        rows=Rows(full=256),
    )
