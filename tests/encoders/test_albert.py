"""ALBERT: parameter sharing, factorised embeddings, sizes, rejected settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from model_fixtures import SIZE, VOCABULARY, random_batch, randomize_weights, relative_difference

from bertsmith.encoders import albert
from bertsmith.encoders.albert import ALBERT
from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.objectives import masked_lm, sentence_order
from bertsmith.training.distributed import World
from bertsmith.training.forward_backward import ComputeConfig, ForwardBackward
from bertsmith.training.optimizers import weights_of
from bertsmith.training.plan import TrainingPlan, Unfreeze
from bertsmith.training.roofline import flops_per_token
from bertsmith.types import Batch

SHARINGS = [
    {"sharing": "all"},
    {"sharing": "all", "groups": 2},
    {"sharing": "all", "groups": 2, "inner_layers": 2},
    {"sharing": "attention"},
    {"sharing": "attention", "groups": 2, "inner_layers": 2},
    {"sharing": "feed_forward"},
    {"sharing": "feed_forward", "groups": 4},
    {"sharing": "none"},
    {"sharing": "none", "inner_layers": 2},
]


def config(**changes: Any) -> albert.Config:
    small = {"layers": 4, "width": 32, "heads": 4, "feed_forward": 48, "vocab_size": SIZE, "max_positions": 40}
    return albert.Config(**{**small, "embedding_width": 24, **changes})


def small(seed: int = 0, **changes: Any) -> ALBERT:
    return randomize_weights(config(**changes).build(), seed).eval()


def batch(**how: Any) -> Batch:
    return random_batch([12, 9, 23, 7], length=40, **how)


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def unshared(encoder: ALBERT) -> ALBERT:
    """The same encoder without sharing, with copies of its weights in every layer."""
    built = dataclasses.replace(encoder.config, sharing="none", groups=1).build().eval()
    state = {name: value for name, value in encoder.state_dict().items() if not name.startswith("blocks.")}
    for layer, walked in enumerate(encoder.block_indices):
        own, inner = divmod(layer, encoder.config.inner_layers)
        for owner, index in walked:
            for name, value in encoder.blocks[owner][index].state_dict().items():
                state[f"blocks.{own}.{inner}.{name}"] = value
    built.load_state_dict(state)
    return built


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("base", 11_683_584), ("large", 17_683_968), ("xlarge", 58_724_864), ("xxlarge", 222_595_584)],
)
def test_parameter_counts(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert count(albert.Config.size(name, vocab_size=30_000).build()) == parameters


@pytest.mark.parametrize("name", albert.Config.sizes)
def test_sizes(name: str) -> None:
    built = albert.Config.size(name, vocab_size=50)
    assert built.width // built.heads == (128 if name == "xlarge" else 64)
    assert (built.inner, built.embedding_width) == (4 * built.width, 128)
    assert built.dropout == built.attention_dropout == 0, "version 2"
    with pytest.raises(ConfigError, match=r"'xlage' is not a size of albert: .*did you mean xlarge"):
        albert.Config.size("xlage", vocab_size=10)


def test_parameter_names_and_shapes() -> None:
    built = Model.build(config(), [masked_lm.Config(), sentence_order.Config()], vocabulary=VOCABULARY)
    assert {name: tuple(weight.shape) for name, weight in built.state_dict().items()} == {
        "encoder.embeddings.tokens.weight": (97, 24),
        "encoder.embeddings.positions.weight": (40, 24),
        "encoder.embeddings.segments.weight": (2, 24),
        "encoder.embeddings.norm.weight": (24,),
        "encoder.embeddings.norm.bias": (24,),
        "encoder.embeddings.project.weight": (32, 24),
        "encoder.embeddings.project.bias": (32,),
        "encoder.blocks.0.0.attention.qkv.weight": (96, 32),
        "encoder.blocks.0.0.attention.qkv.bias": (96,),
        "encoder.blocks.0.0.attention.output.weight": (32, 32),
        "encoder.blocks.0.0.attention.output.bias": (32,),
        "encoder.blocks.0.0.attention_norm.weight": (32,),
        "encoder.blocks.0.0.attention_norm.bias": (32,),
        "encoder.blocks.0.0.feed_forward.expand.weight": (48, 32),
        "encoder.blocks.0.0.feed_forward.expand.bias": (48,),
        "encoder.blocks.0.0.feed_forward.contract.weight": (32, 48),
        "encoder.blocks.0.0.feed_forward.contract.bias": (32,),
        "encoder.blocks.0.0.feed_forward_norm.weight": (32,),
        "encoder.blocks.0.0.feed_forward_norm.bias": (32,),
        "encoder.pooler.weight": (32, 32),
        "encoder.pooler.bias": (32,),
        "objectives.masked_lm.bias": (97,),
        "objectives.masked_lm.transform.weight": (24, 32),
        "objectives.masked_lm.transform.bias": (24,),
        "objectives.masked_lm.norm.weight": (24,),
        "objectives.masked_lm.norm.bias": (24,),
        "objectives.sentence_order.classify.weight": (2, 32),
        "objectives.sentence_order.classify.bias": (2,),
    }


@pytest.mark.parametrize("how", SHARINGS, ids=str)
class TestSharing:
    def test_number_of_weights(self, how: dict[str, Any]) -> None:
        built = small(**how)
        attention = 4 * 32 * 32 + 4 * 32 + 2 * 32
        feed_forward = 2 * 32 * 48 + 48 + 32 + 2 * 32
        groups, inner = how.get("groups", 1), how.get("inner_layers", 1)
        owners = {name: groups if how["sharing"] in ("all", name) else 4 for name in ("attention", "feed_forward")}
        blocks = inner * (owners["attention"] * attention + owners["feed_forward"] * feed_forward)
        tables = (97 + 40 + 2 + 2) * 24 + 24 * 32 + 32
        assert count(built) == tables + blocks + 32 * 32 + 32
        assert sum(value.numel() for value in built.state_dict().values()) == count(built), "nothing is stored twice"

    def test_equals_an_encoder_with_copies_of_the_shared_weights(self, how: dict[str, Any]) -> None:
        built = small(**how)
        other = unshared(built)
        actual, reference = (one(batch(), return_layers=True, return_attentions=True) for one in (built, other))
        assert len(actual.layers) == built.layers + 1 == 4 * how.get("inner_layers", 1) + 1
        assert len(actual.attentions) == built.layers
        for one, another in zip(
            (*actual.layers, *actual.attentions, actual.pooled),
            (*reference.layers, *reference.attentions, reference.pooled),
            strict=True,
        ):
            assert torch.equal(one, another)
        with torch.no_grad():
            for parameter in other.blocks[-1].parameters():
                parameter.add_(1)
        assert relative_difference(other(batch()).last_hidden, actual.last_hidden) > 1e-2, "copies are copies"

    def test_the_gradient_of_a_shared_weight_is_the_sum_over_its_copies(self, how: dict[str, Any]) -> None:
        built = small(**how)
        other = unshared(built).double()
        built.double()
        for one in (built, other):
            one(batch()).last_hidden.pow(3).sum().backward()
        expected: dict[str, torch.Tensor] = {}
        for layer, walked in enumerate(built.block_indices):
            own, inner = divmod(layer, built.config.inner_layers)
            for owner, index in walked:
                names = dict(built.blocks[owner][index].named_parameters())
                reference = dict(other.blocks[own][inner].named_parameters())
                for name in names:
                    key = f"blocks.{owner}.{index}.{name}"
                    expected[key] = expected.get(key, 0) + reference[name].grad
        for name, parameter in built.named_parameters():
            if name.startswith("blocks."):
                assert relative_difference(parameter.grad, expected[name]) < 1e-9, name

    def test_the_last_layer_at_selected_tokens_only(self, how: dict[str, Any]) -> None:
        built, selected = small(**how), batch(pack=True)
        positions = {"one": torch.tensor([3, 0, 0, 39])}
        some = built(selected, indices=positions)
        assert len(some.last_hidden) == 4 + len(selected.cls_positions)
        assert relative_difference(some.at("one"), built(selected).last_hidden[positions["one"]]) < 1e-5

    def test_every_weight_is_in_one_layer_group(self, how: dict[str, Any]) -> None:
        built = small(**how)
        weights = weights_of(dict(built.named_parameters()), built.layer_groups())
        assert {weight.group for weight in weights} == set(range(len(built.layer_groups())))
        lowest = {id(block): depth for depth, block in reversed(list(enumerate(built.execution_order())))}
        order = [lowest[id(block)] for block in built.layer_groups()]
        if built.config.inner_layers == 1:
            assert order == sorted(order), "parts are in the order in which a token first passes through them"

    def test_flops_count_every_execution_of_a_shared_block(self, how: dict[str, Any]) -> None:
        built = small(**how)
        actual, reference = (flops_per_token(Model(one, []), length=40, labels={}) for one in (built, unshared(built)))
        assert actual == reference
        blocks = 4 * 32 * 32 + 2 * 32 * 48 + 2 * 32 * 40
        assert actual == 6 * (24 * 32 + built.layers * blocks)


def test_groups_as_in_the_reference() -> None:
    found_groups = [config(layers=12, groups=groups).group_of(layer) for groups in (1, 2, 3, 5) for layer in range(12)]
    assert found_groups[:12] == [0] * 12
    assert found_groups[12:24] == [0] * 6 + [1] * 6
    assert found_groups[24:36] == [0] * 4 + [1] * 4 + [2] * 4
    assert found_groups[36:] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4]


def test_a_shared_block_is_unfrozen_with_its_lowest_layer() -> None:
    built = Model.build(config(sharing="attention"), [sentence_order.Config()])
    attention = built.encoder.blocks[0][0]
    assert attention.feed_forward is None
    assert built.layer_groups()[1] is attention
    parts = built.layer_groups()
    rates = TrainingPlan(steps=10, learning_rate=1.0, unfreeze=(Unfreeze(after=0, groups=4),)).learning_rates(
        0.5, groups=len(parts)
    )
    evaluating = [part for part, rate in zip(parts, rates, strict=True) if rate is None]
    assert evaluating == [
        built.encoder.embeddings,
        attention,
        built.encoder.blocks[1][0],
        built.encoder.blocks[2][0],
    ]


def test_activation_checkpointing_gives_the_same_gradients() -> None:
    gradients = []
    for recompute in (False, True):
        built = randomize_weights(Model.build(config(), [masked_lm.Config()], vocabulary=VOCABULARY, seed=1)).train()
        passes = ForwardBackward(
            built, precision="auto", compute=ComputeConfig(activation_checkpointing=recompute), world=World(), seed=0
        )
        corrupted, counts, _ = passes.corrupt(batch())
        passes.accumulate_gradients(corrupted, counts, step=0, micro=0, last=True)
        gradients.append([parameter.grad for parameter in built.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 10
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_embeddings_are_projected_even_between_equal_widths() -> None:
    built = small(embedding_width=32)
    assert built.embeddings.project.weight.shape == (32, 32)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"groups": 13}, "groups=13 must be from 1 to layers=12"),
        ({"groups": 0}, "groups=0 must be from 1"),
        ({"sharing": "none", "groups": 2}, "groups=2 has no effect with sharing=none"),
        ({"sharing": "some"}, "sharing=some must be one of all, attention, feed_forward, none"),
        ({"inner_layers": 0}, "inner_layers=0 must be at least 1"),
        ({"embedding_width": 0}, "embedding_width=0 must be at least 1"),
    ],
)
def test_wrong_settings_are_rejected(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        albert.Config(**overrides)
    assert "\n" not in str(caught.value)


def test_every_setting_has_an_effect() -> None:
    changed = {
        "layers": 3, "width": 16, "heads": 2, "feed_forward": 64, "vocab_size": 98, "max_positions": 41,
        "positions": "rotary",
        "segment_types": 3,
        "dropout": 0.5, "attention_dropout": 0.5, "activation": "gelu", "layer_norm_eps": 0.1, "initializer_range": 0.2,
        "truncated_init": False, "causal": True, "pooler": False, "padding_id": 1,
        "embedding_width": 20, "sharing": "attention", "groups": 2, "inner_layers": 2,
    }  # fmt: skip
    assert set(changed) == {item.name for item in dataclasses.fields(albert.Config)}

    def fingerprint(**change: Any) -> tuple[object, ...]:
        torch.manual_seed(0)
        encoder = config(**{"initializer_range": 0.3, **change}).build().train()
        top = encoder(batch()).last_hidden
        top.square().sum().backward()
        gradient = encoder.embeddings.tokens.weight.grad
        return [tuple(weight.shape) for weight in encoder.parameters()], top.sum().item(), gradient.abs().sum().item()

    usual = fingerprint()
    assert usual == fingerprint(), "the comparison itself is stable"
    for name, value in changed.items():
        assert fingerprint(**{name: value}) != usual, name
