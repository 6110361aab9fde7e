"""ALBERT's pre-training (P-ALBERT §4.1): LAMB, batch size 4096, 125,000 steps; ablations (§4.4-4.6); albert/quick."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from bertsmith.data.packing import full_sentences, ordered_pairs, pairs
from bertsmith.encoders import albert
from bertsmith.objectives import masked_lm, next_sentence, sentence_order
from bertsmith.training.optimizers import adamw, lamb
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

VOCABULARY = 30_000  # replaced by that of the run's tokenizer
WORDS = masked_lm.Config(units="ngrams", max_ngram=3)


def sized(size: str = "base", **encoder_changes: Any) -> Recipe:
    """The recipe of one size of the encoder; `find` names it."""
    return Recipe(
        name="albert",
        encoder=replace(albert.Config.size(size, vocab_size=VOCABULARY), **encoder_changes),
        objectives={"masked_lm": WORDS, "sentence_order": sentence_order.Config()},
        packing=ordered_pairs.Config(),
        max_length=512,
        optimizer=lamb.Config(),
        steps=125_000,
        learning_rate=1.76e-3,
        warmup=3125 / 125_000,
        schedule=Schedule("bert"),
        batch_size=4096,
        micro_batch_size=64,
    )


def no_order() -> Recipe:
    return replace(sized(), objectives={"masked_lm": WORDS}, packing=full_sentences.Config())


def nsp() -> Recipe:
    objectives = {"masked_lm": WORDS, "next_sentence": next_sentence.Config()}
    return replace(sized(), objectives=objectives, packing=pairs.Config())


def quick() -> Recipe:
    return replace(
        # size, rows, optimizer and schedule of bert/quick; layers share their weights, and n-grams are masked
        sized("medium", positions="rotary", pooler=False),
        objectives={"masked_lm": replace(WORDS, mask_probability=0.3)},
        packing=full_sentences.Config(),
        max_length=128,
        optimizer=adamw.Config(weight_decay=0.1),
        steps=36_000,
        minutes=9.0,
        learning_rate=1e-3,
        warmup=0.05,
        schedule=Schedule("linear"),
        batch_size=256,
        micro_batch_size=0,
    )


def quick_pairs() -> Recipe:
    recipe = quick()
    return replace(
        recipe,
        encoder=replace(recipe.encoder, pooler=True),
        objectives={**recipe.objectives, "sentence_order": sentence_order.Config()},
        packing=ordered_pairs.Config(),
        steps=4_000,
        minutes=1.0,
        learning_rate=3e-4,
        after="albert/quick",
    )


RECIPES = {
    "tiny": ("2 layers of width 128.", partial(sized, "tiny")),
    "mini": ("4 layers of width 256.", partial(sized, "mini")),
    "small": ("4 layers of width 512.", partial(sized, "small")),
    "medium": ("8 layers of width 512.", partial(sized, "medium")),
    "base": ("12 layers of width 768.", sized),
    "large": ("24 layers of width 1024.", partial(sized, "large")),
    "xlarge": ("24 layers of width 2048.", partial(sized, "xlarge")),
    "xxlarge": ("12 layers of width 4096.", partial(sized, "xxlarge")),
    "no_order": ("Masked LM only, without sentence order (P-ALBERT Table 5).", no_order),
    "nsp": ("BERT's next-sentence prediction instead of sentence order (P-ALBERT Table 5).", nsp),
    "quick": (
        "For minutes on one GPU: 8 layers of width 512 that share their weights, rotary positions, 30 % masked; then "
        "albert/quick_pairs.",
        quick,
    ),
    "quick_pairs": (
        "Second stage, with --start RUN of albert/quick: ordered pairs with sentence-order prediction.",
        quick_pairs,
    ),
    "share_attention": ("Layers share their attention only (P-ALBERT Table 4).", partial(sized, sharing="attention")),
    "share_feed_forward": (
        "Layers share their feed-forward network only (P-ALBERT Table 4).",
        partial(sized, sharing="feed_forward"),
    ),
    "share_none": ("Every layer has weights of its own (P-ALBERT Table 4).", partial(sized, sharing="none")),
    "table_256": ("Embeddings of width 256 (P-ALBERT Table 3).", partial(sized, embedding_width=256)),
    "table_64": ("Embeddings of width 64 (P-ALBERT Table 3).", partial(sized, embedding_width=64)),
    "table_768": ("Embeddings as wide as the model (P-ALBERT Table 3).", partial(sized, embedding_width=768)),
}
