"""What every encoder keeps to. A new file in encoders/ is tested here without being named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from model_fixtures import SIZE, random_batch, random_rows, randomize_weights, relative_difference

from bertsmith import config
from bertsmith.data.collate import collate_unpadded
from bertsmith.encoders import encoder as encoders
from bertsmith.encoders.encoder import Encoder
from bertsmith.types import Batch

KINDS = config.kinds(encoders.FOLDER)
SMALL = {
    "layers": 3,
    "width": 32,
    "heads": 4,
    "vocab_size": SIZE,
    "max_positions": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
LENGTHS = [12, 9, 23, 7, 40, 5, 5, 16]


def other_settings(kind: str) -> list[dict[str, Any]]:
    """No change; then every switch turned, one at a time."""
    fields = dataclasses.fields(config.find_kind(encoders.FOLDER, kind).Config)
    return [{}, *({item.name: not item.default} for item in fields if isinstance(item.default, bool))]


CASES = [pytest.param(kind, change, id=f"{kind} {change}") for kind in KINDS for change in other_settings(kind)]


def build(kind: str, change: dict[str, Any]) -> Encoder:
    settings = config.find_kind(encoders.FOLDER, kind).Config
    fields = {item.name for item in dataclasses.fields(settings)}
    return randomize_weights(
        settings(**{**{name: value for name, value in SMALL.items() if name in fields}, **change}).build()
    ).eval()


def some_texts(kind: str, lengths: list[int], **how: Any) -> Batch:
    """Random texts, some of them pairs where the encoder tells two texts of a row apart."""
    return random_batch(lengths, pairs=config.find_kind(encoders.FOLDER, kind).Config().segment_types > 1, **how)


def tops(encoder: Encoder, batch: Batch) -> list[torch.Tensor]:
    """The top layer of each text."""
    top = encoder(batch).last_hidden
    ends = [
        first + int((batch.sample_ids == number).sum()) for number, first in enumerate(batch.cls_positions.tolist())
    ]
    return [top[first:end] for first, end in zip(batch.cls_positions.tolist(), ends, strict=True)]


@pytest.mark.parametrize(("kind", "change"), CASES)
class TestEveryEncoder:
    def test_shapes(self, kind: str, change: dict[str, Any]) -> None:
        encoder, batch = build(kind, change), some_texts(kind, LENGTHS, length=40)
        found = encoder(batch, return_layers=True, return_attentions=True)
        assert {layer.shape for layer in found.layers} == {(8 * 40, encoder.width)}
        assert len(found.layers) == SMALL["layers"] + 1
        assert found.last_hidden is found.layers[-1]
        assert encoder.token_embeddings.shape == (SIZE, encoder.embed(batch).shape[1])
        assert (found.pooled is not None) == encoder.has_pooler
        assert found.pooled is None or found.pooled.shape == (8, encoder.width)
        assert all((probabilities.sum(-1) - 1).abs().max() < 1e-6 for probabilities in found.attentions)
        plain = encoder(batch)
        assert plain.layers == plain.attentions == ()
        assert relative_difference(plain.last_hidden, found.last_hidden) < 1e-5

    def test_padding_and_row_mates_change_nothing(self, kind: str, change: dict[str, Any]) -> None:
        encoder = build(kind, change)
        alone = [
            tops(encoder, some_texts(kind, LENGTHS, length=40).replace())[number] for number in range(len(LENGTHS))
        ]
        packed = some_texts(kind, LENGTHS, length=40, pack=True)
        assert len(packed.input_ids) < len(LENGTHS)
        for mine, other in zip(tops(encoder, packed), alone, strict=True):
            assert relative_difference(mine, other) < 1e-5
        noise = torch.where(packed.document_ids == 0, 55, packed.input_ids)
        for mine, other in zip(tops(encoder, packed.replace(input_ids=noise)), alone, strict=True):
            assert relative_difference(mine, other) < 1e-5
        pairs = config.find_kind(encoders.FOLDER, kind).Config().segment_types > 1
        line = collate_unpadded(random_rows(LENGTHS, pairs=pairs))
        for mine, other in zip(tops(encoder, line), alone, strict=True):
            assert relative_difference(mine, other) < 1e-5
        longer = some_texts(kind, LENGTHS, length=60, shape=(11, 12)).replace(max_seqlen=40)
        for number, other in enumerate(alone):
            assert (
                relative_difference(encoder(longer).last_hidden[60 * number : 60 * number + LENGTHS[number]], other)
                < 1e-5
            )

    def test_another_text_in_the_row_is_not_seen_but_the_own_one_is(self, kind: str, change: dict[str, Any]) -> None:
        encoder, batch = build(kind, change), some_texts(kind, [12, 9, 19], length=40, pack=True)
        ids = batch.input_ids.clone()
        ids[0, 14] = 33 if ids[0, 14] != 33 else 34  # in the second of three texts
        before, after = tops(encoder, batch), tops(encoder, batch.replace(input_ids=ids))
        assert relative_difference(after[0], before[0]) < 1e-6
        assert relative_difference(after[2], before[2]) < 1e-6
        assert relative_difference(after[1][-1], before[1][-1]) > 1e-4
        backwards = relative_difference(after[1][0], before[1][0])
        assert backwards < 1e-6 if encoder.causal else backwards > 1e-4

    def test_the_last_layer_only_where_it_is_read(self, kind: str, change: dict[str, Any]) -> None:
        encoder, batch = build(kind, change), some_texts(kind, LENGTHS, length=40, pack=True, shape=(5, 9))
        every = encoder(batch)
        places = {"one": torch.tensor([3, 0, 0, 90]), "other": torch.tensor([41, 3])}
        some = encoder(batch, indices=places)
        assert relative_difference(some.at("one"), every.last_hidden[places["one"]]) < 1e-5
        assert relative_difference(some.at("other"), every.last_hidden[places["other"]]) < 1e-5
        assert len(some.last_hidden) == 6 + 9 * encoder.has_pooler
        if encoder.has_pooler:
            assert relative_difference(some.pooled[:8], every.pooled[:8]) < 1e-5
            assert encoder(batch, indices=places, pool=False).pooled is None
            assert len(encoder(batch, indices=places, pool=False).last_hidden) == 6
        kept = encoder(batch.replace(indices=places), indices=places, return_layers=True)
        assert relative_difference(kept.at("one"), some.at("one")) < 1e-5

    def test_every_parameter_is_at_exactly_one_depth_and_learns(self, kind: str, change: dict[str, Any]) -> None:
        encoder, batch = build(kind, change), some_texts(kind, LENGTHS, length=40)
        found = [parameter for part in encoder.layer_groups() for parameter in part.parameters()]
        assert len(found) == len(list(encoder.parameters()))
        assert set(map(id, found)) == set(map(id, encoder.parameters()))
        encoding = encoder(batch)
        loss = encoding.last_hidden.square().sum() + (0 if encoding.pooled is None else encoding.pooled.square().sum())
        loss.backward()
        assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())

    def test_weights_make_the_same_encoder_again(self, kind: str, change: dict[str, Any]) -> None:
        encoder, batch = build(kind, change), some_texts(kind, LENGTHS, length=40)
        other = randomize_weights(build(kind, change), seed=9)
        assert relative_difference(other(batch).last_hidden, encoder(batch).last_hidden) > 1e-2
        other.load_state_dict(encoder.state_dict())
        assert torch.equal(other(batch).last_hidden, encoder(batch).last_hidden)

    def test_compiles_whole(self, kind: str, change: dict[str, Any]) -> None:
        encoder, batch = build(kind, change), some_texts(kind, LENGTHS, length=40, pack=True)
        torch.compiler.reset()  # encoders share code, and torch compiles the same code only so often
        compiled = torch.compile(encoder, fullgraph=True, backend="eager")
        places = {"one": torch.tensor([3, 0, 0, 90])}
        assert (
            relative_difference(compiled(batch, indices=places).at("one"), encoder(batch, indices=places).at("one"))
            < 1e-6
        )


def test_bert_is_among_them() -> None:
    assert "bert" in KINDS
