"""RoBERTa's pre-training (P-RoBERTa, appendix A, table 9); the four input formats of its §4.2; roberta/quick."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bertsmith.data.packing import full_sentences, pairs
from bertsmith.encoders import roberta
from bertsmith.objectives import masked_lm, next_sentence
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

VOCABULARY = 50_265  # replaced by that of the run's tokenizer
STEPS = 1_000_000  # in which the four formats are compared, with batch size 256


def sized(size: str, *, learning_rate: float = 6e-4, warmup: int = 24_000) -> Recipe:
    """The recipe of one size of the encoder; `find` names it."""
    return Recipe(
        name="roberta",
        encoder=roberta.Config.size(size, vocab_size=VOCABULARY),
        objectives={"masked_lm": masked_lm.Config()},
        packing=full_sentences.Config(),
        max_length=512,  # from the first step on
        optimizer=adamw.Config(betas=(0.9, 0.98), epsilon=1e-6, weight_decay=0.01),
        steps=500_000,
        learning_rate=learning_rate,
        warmup=warmup / 500_000,
        batch_size=8192,
        micro_batch_size=32,
        compute=ComputeConfig(max_grad_norm=0.0),
    )


def running_text(*, across_documents: bool) -> Recipe:
    packing = full_sentences.Config(across_documents=across_documents)
    recipe = replace(sized("base"), packing=packing, steps=STEPS, batch_size=256)
    return replace(recipe, learning_rate=1e-4, warmup=10_000 / STEPS)


def paired(*, single_sentences: bool) -> Recipe:
    """With next-sentence prediction."""
    recipe, packing = running_text(across_documents=True), pairs.Config(single_sentences=single_sentences)
    objectives = {**recipe.objectives, "next_sentence": next_sentence.Config()}
    return replace(recipe, encoder=replace(recipe.encoder, pooler=True), objectives=objectives, packing=packing)


def quick() -> Recipe:
    encoder = roberta.Config.size("medium", vocab_size=VOCABULARY)
    return Recipe(
        name="roberta",
        # size, length and schedule of bert/quick; twice the batch size, and the betas of Table 9
        encoder=replace(encoder, positions="rotary", dropout=0.0, attention_dropout=0.0),
        objectives={"masked_lm": masked_lm.Config(mask_probability=0.3)},
        packing=full_sentences.Config(),
        optimizer=adamw.Config(betas=(0.9, 0.98), epsilon=1e-6, weight_decay=0.1),
        steps=20_000,
        minutes=10.0,
        learning_rate=1e-3,
        warmup=0.05,
        schedule=Schedule("linear"),
        batch_size=512,
    )


RECIPES = {
    "tiny": ("2 layers of width 128.", partial(sized, "tiny")),
    "mini": ("4 layers of width 256.", partial(sized, "mini")),
    "small": ("4 layers of width 512.", partial(sized, "small")),
    "medium": ("8 layers of width 512.", partial(sized, "medium")),
    "base": ("12 layers of width 768.", partial(sized, "base")),
    "doc_sentences": (
        "Base: running text within documents (P-RoBERTa Table 2).",
        partial(running_text, across_documents=False),
    ),
    "full_sentences": (
        "Base: running text across documents (P-RoBERTa Table 2).",
        partial(running_text, across_documents=True),
    ),
    "large": ("24 layers of width 1024.", partial(sized, "large", learning_rate=4e-4, warmup=30_000)),
    "quick": (
        "For minutes on one GPU: 8 layers of width 512, rotary positions, 30 % masked, batch size 512, no pairs.",
        quick,
    ),
    "segment_pair": (
        "Base: two segments of several sentences, and next-sentence prediction (P-RoBERTa Table 2).",
        partial(paired, single_sentences=False),
    ),
    "sentence_pair": (
        "Base: two natural sentences, and next-sentence prediction (P-RoBERTa Table 2).",
        partial(paired, single_sentences=True),
    ),
}
