"""ELECTRA's pre-training (P-ELECTRA, appendix A; electra: configure_pretraining.py), ablations, electra/quick."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from bertsmith.data.packing import full_sentences, pairs
from bertsmith.encoders import electra
from bertsmith.objectives import replaced_lm, replaced_token
from bertsmith.objectives.generator import GeneratorMasking
from bertsmith.training.optimizers import adamw, bert_adam
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

VOCABULARY = 30_522  # replaced by that of the run's tokenizer


def sized(
    size: str,
    *,
    generator: float = 1 / 4,
    masked: float = 0.15,
    length: int = 128,
    batch_size: int = 128,
    learning_rate: float = 5e-4,
    steps: int = 1_000_000,
) -> Recipe:
    """The recipe of one size of the encoder; `find` names it."""
    masking = GeneratorMasking(mask_probability=masked)
    return Recipe(
        name="electra",
        encoder=electra.Config.size(size, vocab_size=VOCABULARY),
        objectives={"replaced_token": replaced_token.Config(generator_width=generator, masking=masking)},
        packing=full_sentences.Config(across_documents=False),
        max_length=length,
        optimizer=bert_adam.Config(),
        steps=steps,
        learning_rate=learning_rate,
        warmup=10_000 / steps,
        schedule=Schedule("product"),
        batch_size=batch_size,
    )


base = partial(sized, "base", generator=1 / 3, length=512, batch_size=256, learning_rate=2e-4, steps=766_000)
large = partial(sized, "large", masked=0.25, length=512, batch_size=2048, learning_rate=2e-4, steps=400_000)


def masked_only() -> Recipe:
    objective = replace(base().objectives["replaced_token"], predict_at="masked")
    return replace(base(), objectives={"replaced_token": objective})


def replaced_mlm(predict_at: Literal["masked", "all"]) -> Recipe:
    """Masked LM at tokens of a generator."""
    return replace(base(), objectives={"replaced_lm": replaced_lm.Config(generator_width=1 / 3, predict_at=predict_at)})


def quick() -> Recipe:
    size: dict[str, Any] = {"layers": 8, "width": 512, "heads": 8, "embedding_width": 512}
    return Recipe(
        name="electra",
        # Size, rows, optimizer and schedule of bert/quick; the learning rate of ELECTRA-small, and a longer warm-up:
        # higher rates gave all tokens of small models the same vector (LOG.md, "The model family").
        encoder=electra.Config(vocab_size=VOCABULARY, positions="rotary", dropout=0.0, attention_dropout=0.0, **size),
        objectives={"replaced_token": replaced_token.Config()},
        packing=full_sentences.Config(),
        optimizer=adamw.Config(weight_decay=0.1),
        steps=36_000,
        minutes=9.0,
        learning_rate=5e-4,
        warmup=0.1,
        schedule=Schedule("linear"),
        batch_size=256,
    )


def quick_pairs() -> Recipe:
    """The last minute, in the rows of ELECTRA's code: two consecutive segments of a document."""
    return replace(
        quick(),
        packing=pairs.Config(random_next=0.0),
        steps=4_000,
        minutes=1.0,
        learning_rate=2e-4,
        after="electra/quick",
    )


RECIPES = {
    "tiny": ("2 layers of width 128, embeddings of 64.", partial(sized, "tiny")),
    "mini": ("4 layers of width 256, embeddings of 128.", partial(sized, "mini")),
    "small": ("12 layers of width 256, embeddings of 128.", partial(sized, "small")),
    "all_tokens_mlm": (
        "Masked LM at all tokens, some replaced by a generator: All-Tokens MLM (P-ELECTRA §3.3).",
        partial(replaced_mlm, "all"),
    ),
    "base": ("12 layers of width 768.", base),
    "large": ("24 layers of width 1024; 25 % masked.", large),
    "masked_only": ("The loss covers masked tokens only: ELECTRA 15 % (P-ELECTRA §3.3).", masked_only),
    "quick": (
        "For minutes on one GPU: 8 layers of width 512, rotary positions, a generator of a quarter of the width; then "
        "electra/quick_pairs.",
        quick,
    ),
    "quick_pairs": (
        "Second stage, with --start RUN of electra/quick: two consecutive segments in a row.",
        quick_pairs,
    ),
    "replace_mlm": (
        "Masked LM at tokens replaced by a generator: Replace MLM (P-ELECTRA §3.3).",
        partial(replaced_mlm, "masked"),
    ),
}
