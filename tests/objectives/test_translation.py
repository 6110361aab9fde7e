"""Translation: teacher forcing, label smoothing as in the paper's code, losses in parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import END, SIZE, VOCABULARY, random_rows, randomize_weights, small_bert_config

from bertsmith.data.collate import collate
from bertsmith.encoders import seq2seq
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.model_io.model import Model
from bertsmith.objectives import lm_head, translation
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Vocabulary


def build(*, vocabulary: Vocabulary = VOCABULARY, **settings: Any) -> Model:
    encoder = seq2seq.Config(layers=2, width=32, heads=4, vocab_size=SIZE, dropout=0.0)
    model: Model = randomize_weights(Model.build(encoder, [translation.Config(**settings)], vocabulary=vocabulary))
    return model


def batch() -> Batch:
    sources, targets = random_rows([12, 9, 23], pairs=False), random_rows([10, 11, 20], seed=1, pairs=False)
    target = collate(targets, length=32, pack=True)
    return collate(sources, length=23, pack=True).replace(target=target)


def smoothed_loss(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """The sum of the cross entropies with the smoothed distribution, written out."""
    classes = logits.shape[1]
    target = torch.full_like(logits, smoothing / (classes - 1))
    target[torch.arange(len(labels)), labels] = 1 - smoothing
    return -(target * logits.log_softmax(-1)).sum()


def test_labels_are_the_next_tokens_and_the_end_token() -> None:
    pairs = batch()
    assert pairs.target is not None
    assert len(pairs.target.input_ids) == 2
    labels = build().corrupt(pairs).labels["translation"].view(2, 32)
    first, second, third = (row.ids.tolist() for row in random_rows([10, 11, 20], seed=1, pairs=False))
    expected = [*first[1:], END, *second[1:], END]
    assert labels[0].tolist() == [*expected, *[IGNORE_INDEX] * (32 - len(expected))]
    assert labels[1].tolist() == [*third[1:], END, *[IGNORE_INDEX] * 12]


def test_label_smoothing_spreads_over_the_other_tokens() -> None:
    model = build(label_smoothing=0.1).double().train()
    corrupted = model.corrupt(batch())
    logits, labels = model.predict(corrupted, "translation"), corrupted.labels["translation"]
    kept = labels != IGNORE_INDEX
    loss = model(corrupted)
    assert int(loss.counts["translation"]) == 10 + 11 + 20
    expected = smoothed_loss(logits[kept], labels[kept], 0.1)
    assert loss.sums["translation"].item() == pytest.approx(expected.item(), rel=1e-12)
    torchs = F.cross_entropy(logits[kept], labels[kept], reduction="sum", label_smoothing=0.1).item()
    assert abs(torchs / expected.item() - 1) > 1e-5, "torch spreads over all tokens"
    same = F.cross_entropy(logits[kept], labels[kept], reduction="sum", label_smoothing=0.1 * SIZE / (SIZE - 1)).item()
    assert same == pytest.approx(expected.item(), rel=1e-12)


def test_label_smoothing_of_four_tokens() -> None:
    """The value of the paper's code and of fairseq, and torch's, which spreads over all four: 1.5069 and 1.4902."""
    encoder = seq2seq.Config(layers=1, width=4, heads=1, vocab_size=4, dropout=0.0)
    objective = Model.build(encoder, [translation.Config(label_smoothing=0.1)], vocabulary=VOCABULARY)
    head = objective.train().objectives["translation"]
    logits, labels = torch.tensor([[0.0, 1.0, 2.0, 3.0]], dtype=torch.float64), torch.tensor([2])
    corrupted = batch().replace(labels={"translation": labels})
    table = torch.eye(4, dtype=torch.float64)  # the hidden states are the logits
    for loss in (
        head.loss_from_logits(logits, corrupted),
        head.loss(Encoding(logits, {}, target=Encoding(logits, {})), corrupted, table),
    ):
        assert loss.sums["translation"].item() == pytest.approx(1.5069, abs=5e-5)
    assert F.cross_entropy(logits, labels, label_smoothing=0.1).item() == pytest.approx(1.4902, abs=5e-5)


def test_evaluation_has_the_plain_cross_entropy() -> None:
    model = build(label_smoothing=0.1).eval()
    corrupted = model.corrupt(batch())
    logits, labels = model.predict(corrupted, "translation"), corrupted.labels["translation"]
    expected = F.cross_entropy(logits, labels, reduction="sum").item()
    assert model(corrupted).sums["translation"].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("train", [True, False])
def test_a_loss_in_parts_is_that_of_the_whole(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(label_smoothing=0.1).double().train(train)
    corrupted = model.corrupt(batch())
    results = []
    for most in (lm_head.MAX_LOGITS, 7 * SIZE):
        monkeypatch.setattr(lm_head, "MAX_LOGITS", most)
        model.zero_grad()
        loss = model(corrupted)
        loss.mean().backward()
        gradient = model.encoder.token_embeddings.grad.clone()
        results.append((loss.mean().item(), int(loss.correct["translation"]), gradient))
    (one, correct, gradient), (other, same, parts) = results
    assert (other, same) == (pytest.approx(one, rel=1e-12), correct)
    assert torch.allclose(parts, gradient, rtol=1e-10, atol=1e-14)


def test_the_output_layer_is_the_token_table_of_the_target() -> None:
    tied, own = build(), build(tie_output=False)
    assert not list(tied.objectives.parameters())
    assert own.objectives["translation"].output.weight.shape == (SIZE, 32)
    encoder = seq2seq.Config(layers=1, width=32, heads=4, vocab_size=SIZE, share_embeddings=False)
    model = randomize_weights(Model.build(encoder, [translation.Config()], vocabulary=VOCABULARY)).eval()
    corrupted = model.corrupt(batch())
    hidden = model.encoder(corrupted).target.last_hidden
    expected = hidden @ model.encoder.embeddings.target_tokens.weight.T
    assert torch.equal(model.predict(corrupted, "translation"), expected)


def test_models_and_batches_without_a_second_text_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^translation needs an encoder with a decoder: set encoder.kind=seq2seq$"):
        Model.build(small_bert_config(), [translation.Config()], vocabulary=VOCABULARY)
    with pytest.raises(BertsmithError, match=r"^translation needs parallel text: prepare the shards with --parallel$"):
        build().corrupt(batch().replace(target=None))
    with pytest.raises(BertsmithError, match=r"^translation needs a tokenizer with an end token"):
        build(vocabulary=Vocabulary(size=SIZE)).corrupt(batch())


def test_a_batch_moves_with_its_target() -> None:
    pairs = batch()
    assert pairs.target is not None
    moved = pairs.map(lambda tensor: tensor + 0)
    assert moved.target is not None
    assert torch.equal(moved.target.input_ids, pairs.target.input_ids)
    assert moved.target.input_ids is not pairs.target.input_ids
    assert len(list(pairs.tensors())) == 2 * len(list(pairs.target.tensors()))
    assert int(pairs.count_tokens()) == 12 + 9 + 23 + 10 + 11 + 20
    assert pairs.size == pairs.input_ids.numel() + pairs.target.input_ids.numel()
    assert pairs.to("meta").target.input_ids.is_meta
