"""GPT-1: parameter counts, initial weights, and the plain language-model head."""

from __future__ import annotations

import pytest
import torch
from model_fixtures import random_batch, randomize_weights, relative_difference

from bertsmith import recipes
from bertsmith.encoders import gpt
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.objectives import causal_lm, choose, classify


def test_parameter_count_of_the_published_model() -> None:
    with torch.device("meta"):
        model = Model.build(gpt.Config(), [causal_lm.Config()])
    assert parameter_count(model) == parameter_count(model.encoder) == 116_534_784


def test_parameters_of_a_small_model() -> None:
    config = gpt.Config(layers=1, width=32, heads=4, vocab_size=97, max_positions=40)
    model = Model.build(config, [causal_lm.Config(), classify.Config(), choose.Config()])
    names = {name: tuple(weight.shape) for name, weight in model.named_parameters() if ".blocks." not in name}
    assert names == {
        "encoder.embeddings.tokens.weight": (97, 32),
        "encoder.embeddings.positions.weight": (40, 32),
        "objectives.classify.head.weight": (2, 32),
        "objectives.choose.head.weight": (1, 32),
        "objectives.choose.head.bias": (1,),
    }


def test_initial_weights_are_normal() -> None:
    torch.manual_seed(0)
    encoder = gpt.Config.size("tiny", vocab_size=2000).build()
    weight = encoder.blocks[0].attention.qkv.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert weight.abs().max() > 0.06  # not truncated at two standard deviations
    assert encoder.embeddings.positions.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_logits_are_products_with_the_token_table() -> None:
    config = gpt.Config(layers=2, width=32, heads=4, vocab_size=97, max_positions=40)
    model = randomize_weights(Model.build(config, [causal_lm.Config()])).eval()
    batch = random_batch([20, 9], length=20, pairs=False)
    expected = model.encoder(batch).last_hidden @ model.encoder.token_embeddings.T
    assert relative_difference(model.predict(batch, "causal_lm"), expected) < 1e-6


def test_the_recipe_is_that_of_the_paper() -> None:
    recipe = recipes.find("gpt/base")
    assert recipe.batch_size * recipe.max_length == 64 * 512
    assert recipe.plan.learning_rate == 2.5e-4
    factors = [recipe.schedule.factor(step / recipe.steps, recipe.warmup) for step in (0, 1000, 2000, recipe.steps)]
    assert factors == pytest.approx([0, 0.5, 1, 0])
