"""CoVe's translation model: equal to its formulae, packed texts, decoding step by step, fixed word vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from lstm_oracle import Array, lstm, lstm_cell, softmax, weights_of
from model_fixtures import SIZE, make_row, random_rows, randomize_weights, relative_difference
from torch import Tensor, nn

from bertsmith.data.collate import collate
from bertsmith.encoders import seq2seq_lstm
from bertsmith.encoders.seq2seq_lstm import Seq2SeqLSTM
from bertsmith.errors import ConfigError
from bertsmith.types import Batch, Row

SMALL: dict[str, Any] = {"width": 24, "embedding_width": 10, "vocab_size": SIZE, "dropout": 0.0}
SOURCES, TARGETS = [12, 9, 23, 7, 40], [10, 11, 20, 8, 31]


def build(**changes: Any) -> Seq2SeqLSTM:
    encoder: Seq2SeqLSTM = randomize_weights(seq2seq_lstm.Config(**{**SMALL, **changes}).build()).eval().double()
    return encoder


def source_rows() -> list[Row]:
    """As in a translation, without a special token before the first word."""
    return [without_start(row) for row in random_rows([length + 1 for length in SOURCES], pairs=False)]


def without_start(row: Row) -> Row:
    names = ("ids", "segment_ids", "sequence_ids", "offsets", "words", "characters")
    return replace(row, **{name: None if getattr(row, name) is None else getattr(row, name)[1:] for name in names})


def pairs(numbers: list[int], *, source_length: int = 40, target_length: int = 31) -> Batch:
    """Some of the same five pairs, one per row."""
    sources, targets = source_rows(), random_rows(TARGETS, seed=1, pairs=False)
    source = collate([sources[number] for number in numbers], length=source_length)
    return source.replace(target=collate([targets[number] for number in numbers], length=target_length))


def hidden_of_targets(encoder: Seq2SeqLSTM, batch: Batch) -> list[Tensor]:
    assert batch.target is not None
    target, documents = encoder(batch).target, batch.target.document_ids
    assert target is not None
    rows = target.last_hidden.view(*documents.shape, -1)
    return [
        row[ids == number] for row, ids in zip(rows, documents, strict=True) for number in range(1, int(ids.max()) + 1)
    ]


def encode(encoder: Seq2SeqLSTM, ids: list[int]) -> tuple[list[Array], list[tuple[Array, Array]]]:
    """The embeddings and layers [S, width] of one text, and the last hidden and cell state of each layer."""
    x = encoder.embeddings.weight.detach().numpy()[ids]
    layers, last = [x], []
    for module in encoder.lstms:
        ways = [("_l0", False), ("_l0_reverse", True)]
        found = [lstm(x, weights_of(module), suffix, backward=backward) for suffix, backward in ways]
        x = np.concatenate([outputs for outputs, _ in found], 1)
        layers.append(x)
        hidden, cell = (np.concatenate([state[part] for _, state in found]) for part in (0, 1))
        last.append((hidden, cell))
    return layers, last


def decode(
    encoder: Seq2SeqLSTM, ids: list[int], memory: Array, state: list[tuple[Array, Array]]
) -> tuple[Array, Array]:
    """The adjusted states [M, W] and the attention probabilities [M, S], by the formulae of SPEC §2.9.

    h = LSTM([y; a']), alpha = softmax(H (A h)), c = Hᵀ alpha, a = tanh(C [c; h]); a' is the a of the token before.
    """
    table, attention = encoder.target.weight.detach().numpy(), weights_of(encoder.decoder.attention)
    adjusted, outputs, probabilities = np.zeros(encoder.width), [], []
    for number in ids:
        x = np.concatenate([table[number], adjusted])
        for layer, cell in enumerate(encoder.decoder.cells):
            state[layer] = lstm_cell(x, *state[layer], weights_of(cell))
            x = state[layer][0]
        scores = memory @ (attention["score.weight"] @ x)
        alpha = softmax(scores)
        adjusted = np.tanh(attention["output.weight"] @ np.concatenate([memory.T @ alpha, x]))
        outputs.append(adjusted)
        probabilities.append(alpha)
    return np.stack(outputs), np.stack(probabilities)


@pytest.mark.parametrize("layers", [1, 2])
def test_equal_to_its_formulae(layers: int) -> None:
    encoder, batch = build(layers=layers), pairs([0, 2, 3])
    with torch.no_grad():
        actual = encoder(batch, return_layers=True, return_attentions=True)
    assert batch.target is not None
    (found_B1LS,) = actual.target.attentions
    for row, number in enumerate([0, 2, 3]):
        source = batch.input_ids[row, : SOURCES[number]].tolist()
        target = batch.target.input_ids[row, : TARGETS[number]].tolist()
        expected, state = encode(encoder, source)
        for ours, theirs in zip(actual.layers, expected, strict=True):
            assert relative_difference(ours.view(3, 40, -1)[row, : len(source)], torch.from_numpy(theirs)) < 1e-10
        adjusted, alpha = decode(encoder, target, expected[-1], state)
        ours = actual.target.last_hidden.view(3, 31, -1)[row, : len(target)]
        assert relative_difference(ours, torch.from_numpy(adjusted)) < 1e-10
        assert relative_difference(found_B1LS[row, 0, : len(target), : len(source)], torch.from_numpy(alpha)) < 1e-10
        assert found_B1LS[row, 0, :, len(source) :].abs().max() == 0


def test_packed_rows_equal_torchs_lstm_on_each_text_alone() -> None:
    """The released MT-LSTM is `nn.LSTM(300, 300, num_layers=2, bidirectional=True)` (cove: encoder.py)."""
    encoder = build()
    theirs = nn.LSTM(10, 12, num_layers=2, bidirectional=True, batch_first=True).double()
    names = {
        f"{name}_l{layer}{way}": (layer, f"{name}_l0{way}")
        for layer in (0, 1)
        for way in ("", "_reverse")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    theirs.load_state_dict({name: encoder.lstms[layer].state_dict()[own] for name, (layer, own) in names.items()})
    rows = source_rows()
    packed = collate(rows, length=60, pack=True, shape=(3, 8))
    with torch.no_grad():
        hidden_TW = encoder(packed).last_hidden
        for row, start in zip(rows, packed.cls_positions.tolist(), strict=False):
            expected, _ = theirs(encoder.token_embeddings[torch.from_numpy(row.ids).long()][None])
            assert relative_difference(hidden_TW[start : start + len(row)], expected[0]) < 1e-12


@torch.no_grad()
def test_the_start_token_of_a_tasks_text_is_not_read() -> None:
    """Translation has no start token in source texts; in a task's texts it has the vector of the first word."""
    encoder, rows = build(), random_rows(SOURCES, pairs=False)
    plain = [encoder(collate([without_start(row)], length=len(row) - 1)).last_hidden for row in rows]
    packed = collate(rows, length=60, pack=True, shape=(3, 8))
    hidden_TW = encoder(packed).last_hidden
    for row, start, expected in zip(rows, packed.cls_positions.tolist(), plain, strict=False):
        assert relative_difference(hidden_TW[start + 1 : start + len(row)], expected) < 1e-12
        assert torch.equal(hidden_TW[start], hidden_TW[start + 1])
    special = collate([make_row(np.array([], np.int64))], length=5)
    assert encoder(special).last_hidden.isfinite().all(), "an empty text is its end token"


def test_padding_and_other_pairs_change_nothing() -> None:
    encoder = build()
    alone = [
        hidden_of_targets(encoder, pairs([number], source_length=SOURCES[number], target_length=TARGETS[number]))[0]
        for number in range(5)
    ]
    together = hidden_of_targets(encoder, pairs([0, 1, 2, 3, 4], source_length=44, target_length=37))
    assert all(relative_difference(one, other) < 1e-12 for one, other in zip(together, alone, strict=True))
    sources, targets = source_rows(), random_rows(TARGETS, seed=1, pairs=False)
    packed = collate(sources, length=100, pack=True).replace(target=collate(targets, length=90, pack=True))
    assert len(packed.input_ids) == 1
    found = encoder(packed, return_attentions=True)
    hidden = found.target.last_hidden
    expected = torch.cat(alone)
    assert relative_difference(hidden[: len(expected)], expected) < 1e-12
    weights_LS = found.target.attentions[0][0, 0]
    own = packed.target.document_ids[0][:, None] == packed.document_ids[0]
    assert weights_LS[~own].abs().max() == 0, "a pair of the row does not read another"
    assert (weights_LS[: len(expected)].sum(-1) - 1).abs().max() < 1e-12


def test_a_batch_without_texts_has_a_loss_of_zero_and_gradients_for_all_weights() -> None:
    """Distributed training waits for the gradients of every rank."""
    encoder, batch = build(), pairs([0])
    none = torch.full_like(batch.cls_positions, -1)
    for slots in (none, none[:0]):
        target, source = (
            one.replace(document_ids=torch.zeros_like(one.document_ids), cls_positions=slots)
            for one in (batch.target, batch)
        )
        encoding = encoder(source.replace(target=target), return_attentions=True)
        assert encoding.last_hidden.shape == (40, 24)
        assert encoding.target.last_hidden.shape == (31, 24)
        read = target.document_ids.flatten() > 0  # nothing
        loss = encoding.target.last_hidden[read].sum() + encoding.last_hidden[source.document_ids.flatten() > 0].sum()
        loss.backward()
        assert loss.item() == 0
        assert all(weight.grad is not None and not weight.grad.any() for weight in encoder.parameters())


def test_a_target_token_reads_the_whole_source_and_the_target_up_to_itself() -> None:
    encoder, batch = build(), pairs([2])
    assert batch.target is not None
    before = hidden_of_targets(encoder, batch)[0]
    ids = batch.target.input_ids.clone()
    ids[0, 8] = 33 if ids[0, 8] != 33 else 34
    after = hidden_of_targets(encoder, batch.replace(target=batch.target.replace(input_ids=ids)))[0]
    assert torch.equal(after[:8], before[:8])
    assert relative_difference(after[8:], before[8:]) > 1e-5
    ids = batch.input_ids.clone()
    ids[0, 22] = 33 if ids[0, 22] != 33 else 34  # the last source token
    assert relative_difference(hidden_of_targets(encoder, batch.replace(input_ids=ids))[0][0], before[0]) > 1e-5


@torch.inference_mode()
def test_decoding_token_by_token_equals_the_whole_target() -> None:
    encoder, batch = build(), pairs([0, 1, 2])
    whole = encoder(batch).target.last_hidden.view(3, 31, -1)
    state = encoder.start(batch, hypotheses=2, length=8, dtype=torch.float64)
    for position in range(8):
        hidden = encoder.step(batch.target.input_ids[:, position].repeat_interleave(2), state)
        assert relative_difference(hidden.view(3, 2, -1), whole[:, position, None].expand(-1, 2, -1)) < 1e-12


@torch.inference_mode()
def test_selected_hypotheses_continue_from_their_own_tokens() -> None:
    encoder, batch = build(), pairs([0, 1, 2])
    state = encoder.start(batch, hypotheses=2, length=8, dtype=torch.float64)
    encoder.step(torch.tensor([7, 8, 9, 10, 11, 12]), state)
    state = state.select(torch.tensor([1, 1, 4, 5]), torch.tensor([0, 2]))
    actual = encoder.step(torch.tensor([20, 21, 22, 23]), state)
    other = encoder.start(pairs([0, 2], source_length=50), hypotheses=2, length=8, dtype=torch.float64)
    encoder.step(torch.tensor([8, 8, 11, 12]), other)
    assert relative_difference(actual, encoder.step(torch.tensor([20, 21, 22, 23]), other)) < 1e-12


def test_fixed_word_vectors_are_stored_but_not_trained() -> None:
    fixed, learned = build(fixed_embeddings=True), build()
    assert "embeddings.weight" in fixed.state_dict()
    names = [{name for name, _ in encoder.named_parameters()} for encoder in (fixed, learned)]
    assert names[1] - names[0] == {"embeddings.weight"}


def test_added_words_replace_the_rows_after_the_first_ones() -> None:
    encoder = build(fixed_embeddings=True)
    first, target = encoder.embeddings.weight[:20].clone(), encoder.target.weight[:20].clone()
    added = torch.randn(50, 10, dtype=torch.float64)
    encoder.add_words(added, after=20)
    assert torch.equal(encoder.embeddings.weight, torch.cat((first, added)))
    assert torch.equal(encoder.target.weight, target)
    for table, rows in ((encoder.embeddings, 70), (encoder.target, 20)):
        assert (table.num_embeddings, len(table.weight)) == (rows, rows)
    assert (encoder.config.vocab_size, encoder.config.target_vocab_size) == (70, 20)
    assert "embeddings.weight" in encoder.state_dict()


def test_dropout_on_inputs_and_outputs_of_all_layers() -> None:
    torch.manual_seed(0)
    encoder, batch = build(dropout=0.5).train(), pairs([0, 1, 2, 3, 4])
    inputs: list[Tensor] = []
    for layer in encoder.lstms:
        layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0].data))
    encoding = encoder(batch)
    dropped = [*inputs, encoding.last_hidden[batch.document_ids.flatten() > 0]]
    dropped.append(encoding.target.last_hidden[batch.target.document_ids.flatten() > 0])
    assert all(0.4 < (tensor == 0).double().mean() < 0.6 for tensor in dropped)


def test_new_weights_are_uniform() -> None:
    encoder = seq2seq_lstm.Config(vocab_size=SIZE).build()
    for weight in encoder.parameters():
        assert weight.abs().max() <= 0.1
    assert encoder.lstms[1].weight_hh_l0.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 25}, "width=25 must be even: each direction of the encoder has half of it"),
        ({"layers": 0}, "layers=0 must be at least 1"),
        ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and less than 1"),
        ({"initializer_range": -0.1}, "initializer_range=-0.1 must be at least 0"),
    ],
)
def test_settings_that_build_no_model(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        build(**change)
