"""BERT: sizes, parameter counts, rejected settings and inputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from model_fixtures import (
    SIZE,
    pretraining_model,
    random_batch,
    randomize_weights,
    relative_difference,
    small_bert_config,
)

from bertsmith import config as settings
from bertsmith.encoders import bert
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.model_io.model import Model
from bertsmith.objectives import masked_lm, next_sentence


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("name", "parameters"), [("base", 109_482_240), ("large", 335_141_888), ("tiny", 4_385_920)])
def test_parameter_counts(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert count(bert.Config.size(name, vocab_size=30_522).build()) == parameters


def test_parameter_count_with_pre_training_heads() -> None:
    with torch.device("meta"):
        model = Model.build(bert.Config(), [masked_lm.Config(), next_sentence.Config()])
    assert count(model) == 110_106_428


def test_parameter_names_and_shapes() -> None:
    names = dict(pretraining_model(layers=1).named_parameters())
    assert {name: tuple(weight.shape) for name, weight in names.items()} == {
        "encoder.embeddings.tokens.weight": (97, 32),
        "encoder.embeddings.positions.weight": (40, 32),
        "encoder.embeddings.segments.weight": (2, 32),
        "encoder.embeddings.norm.weight": (32,),
        "encoder.embeddings.norm.bias": (32,),
        "encoder.blocks.0.attention.qkv.weight": (96, 32),
        "encoder.blocks.0.attention.qkv.bias": (96,),
        "encoder.blocks.0.attention.output.weight": (32, 32),
        "encoder.blocks.0.attention.output.bias": (32,),
        "encoder.blocks.0.attention_norm.weight": (32,),
        "encoder.blocks.0.attention_norm.bias": (32,),
        "encoder.blocks.0.feed_forward.expand.weight": (64, 32),
        "encoder.blocks.0.feed_forward.expand.bias": (64,),
        "encoder.blocks.0.feed_forward.contract.weight": (32, 64),
        "encoder.blocks.0.feed_forward.contract.bias": (32,),
        "encoder.blocks.0.feed_forward_norm.weight": (32,),
        "encoder.blocks.0.feed_forward_norm.bias": (32,),
        "encoder.pooler.weight": (32, 32),
        "encoder.pooler.bias": (32,),
        "objectives.masked_lm.bias": (97,),
        "objectives.masked_lm.transform.weight": (32, 32),
        "objectives.masked_lm.transform.bias": (32,),
        "objectives.masked_lm.norm.weight": (32,),
        "objectives.masked_lm.norm.bias": (32,),
        "objectives.next_sentence.classify.weight": (2, 32),
        "objectives.next_sentence.classify.bias": (2,),
    }
    assert set(pretraining_model(layers=1).state_dict()) == set(names), "nothing else is stored"


@pytest.mark.parametrize("name", bert.Config.sizes)
def test_sizes_have_head_width_64(name: str) -> None:
    made = bert.Config.size(name, vocab_size=50)
    assert (made.width // made.heads, made.inner) == (64, 4 * made.width)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": 100, "heads": 12}, "width=100 must be a multiple of heads=12"),
        ({"activation": "gelu2"}, "activation=gelu2 is unknown: expected one of gelu, gelu_new, .*did you mean gelu"),
        ({"layers": 0}, "layers=0 must be at least 1"),
        ({"feed_forward": 0}, "feed_forward=0 must be at least 1"),
        ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and less than 1"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1"),
        ({"padding_id": 30_522}, "padding_id=30522 is outside a vocabulary of 30522"),
    ],
)
def test_wrong_settings_are_rejected(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        bert.Config(**wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_an_unknown_size() -> None:
    with pytest.raises(ConfigError, match=r"'lage' is not a size of bert: .*did you mean large"):
        bert.Config.size("lage", vocab_size=10)


def test_settings_round_trip_through_a_dict() -> None:
    made = small_bert_config(activation="gelu_new", causal=True)
    plain = settings.to_dict(made)
    assert plain["kind"] == "bert"
    assert settings.from_dict(bert.Config, plain) == made


def test_too_long_texts_are_rejected() -> None:
    with pytest.raises(BertsmithError, match="texts of up to 41 tokens do not fit the encoder's 40 positions"):
        pretraining_model().encoder(random_batch([30], length=41))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("input_ids", SIZE, "token id 97 is outside the encoder's table of 97 tokens"),
        ("input_ids", -1, "token id -1 is outside"),
        ("segment_ids", 2, "segment id 2 is outside the encoder's table of 2 segments"),
    ],
)
def test_ids_out_of_range_are_rejected(field: str, value: int, message: str) -> None:
    batch = random_batch([30, 12], length=30)
    wrong = getattr(batch, field).clone()
    wrong[1, 3] = value
    with pytest.raises(BertsmithError, match=message):
        pretraining_model().encoder(batch.replace(**{field: wrong}))


def test_dense_rows_use_the_dense_kernel_with_equal_results() -> None:
    encoder, batch = pretraining_model().encoder, random_batch([30, 30], length=30)
    assert batch.dense
    assert relative_difference(encoder(batch).last_hidden, encoder(batch.replace(dense=False)).last_hidden) < 1e-6


def test_both_kinds_of_dropout_act_in_training() -> None:
    batch = random_batch([30, 20], length=30)
    for name in ("dropout", "attention_dropout"):
        quiet = {"dropout": 0.0, "attention_dropout": 0.0}
        encoder = randomize_weights(small_bert_config(**{**quiet, name: 0.5}).build()).train()
        assert relative_difference(encoder(batch).last_hidden, encoder(batch).last_hidden) > 1e-3, name
        assert torch.equal(encoder.eval()(batch).last_hidden, encoder(batch).last_hidden)
    encoder = randomize_weights(small_bert_config(dropout=0.0, attention_dropout=0.0).build()).train()
    assert torch.equal(encoder(batch).last_hidden, encoder(batch).last_hidden)


def test_no_pooled_vectors_without_a_pooler() -> None:
    encoder = small_bert_config(pooler=False).build()
    assert encoder(random_batch([30], length=30)).pooled is None
    assert not any(name.startswith("pooler") for name, _ in encoder.named_parameters())


def test_every_setting_has_an_effect_or_is_checked() -> None:
    """Each setting is changed, and the encoder or its weights must differ."""
    torch.manual_seed(0)
    batch = random_batch([30, 12], length=30)
    changed = {
        "layers": 2, "width": 16, "heads": 2, "feed_forward": 48, "vocab_size": 98, "max_positions": 41,
        "positions": "rotary",
        "segment_types": 3,
        "dropout": 0.5, "attention_dropout": 0.5, "activation": "relu", "layer_norm_eps": 0.1, "initializer_range": 0.2,
        "truncated_init": False, "causal": True, "pooler": False, "padding_id": 1,
    }  # fmt: skip
    assert set(changed) == {item.name for item in dataclasses.fields(bert.Config)}

    def fingerprint(**change: Any) -> tuple[object, ...]:
        torch.manual_seed(0)
        encoder = small_bert_config(**{"initializer_range": 0.3, **change}).build().train()
        top = encoder(batch).last_hidden
        top.square().sum().backward()
        gradient = encoder.embeddings.tokens.weight.grad
        assert gradient is not None
        return [tuple(weight.shape) for weight in encoder.parameters()], top.sum().item(), gradient.abs().sum().item()

    usual = fingerprint()
    assert usual == fingerprint(), "the comparison itself is stable"
    for name, value in changed.items():
        assert fingerprint(**{name: value}) != usual, name


def test_segment_ids_are_ignored_with_one_segment_type() -> None:
    encoder = randomize_weights(small_bert_config(segment_types=1).build()).eval()
    batch = random_batch([12, 9], length=24)
    plain, told = (batch.replace(segment_ids=torch.full_like(batch.segment_ids, kind)) for kind in (0, 1))
    with torch.no_grad():
        assert torch.equal(encoder(plain).last_hidden, encoder(told).last_hidden)
