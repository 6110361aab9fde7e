"""CoVe's translation model equals OpenNMT-py's with the same weights; `record_opennmt.py` has recorded its outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from model_fixtures import relative_difference
from parity.record_fairseq import padded, weights_of
from parity.record_opennmt import SHAPE, SOURCES, TARGETS, attention_inputs
from torch import Tensor

from bertsmith.data.collate import collate
from bertsmith.encoders import seq2seq_lstm
from bertsmith.encoders.seq2seq_lstm import Seq2SeqLSTM
from bertsmith.inference.forward import ids_only
from bertsmith.tokenizers.special_tokens import frame_texts
from bertsmith.types import Batch, Frame

RECORDED = json.loads(Path(__file__).with_name("opennmt_lstm.json").read_text(encoding="utf-8"))
LIMIT = 1e-12  # of float64


def recorded(name: str) -> Tensor:
    return torch.tensor(RECORDED[name], dtype=torch.float64)


def valid(values: Tensor, rows: list[list[int]]) -> Tensor:
    """The values [length, rows, …] at tokens that are not padding."""
    return torch.cat([values[: len(row), number] for number, row in enumerate(rows)])


def our_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under our names."""
    table = "embeddings.make_embedding.emb_luts.0.weight"
    found = {"embeddings.weight": theirs[f"encoder.{table}"], "target.weight": theirs[f"decoder.{table}"]}
    for name, to in (("linear_in", "score"), ("linear_out", "output")):
        found[f"decoder.attention.{to}.weight"] = theirs[f"decoder.attn.{name}.weight"]
    for layer in range(SHAPE["layers"]):
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            found[f"decoder.cells.{layer}.{name}"] = theirs[f"decoder.rnn.layers.{layer}.{name}"]
            for way in ("", "_reverse"):
                found[f"lstms.{layer}.{name}_l0{way}"] = theirs[f"encoder.rnn.{name}_l{layer}{way}"]
    return found


def batch_of(rows: list[list[int]]) -> Batch:
    framed = [
        frame_texts(Frame(("a",), ()), ids_only(np.array(row, np.int32)), None, max_length=len(row)) for row in rows
    ]
    return collate(framed, length=max(map(len, rows)), padding_id=1)


@pytest.fixture(scope="module")
def encoder() -> Seq2SeqLSTM:
    config = seq2seq_lstm.Config(
        layers=SHAPE["layers"],
        width=SHAPE["width"],
        embedding_width=SHAPE["embedding_width"],
        vocab_size=SHAPE["vocabulary"],
    )
    built = config.build().double().eval()
    theirs = {name: torch.from_numpy(value) for name, value in weights_of(RECORDED["shapes"]).items()}
    built.load_state_dict(our_weights(theirs))
    return built


@torch.no_grad()
def test_general_attention_with_the_lengths_of_the_sources(encoder: Seq2SeqLSTM) -> None:
    """Padding of the memory is random numbers here, which get no weight."""
    hidden_NMW, source_NSW = map(torch.from_numpy, attention_inputs())
    attention = encoder.decoder.attention
    memory = attention.read(source_NSW, batch_of(SOURCES).document_ids > 0)
    adjusted, probabilities = attention(hidden_NMW.flatten(0, 1), memory)
    assert relative_difference(adjusted.view(hidden_NMW.shape), recorded("attended").transpose(0, 1)) < LIMIT
    assert relative_difference(probabilities, recorded("attention_weights").transpose(0, 1)) < LIMIT


@torch.no_grad()
def test_whole_texts_of_different_lengths(encoder: Seq2SeqLSTM) -> None:
    encoding = encoder(batch_of(SOURCES).replace(target=batch_of(TARGETS)), return_attentions=True)
    assert encoding.target is not None
    for ours, name, rows in (
        (encoding.last_hidden.view(len(SOURCES), -1, SHAPE["width"]), "encoded", SOURCES),
        (encoding.target.last_hidden.view(len(TARGETS), -1, SHAPE["width"]), "outputs", TARGETS),
        (encoding.target.attentions[0][:, 0], "weights", TARGETS),
    ):
        assert relative_difference(valid(ours.transpose(0, 1), rows), valid(recorded(name), rows)) < LIMIT


@torch.no_grad()
def test_states_before_and_after_step_by_step_decoding(encoder: Seq2SeqLSTM) -> None:
    """Their batch also reads the padding of targets, whose vectors are those of any token."""
    state = encoder.start(batch_of(SOURCES), hypotheses=1, length=8, dtype=torch.float64)
    outputs = []
    hidden_and_cell = [torch.stack((*state.decoder.hidden, *state.decoder.cell))]
    for ids in torch.tensor(padded(TARGETS)).T:
        outputs.append(encoder.step(ids, state))
    hidden_and_cell.append(torch.stack((*state.decoder.hidden, *state.decoder.cell)))
    for ours, name in zip(hidden_and_cell, ("initial", "final"), strict=True):
        assert relative_difference(ours, recorded(name).flatten(0, 1)) < LIMIT
    assert relative_difference(torch.stack(outputs), recorded("outputs")) < LIMIT
