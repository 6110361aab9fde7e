"""ALBERT's pre-training (P-ALBERT §4.1): LAMB, batch size 4096, 125,000 steps; its ablations (§4.4-4.6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertsmith.data.packing import full_sentences, ordered_pairs, pairs
from bertsmith.encoders import albert
from bertsmith.objectives import masked_lm, next_sentence, sentence_order
from bertsmith.training.optimizers import lamb
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

VOCABULARY = 30_000  # replaced by that of the run's tokenizer
LENGTH = 512
WORDS = masked_lm.Config(units="ngrams", max_ngram=3)
SIZES = {
    "tiny": "2 layers of width 128",
    "mini": "4 layers of width 256",
    "small": "4 layers of width 512",
    "medium": "8 layers of width 512",
    "base": "12 layers of width 768",
    "large": "24 layers of width 1024",
    "xlarge": "24 layers of width 2048",
    "xxlarge": "12 layers of width 4096",
}


def table_64() -> Recipe:
    """Embeddings of width 64 (P-ALBERT Table 3)."""
    return _changed("table_64", embedding_width=64)


def table_256() -> Recipe:
    """Embeddings of width 256 (P-ALBERT Table 3)."""
    return _changed("table_256", embedding_width=256)


def table_768() -> Recipe:
    """Embeddings as wide as the model (P-ALBERT Table 3)."""
    return _changed("table_768", embedding_width=768)


def share_attention() -> Recipe:
    """Layers share their attention only (P-ALBERT Table 4)."""
    return _changed("share_attention", sharing="attention")


def share_feed_forward() -> Recipe:
    """Layers share their feed-forward only (P-ALBERT Table 4)."""
    return _changed("share_feed_forward", sharing="feed_forward")


def share_none() -> Recipe:
    """Every layer has weights of its own (P-ALBERT Table 4)."""
    return _changed("share_none", sharing="none")


def no_order() -> Recipe:
    """Masked LM only, without sentence order (P-ALBERT Table 5)."""
    packing = full_sentences.Config()
    return replace(sized("base"), name="albert/no_order", objectives={"masked_lm": WORDS}, packing=packing)


def nsp() -> Recipe:
    """BERT's next-sentence prediction instead of sentence order (P-ALBERT Table 5)."""
    objectives = {"masked_lm": WORDS, "next_sentence": next_sentence.Config()}
    return replace(sized("base"), name="albert/nsp", objectives=objectives, packing=pairs.Config())


def _changed(name: str, **changes: Any) -> Recipe:
    recipe = sized("base")
    return replace(recipe, name=f"albert/{name}", encoder=replace(recipe.encoder, **changes))


def sized(size: str) -> Recipe:
    """The recipe of one of the `SIZES`."""
    return Recipe(
        name=f"albert/{size}",
        encoder=albert.Config.size(size, vocab_size=VOCABULARY),
        objectives={"masked_lm": WORDS, "sentence_order": sentence_order.Config()},
        packing=ordered_pairs.Config(),
        max_length=LENGTH,
        optimizer=lamb.Config(),
        steps=125_000,
        learning_rate=1.76e-3,
        warmup=3125 / 125_000,
        schedule=Schedule("bert"),
        batch_size=4096,
        micro_batch_size=64,
    )
