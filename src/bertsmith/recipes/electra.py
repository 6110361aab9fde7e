"""ELECTRA's pre-training (P-ELECTRA, appendix A; electra: configure_pretraining.py) and its ablations (§3.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from bertsmith.data.packing import full_sentences
from bertsmith.encoders import electra
from bertsmith.objectives import replaced_lm, replaced_token
from bertsmith.objectives.generator import GeneratorMasking
from bertsmith.training.optimizers import bert_adam
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

VOCABULARY = 30_522  # replaced by that of the run's tokenizer
SIZES = {
    "tiny": "2 layers of width 128, embeddings of 64",
    "mini": "4 layers of width 256, embeddings of 128",
    "small": "12 layers of width 256, embeddings of 128",
}


def base() -> Recipe:
    """12 layers of width 768."""
    return sized("base", generator=1 / 3, length=512, batch_size=256, learning_rate=2e-4, steps=766_000)


def large() -> Recipe:
    """24 layers of width 1024; 25 % masked."""
    return sized("large", masked=0.25, length=512, batch_size=2048, learning_rate=2e-4, steps=400_000)


def masked_only() -> Recipe:
    """The loss covers masked tokens only: ELECTRA 15 % (P-ELECTRA §3.3)."""
    recipe = base()
    objective = replace(recipe.objectives["replaced_token"], predict_at="masked")
    return replace(recipe, name="electra/masked_only", objectives={"replaced_token": objective})


def replace_mlm() -> Recipe:
    """Masked LM at tokens replaced by a generator: Replace MLM (P-ELECTRA §3.3)."""
    return _replaced_lm("replace_mlm", predict_at="masked")


def all_tokens_mlm() -> Recipe:
    """Masked LM at all tokens, some replaced by a generator: All-Tokens MLM (P-ELECTRA §3.3)."""
    return _replaced_lm("all_tokens_mlm", predict_at="all")


def _replaced_lm(name: str, *, predict_at: Literal["masked", "all"]) -> Recipe:
    recipe = base()
    objective = replaced_lm.Config(
        generator_width=recipe.objectives["replaced_token"].generator_width, predict_at=predict_at
    )
    return replace(recipe, name=f"electra/{name}", objectives={"replaced_lm": objective})


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
    """The recipe of one of the `SIZES`."""
    masking = GeneratorMasking(mask_probability=masked)
    return Recipe(
        name=f"electra/{size}",
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
