"""Sentence order prediction: pooled input, and a learnable order is learned."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import VOCABULARY, make_row, random_batch, randomize_weights, small_bert_config

from bertsmith.data.collate import collate
from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.objectives import sentence_order
from bertsmith.objectives.sentence_order import IN_ORDER, SWAPPED
from bertsmith.types import IGNORE_INDEX


def test_reads_the_pooled_first_token_of_each_text() -> None:
    model = randomize_weights(Model.build(small_bert_config(), [sentence_order.Config()])).eval()
    batch = random_batch([12, 9, 23, 7], length=40, pack=True, shape=(3, 6))
    batch = batch.replace(labels={"sentence_order": torch.tensor([1, IGNORE_INDEX, 0, 1, IGNORE_INDEX, IGNORE_INDEX])})
    logits = model.predict(batch, "sentence_order")
    head, first = model.objectives["sentence_order"].classify, model.encoder(batch).last_hidden[batch.cls_positions[:4]]
    pooled = torch.tanh(first @ model.encoder.pooler.weight.T + model.encoder.pooler.bias)
    assert torch.allclose(logits[:4], pooled @ head.weight.T + head.bias, atol=1e-5)
    loss = model(batch)
    assert int(loss.counts["sentence_order"]) == 3, "single texts have no label"
    expected = F.cross_entropy(logits[[0, 2, 3]], torch.tensor([1, 0, 1]), reduction="sum")
    assert loss.sums["sentence_order"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_sentence_order_is_learned() -> None:
    torch.manual_seed(0)
    model = Model.build(
        small_bert_config(layers=1, initializer_range=0.1, dropout=0, attention_dropout=0), [sentence_order.Config()]
    )
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        words = torch.randint(10, 50, (32, 8), generator=generator).sort(1).values.numpy()  # small numbers come first
        labels = torch.randint(0, 2, (32,), generator=generator).tolist()
        halves = [
            (text[:4], text[4:]) if label == IN_ORDER else (text[4:], text[:4])
            for text, label in zip(words, labels, strict=True)
        ]
        batch = collate([make_row(*pair) for pair in halves], length=16, labels={"sentence_order": labels})
        loss = model(batch)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
    assert int(loss.correct["sentence_order"]) > 28
    assert {IN_ORDER, SWAPPED} == {0, 1}


def test_an_encoder_without_a_pooler_is_refused() -> None:
    with pytest.raises(ConfigError, match="sentence_order reads the pooled vector of each text"):
        Model.build(small_bert_config(pooler=False), [sentence_order.Config()], vocabulary=VOCABULARY)
