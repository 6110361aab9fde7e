"""ELECTRA's pre-training (P-ELECTRA, appendix A; electra: configure_pretraining.py) and its ablations (§3.3)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from bertsmith.data.packing import full_sentences
from bertsmith.encoders import electra
from bertsmith.objectives import replaced_lm, replaced_token
from bertsmith.objectives.generator import GeneratorMasking
from bertsmith.training.optimizers import bert_adam
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
    "replace_mlm": (
        "Masked LM at tokens replaced by a generator: Replace MLM (P-ELECTRA §3.3).",
        partial(replaced_mlm, "masked"),
    ),
}
