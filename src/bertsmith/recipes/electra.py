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

VOCABULARY = 30_522  # a run takes that of its own tokenizer


def tiny() -> Recipe:
    """2 layers of width 128, tables of 64."""
    return _sized("tiny")


def mini() -> Recipe:
    """4 layers of width 256, tables of 128."""
    return _sized("mini")


def small() -> Recipe:
    """12 layers of width 256, tables of 128."""
    return _sized("small")


def base() -> Recipe:
    """12 layers of width 768."""
    return _sized("base", generator=1 / 3, length=512, batch_size=256, learning_rate=2e-4, steps=766_000)


def large() -> Recipe:
    """24 layers of width 1024; a quarter of the words is hidden."""
    return _sized("large", hidden=0.25, length=512, batch_size=2048, learning_rate=2e-4, steps=400_000)


def hidden_only() -> Recipe:
    """Only what was hidden is judged: ELECTRA 15 % (P-ELECTRA §3.3)."""
    recipe = base()
    objective = replace(recipe.objectives["replaced_token"], predict_at="masked")
    return replace(recipe, name="electra/hidden_only", objectives={"replaced_token": objective})


def replace_mlm() -> Recipe:
    """What stood at hidden places, filled in by a generator: Replace MLM (P-ELECTRA §3.3)."""
    return _of_words("replace_mlm", predict_at="masked")


def all_tokens_mlm() -> Recipe:
    """What stood at every place, some filled in by a generator: All-Tokens MLM (P-ELECTRA §3.3)."""
    return _of_words("all_tokens_mlm", predict_at="all")


def _of_words(name: str, *, predict_at: Literal["masked", "all"]) -> Recipe:
    recipe = base()
    objective = replaced_lm.Config(
        generator_width=recipe.objectives["replaced_token"].generator_width, predict_at=predict_at
    )
    return replace(recipe, name=f"electra/{name}", objectives={"replaced_lm": objective})


def _sized(
    size: str,
    *,
    generator: float = 1 / 4,
    hidden: float = 0.15,
    length: int = 128,
    batch_size: int = 128,
    learning_rate: float = 5e-4,
    steps: int = 1_000_000,
) -> Recipe:
    masking = GeneratorMasking(mask_probability=hidden)
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
