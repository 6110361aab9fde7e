"""Every setting of `modern` acts independently; with all of them as in BERT it is BERT."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from model_fixtures import (
    SIZE,
    VOCABULARY,
    random_batch,
    random_rows,
    randomize_weights,
    relative_difference,
    small_bert_config,
)

from bertsmith.data.collate import collate_unpadded
from bertsmith.encoders import modern
from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.objectives import masked_lm, next_sentence
from bertsmith.recipes import find
from bertsmith.training.recipe import with_overrides
from bertsmith.types import Batch

SMALL: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "vocab_size": SIZE, "max_positions": 60}
AS_BERT: dict[str, Any] = {
    "norm": "after",
    "gated": False,
    "positions": "learned",
    "biases": True,
    "segment_types": 2,
    "pooler": True,
}
SWITCHES = ("norm", "gated", "positions", "biases")
VALUES = ("before", "after"), (True, False), ("rotary", "learned"), (True, False)
ALL = [dict(zip(SWITCHES, how, strict=True)) for how in itertools.product(*VALUES)]
LENGTHS = [12, 9, 23, 7, 40, 5, 5, 16]


def settings(**changes: Any) -> modern.Config:
    return modern.Config(**SMALL | changes)


def small(**changes: Any) -> modern.Modern:
    return randomize_weights(settings(**changes).build()).eval()


def shapes(**changes: Any) -> set[tuple[str, tuple[int, ...]]]:
    state = Model.build(settings(**changes), [masked_lm.Config()]).state_dict()
    return {(name, tuple(weight.shape)) for name, weight in state.items()}


def text(batch: Batch, top: torch.Tensor, number: int) -> torch.Tensor:
    first = int(batch.cls_positions[number])
    return top[first : first + int((batch.sample_ids == number).sum())]


def test_with_all_settings_as_in_bert_it_is_bert() -> None:
    bert = randomize_weights(small_bert_config(max_positions=60, dropout=0.0, attention_dropout=0.0).build()).eval()
    modern_model = settings(**AS_BERT, feed_forward=64, layer_norm_eps=1e-12).build().eval()
    modern_model.load_state_dict(bert.state_dict())
    for pack in (False, True):
        batch = random_batch(LENGTHS, length=40, pack=pack)
        actual, other = modern_model(batch, return_layers=True), bert(batch, return_layers=True)
        assert all(torch.equal(*pair) for pair in zip(actual.layers, other.layers, strict=True))
        assert torch.equal(actual.pooled, other.pooled)


def test_each_setting_changes_only_its_own_weights() -> None:
    usual = shapes()
    blocks = [f"encoder.blocks.{layer}" for layer in range(3)]
    feed_forward = {(f"{block}.feed_forward.expand.weight", (256, 32)) for block in blocks}
    feed_forward |= {(f"{block}.feed_forward.contract.weight", (32, 128)) for block in blocks}
    norms = {("encoder.blocks.2.output_norm.weight", (32,))}, {("encoder.blocks.0.attention_norm.weight", (32,))}
    matrices = ("attention.qkv", "attention.output", "feed_forward.expand", "feed_forward.contract")
    biased = {f"{block}.{matrix}" for block in blocks for matrix in matrices}
    biased |= {name.removesuffix(".weight") for name, _ in usual if "norm.weight" in name}
    biased |= {"objectives.masked_lm.transform"}
    assert usual - shapes(norm="after") == norms[0]
    assert shapes(norm="after") - usual == norms[1]
    assert feed_forward <= usual
    plain = {(name, (128, 32) if "expand" in name else shape) for name, shape in feed_forward}
    assert shapes(gated=False) == usual - feed_forward | plain
    assert shapes(positions="learned") - usual == {("encoder.embeddings.positions.weight", (60, 32))}
    assert {name.removesuffix(".bias") for name, _ in shapes(biases=True) - usual} == biased
    assert shapes(segment_types=2) - usual == {("encoder.embeddings.segments.weight", (2, 32))}
    assert {name for name, _ in shapes(pooler=True) - usual} == {"encoder.pooler.weight", "encoder.pooler.bias"}
    for change in ({"positions": "learned"}, {"biases": True}, {"segment_types": 2}, {"pooler": True}):
        assert usual < shapes(**change)
    assert shapes(depth_scaled=True) == shapes(rotary_base=99.0) == usual


def count(built: modern.Config) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in built.build().parameters())


def test_gated_feed_forward_keeps_the_number_of_weights() -> None:
    for width, inner in ((128, 384), (256, 704), (512, 1408), (768, 2048), (1024, 2752)):
        gated, plain = (settings(width=width, heads=width // 64, gated=gated) for gated in (True, False))
        assert (gated.inner, plain.inner) == (inner, 4 * width)
        assert 1 <= count(gated) / count(plain) < 1.09, width  # the rounding of the smallest
    assert settings(feed_forward=100).inner == settings(feed_forward=100, gated=False).inner == 100


def test_sizes() -> None:
    base, large = (modern.Config.size(name, vocab_size=50_368) for name in ("base", "large"))
    assert (base.layers, base.width, base.heads, base.inner) == (22, 768, 12, 1152)
    assert (large.layers, large.width, large.heads, large.inner) == (28, 1024, 16, 2624)
    assert count(base) == 50_368 * 768 + 22 * (4 * 768**2 + 3 * 768 * 1152 + 2 * 768) + 768
    tiny = modern.Config.size("small", vocab_size=100)
    assert (tiny.layers, tiny.width, tiny.heads, tiny.inner) == (4, 512, 8, 1408)


@pytest.mark.parametrize("how", ALL, ids=lambda how: " ".join(str(value) for value in how.values()))
def test_every_combination_agrees_across_kernels_and_layouts(how: dict[str, Any]) -> None:
    """Separate dense rows, padded, packed, unpadded, with attention probabilities, and at selected tokens."""
    encoder = small(**how)
    rows = random_rows(LENGTHS)
    padded, packed, line = (
        random_batch(LENGTHS, length=40),
        random_batch(LENGTHS, length=40, pack=True),
        collate_unpadded(rows),
    )
    assert len(packed.input_ids) < len(LENGTHS)
    tops = {
        name: encoder(batch).last_hidden for name, batch in (("padded", padded), ("packed", packed), ("line", line))
    }
    explicit = encoder(packed, return_attentions=True)
    assert relative_difference(explicit.last_hidden, tops["packed"]) < 1e-5
    for number, row in enumerate(rows):
        alone = collate_unpadded([row]).replace(dense=True, equal_length_runs=())
        assert encoder._attention_context(alone, return_attentions=False).kernel == "dense"
        expected = encoder(alone).last_hidden
        for batch, name in ((padded, "padded"), (packed, "packed"), (line, "line")):
            assert relative_difference(text(batch, tops[name], number), expected) < 1e-5, name
    positions = {"one": torch.tensor([3, 0, 0, 90]), "other": torch.tensor([41, 3])}
    some = encoder(packed, indices=positions)
    assert len(some.last_hidden) == 6
    for name, selected in positions.items():
        assert relative_difference(some.at(name), tops["packed"][selected]) < 1e-5


@pytest.mark.parametrize(
    "change", [{"norm": "after"}, {"norm": "after", "positions": "learned", "gated": False}], ids=str
)
def test_post_norm_compiles_as_one_graph(change: dict[str, Any]) -> None:
    encoder, batch = small(**change), random_batch(LENGTHS, length=40, pack=True)
    torch.compiler.reset()
    compiled = torch.compile(encoder, fullgraph=True, backend="eager")
    positions = {"one": torch.tensor([3, 0, 0, 90])}
    assert (
        relative_difference(compiled(batch, indices=positions).at("one"), encoder(batch, indices=positions).at("one"))
        < 1e-6
    )


def test_rotary_positions_are_relative_and_learned_ones_absolute() -> None:
    batch = random_batch(LENGTHS, length=40)
    later = batch.replace(position_ids=batch.position_ids + 20)
    stretched = batch.replace(position_ids=2 * batch.position_ids)
    for positions in ("rotary", "learned"):
        encoder = small(positions=positions, max_positions=90)
        before = encoder(batch).last_hidden
        assert (relative_difference(encoder(later).last_hidden, before) < 1e-4) == (positions == "rotary")
        assert relative_difference(encoder(stretched).last_hidden, before) > 1e-2
    faster, slower = (small(rotary_base=base) for base in (50.0, 10_000.0))
    assert relative_difference(faster(batch).last_hidden, slower(batch).last_hidden) > 1e-2


def test_segment_ids_are_read_only_with_segment_types() -> None:
    batch = random_batch(LENGTHS, length=40)
    other = batch.replace(segment_ids=1 - batch.segment_ids)
    assert torch.equal(small()(batch).last_hidden, small()(other).last_hidden)
    assert (
        relative_difference(small(segment_types=2)(batch).last_hidden, small(segment_types=2)(other).last_hidden) > 1e-2
    )


def test_next_sentence_needs_a_pooler() -> None:
    objectives = [masked_lm.Config(), next_sentence.Config()]
    with pytest.raises(
        ConfigError, match="next_sentence reads the pooled vector of each text, but the encoder has no pooler"
    ):
        Model.build(settings(), objectives)
    model = Model.build(settings(pooler=True, segment_types=2), objectives, vocabulary=VOCABULARY)
    batch = model.corrupt(random_batch(LENGTHS, length=40, pack=True))
    loss = model(batch)
    loss.mean().backward()
    assert set(loss.sums) == {"masked_lm", "next_sentence"}
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize("norm", ["before", "after"])
def test_depth_scaled_initialisation(norm: str) -> None:
    built = []
    for depth_scaled in (False, True):
        torch.manual_seed(0)
        built.append(settings(norm=norm, depth_scaled=depth_scaled, layers=8).build().state_dict())
    usual, scaled = built
    added = {name for name in usual if name.endswith(("attention.output.weight", "feed_forward.contract.weight"))}
    assert len(added) == 16
    for name, weight in usual.items():
        expected = weight / math.sqrt(16) if name in added else weight
        assert torch.equal(scaled[name], expected), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm": "between"}, "norm=between must be one of before, after"),
        ({"width": 36, "heads": 4}, "rotary embeddings need an even head width: width=36 / heads=4 is odd"),
        ({"rotary_base": 1.0}, "rotary_base=1.0 must be above 1"),
        ({"segment_types": -1}, "segment_types=-1 must be at least 0"),
    ],
)
def test_wrong_settings_are_rejected(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings(**changes)
    settings(width=36, heads=4, positions="learned")


def test_every_setting_can_be_overridden() -> None:
    usual = find("modern/small")
    changes = {
        "norm": "after",
        "gated": "false",
        "positions": "learned",
        "biases": "true",
        "pooler": "true",
        "segment_types": "2",
    }
    for name, value in changes.items():
        built = with_overrides(usual, [f"encoder.{name}={value}"]).encoder
        differing = {key for key, other in vars(built).items() if other != getattr(usual.encoder, key)}
        assert differing == {name}
    with pytest.raises(ConfigError, match=r"encoder\.norm"):
        with_overrides(usual, ["encoder.norm=behind"])
