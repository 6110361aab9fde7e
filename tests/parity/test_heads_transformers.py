"""Heads of fine-tuning against transformers: the same folders, logits, losses and labels, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import relative_difference
from model_io.folder_fixtures import model, same_weights, tokenizer
from parity.test_folders_transformers import batch as some_texts

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


def asked() -> Batch:
    """Three texts with labels for all."""
    return with_labels(some_texts())


def with_labels(found: Batch) -> Batch:
    """Three texts with labels for every head; the first two tokens of each are words."""
    firsts = found.cls_positions
    labels = {
        "classify": torch.tensor([2, 0, 1]),
        "regress": torch.tensor([0.5, -2.0, 3.0]),
        "tag": torch.tensor([1, 0, 2, 0, 2, 1]),
        "span": torch.tensor([[2, 4], [0, 0], [1, 1]]),
        "choose": torch.tensor(choose.choice_labels(1, 3)),
    }
    return found.replace(labels=labels, indices={"tag": torch.stack((firsts + 1, firsts + 2), 1).flatten()})


def said_by(theirs: Any, kind: str, batch: Batch) -> tuple[torch.Tensor, float]:
    """Their logits, in the layout of ours, and their loss."""
    given = {
        "input_ids": batch.input_ids,
        "attention_mask": (batch.document_ids != 0).long(),
        "token_type_ids": batch.segment_ids,
    }
    labels = batch.labels[kind]
    if kind == "choose":
        given = {name: value[None] for name, value in given.items()}
        given["labels"] = (labels == 0).nonzero()[0]
    elif kind == "tag":
        given["labels"] = torch.full((batch.input_ids.numel(),), IGNORE_INDEX).scatter(0, batch.indices["tag"], labels)
        given["labels"] = given["labels"].view_as(batch.input_ids)
    elif kind == "span":
        given |= {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
    else:
        given["labels"] = labels
    with torch.no_grad():
        found = theirs.eval()(**given)
    if kind == "span":
        return torch.stack((found.start_logits, found.end_logits), -1), float(found.loss)
    if kind == "choose":
        return found.logits.T, float(found.loss)
    return (found.logits.flatten(0, 1) if kind == "tag" else found.logits), float(found.loss)


def compare(ours: Model, theirs: Any, kind: str, batch: Batch | None = None) -> None:
    """Logits and loss of a head for a batch of three texts with labels."""
    batch = batch or asked()
    logits, loss = said_by(theirs, kind, batch)
    with torch.no_grad():
        mine = ours.predict(batch if kind != "tag" else batch.replace(indices={}), kind)
        real = (batch.document_ids != 0).flatten()
        if kind == "tag":
            mine, logits = mine[real], logits[real]
        elif kind == "span":
            mine, logits = mine.flatten(0, 1)[real], logits.flatten(0, 1)[real]
        assert relative_difference(mine, logits) < 1e-5
        if kind == "span":  # theirs lets padding compete: its losses are of texts without any
            loss = sum(said_by(theirs, kind, unpadded(batch, text))[1] for text in range(3)) / 3
        assert ours(batch).mean().item() == pytest.approx(loss, rel=1e-5)


def unpadded(batch: Batch, text: int) -> Batch:
    """One text of a padded batch, for transformers."""
    length = int((batch.document_ids[text] != 0).sum())
    parts = {
        name: getattr(batch, name)[text : text + 1, :length] for name in ("input_ids", "document_ids", "segment_ids")
    }
    return batch.replace(**parts, labels={"span": batch.labels["span"][text : text + 1]})


@pytest.mark.parametrize("kind", CASES)
def test_transformers_opens_our_folder(kind: str, tmp_path: Path) -> None:
    architecture, settings = CASES[kind]
    ours = model(settings, pooler=kind not in ("tag", "span"))
    save_model(ours, tokenizer(), tmp_path / "ours")
    theirs, loading = getattr(transformers, architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    compare(ours, theirs, kind)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    if kind in ("classify", "tag"):
        assert config.id2label == dict(enumerate(NAMES))
        assert config.label2id == {name: number for number, name in enumerate(NAMES)}
        assert config.num_labels == 3
    if kind == "regress":
        assert (config.num_labels, config.problem_type) == (1, "regression")
    if kind != "span":
        assert theirs.dropout.p == settings.dropout
    theirs.save_pretrained(tmp_path / "theirs")  # and back: what transformers writes of it is the same model
    tokenizer().save(tmp_path / "theirs")
    again, _, facts = open_model(tmp_path / "theirs")
    same_weights(ours, again)
    assert again.objectives[kind].config == settings
    assert facts.notes == ()


@pytest.mark.parametrize("kind", CASES)
def test_we_open_the_folder_of_transformers(kind: str, tmp_path: Path) -> None:
    architecture, _ = CASES[kind]
    few: dict[str, Any] = {"num_labels": {"classify": 5, "tag": 7, "regress": 1}.get(kind, 2)}
    config = transformers.BertConfig(
        vocab_size=tokenizer().vocab_size,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=50,
        **few,
    )
    theirs = getattr(transformers, architecture)(config)
    for number, parameter in enumerate(theirs.parameters()):
        drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        parameter.data.copy_(drawn * 0.3)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer().save(tmp_path / "theirs")
    ours, _, facts = open_model(tmp_path / "theirs")
    assert list(ours.objectives) == [kind]
    assert facts.notes == ()
    assert facts.parameters == sum(parameter.numel() for parameter in theirs.parameters())
    compare(ours, theirs, kind)
    if kind in ("classify", "tag"):
        assert ours.objectives[kind].config.labels == tuple(f"LABEL_{n}" for n in range(few["num_labels"]))


def test_a_new_head_on_a_pretrained_transformers_folder(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=tokenizer().vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    theirs = transformers.BertForMaskedLM(config)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer().save(tmp_path / "theirs")
    made, _, facts = open_for(tmp_path / "theirs", [classify.Config(labels=NAMES)], seed=4)
    assert torch.equal(made.encoder.token_embeddings, theirs.bert.embeddings.word_embeddings.weight)
    assert facts.notes[0].startswith("newly initialised: the head classify, the pooler; unused weights")


def test_transformers_refuses_native_folders(tmp_path: Path) -> None:
    save_model(model(classify.Config(pooling="mean")), tokenizer(), tmp_path / "m")
    with pytest.raises(ValueError, match="bertsmith"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
