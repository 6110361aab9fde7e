"""AWD-LSTM: equal to stacked `nn.LSTM` and to fastai's; dropout masks that are constant over time; windows of BPTT."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from model_fixtures import random_batch
from torch import Tensor, nn

from bertsmith.encoders import awd_lstm
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model, build_context
from bertsmith.objectives import causal_lm
from bertsmith.types import Batch

SIZE, WIDTH, HIDDEN, LAYERS = 19, 6, 10, 3


def formula(shape: tuple[int, ...], number: int) -> Tensor:
    """Weights by a formula, so that they can be made anywhere."""
    values = np.sin(np.arange(math.prod(shape)) * 0.7 + number) * 0.5
    return torch.tensor(values, dtype=torch.float32).view(*shape)


def build(**settings: Any) -> Model:
    encoder = awd_lstm.Config(layers=LAYERS, width=WIDTH, hidden=HIDDEN, vocab_size=SIZE, **settings)
    model = Model.build(encoder, [causal_lm.Config()]).eval()
    with torch.no_grad():
        table = formula((SIZE, WIDTH), 0)
        table[0] = 0
        model.encoder.embeddings.weight.copy_(table)
        model.objectives["causal_lm"].bias.copy_(formula((SIZE,), 99))
        for layer, lstm in enumerate(model.encoder.lstms):
            for number, name in enumerate(("weight_ih", "weight_hh", "bias_ih", "bias_hh")):
                weight = getattr(lstm, name)
                weight.copy_(formula(tuple(weight.shape), 1 + 4 * layer + number))
    return model


def rows(ids: list[list[int]], *, start: int = 0) -> Batch:
    """Rows without padding whose first token has the position `start`."""
    ids_BL = torch.tensor(ids)
    count, length = ids_BL.shape
    zeros = torch.zeros_like(ids_BL)
    return Batch(
        input_ids=ids_BL,
        position_ids=torch.arange(start, start + length).expand(count, -1),
        segment_ids=zeros,
        document_ids=torch.ones_like(ids_BL, dtype=torch.int32),
        special_mask=zeros.bool(),
        sample_ids=zeros,
        epoch=torch.tensor(0),
        cu_seqlens=torch.arange(0, count * length + 1, length, dtype=torch.int32),
        cls_positions=torch.arange(0, count * length, length),
        max_seqlen=length,
        dense=True,
    )


FIRST, SECOND = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], [[11, 12, 13], [14, 15, 16]]


def test_equals_stacked_lstms_bit_for_bit() -> None:
    model = build()
    state: list[Any] = [None] * LAYERS
    carried = None
    for ids, start in ((FIRST, 0), (SECOND, 5)):
        with torch.no_grad():
            encoding = model.encoder(rows(ids, start=start), carried, return_layers=True)
            x_NMD = model.encoder.embeddings(torch.tensor(ids))
            for number, lstm in enumerate(model.encoder.lstms):
                reference = nn.LSTM(x_NMD.shape[-1], lstm.width, batch_first=True)
                reference.load_state_dict({f"{name}_l0": value for name, value in lstm.state_dict().items()})
                x_NMD, state[number] = reference(x_NMD, state[number])
                assert torch.equal(encoding.layers[number + 1], x_NMD.flatten(0, 1))
        carried = encoding.state
        flat = [part[0] for pair in state for part in pair]
        assert all(torch.equal(one, other) for one, other in zip(carried, flat, strict=True))


def test_equals_fastai() -> None:
    """Recorded from fastai 2.8.12 (AWD_LSTM, LinearDecoder with tied weights, eval mode) with the weights of `formula`.

    The two batches were passed one after the other without `reset`; the difference is 0.0.
    """
    model = build()
    with torch.no_grad():
        model.encoder.embeddings.weight[0].copy_(formula((SIZE, WIDTH), 0)[0])
        before = model.encoder(rows(FIRST))
        after = model.encoder(rows(SECOND, start=5), before.state)
        logits = model.objectives["causal_lm"].predict(after, rows(SECOND), model.encoder.token_embeddings)
    assert torch.equal(before.last_hidden[-1], torch.tensor(RECORDED["first"]))
    assert torch.equal(after.last_hidden[2], torch.tensor(RECORDED["second"]))
    assert torch.equal(logits[5, :4], torch.tensor(RECORDED["logits"]))


RECORDED = {
    "first": [-0.115634412, 0.00549034867, 0.087515153, 0.0813237578, 0.104765207, 0.10030017],
    "second": [-0.169975236, -0.0668054223, 0.16360423, 0.181095675, 0.0658971518, 0.216631025],
    "logits": [-0.390592396, -0.18369706, -0.356285453, 0.369137675],
}


def test_parameters() -> None:
    """Three layers, the last one as narrow as the embeddings; the softmax is the token table and a bias."""
    sizes = [(WIDTH, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, WIDTH)]
    lstms = sum(4 * hidden * (width + hidden + 2) for width, hidden in sizes)
    assert parameter_count(build()) == SIZE * WIDTH + lstms + SIZE
    published = awd_lstm.Config()
    assert (published.layers, published.width, published.hidden) == (3, 400, 1152)


def test_a_backward_model_reads_reversed_texts() -> None:
    ahead, back = build(), build(backward=True)
    turned = [row[::-1] for row in FIRST]
    with torch.no_grad():
        one, other = ahead.encoder(rows(turned)), back.encoder(rows(FIRST))
    assert torch.equal(one.last_hidden.view(2, 5, -1).flip(1), other.last_hidden.view(2, 5, -1))
    labels = back.corrupt(rows(FIRST).replace(next_ids=torch.tensor([17, 18]))).labels["causal_lm"]
    assert labels.tolist() == [17, 1, 2, 3, 4, 18, 6, 7, 8, 9]


def active(**settings: float) -> Model:
    off = dict.fromkeys(("input_dropout", "hidden_dropout", "embedding_dropout", "weight_dropout"), 0.0)
    return build(**{**off, **settings}).train()


def test_dropout_is_constant_over_time_and_differs_between_texts() -> None:
    model = active(input_dropout=0.5)
    inputs: list[Tensor] = []
    model.encoder.lstms[0].register_forward_pre_hook(lambda module, words: inputs.append(words[0]))
    with torch.no_grad():
        model.encoder.embeddings.weight.fill_(1.0)
        model.encoder(rows([[1] * 7] * 30))
    dropped = inputs[0] == 0
    assert (dropped == dropped[:, :1]).all(), "the same elements at all tokens"
    assert len(dropped[:, 0].unique(dim=0)) > 10
    assert 0.35 < dropped.float().mean() < 0.65
    assert set(inputs[0].unique().tolist()) == {0.0, 2.0}


def test_hidden_dropout_is_constant_over_time() -> None:
    model = active(hidden_dropout=0.5)
    inputs: list[Tensor] = []
    model.encoder.lstms[1].register_forward_pre_hook(lambda module, words: inputs.append(words[0]))
    model.encoder(rows([[1, 2, 3, 4, 5, 6]] * 4))
    dropped = inputs[0] == 0
    assert dropped.any()
    assert (dropped == dropped[:, :1]).all()


def test_embedding_dropout_drops_word_types() -> None:
    model = active(embedding_dropout=0.5)
    inputs: list[Tensor] = []
    model.encoder.lstms[0].register_forward_pre_hook(lambda module, words: inputs.append(words[0]))
    ids = [[1, 2, 3, 1, 2, 3, 4], [4, 3, 2, 1, 5, 6, 7]]
    model.encoder(rows(ids))
    dropped = (inputs[0] == 0).all(-1).flatten()
    by_word: dict[int, set[bool]] = {}
    for word, zero in zip([word for row in ids for word in row], dropped.tolist(), strict=True):
        by_word.setdefault(word, set()).add(zero)
    assert all(len(kinds) == 1 for kinds in by_word.values())
    assert {True, False} == set().union(*by_word.values())


def test_weight_dropout_is_drawn_once_per_forward() -> None:
    model = active(weight_dropout=0.5)
    torch.manual_seed(0)
    whole = model.encoder(rows([[1, 2, 3, 4, 5, 6]])).last_hidden
    torch.manual_seed(0)
    before = model.encoder(rows([[1, 2, 3]]))
    torch.manual_seed(0)
    after = model.encoder(rows([[4, 5, 6]], start=3), before.state).last_hidden
    assert torch.allclose(whole, torch.cat((before.last_hidden, after)), atol=1e-6), "the same mask at all tokens"
    torch.manual_seed(1)
    assert not torch.allclose(whole, model.encoder(rows([[1, 2, 3, 4, 5, 6]])).last_hidden)


@pytest.mark.parametrize("dropout", ["input_dropout", "embedding_dropout", "hidden_dropout", "weight_dropout"])
def test_each_window_has_its_own_masks(dropout: str) -> None:
    """As in fastai, whose `SentenceEncoder` calls the language model once per window."""
    model, batch = active(**{dropout: 0.5, "bptt": 3}), rows([[1, 2, 3, 1, 2, 3, 4]])
    torch.manual_seed(0)
    windows = model.encoder(batch).last_hidden
    model.encoder.config = replace(model.encoder.config, bptt=0)
    torch.manual_seed(0)
    state, parts = None, []
    for start, ids in ((0, [1, 2, 3]), (3, [1, 2, 3]), (6, [4])):
        encoding = model.encoder(rows([ids], start=start), state)
        state = encoding.state
        parts.append(encoding.last_hidden)
    assert torch.equal(windows, torch.cat(parts))
    torch.manual_seed(0)
    assert not torch.allclose(windows, model.encoder(batch).last_hidden), "one mask for all tokens without windows"


def test_gradients_flow_back_through_one_window() -> None:
    model = active(bptt=3)
    ids = [[1, 2, 3, 4, 5, 6, 7, 8]]
    model.encoder(rows(ids)).last_hidden[6:].sum().backward()
    reached = model.encoder.embeddings.weight.grad.abs().sum(1) > 0
    assert reached.nonzero().flatten().tolist() == [7, 8]
    full = active().encoder(rows(ids)).last_hidden
    assert torch.allclose(full, model.encoder(rows(ids)).last_hidden, atol=1e-6), "the state is carried over"


def test_penalties_are_those_of_the_dropped_and_of_the_raw_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """AR: 2 · mean (m ⊙ h)²; TAR: mean (h_t - h_(t+1))²; the cross entropy reads the dropped output."""
    encoder = active().encoder
    settings = causal_lm.Config(dropout=0.4, activation_penalty=2.0, temporal_penalty=1.0)
    model = Model(encoder, [settings.build(build_context(encoder, vocabulary=None, seed=0))]).train()
    kept = torch.arange(2 * WIDTH).view(2, 1, WIDTH) % 3 > 0
    given: list[Any] = []

    def drop(x_BLD: Tensor, share: float, *, training: bool) -> Tensor:
        given.append((x_BLD.shape, share, training))
        return x_BLD * kept / (1 - share)

    monkeypatch.setattr(causal_lm, "drop_variational", drop)
    batch = model.corrupt(rows(FIRST).replace(next_ids=torch.tensor([11, 14])))
    with torch.no_grad():
        loss = model(batch)
        raw = encoder(rows(FIRST)).last_hidden.view(2, 5, WIDTH)
        dropped = raw * kept / 0.6
        logits = model.objectives["causal_lm"].logits(dropped.flatten(0, 1), encoder.token_embeddings)
    assert given == [((2, 5, WIDTH), 0.4, True)]
    entropy = nn.functional.cross_entropy(logits, torch.tensor([2, 3, 4, 5, 11, 7, 8, 9, 10, 14]))
    expected = {
        "causal_lm": entropy.item(),
        "activation_penalty": dropped.pow(2).mean().item(),
        "temporal_penalty": (raw[:, 1:] - raw[:, :-1]).pow(2).mean().item(),
    }
    found = {name: (loss.sums[name] / loss.counts[name]).item() for name in loss.sums}
    assert found == pytest.approx(expected, rel=1e-5)
    total = expected["causal_lm"] + 2 * expected["activation_penalty"] + expected["temporal_penalty"]
    assert loss.mean().item() == pytest.approx(total, rel=1e-5)


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match=r"^input_dropout=0\.25 times dropout_scale=4 must be at least 0 and less"):
        awd_lstm.Config(dropout_scale=4.0)
    model, packed = build(), random_batch([4, 5], length=12, pack=True)
    packed = packed.replace(input_ids=packed.input_ids % SIZE)
    with pytest.raises(
        BertsmithError, match="rows continue the state of the previous batch only where each is one text"
    ):
        model.encoder(packed, model.encoder(packed).state)
