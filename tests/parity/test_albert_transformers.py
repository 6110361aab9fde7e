"""ALBERT equals transformers with large random weights, and folders load on both sides with equal results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from encoders.test_albert import config
from model_fixtures import randomize_weights, relative_difference
from model_io.folder_fixtures import same_weights
from parity.test_heads_transformers import unpadded

from bertsmith.data.collate import collate
from bertsmith.encoders import albert
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_for, open_model, save_model
from bertsmith.objectives import (
    causal_lm,
    choose,
    classify,
    masked_lm,
    next_sentence,
    regress,
    sentence_order,
    span,
    tag,
)
from bertsmith.tokenizers.unigram import SPECIALS, Unigram
from bertsmith.types import IGNORE_INDEX, Batch

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

PIECES = ["▁the", "▁cat", "s", "▁sat", "▁on", "▁a", "▁mat", ".", ",", "▁", "▁서울", "은", "▁한국", "의", "a", "t", "c"]
TEXTS = ["The cats sat on a mat.", "서울은 한국의 a cat, the mat", "the mats sat"]
NAMES = ("O", "B", "I")
HEADS: dict[str, tuple[Any, ...]] = {
    "AlbertModel": (),
    "AlbertForPreTraining": (masked_lm.Config(), sentence_order.Config()),
    "AlbertForMaskedLM": (masked_lm.Config(),),
    "AlbertForSequenceClassification": (classify.Config(labels=NAMES, dropout=0.3),),
    "AlbertForTokenClassification": (tag.Config(labels=NAMES),),
    "AlbertForQuestionAnswering": (span.Config(),),
    "AlbertForMultipleChoice": (choose.Config(),),
}
WITHOUT_POOLER = ("AlbertForMaskedLM", "AlbertForTokenClassification", "AlbertForQuestionAnswering")
SHAPES = {
    "one block": {},
    "2 groups of 2 inner layers": {"groups": 2, "inner_layers": 2, "activation": "gelu", "layer_norm_eps": 1e-5},
    "wide tables": {"embedding_width": 32, "max_positions": 33, "segment_types": 3, "activation": "relu"},
    "nothing shared": {"sharing": "none", "layers": 3, "embedding_width": 40},
}
DEEP = "2 groups of 2 inner layers"  # compared for every class; the other shapes only for pre-training
CASES = [(name, shape) for shape in SHAPES for name in HEADS if shape == DEEP or name == "AlbertForPreTraining"]
LOGITS = {"masked_lm": ("prediction_logits", "logits"), "sentence_order": ("sop_logits",), "span": ("start_logits",)}


def tokenizer() -> Unigram:
    """Lower-cased, without decomposing Hangul."""
    scores = [(piece, -3.0 - number / 10) for number, piece in enumerate(PIECES)]
    return Unigram.build([*((token, 0.0) for token in SPECIALS.tokens()), *scores], strip_accents=False)


def model(heads: Sequence[Any], **changes: Any) -> Model:
    result = config(**{"vocab_size": tokenizer().vocab_size, **changes})
    return randomize_weights(Model.build(result, heads)).eval()


def labelled_batch() -> Batch:
    """Two pairs and a single text, padded, with labels for every head."""
    tokens = tokenizer()
    parts = [tokens.encode(text) for text in TEXTS]
    rows = [tokens.frame(parts[0], parts[1], max_length=32), tokens.frame(parts[2], max_length=32)]
    result = collate([*rows, tokens.frame(parts[1], parts[2], max_length=32)], length=32)
    labels = {
        "sentence_order": torch.tensor([1, 0, 1]),
        "classify": torch.tensor([2, 0, 1]),
        "regress": torch.tensor([0.5, -2.0, 3.0]),
        "tag": torch.tensor([1, 0, 2, 0, 2, 1]),
        "span": torch.tensor([[2, 4], [0, 0], [1, 1]]),
        "choose": torch.tensor(choose.choice_labels(1, 3)),
        "masked_lm": torch.tensor([5, 7, 9, 6, 11, 8]),
    }
    positions = torch.stack((result.cls_positions + 1, result.cls_positions + 2), 1).flatten()
    return result.replace(labels=labels, indices={"tag": positions, "masked_lm": positions})


def inputs(batch: Batch) -> dict[str, torch.Tensor]:
    """A batch for transformers."""
    return {
        "input_ids": batch.input_ids,
        "attention_mask": (batch.document_ids != 0).long(),
        "token_type_ids": batch.segment_ids,
    }


def labels_for(batch: Batch, heads: Sequence[str]) -> dict[str, torch.Tensor]:
    """The labels in the format of transformers' classes."""
    result: dict[str, torch.Tensor] = {}
    for head in heads:
        labels = batch.labels[head]
        if head in ("tag", "masked_lm"):
            everywhere = torch.full((batch.input_ids.numel(),), IGNORE_INDEX).scatter(0, batch.indices[head], labels)
            result["labels"] = everywhere.view_as(batch.input_ids)
        elif head == "span":
            result |= {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
        else:
            result["sentence_order_label" if head == "sentence_order" else "labels"] = labels
    return result


def reference_outputs(reference: Any, batch: Batch, heads: Sequence[str]) -> Any:
    """transformers' hidden states, attention probabilities, logits and loss."""
    inputs_, labels = inputs(batch), labels_for(batch, heads)
    if heads == ["choose"]:
        inputs_ = {name: value[None] for name, value in inputs_.items()}
        labels = {"labels": (batch.labels["choose"] == 0).nonzero()[0]}
    with torch.no_grad():
        return reference.eval()(**inputs_, **labels, output_hidden_states=True, output_attentions=True)


def compare(bertsmith_model: Model, reference: Any, batch: Batch) -> None:
    """Hidden states and probabilities of every layer, pooled vectors, logits of every head, and the loss."""
    real, heads = (batch.document_ids != 0).flatten(), list(bertsmith_model.objectives)
    outputs = reference_outputs(reference, batch, heads)
    with torch.no_grad():
        encoding = bertsmith_model.encoder(batch, return_layers=True, return_attentions=True)
        for actual, expected in zip(encoding.layers, outputs.hidden_states, strict=True):
            assert relative_difference(actual[real], expected.flatten(0, 1)[real]) < 1e-5
        for actual, expected in zip(encoding.attentions, outputs.attentions, strict=True):
            assert (
                relative_difference(
                    actual.transpose(1, 2)[batch.document_ids != 0], expected.transpose(1, 2)[batch.document_ids != 0]
                )
                < 1e-5
            )
        if getattr(outputs, "pooler_output", None) is not None:
            assert relative_difference(encoding.pooled, outputs.pooler_output) < 1e-5
        for head in heads:
            expected = next(outputs[key] for key in (*LOGITS.get(head, ()), "logits") if key in outputs)
            actual = bertsmith_model.predict(batch.replace(indices={}), head)
            if head in ("tag", "masked_lm"):
                actual, expected = actual[real], expected.flatten(0, 1)[real]
            elif head == "span":
                actual = actual.flatten(0, 1)[real]
                expected = torch.stack((outputs.start_logits, outputs.end_logits), -1).flatten(0, 1)[real]
            assert relative_difference(actual, expected.T if head == "choose" else expected) < 1e-5, head
        if heads:
            loss = float(outputs.loss)
            if heads == ["span"]:  # transformers' softmax includes padding: compare with its losses of unpadded texts
                loss = (
                    sum(float(reference_outputs(reference, unpadded(batch, text), heads).loss) for text in range(3)) / 3
                )
            assert bertsmith_model(batch).mean().item() == pytest.approx(loss, rel=1e-5)


def reference_folder(architecture: str, path: Path, **changes: Any) -> Any:
    """A folder of transformers' model with large random weights."""
    settings = {
        "vocab_size": tokenizer().vocab_size,
        "embedding_size": 24,
        "hidden_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 80,
        "max_position_embeddings": 50,
        "attn_implementation": "eager",
    }
    reference = getattr(transformers, architecture)(transformers.AlbertConfig(**{**settings, **changes}))
    for number, parameter in enumerate(reference.parameters()):
        drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        parameter.data.copy_(drawn * 0.3)
    reference.save_pretrained(path)
    tokenizer().save(path)
    return reference


@pytest.mark.parametrize(("architecture", "shape"), CASES)
def test_bertsmith_folders_load_in_transformers(architecture: str, shape: str, tmp_path: Path) -> None:
    bertsmith_model = model(HEADS[architecture], pooler=architecture not in WITHOUT_POOLER, **SHAPES[shape])
    save_model(bertsmith_model, tokenizer(), tmp_path / "bertsmith")
    config_json = json.loads((tmp_path / "bertsmith" / "config.json").read_text())
    assert (config_json["architectures"], config_json["model_type"]) == ([architecture], "albert")
    reference, loading = getattr(transformers, architecture).from_pretrained(
        tmp_path / "bertsmith", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    compare(bertsmith_model, reference, labelled_batch())
    reference.save_pretrained(
        tmp_path / "transformers"
    )  # round trip: the folder written by transformers holds the same model
    tokenizer().save(tmp_path / "transformers")
    for folder in ("bertsmith", "transformers"):
        reloaded, _, facts = open_model(tmp_path / folder)
        same_weights(bertsmith_model, reloaded)
        assert facts.notes == ()
        assert [getattr(head, "config", None) for head in reloaded.objectives.values()] == [
            getattr(head, "config", None) for head in bertsmith_model.objectives.values()
        ]


@pytest.mark.parametrize("architecture", HEADS)
def test_transformers_folders_load_here(architecture: str, tmp_path: Path) -> None:
    deep = {"num_hidden_groups": 2, "inner_group_num": 2} if architecture == "AlbertForPreTraining" else {}
    labels = {} if architecture == "AlbertForPreTraining" else {"num_labels": 3}
    labels = {"num_labels": 2} if architecture == "AlbertForQuestionAnswering" else labels
    reference = reference_folder(architecture, tmp_path / "transformers", **deep, **labels)
    bertsmith_model, _, facts = open_model(tmp_path / "transformers")
    assert facts.parameters == sum(parameter.numel() for parameter in reference.parameters())
    assert facts.notes == ()
    compare(bertsmith_model, reference, labelled_batch())


def test_regression_heads_equal_transformers(tmp_path: Path) -> None:
    reference = reference_folder("AlbertForSequenceClassification", tmp_path / "transformers", num_labels=1)
    bertsmith_model, _, _ = open_model(tmp_path / "transformers")
    assert list(bertsmith_model.objectives) == ["regress"]
    compare(bertsmith_model, reference, labelled_batch())
    save_model(model([regress.Config(dropout=0.0)]), tokenizer(), tmp_path / "bertsmith")
    settings = transformers.AutoConfig.from_pretrained(tmp_path / "bertsmith")
    assert (settings.num_labels, settings.problem_type, settings.classifier_dropout_prob) == (1, "regression", 0.0)


def test_an_old_folder_with_tied_copies_and_buffers_loads(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    reference = reference_folder("AlbertForPreTraining", tmp_path / "transformers")
    tensors = load_file(tmp_path / "transformers" / "model.safetensors")
    table, bias = (tensors[name] for name in ("albert.embeddings.word_embeddings.weight", "predictions.bias"))
    tensors |= {"predictions.decoder.weight": table.clone(), "predictions.decoder.bias": bias.clone()}
    tensors["albert.embeddings.position_ids"] = torch.arange(50)[None]
    save_file(tensors, tmp_path / "transformers" / "model.safetensors", metadata={"format": "pt"})
    bertsmith_model, _, _ = open_model(tmp_path / "transformers")
    compare(bertsmith_model, reference, labelled_batch())


def test_a_new_head_on_a_pretrained_transformers_folder(tmp_path: Path) -> None:
    reference = reference_folder("AlbertForMaskedLM", tmp_path / "transformers")
    result, _, facts = open_for(tmp_path / "transformers", [classify.Config(labels=NAMES)], seed=4)
    assert torch.equal(result.encoder.token_embeddings, reference.albert.embeddings.word_embeddings.weight)
    assert facts.notes[0].startswith("newly initialised: the head classify, the pooler; unused weights")


@pytest.mark.parametrize(
    ("heads", "changes"),
    [
        ((masked_lm.Config(), sentence_order.Config()), {"sharing": "attention"}),
        ((masked_lm.Config(),), {"sharing": "feed_forward", "groups": 2, "inner_layers": 2, "pooler": False}),
        ((classify.Config(labels=NAMES),), {"sharing": "feed_forward"}),
        ((), {"sharing": "attention", "groups": 2}),
        ((masked_lm.Config(), next_sentence.Config()), {}),
        ((causal_lm.Config(),), {"causal": True, "sharing": "none", "pooler": False}),
        ((classify.Config(labels=NAMES, pooling="mean"),), {"groups": 2}),
    ],
    ids=str,
)
def test_models_without_a_transformers_class_have_the_bertsmith_type(
    heads: tuple[Any, ...], changes: dict[str, Any], tmp_path: Path
) -> None:
    bertsmith_model = model(heads, **changes)
    save_model(bertsmith_model, tokenizer(), tmp_path / "bertsmith")
    with pytest.raises(ValueError, match="bertsmith"):
        transformers.AutoModel.from_pretrained(tmp_path / "bertsmith")
    reloaded, _, _ = open_model(tmp_path / "bertsmith")
    same_weights(bertsmith_model, reloaded)
    batch = labelled_batch()
    assert torch.equal(reloaded.encoder(batch).last_hidden, bertsmith_model.encoder(batch).last_hidden)
    assert list(reloaded.objectives) == list(bertsmith_model.objectives)


def test_the_tokenizer_of_a_folder_gives_transformers_ids(tmp_path: Path) -> None:
    save_model(model(HEADS["AlbertForPreTraining"]), tokenizer(), tmp_path / "bertsmith")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "bertsmith")
    _, bertsmith_model, _ = open_model(tmp_path / "bertsmith")
    assert type(reference).__name__.startswith("Albert")
    assert reference.model_max_length == bertsmith_model.max_length == 40
    for first in TEXTS:
        for second in TEXTS:
            row, result = (
                bertsmith_model.frame(bertsmith_model.encode(first), bertsmith_model.encode(second), max_length=40),
                reference(first, second),
            )
            assert list(result["input_ids"]) == row.ids.tolist()
            assert list(result["token_type_ids"]) == row.segment_ids.tolist()
    assert "▁서울" in reference.tokenize("서울은")


@pytest.mark.parametrize(
    ("size", "heads", "layers", "width", "count"),
    [
        ("base", 12, 12, 768, 11_683_584),
        ("large", 16, 24, 1024, 17_683_968),
        ("xlarge", 16, 24, 2048, 58_724_864),
        ("xxlarge", 64, 12, 4096, 222_595_584),
    ],
)
def test_parameter_counts(size: str, heads: int, layers: int, width: int, count: int) -> None:
    settings = transformers.AlbertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width
    )
    with torch.device("meta"):
        bertsmith_model = albert.Config.size(size, vocab_size=30_000)
        pretraining = Model.build(bertsmith_model, HEADS["AlbertForPreTraining"])
        reference, with_heads = transformers.AlbertModel(settings), transformers.AlbertForPreTraining(settings)
    assert bertsmith_model.heads == heads
    assert parameter_count(pretraining.encoder) == parameter_count(reference) == count
    assert parameter_count(pretraining) == parameter_count(with_heads)
