"""ULMFiT's language models (Howard and Ruder 2018): AWD-LSTM over continuous columns of text, then target text."""

from __future__ import annotations

from dataclasses import replace

from bertsmith.data.packing import columns
from bertsmith.encoders import awd_lstm
from bertsmith.objectives import causal_lm
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import Schedule
from bertsmith.training.recipe import Recipe

BPTT = 70  # tokens of a row
SHORT_BPTT = 20  # for minutes of training, where the number of steps matters most
LONGEST = 90  # of random lengths: four standard deviations above the mean
# fastai: text/models/awdlstm.py, text/learner.py; the penalties are those of P-AWD-LSTM
HEAD = causal_lm.Config(dropout=0.1, activation_penalty=2.0, temporal_penalty=1.0)


def paper() -> Recipe:
    return Recipe(
        name="awd_lstm",
        encoder=awd_lstm.Config(),
        objectives={"causal_lm": HEAD},
        packing=columns.Config(mean_length=BPTT),
        max_length=LONGEST,
        optimizer=adamw.Config(betas=(0.8, 0.99), weight_decay=0.01),
        steps=160_000,  # 14 epochs of the 103 M tokens of WikiText-103
        learning_rate=1e-3,  # higher rates are slower or diverge with layers of this width
        warmup=0.1,
        schedule=Schedule("cosine"),
        batch_size=128,
        compute=ComputeConfig(max_grad_norm=0.3),
    )


def target() -> Recipe:
    """Fine-tuning on the text of the task, from a general model (P-ULMFiT §3.2)."""
    return replace(
        paper(),
        steps=5000,
        learning_rate=4e-3,
        optimizer=adamw.Config(betas=(0.8, 0.99), weight_decay=1e-7),
        layer_decay=1 / 2.6,
        schedule=Schedule("slanted_triangle"),
        batch_size=64,
        after="awd_lstm/paper",
        match_tokens=True,
    )


def quick() -> Recipe:
    """More and shorter steps, with rows of one length; dropout for many epochs is left out."""
    recipe = paper()
    return replace(
        recipe,
        encoder=replace(recipe.encoder, dropout_scale=0.2),
        objectives={"causal_lm": replace(HEAD, dropout=0.02)},
        packing=columns.Config(),
        max_length=SHORT_BPTT,
        batch_size=256,
        steps=30_000,
        minutes=9.0,
    )


def tiny() -> Recipe:
    recipe = quick()
    encoder = replace(recipe.encoder, layers=2, width=64, hidden=128)
    return replace(recipe, encoder=encoder, minutes=0.0, steps=1000, batch_size=32, learning_rate=4e-3)


RECIPES = {
    "tiny": ("2 layers of width 128.", tiny),
    "paper": ("ULMFiT's general language model: 3 layers of width 1152, rows of random length.", paper),
    "target": ("Its second stage, on the text of the task: starts from a general model.", target),
    "quick": ("For minutes on one GPU: 3 layers of width 1152, rows of 20 tokens.", quick),
}
