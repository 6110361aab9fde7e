"""BERT's pre-training (P-BERT A.2): batch size 256, learning rate 1e-4, 1 M steps; its ablations (§5).

And two stages for ten minutes of training.
"""

from __future__ import annotations

from dataclasses import replace

from bertsmith.data.packing import full_sentences, pairs
from bertsmith.encoders import bert, roformer
from bertsmith.objectives import causal_lm, masked_lm, next_sentence
from bertsmith.training.optimizers import adamw, bert_adam
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

VOCABULARY = 30_522  # replaced by that of the run's tokenizer
SIZES = {
    "tiny": "2 layers of width 128",
    "mini": "4 layers of width 256",
    "small": "4 layers of width 512",
    "medium": "8 layers of width 512",
    "base": "12 layers of width 768",
    "large": "24 layers of width 1024",
}


def quick() -> Recipe:
    """For minutes on one GPU: 8 layers of width 512, rotary positions, 30 % masked; then bert/quick_pairs."""
    encoder = roformer.Config.size("medium", vocab_size=VOCABULARY)
    return Recipe(
        name="bert/quick",
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
    """The last minute, to --start from a run of bert/quick: sentence pairs, with next-sentence prediction."""
    recipe = quick()
    return replace(
        recipe,
        name="bert/quick_pairs",
        encoder=replace(recipe.encoder, pooler=True),
        objectives={**recipe.objectives, "next_sentence": next_sentence.Config()},
        packing=pairs.Config(),
        steps=4_000,
        minutes=1.0,
        learning_rate=3e-4,
        after=recipe.name,
    )


def no_nsp() -> Recipe:
    """Without next-sentence prediction (P-BERT Table 5)."""
    recipe = sized("base")
    return replace(
        recipe,
        name="bert/no_nsp",
        objectives={"masked_lm": masked_lm.Config()},
        packing=full_sentences.Config(),
    )


def ltr() -> Recipe:
    """Left to right, without next-sentence prediction (P-BERT Table 5)."""
    recipe = sized("base")
    return replace(
        recipe,
        name="bert/ltr",
        encoder=replace(recipe.encoder, causal=True),
        objectives={"causal_lm": causal_lm.Config()},
        packing=full_sentences.Config(),
    )


def size_3_768_12() -> Recipe:
    """3 layers of width 768, 12 heads (P-BERT Table 6)."""
    return _shaped("size_3_768_12", layers=3, width=768, heads=12)


def size_6_768_3() -> Recipe:
    """6 layers of width 768, 3 heads (P-BERT Table 6)."""
    return _shaped("size_6_768_3", layers=6, width=768, heads=3)


def size_6_768_12() -> Recipe:
    """6 layers of width 768, 12 heads (P-BERT Table 6)."""
    return _shaped("size_6_768_12", layers=6, width=768, heads=12)


def size_12_1024_16() -> Recipe:
    """12 layers of width 1024, 16 heads (P-BERT Table 6)."""
    return _shaped("size_12_1024_16", layers=12, width=1024, heads=16)


def mask_100_0_0() -> Recipe:
    """Selected tokens: 100 % [MASK] (P-BERT Table 8)."""
    return _masked("mask_100_0_0", masked=1.0, kept=0.0)


def mask_80_0_20() -> Recipe:
    """Selected tokens: 80 % [MASK], 20 % random (P-BERT Table 8)."""
    return _masked("mask_80_0_20", masked=0.8, kept=0.0)


def mask_80_20_0() -> Recipe:
    """Selected tokens: 80 % [MASK], 20 % kept (P-BERT Table 8)."""
    return _masked("mask_80_20_0", masked=0.8, kept=0.2)


def mask_0_20_80() -> Recipe:
    """Selected tokens: 20 % kept, 80 % random (P-BERT Table 8)."""
    return _masked("mask_0_20_80", masked=0.0, kept=0.2)


def mask_0_0_100() -> Recipe:
    """Selected tokens: 100 % random (P-BERT Table 8)."""
    return _masked("mask_0_0_100", masked=0.0, kept=0.0)


def _shaped(name: str, *, layers: int, width: int, heads: int) -> Recipe:
    recipe = sized("base")
    return replace(
        recipe, name=f"bert/{name}", encoder=replace(recipe.encoder, layers=layers, width=width, heads=heads)
    )


def _masked(name: str, *, masked: float, kept: float) -> Recipe:
    recipe = sized("base")
    objectives = {**recipe.objectives, "masked_lm": masked_lm.Config(mask_token_share=masked, keep_share=kept)}
    return replace(recipe, name=f"bert/{name}", objectives=objectives)


def sized(size: str) -> Recipe:
    """The recipe of one of the `SIZES`."""
    return Recipe(
        name=f"bert/{size}",
        encoder=bert.Config.size(size, vocab_size=VOCABULARY),
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
