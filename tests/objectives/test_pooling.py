"""Poolings of packed texts equal those of separately encoded texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from model_fixtures import relative_difference
from objectives.head_fixtures import LENGTHS, alone, layers_of, model_with, packed

from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.nn.pooling import POOLINGS, LayerChoice, TextTokens
from bertsmith.objectives import choose, classify, regress, tag
from bertsmith.objectives.objective import BuildContext
from bertsmith.types import Batch, Encoding

Vectors = list[torch.Tensor]


def mixed(chosen: Vectors, weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    shares = [float(weight.exp() / weights.exp().sum()) for weight in weights]
    return float(scale) * sum(share * layer for share, layer in zip(shares, chosen, strict=True))


LAYERS: dict[str, Callable[[Vectors, Any], torch.Tensor]] = {
    "top": lambda layers, _: layers[5],
    "second_to_last": lambda layers, _: layers[4],
    "embeddings": lambda layers, _: layers[0],
    "embeddings_and_top": lambda layers, _: torch.cat((layers[0], layers[5]), 1),
    "all_concat": lambda layers, _: torch.cat(layers, 1),
    "last_four_sum": lambda layers, mix: mixed(layers[2:6], mix.weights, mix.scale),
    "last_four_concat": lambda layers, _: torch.cat(layers[2:6], 1),
    "all_sum": lambda layers, mix: mixed(layers[1:6], mix.weights, mix.scale),
    "mix": lambda layers, mix: mixed(layers, mix.weights, mix.scale),
}
TEXTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cls": lambda x: x[0],
    "last": lambda x: x[-1],
    "mean": lambda x: x.sum(0) / len(x),
    "concat": lambda x: torch.cat((x[-1], x.max(0).values, x.sum(0) / len(x))),
}


def test_every_choice_is_tested() -> None:
    assert set(LAYERS) == set(get_args(LayerChoice))
    assert set(TEXTS) | {"auto", "pooler", "biattention"} == set(POOLINGS)  # the last: nn/test_biattention.py


def test_auto_is_the_last_token_of_a_causal_encoder() -> None:
    """Its first token attends to itself alone: the pooler's vector would not depend on the text."""
    causal = {"causal": True, "pooler": False}
    assert model_with(classify.Config(), **causal).objectives["classify"].config.pooling == "last"
    assert model_with(classify.Config(layers="mix"), **causal).objectives["classify"].config.pooling == "last"
    assert model_with(classify.Config()).objectives["classify"].config.pooling == "pooler"
    assert model_with(classify.Config(layers="mix")).objectives["classify"].config.pooling == "cls"
    assert model_with(classify.Config(recurrent="bilstm")).objectives["classify"].config.pooling == "cls"


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("pooling", TEXTS)
def test_one_vector_per_text(pooling: Any, layers: Any) -> None:
    """Packed rows with empty slots against separately encoded texts."""
    model = model_with(classify.Config(pooling=pooling, layers=layers))
    head = model.objectives["classify"]
    with torch.no_grad():
        logits = model.predict(packed(), "classify")
        for number in range(len(LENGTHS)):
            vector = TEXTS[pooling](LAYERS[layers](layers_of(model, number), head.pooling.layers))
            expected = vector @ head.head.weight.T + head.head.bias
            assert relative_difference(logits[number], expected) < 1e-5
            assert relative_difference(model.predict(alone(number), "classify")[0], expected) < 1e-5


@pytest.mark.parametrize("settings", [classify, regress, choose], ids=lambda module: module.__name__[-8:])
@pytest.mark.parametrize("pooling", TEXTS)
def test_pooling_after_a_bilstm(pooling: Any, settings: Any) -> None:
    """The BiLSTM's outputs are pooled like those of the encoder."""
    model = model_with(
        settings.Config(pooling=pooling, layers="all_sum", recurrent="bilstm", recurrent_width=7, recurrent_layers=1)
    )
    (head,) = model.objectives.values()
    ahead, back = head.pooling.recurrent.forward_lstms[0], head.pooling.recurrent.backward_lstms[0]
    with torch.no_grad():
        outputs = model.predict(packed(), head.name)
        for number in range(len(LENGTHS)):
            x = LAYERS["all_sum"](layers_of(model, number), head.pooling.layers)[None]
            both = torch.cat((ahead(x)[0], back(x.flip(1))[0].flip(1)), -1)[0]
            assert relative_difference(outputs[number], head.head(TEXTS[pooling](both))) < 1e-5


def test_the_pooler_cannot_follow_a_bilstm() -> None:
    for module in (classify, regress, choose):
        with pytest.raises(ConfigError, match="with recurrent=bilstm, use pooling=cls, last or mean"):
            module.Config(recurrent="bilstm", pooling="pooler")
        with pytest.raises(ConfigError, match="recurrent=gru must be one of none, bilstm"):
            module.Config(recurrent="gru", pooling="last")


@pytest.mark.parametrize("layers", LAYERS)
def test_one_vector_per_token(layers: Any) -> None:
    model = model_with(tag.Config(layers=layers))
    head = model.objectives["tag"]
    batch = packed()
    with torch.no_grad():
        everywhere = model.predict(batch.replace(indices={}), "tag")
        for number, first in enumerate(batch.cls_positions[: len(LENGTHS)].tolist()):
            vectors = LAYERS[layers](layers_of(model, number), head.layers)
            expected = vectors @ head.head.weight.T + head.head.bias
            assert relative_difference(everywhere[first : first + LENGTHS[number]], expected) < 1e-5
        assert torch.allclose(model.predict(batch, "tag"), everywhere[batch.indices["tag"]], atol=1e-5)


def test_pooler_is_the_encoders_pooler() -> None:
    model = model_with(classify.Config())
    head, batch = model.objectives["classify"].head, packed()
    with torch.no_grad():
        expected = model.encoder(batch).pooled @ head.weight.T + head.bias
        assert relative_difference(model.predict(batch, "classify"), expected) < 1e-6


@pytest.mark.parametrize(
    ("settings", "read", "kept"),
    [
        (classify.Config(), 10, False),
        (classify.Config(pooling="cls"), 10, False),
        (classify.Config(pooling="last"), 10, False),
        (classify.Config(pooling="mean"), 240, False),
        (classify.Config(pooling="last", recurrent="bilstm", recurrent_width=4), 240, False),
        (classify.Config(pooling="mean", layers="mix"), 240, True),
        (tag.Config(layers="second_to_last"), 240, True),
    ],
    ids=lambda value: "" if isinstance(value, int) else f"{value.pooling if hasattr(value, 'pooling') else 'tag'}",
)
def test_the_last_layer_is_computed_only_where_it_is_read(
    settings: Any, read: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = model_with(settings), []
    forward = model.encoder.forward

    def watch(batch: Batch, state: Any = None, **how: Any) -> Encoding:
        seen.append(forward(batch, state, **how))
        return seen[-1]

    monkeypatch.setattr(model.encoder, "forward", watch)
    model(packed())
    (encoding,) = seen
    assert len(encoding.last_hidden) == read
    assert bool(encoding.layers) == kept
    assert (encoding.pooled is not None) == (settings == classify.Config())


def test_two_objectives_that_read_differently() -> None:
    """Heads on tokens of the top layer, on all layers and on the pooler together equal each head alone."""
    settings = [tag.Config(dropout=0.0), classify.Config(pooling="mean", layers="all_sum", dropout=0.0)]
    model = model_with(settings[0])
    other = Model(model.encoder, [model.objectives["tag"], model_with(settings[1]).objectives["classify"]])
    batch = packed()
    loss = other(batch)
    assert loss.sums["tag"].item() == pytest.approx(model(batch).sums["tag"].item(), rel=1e-5)
    one = Model(model.encoder, [other.objectives["classify"]])
    assert loss.sums["classify"].item() == pytest.approx(one(batch).sums["classify"].item(), rel=1e-5)


def test_flattening_restores_the_order_of_tokens() -> None:
    batch = packed()
    texts = TextTokens.of(batch)
    assert texts.lengths()[: len(LENGTHS)].tolist() == LENGTHS
    values = torch.arange(batch.input_ids.numel(), dtype=torch.float32)[:, None]
    repeated = texts.flatten(values[texts.indices], len(values))
    real = (batch.document_ids != 0).flatten()
    assert torch.equal(repeated[real], values[real])
    assert not repeated[~real].any()


def test_a_layer_mix_starts_with_equal_weights_and_is_trained() -> None:
    settings = classify.Config(pooling="mean", layers="mix", dropout=0.0)
    mix = settings.build(BuildContext(width=8, vocab_size=9, layers=3)).pooling.layers
    layers = [torch.full((2, 8), float(number)) for number in range(4)]
    assert torch.allclose(mix(Encoding(last_hidden=layers[-1], selections={}, layers=tuple(layers))), torch.tensor(1.5))
    model = model_with(settings)
    model(packed()).mean().backward()
    outputs_read = model.objectives["classify"].pooling.layers
    assert outputs_read.weights.grad.abs().min() > 0
    assert outputs_read.scale.grad != 0


@pytest.mark.parametrize("settings", [classify.Config, tag.Config], ids=["text", "tag"])
def test_the_l2_penalty_of_the_weights_of_the_sum_is_in_the_loss(settings: Any) -> None:
    plain, penalized = (model_with(settings(layers="mix", dropout=0.0, mix_l2=value)) for value in (0.0, 0.25))
    penalized.load_state_dict(plain.state_dict())
    batch, names = packed(), [name for name, _ in plain.named_parameters() if name.endswith("layers.weights")]
    gradients, losses = [], []
    for model in (plain, penalized):
        loss = model(model.corrupt(batch))
        assert model.counts(batch).keys() == loss.sums.keys() == loss.counts.keys()
        loss.mean().backward()
        losses.append(float(loss.mean().detach()))
        gradients.append(dict(model.named_parameters())[names[0]].grad)
    weights = dict(plain.named_parameters())[names[0]].detach()
    assert len(names) == 1
    assert weights.abs().max() > 0.1
    assert losses[1] - losses[0] == pytest.approx(0.25 * float(weights.square().sum()), rel=1e-4)
    assert torch.allclose(gradients[1] - gradients[0], 2 * 0.25 * weights, atol=1e-5)


@pytest.mark.parametrize("layers", ["mix", "last_four_sum", "all_sum"])
def test_layers_are_normalised_before_the_sum(layers: Any) -> None:
    """Each token by its own statistics, so that neither padding nor other texts of the batch matter."""
    model = model_with(tag.Config(layers=layers, mix_layer_norm=True))
    head, batch = model.objectives["tag"], packed()
    with torch.no_grad():
        everywhere = model.predict(batch.replace(indices={}), "tag")
        for number, first in enumerate(batch.cls_positions[: len(LENGTHS)].tolist()):
            normed = [
                (layer - layer.mean(1, keepdim=True)) / (layer.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
                for layer in layers_of(model, number)
            ]
            expected = LAYERS[layers](normed, head.layers) @ head.head.weight.T + head.head.bias
            assert relative_difference(everywhere[first : first + LENGTHS[number]], expected) < 1e-5


def test_settings_of_the_sum_need_a_sum() -> None:
    with pytest.raises(ConfigError, match=r"mix_l2=0.1 needs a weighted sum .* layers=top is not one: write"):
        tag.Config(mix_l2=0.1)
    with pytest.raises(ConfigError, match=r"mix_layer_norm=true needs .* layers=all_concat is not one: write"):
        classify.Config(layers="all_concat", mix_layer_norm=True)
    with pytest.raises(ConfigError, match=r"mix_l2=-1 must be at least 0"):
        regress.Config(layers="mix", mix_l2=-1.0)


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"pooling=pooler reads the top layer: with layers=mix, use pooling=cls"):
        classify.Config(layers="mix", pooling="pooler")
    with pytest.raises(ConfigError, match=r"pooling=max must be one of auto, pooler, cls"):
        classify.Config(pooling="max")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"layers=middle must be one of top"):
        tag.Config(layers="middle")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"layers=last_four_sum: the encoder has only 3 layers"):
        model_with(tag.Config(layers="last_four_sum"), layers=3)
    with pytest.raises(ConfigError, match=r"classify reads the pooled vector .* but the encoder has no pooler"):
        model_with(classify.Config(), pooler=False)
    model_with(classify.Config(pooling="mean"), pooler=False)
