"""FLOPs per token against manual sums."""

from __future__ import annotations

import pytest
import torch

from bertsmith.encoders import electra, seq2seq
from bertsmith.model_io.model import Model
from bertsmith.objectives import replaced_token, translation
from bertsmith.training.roofline import flops_per_token


def test_flops_of_a_generator_and_its_head() -> None:
    config = electra.Config(layers=3, width=256, heads=4, embedding_width=128, vocab_size=1000)
    with torch.device("meta"):
        model = Model.build(config, [replaced_token.Config(generator_width=0.25)])

    def blocks(width: int) -> int:
        return 3 * (
            12 * width**2 + 2 * 64 * width
        )  # four attention matrices, eight of feed-forward, attention products

    encoder = 128 * 256 + blocks(256)
    generator = 128 * 64 + blocks(64)
    discriminator, words = 256**2 + 256, 64 * 128 + 1000 * 128
    flops = flops_per_token(model, length=64, labels={"masked_lm": 0.15, "replaced_token": 0.5})
    assert flops == pytest.approx(6 * (encoder + generator + 0.5 * discriminator + 0.15 * words))


def test_flops_of_a_translation_model_count_each_token_on_its_own_side() -> None:
    config = seq2seq.Config(layers=2, decoder_layers=3, width=64, heads=2, vocab_size=500)
    with torch.device("meta"):
        model = Model.build(config, [translation.Config()])
    products = 2 * 32 * 64
    encoder = 2 * (12 * 64**2 + products)
    decoder = 3 * (16 * 64**2 + 2 * products)
    flops = flops_per_token(model, length=32, labels={"translation": 0.5})
    assert flops == pytest.approx(6 * ((encoder + decoder) / 2 + 0.5 * 500 * 64))
