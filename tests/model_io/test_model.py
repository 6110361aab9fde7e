"""The model: it encodes once, computes only what objectives read, and adds up their losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_fixtures import (
    VOCABULARY,
    pretraining_model,
    random_batch,
    randomize_weights,
    relative_difference,
    small_bert_config,
)

from bertsmith.encoders.bert import BERT
from bertsmith.errors import BertsmithError
from bertsmith.model_io.model import Model, build_context
from bertsmith.objectives import masked_lm, next_sentence
from bertsmith.objectives.next_sentence import NextSentence
from bertsmith.objectives.objective import Embed
from bertsmith.types import Batch, Encoding, Loss

LENGTHS = [12, 9, 23, 7, 40, 5, 31, 16]


def test_the_encoder_runs_once_and_computes_only_selected_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = pretraining_model(), []
    forward = model.encoder.forward

    def watch(batch: Batch, state: Any = None, **how: Any) -> Encoding:
        seen.append(forward(batch, state, **how))
        return seen[-1]

    monkeypatch.setattr(model.encoder, "forward", watch)
    batch = model.corrupt(random_batch(LENGTHS, length=40))
    loss = model(batch)
    assert len(seen) == 1
    assert len(seen[0].last_hidden) == len(batch.indices["masked_lm"]) + len(LENGTHS) < batch.input_ids.numel() / 3
    whole = forward(batch)
    expected = [model.objectives[name].loss(whole, batch, model.encoder.token_embeddings) for name in model.objectives]
    for one in expected:
        for name, total in one.sums.items():
            assert loss.sums[name].item() == pytest.approx(total.item(), rel=1e-5)


def test_selecting_tokens_gives_the_same_gradients() -> None:
    model = pretraining_model()
    batch = model.corrupt(random_batch(LENGTHS, length=40))
    model(batch).mean().backward()
    less = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    whole = model.encoder(batch)
    losses = [model.objectives[name].loss(whole, batch, model.encoder.token_embeddings) for name in model.objectives]
    (losses[0] + losses[1]).mean().backward()
    for name, parameter in model.named_parameters():
        if "qkv.bias" not in name:
            assert relative_difference(less[name], parameter.grad) < 1e-5, name


class Doubling(NextSentence):
    """An objective that replaces every id by the next one before the encoder reads it."""

    def sample_replacements(self, batch: Batch, embed: Embed, table: torch.Tensor) -> tuple[Batch, Loss | None]:
        return batch.replace(input_ids=(batch.input_ids + 1) % 97), None


def test_replacements_are_sampled_before_encoding() -> None:
    plain = randomize_weights(Model.build(small_bert_config(), [next_sentence.Config()])).eval()
    head = Doubling(build_context(plain.encoder, vocabulary=None, seed=0), weight=1.0)
    filling = Model(plain.encoder, [head]).eval()
    head.load_state_dict(plain.objectives["next_sentence"].state_dict())
    batch = random_batch(LENGTHS, length=40)
    batch = batch.replace(
        labels={"next_sentence": batch.labels["next_sentence"], head.name: batch.labels["next_sentence"]}
    )
    expected = plain(batch.replace(input_ids=(batch.input_ids + 1) % 97)).mean()
    assert filling(batch).mean().item() == pytest.approx(expected.item(), rel=1e-6)
    assert plain(batch).mean().item() != pytest.approx(expected.item(), rel=1e-3)


def test_one_compiled_graph_serves_every_batch_of_its_shape() -> None:
    model = pretraining_model(dropout=0.0, attention_dropout=0.0)

    def step(batch: Batch) -> torch.Tensor:
        return model(model.corrupt(batch)).mean()

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(3):
            batch = random_batch(LENGTHS, length=40, pack=True, shape=(6, 9), seed=seed, epoch=seed)
            assert compiled(batch).item() == pytest.approx(step(batch).item(), rel=1e-5)


def test_learns() -> None:
    """Sixty steps on one batch: the loss falls to a fraction, so gradients point the right way."""
    torch.manual_seed(0)
    model = Model.build(
        small_bert_config(), [masked_lm.Config(), next_sentence.Config()], vocabulary=VOCABULARY
    ).train()
    batch = model.corrupt(random_batch(LENGTHS, length=40))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]


def test_layer_groups_hold_every_parameter_once() -> None:
    model = pretraining_model()
    found = [id(parameter) for part in model.layer_groups() for parameter in part.parameters()]
    assert sorted(found) == sorted(map(id, model.parameters()))
    assert model.layer_groups()[-1] is model.objectives


def test_the_token_table_is_tied() -> None:
    """Tied, not copied: the head's gradient reaches the rows of tokens that do not occur in the text."""
    model = pretraining_model()
    batch = model.corrupt(random_batch(LENGTHS, length=40))
    absent = sorted(set(range(97)) - set(batch.input_ids.flatten().tolist()) - set(batch.labels["masked_lm"].tolist()))
    assert isinstance(model.encoder, BERT)
    model(batch).mean().backward()
    assert absent
    assert model.encoder.embeddings.tokens.weight.grad[absent].abs().sum() > 0


def test_invalid_models_and_batches_are_refused() -> None:
    model = pretraining_model()
    batch = random_batch([12], length=12)
    with pytest.raises(BertsmithError, match="masked_lm has no indices in this batch: corrupt it first"):
        model(batch)
    with pytest.raises(BertsmithError, match="this model has no head causal_lm: it has masked_lm, next_sentence"):
        model.predict(batch, "causal_lm")


def test_losses_add_up() -> None:
    def loss(name: str, total: float, count: int, weight: float = 1.0) -> Loss:
        return Loss({name: torch.tensor(total)}, {name: torch.tensor(count)}, {name: torch.tensor(1)}, {name: weight})

    both = loss("a", 6.0, 2) + loss("a", 3.0, 1) + loss("b", 5.0, 10, weight=2.0)
    assert both.mean().item() == pytest.approx(9 / 3 + 2 * 5 / 10)
    assert both.total({"a": torch.tensor(90), "b": torch.tensor(10)}).item() == pytest.approx(0.1 + 1.0)
    assert both.correct["a"].item() == 2
    assert loss("a", 0.0, 0).mean().item() == 0
