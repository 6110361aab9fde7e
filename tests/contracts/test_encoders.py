"""The contract of encoders. Every file in encoders/ is tested here without being named, and so is a BiLSTM."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
import torch
from model_fixtures import SIZE, VOCABULARY, random_batch, random_rows, randomize_weights, relative_difference
from torch import Tensor, nn

from bertsmith import config
from bertsmith.data.collate import collate_unpadded
from bertsmith.encoders import encoder as encoders
from bertsmith.encoders.encoder import Encoder, select_tokens
from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.objectives import masked_lm
from bertsmith.tokenizers.spelling import spell
from bertsmith.types import Batch, Encoding

KINDS = config.kinds(encoders.FOLDER)
SMALL = {
    "layers": 3,
    "width": 32,
    "hidden": 40,
    "heads": 4,
    "vocab_size": SIZE,
    "max_positions": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "filters": ((1, 8), (2, 16)),
}
LENGTHS = [12, 9, 23, 7, 40, 5, 5, 16]
INITIALIZATION = ("truncated_init", "depth_scaled")  # without effect once weights are set, as they are here
OF_FEATURES = ("mix_layer_norm",)  # needs folders of frozen encoders: see tests/encoders/test_taglm.py


def setting_changes(kind: str) -> list[dict[str, Any]]:
    """No change; then each boolean setting inverted and the other positions, where it has a choice, one at a time."""
    settings = config.find_kind(encoders.FOLDER, kind).Config
    fields = dataclasses.fields(settings)
    left_out = (*INITIALIZATION, *OF_FEATURES)
    switches = [item for item in fields if isinstance(item.default, bool) and item.name not in left_out]
    changes = [{}, *({item.name: not item.default} for item in switches)]
    if any(item.name == "positions" for item in fields):
        other = "learned" if settings().positions == "rotary" else "rotary"
        with suppress(ConfigError):
            changes.append({"positions": settings(positions=other).positions})
    return changes


CASES = [pytest.param(kind, change, id=f"{kind} {change}") for kind in KINDS for change in setting_changes(kind)]


def build(kind: str, change: dict[str, Any]) -> Encoder:
    settings = config.find_kind(encoders.FOLDER, kind).Config
    fields = {item.name for item in dataclasses.fields(settings)}
    small = {name: value for name, value in SMALL.items() if name in fields}
    return randomize_weights(settings(**{**small, **change}).build()).eval()


def reads_pairs(kind: str) -> bool:
    return bool(config.find_kind(encoders.FOLDER, kind).Config().segment_types > 1)


def text_batch(kind: str, lengths: list[int], **options: Any) -> Batch:
    """Random texts, some of them pairs where the encoder reads segments."""
    return random_batch(lengths, pairs=reads_pairs(kind), **options)


def hidden_by_text(encoder: Encoder, batch: Batch) -> list[Tensor]:
    """The last layer of each text."""
    corrupted = encoder(batch).last_hidden
    starts = batch.cls_positions.tolist()
    ends = [start + int((batch.sample_ids == number).sum()) for number, start in enumerate(starts)]
    return [corrupted[start:end] for start, end in zip(starts, ends, strict=True)]


def assert_close(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert all(relative_difference(one, other) < 1e-5 for one, other in zip(actual, expected, strict=True))


@pytest.mark.parametrize(("kind", "change"), CASES)
class TestEveryEncoder:
    def test_shapes(self, kind: str, change: dict[str, Any]) -> None:
        encoder, batch = build(kind, change), text_batch(kind, LENGTHS, length=40)
        encoding = encoder(batch, return_layers=True, return_attentions=True)
        assert [layer.shape for layer in encoding.layers] == [(8 * 40, width) for width in encoder.layer_widths]
        assert len(encoding.layers) == encoder.layers + 1
        assert encoder.width == encoder.layer_widths[-1]
        assert encoding.last_hidden is encoding.layers[-1]
        table = encoder.token_embeddings
        assert table is None or table.shape == (SIZE, encoder.embed(batch).shape[1])
        assert (encoding.pooled is not None) == encoder.has_pooler
        assert encoding.target is None, "the batch has none"
        assert encoding.pooled is None or encoding.pooled.shape == (8, encoder.width)
        assert (encoding.state is not None) == encoder.stateful
        assert all((probabilities.sum(-1) - 1).abs().max() < 1e-6 for probabilities in encoding.attentions)
        plain = encoder(batch)
        assert plain.layers == plain.attentions == ()
        assert relative_difference(plain.last_hidden, encoding.last_hidden) < 1e-5

    def test_padding_and_other_texts_of_a_row_change_nothing(self, kind: str, change: dict[str, Any]) -> None:
        encoder = build(kind, change)
        alone = hidden_by_text(encoder, text_batch(kind, LENGTHS, length=40))
        packed = text_batch(kind, LENGTHS, length=40, pack=True)
        assert len(packed.input_ids) < len(LENGTHS)
        assert_close(hidden_by_text(encoder, packed), alone)
        other_padding = torch.where(packed.document_ids == 0, 55, packed.input_ids)
        assert_close(hidden_by_text(encoder, packed.replace(input_ids=other_padding)), alone)
        assert_close(hidden_by_text(encoder, collate_unpadded(random_rows(LENGTHS, pairs=reads_pairs(kind)))), alone)
        longer = text_batch(kind, LENGTHS, length=60, shape=(11, 12)).replace(max_seqlen=40)
        corrupted = encoder(longer).last_hidden
        assert_close([corrupted[60 * row : 60 * row + length] for row, length in enumerate(LENGTHS)], alone)

    def test_a_changed_token_changes_only_its_own_text_in_the_declared_direction(
        self, kind: str, change: dict[str, Any]
    ) -> None:
        encoder, batch = build(kind, change), text_batch(kind, [12, 9, 19], length=40, pack=True)
        ids = batch.input_ids.clone()
        ids[0, 14] = 33 if ids[0, 14] != 33 else 34  # in the second of three texts
        assert batch.characters is not None
        characters = batch.characters.clone()
        characters[0, 14] = torch.from_numpy(spell([f"w{int(ids[0, 14])}"]))
        other = batch.replace(input_ids=ids, characters=characters)
        before, after = hidden_by_text(encoder, batch), hidden_by_text(encoder, other)
        assert relative_difference(after[0], before[0]) < 1e-6
        assert relative_difference(after[2], before[2]) < 1e-6
        assert relative_difference(after[1][2], before[1][2]) > 1e-4, "the token itself"
        earlier, later = (relative_difference(after[1][index], before[1][index]) for index in (0, -1))
        assert later < 1e-6 if encoder.direction in ("backward", "none") else later > 1e-4
        assert earlier < 1e-6 if encoder.direction in ("forward", "none") else earlier > 1e-4

    def test_the_last_layer_at_selected_tokens_only(self, kind: str, change: dict[str, Any]) -> None:
        encoder, batch = build(kind, change), text_batch(kind, LENGTHS, length=40, pack=True, shape=(5, 9))
        all_tokens = encoder(batch)
        indices = {"one": torch.tensor([3, 0, 0, 90]), "other": torch.tensor([41, 3])}
        selected = encoder(batch, indices=indices)
        for name, index in indices.items():
            assert relative_difference(selected.at(name), all_tokens.last_hidden[index]) < 1e-5
        assert len(selected.last_hidden) == 6 + 9 * encoder.has_pooler
        if encoder.has_pooler:
            assert relative_difference(selected.pooled[:8], all_tokens.pooled[:8]) < 1e-5
            assert encoder(batch, indices=indices, pool=False).pooled is None
            assert len(encoder(batch, indices=indices, pool=False).last_hidden) == 6
        with_layers = encoder(batch.replace(indices=indices), indices=indices, return_layers=True)
        assert relative_difference(with_layers.at("one"), selected.at("one")) < 1e-5

    def test_every_parameter_is_in_exactly_one_layer_group_and_gets_a_gradient(
        self, kind: str, change: dict[str, Any]
    ) -> None:
        encoder, batch = build(kind, change), text_batch(kind, LENGTHS, length=40)
        grouped = [parameter for group in encoder.layer_groups() for parameter in group.parameters()]
        assert len(grouped) == len(list(encoder.parameters()))
        assert set(map(id, grouped)) == set(map(id, encoder.parameters()))
        if encoder.has_decoder:
            batch = batch.replace(target=text_batch(kind, LENGTHS[::-1], length=40))
        encoding = encoder(batch)
        loss = encoding.last_hidden.square().sum() + (0 if encoding.pooled is None else encoding.pooled.square().sum())
        loss = loss + (encoding.target.last_hidden.square().sum() if encoder.has_decoder else 0)
        loss.backward()
        assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())

    def test_the_state_dict_restores_the_encoder(self, kind: str, change: dict[str, Any]) -> None:
        encoder, batch = build(kind, change), text_batch(kind, LENGTHS, length=40)
        other = randomize_weights(build(kind, change), seed=9)
        assert relative_difference(other(batch).last_hidden, encoder(batch).last_hidden) > 1e-2
        other.load_state_dict(encoder.state_dict())
        assert torch.equal(other(batch).last_hidden, encoder(batch).last_hidden)


@pytest.mark.parametrize(
    ("kind", "change"),
    # compiling takes a second: other settings than the defaults are slow tests
    [pytest.param(*case.values, id=case.id, marks=[pytest.mark.slow] if case.values[1] else []) for case in CASES],
)
def test_compiles_as_one_graph_where_declared(kind: str, change: dict[str, Any]) -> None:
    encoder, batch = build(kind, change), text_batch(kind, LENGTHS, length=40, pack=True)
    if not encoder.compiles:
        pytest.skip("declares that it does not compile")
    torch.compiler.reset()  # encoders share code, and torch limits recompilations of one function
    compiled = torch.compile(encoder, fullgraph=True, backend="eager")
    indices = {"one": torch.tensor([3, 0, 0, 90])}
    actual, expected = (run(batch, indices=indices).at("one") for run in (compiled, encoder))
    assert relative_difference(actual, expected) < 1e-6


def test_bert_is_among_them() -> None:
    assert "bert" in KINDS


class BiLSTMEncoder(Encoder):
    """A BiLSTM over word features: without a token table and without a pooler, and not compiled."""

    layers, max_positions, segment_types, has_pooler, compiles = 1, 40, 0, False, False

    def __init__(self) -> None:
        super().__init__()
        self.layer_config = LayerConfig()
        self.features = nn.Linear(1, 8)
        self.lstm = BiLSTM(8, 16, layers=1)
        self.width = self.lstm.width

    def forward(
        self,
        batch: Batch,
        state: Any = None,
        *,
        indices: Mapping[str, Tensor] | None = None,
        pool: bool = True,
        return_layers: bool = False,
        return_attentions: bool = False,
    ) -> Encoding:
        self.check(batch)
        selection = select_tokens(batch, indices, pool=False)
        corrupted = self.lstm(self.features(batch.input_ids[:, :, None].float()), (batch.document_ids > 0).sum(1))
        corrupted = corrupted.flatten(0, 1)
        last_hidden = corrupted if selection.indices is None else corrupted[selection.indices]
        return Encoding(last_hidden=last_hidden, selections=selection.by_objective)

    def layer_groups(self) -> list[nn.Module]:
        return [self.features, self.lstm]


@dataclasses.dataclass(frozen=True)
class BiLSTMConfig:
    def build(self) -> Encoder:
        return BiLSTMEncoder()


def test_an_encoder_without_a_token_table_trains_with_an_untied_head() -> None:
    model = Model.build(BiLSTMConfig(), [masked_lm.Config()], vocabulary=VOCABULARY)
    batch = model.corrupt(random_batch(LENGTHS, length=40))
    model(batch).mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.predict(batch, "masked_lm").shape[1] == SIZE
