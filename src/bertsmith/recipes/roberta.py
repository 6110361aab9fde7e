"""RoBERTa's pre-training (P-RoBERTa, appendix A, table 9) and the four input formats that it compares (§4.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertsmith.data.packing import full_sentences as running_text
from bertsmith.data.packing import pairs
from bertsmith.encoders import roberta
from bertsmith.objectives import masked_lm, next_sentence
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adamw
from bertsmith.training.recipe import Recipe

VOCABULARY = 50_265  # replaced by that of the run's tokenizer
LENGTH = 512  # from the first step on
SIZES = {
    "tiny": "2 layers of width 128",
    "mini": "4 layers of width 256",
    "small": "4 layers of width 512",
    "medium": "8 layers of width 512",
    "base": "12 layers of width 768",
}


def large() -> Recipe:
    """24 layers of width 1024."""
    return sized("large", learning_rate=4e-4, warmup=30_000)


def segment_pair() -> Recipe:
    """Base: two segments of several sentences, and next-sentence prediction (P-RoBERTa Table 2)."""
    return _paired("segment_pair", pairs.Config())


def sentence_pair() -> Recipe:
    """Base: two natural sentences, and next-sentence prediction (P-RoBERTa Table 2)."""
    return _paired("sentence_pair", pairs.Config(single_sentences=True))


def full_sentences() -> Recipe:
    """Base: running text across documents (P-RoBERTa Table 2)."""
    return _formatted("full_sentences", running_text.Config())


def doc_sentences() -> Recipe:
    """Base: running text within documents (P-RoBERTa Table 2)."""
    return _formatted("doc_sentences", running_text.Config(across_documents=False))


def sized(size: str, *, learning_rate: float = 6e-4, warmup: int = 24_000) -> Recipe:
    """The recipe of one of the `SIZES`."""
    return Recipe(
        name=f"roberta/{size}",
        encoder=roberta.Config.size(size, vocab_size=VOCABULARY),
        objectives={"masked_lm": masked_lm.Config()},
        packing=running_text.Config(),
        max_length=LENGTH,
        optimizer=adamw.Config(betas=(0.9, 0.98), epsilon=1e-6, weight_decay=0.01),
        steps=500_000,
        learning_rate=learning_rate,
        warmup=warmup / 500_000,
        batch_size=8192,
        micro_batch_size=32,
        compute=ComputeConfig(max_grad_norm=0.0),
    )


def _formatted(name: str, packing: Any) -> Recipe:
    """All four formats are compared over a million steps with batch size 256."""
    recipe = sized("base")
    return replace(
        recipe,
        name=f"roberta/{name}",
        packing=packing,
        steps=1_000_000,
        learning_rate=1e-4,
        warmup=10_000 / 1_000_000,
        batch_size=256,
    )


def _paired(name: str, packing: Any) -> Recipe:
    recipe = _formatted(name, packing)
    objectives = {**recipe.objectives, "next_sentence": next_sentence.Config()}
    return replace(recipe, encoder=replace(recipe.encoder, pooler=True), objectives=objectives)
