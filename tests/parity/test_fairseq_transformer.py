"""The Transformer equals fairseq 0.12.2's with the same weights; `record_fairseq.py` has recorded its outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_fixtures import relative_difference
from parity.record_fairseq import SHAPE, SOURCES, TARGETS, weights_of
from torch import Tensor

from bertsmith.data.collate import collate
from bertsmith.encoders import seq2seq
from bertsmith.inference.forward import ids_only
from bertsmith.model_io.model import Model
from bertsmith.objectives import translation
from bertsmith.tokenizers.special_tokens import frame_texts
from bertsmith.types import Batch, Frame

RECORDED = json.loads(Path(__file__).with_name("fairseq_transformer.json").read_text(encoding="utf-8"))
FIRST_POSITION = 2  # padding_idx + 1


def our_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under our names."""
    found = {"embeddings.tokens.weight": theirs["encoder.embed_tokens.weight"]}
    norms = {"self_attn_layer_norm": "attention_norm", "encoder_attn_layer_norm": "cross_attention_norm"}
    same = {
        **norms,
        "final_layer_norm": "feed_forward_norm",
        "fc1": "feed_forward.expand",
        "fc2": "feed_forward.contract",
    }
    for side, blocks in (("encoder", "blocks"), ("decoder", "decoder_blocks")):
        for layer in range(SHAPE["layers"]):
            for kind in ("weight", "bias"):
                before, ours = f"{side}.layers.{layer}", f"{blocks}.{layer}"

                def one(name: str, before: str = before, kind: str = kind) -> Tensor:
                    return theirs[f"{before}.{name}.{kind}"]

                own, cross = (
                    [f"{name}.{part}_proj" for part in ("q", "k", "v", "out")] for name in ("self_attn", "encoder_attn")
                )
                found[f"{ours}.attention.qkv.{kind}"] = torch.cat([one(name) for name in own[:3]])
                found[f"{ours}.attention.output.{kind}"] = one(own[3])
                if side == "decoder":
                    found[f"{ours}.cross_attention.query.{kind}"] = one(cross[0])
                    found[f"{ours}.cross_attention.key_value.{kind}"] = torch.cat([one(name) for name in cross[1:3]])
                    found[f"{ours}.cross_attention.output.{kind}"] = one(cross[3])
                found |= {
                    f"{ours}.{to}.{kind}": one(name) for name, to in same.items() if f"{before}.{name}.{kind}" in theirs
                }
    return found


def batch_of(rows: list[list[int]]) -> Batch:
    framed = [
        frame_texts(Frame(("a",), ()), ids_only(np.array(row, np.int32)), None, max_length=len(row)) for row in rows
    ]
    batch = collate(framed, length=max(map(len, rows)), padding_id=1)
    return batch.replace(position_ids=batch.position_ids + FIRST_POSITION)


@pytest.fixture(scope="module")
def model() -> Model:
    config = seq2seq.Config(
        layers=SHAPE["layers"],
        width=SHAPE["width"],
        heads=SHAPE["heads"],
        feed_forward=SHAPE["inner"],
        vocab_size=SHAPE["vocabulary"],
        positions="concatenated",
        layer_norm_eps=1e-5,
    )
    built = Model.build(config, [translation.Config()])
    theirs = {name: torch.from_numpy(value).float() for name, value in weights_of(RECORDED["shapes"]).items()}
    built.encoder.load_state_dict(our_weights(theirs))
    return built.eval()


def valid(values: Any, rows: list[list[int]]) -> Tensor:
    """The values [rows, length, …] at tokens that are not padding."""
    values = torch.as_tensor(values)
    return torch.cat([one[: len(row)] for one, row in zip(values, rows, strict=True)])


@torch.inference_mode()
def test_hidden_states_logits_attention_and_losses(model: Model) -> None:
    batch = batch_of(SOURCES).replace(target=batch_of(TARGETS))
    encoding = model.encoder(batch, return_attentions=True)
    shape = (len(SOURCES), max(map(len, SOURCES)), -1)
    assert (
        relative_difference(valid(encoding.last_hidden.view(shape), SOURCES), valid(RECORDED["encoded"], SOURCES))
        < 1e-6
    )
    logits = model.predict(batch, "translation").view(len(TARGETS), -1, SHAPE["vocabulary"])
    assert relative_difference(valid(logits, TARGETS), valid(RECORDED["logits"], TARGETS)) < 1e-6
    attention = encoding.target.attentions[-1].mean(1)  # of the last layer, over its heads
    assert (valid(attention, TARGETS) - valid(RECORDED["attention"], TARGETS)).abs().max() < 1e-6
    labels = torch.tensor([*TARGETS[0][1:], 2])
    plain = torch.nn.functional.cross_entropy(logits[0, : len(labels)], labels, reduction="sum")
    assert plain.item() == pytest.approx(RECORDED["loss"], rel=1e-6)


def test_the_loss_has_fairseqs_label_smoothing(model: Model) -> None:
    """The mass is spread over the other tokens, as in the paper's code; torch spreads it over all of them."""
    batch = batch_of(SOURCES[:1]).replace(target=batch_of(TARGETS[:1]))
    head: Any = model.objectives["translation"]
    labels = torch.tensor([*TARGETS[0][1:], 2])
    head.train()
    loss = head.loss(
        model.encoder(batch), batch.replace(labels={"translation": labels}), model.encoder.target_embeddings
    )
    assert loss.sums["translation"].item() == pytest.approx(RECORDED["smoothed_loss"], rel=1e-5)
    head.eval()
