"""ALBERT's pre-training (P-ALBERT §4.1): LAMB, batch size 4096, 125,000 steps; its ablations (§4.4-4.6)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from bertsmith.data.packing import full_sentences, ordered_pairs, pairs
from bertsmith.encoders import albert
from bertsmith.objectives import masked_lm, next_sentence, sentence_order
from bertsmith.training.optimizers import lamb
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
    "share_attention": ("Layers share their attention only (P-ALBERT Table 4).", partial(sized, sharing="attention")),
    "share_feed_forward": (
        "Layers share their feed-forward only (P-ALBERT Table 4).",
        partial(sized, sharing="feed_forward"),
    ),
    "share_none": ("Every layer has weights of its own (P-ALBERT Table 4).", partial(sized, sharing="none")),
    "table_256": ("Embeddings of width 256 (P-ALBERT Table 3).", partial(sized, embedding_width=256)),
    "table_64": ("Embeddings of width 64 (P-ALBERT Table 3).", partial(sized, embedding_width=64)),
    "table_768": ("Embeddings as wide as the model (P-ALBERT Table 3).", partial(sized, embedding_width=768)),
}
