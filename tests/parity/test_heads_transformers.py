"""Fine-tuning heads against transformers: equal folders, logits, losses and labels in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import relative_difference
from model_io.folder_fixtures import model, same_weights, tokenizer
from parity.test_folders_transformers import batch as unlabelled_batch

from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_for, open_model, save_model
from bertsmith.objectives import choose, classify, regress, span, tag
from bertsmith.types import IGNORE_INDEX, Batch

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

NAMES = ("O", "B", "I")
CASES: dict[str, tuple[str, Any]] = {
    "classify": ("BertForSequenceClassification", classify.Config(labels=NAMES, dropout=0.3)),
    "regress": ("BertForSequenceClassification", regress.Config(dropout=0.0)),
    "tag": ("BertForTokenClassification", tag.Config(labels=NAMES)),
    "span": ("BertForQuestionAnswering", span.Config()),
    "choose": ("BertForMultipleChoice", choose.Config()),
}


def labelled_batch() -> Batch:
    """Three texts with labels for every head."""
    return with_labels(unlabelled_batch())


def with_labels(result: Batch) -> Batch:
    """Three texts with labels for every head; the first two tokens of each are words."""
    cls_positions = result.cls_positions
    labels = {
        "classify": torch.tensor([2, 0, 1]),
        "regress": torch.tensor([0.5, -2.0, 3.0]),
        "tag": torch.tensor([1, 0, 2, 0, 2, 1]),
        "span": torch.tensor([[2, 4], [0, 0], [1, 1]]),
        "choose": torch.tensor(choose.choice_labels(1, 3)),
    }
    return result.replace(
        labels=labels, indices={"tag": torch.stack((cls_positions + 1, cls_positions + 2), 1).flatten()}
    )


def reference_outputs(reference: Any, kind: str, batch: Batch) -> tuple[torch.Tensor, float]:
    """Logits of transformers in bertsmith's layout, and its loss."""
    inputs = {
        "input_ids": batch.input_ids,
        "attention_mask": (batch.document_ids != 0).long(),
        "token_type_ids": batch.segment_ids,
    }
    labels = batch.labels[kind]
    if kind == "choose":
        inputs = {name: value[None] for name, value in inputs.items()}
        inputs["labels"] = (labels == 0).nonzero()[0]
    elif kind == "tag":
        inputs["labels"] = torch.full((batch.input_ids.numel(),), IGNORE_INDEX).scatter(0, batch.indices["tag"], labels)
        inputs["labels"] = inputs["labels"].view_as(batch.input_ids)
    elif kind == "span":
        inputs |= {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
    else:
        inputs["labels"] = labels
    with torch.no_grad():
        result = reference.eval()(**inputs)
    if kind == "span":
        return torch.stack((result.start_logits, result.end_logits), -1), float(result.loss)
    if kind == "choose":
        return result.logits.T, float(result.loss)
    return (result.logits.flatten(0, 1) if kind == "tag" else result.logits), float(result.loss)


def compare(bertsmith_model: Model, reference: Any, kind: str, batch: Batch | None = None) -> None:
    """Logits and loss of a head for a batch of three texts with labels."""
    batch = batch or labelled_batch()
    logits, loss = reference_outputs(reference, kind, batch)
    with torch.no_grad():
        actual = bertsmith_model.predict(batch if kind != "tag" else batch.replace(indices={}), kind)
        real = (batch.document_ids != 0).flatten()
        if kind == "tag":
            actual, logits = actual[real], logits[real]
        elif kind == "span":
            actual, logits = actual.flatten(0, 1)[real], logits.flatten(0, 1)[real]
        assert relative_difference(actual, logits) < 1e-5
        if kind == "span":  # transformers' softmax includes padding: compare with its losses of unpadded texts
            loss = sum(reference_outputs(reference, kind, unpadded(batch, text))[1] for text in range(3)) / 3
        assert bertsmith_model(batch).mean().item() == pytest.approx(loss, rel=1e-5)


def unpadded(batch: Batch, text: int) -> Batch:
    """One text of a padded batch, for transformers."""
    length = int((batch.document_ids[text] != 0).sum())
    parts = {
        name: getattr(batch, name)[text : text + 1, :length] for name in ("input_ids", "document_ids", "segment_ids")
    }
    return batch.replace(**parts, labels={"span": batch.labels["span"][text : text + 1]})


@pytest.mark.parametrize("kind", CASES)
def test_bertsmith_folders_load_in_transformers(kind: str, tmp_path: Path) -> None:
    architecture, settings = CASES[kind]
    bertsmith_model = model(settings, pooler=kind not in ("tag", "span"))
    save_model(bertsmith_model, tokenizer(), tmp_path / "bertsmith")
    reference, loading = getattr(transformers, architecture).from_pretrained(
        tmp_path / "bertsmith", output_loading_info=True
    )
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    compare(bertsmith_model, reference, kind)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "bertsmith")
    if kind in ("classify", "tag"):
        assert config.id2label == dict(enumerate(NAMES))
        assert config.label2id == {name: number for number, name in enumerate(NAMES)}
        assert config.num_labels == 3
    if kind == "regress":
        assert (config.num_labels, config.problem_type) == (1, "regression")
    if kind != "span":
        assert reference.dropout.p == settings.dropout
    reference.save_pretrained(
        tmp_path / "transformers"
    )  # round trip: the folder written by transformers holds the same model
    tokenizer().save(tmp_path / "transformers")
    reloaded, _, facts = open_model(tmp_path / "transformers")
    same_weights(bertsmith_model, reloaded)
    expected = settings.with_pooling("both") if hasattr(settings, "with_pooling") else settings
    assert reloaded.objectives[kind].config == expected
    assert facts.notes == ()


@pytest.mark.parametrize("kind", CASES)
def test_transformers_folders_load_here(kind: str, tmp_path: Path) -> None:
    architecture, _ = CASES[kind]
    label_counts: dict[str, Any] = {"num_labels": {"classify": 5, "tag": 7, "regress": 1}.get(kind, 2)}
    config = transformers.BertConfig(
        vocab_size=tokenizer().vocab_size,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=50,
        **label_counts,
    )
    reference = getattr(transformers, architecture)(config)
    for number, parameter in enumerate(reference.parameters()):
        drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        parameter.data.copy_(drawn * 0.3)
    reference.save_pretrained(tmp_path / "transformers")
    tokenizer().save(tmp_path / "transformers")
    bertsmith_model, _, facts = open_model(tmp_path / "transformers")
    assert list(bertsmith_model.objectives) == [kind]
    assert facts.notes == ()
    assert facts.parameters == sum(parameter.numel() for parameter in reference.parameters())
    compare(bertsmith_model, reference, kind)
    if kind in ("classify", "tag"):
        assert bertsmith_model.objectives[kind].config.labels == tuple(
            f"LABEL_{n}" for n in range(label_counts["num_labels"])
        )


def test_a_new_head_on_a_pretrained_transformers_folder(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=tokenizer().vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    reference = transformers.BertForMaskedLM(config)
    reference.save_pretrained(tmp_path / "transformers")
    tokenizer().save(tmp_path / "transformers")
    result, _, facts = open_for(tmp_path / "transformers", [classify.Config(labels=NAMES)], seed=4)
    assert torch.equal(result.encoder.token_embeddings, reference.bert.embeddings.word_embeddings.weight)
    assert facts.notes[0].startswith("newly initialised: the head classify, the pooler; unused weights")


def test_transformers_refuses_native_folders(tmp_path: Path) -> None:
    save_model(model(classify.Config(pooling="mean")), tokenizer(), tmp_path / "m")
    with pytest.raises(ValueError, match="bertsmith"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
