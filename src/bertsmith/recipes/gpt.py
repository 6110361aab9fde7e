"""GPT-1's pre-training (P-GPT1 §4.1): rows of 512 tokens, batch size 64, 100 epochs of BooksCorpus; and gpt/quick."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bertsmith.data.packing import stream
from bertsmith.encoders import gpt
from bertsmith.objectives import causal_lm
from bertsmith.training.optimizers import adamw, muon
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

VOCABULARY = 40_478  # replaced by that of the run's tokenizer
# 100 epochs of 64 rows of 512 tokens, if BooksCorpus has as many tokens as words: 985 M (Zhu et al. 2015)
STEPS = 3_010_000


def sized(size: str = "base") -> Recipe:
    """The recipe of one size of the encoder; `find` names it."""
    return Recipe(
        name="gpt",
        encoder=gpt.Config.size(size, vocab_size=VOCABULARY),
        objectives={"causal_lm": causal_lm.Config()},
        packing=stream.Config(),
        max_length=512,
        optimizer=adamw.Config(weight_decay=0.01),
        steps=STEPS,
        learning_rate=2.5e-4,
        warmup=2000 / STEPS,
        schedule=Schedule("cosine"),
        batch_size=64,
    )


def quick() -> Recipe:
    recipe = sized("medium")
    return replace(
        recipe,
        # shape, rows and schedule of bert/quick. AdamW stays at the unigram loss at the learning rates that suit
        # bert/quick; the optimizer and its learning rate were measured in runs of 40 seconds: LOG.md, "Ten minutes"
        encoder=replace(recipe.encoder, dropout=0.0, attention_dropout=0.0),
        optimizer=muon.Config(),
        max_length=128,
        steps=36_000,
        minutes=9.0,
        learning_rate=2e-3,
        warmup=0.05,
        schedule=Schedule("linear"),
        batch_size=256,
    )


def quick_long() -> Recipe:
    """The last minute: trains the embeddings of positions from 128 on, which long inputs of tasks use."""
    return replace(
        quick(),
        max_length=512,
        batch_size=64,
        steps=4_000,
        minutes=1.0,
        learning_rate=1e-3,
        after="gpt/quick",
    )


RECIPES = {
    "tiny": ("2 layers of width 128.", partial(sized, "tiny")),
    "small": ("4 layers of width 512.", partial(sized, "small")),
    "base": ("12 layers of width 768.", sized),
    "quick": ("For minutes on one GPU: 8 layers of width 512, rows of 128 tokens; then gpt/quick_long.", quick),
    "quick_long": ("Second stage, with --start RUN of gpt/quick: rows of 512 tokens.", quick_long),
}
