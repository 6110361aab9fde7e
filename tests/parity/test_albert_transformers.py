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
DEEP = "2 groups of 2 inner layers"  # in which every class is compared; in the others that of pre-training
CASES = [(name, shape) for shape in SHAPES for name in HEADS if shape == DEEP or name == "AlbertForPreTraining"]
LOGITS = {"masked_lm": ("prediction_logits", "logits"), "sentence_order": ("sop_logits",), "span": ("start_logits",)}


def tokenizer() -> Unigram:
    """Lower-cased, without decomposing Hangul."""
    scores = [(piece, -3.0 - number / 10) for number, piece in enumerate(PIECES)]
    return Unigram.build([*((token, 0.0) for token in SPECIALS.tokens()), *scores], strip_accents=False)


def model(heads: Sequence[Any], **changes: Any) -> Model:
    made = config(**{"vocab_size": tokenizer().vocab_size, **changes})
    return randomize_weights(Model.build(made, heads)).eval()


def asked() -> Batch:
    """Two pairs and a single text, padded, with labels for every head."""
    words = tokenizer()
    parts = [words.encode(text) for text in TEXTS]
    rows = [words.frame(parts[0], parts[1], max_length=32), words.frame(parts[2], max_length=32)]
    found = collate([*rows, words.frame(parts[1], parts[2], max_length=32)], length=32)
    labels = {
        "sentence_order": torch.tensor([1, 0, 1]),
        "classify": torch.tensor([2, 0, 1]),
        "regress": torch.tensor([0.5, -2.0, 3.0]),
        "tag": torch.tensor([1, 0, 2, 0, 2, 1]),
        "span": torch.tensor([[2, 4], [0, 0], [1, 1]]),
        "choose": torch.tensor(choose.choice_labels(1, 3)),
        "masked_lm": torch.tensor([5, 7, 9, 6, 11, 8]),
    }
    places = torch.stack((found.cls_positions + 1, found.cls_positions + 2), 1).flatten()
    return found.replace(labels=labels, indices={"tag": places, "masked_lm": places})


def inputs(batch: Batch) -> dict[str, torch.Tensor]:
    """A batch for transformers."""
    return {
        "input_ids": batch.input_ids,
        "attention_mask": (batch.document_ids != 0).long(),
        "token_type_ids": batch.segment_ids,
    }


def labels_for(batch: Batch, heads: Sequence[str]) -> dict[str, torch.Tensor]:
    """The labels in the format of transformers' classes."""
    found: dict[str, torch.Tensor] = {}
    for head in heads:
        labels = batch.labels[head]
        if head in ("tag", "masked_lm"):
            everywhere = torch.full((batch.input_ids.numel(),), IGNORE_INDEX).scatter(0, batch.indices[head], labels)
            found["labels"] = everywhere.view_as(batch.input_ids)
        elif head == "span":
            found |= {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
        else:
            found["sentence_order_label" if head == "sentence_order" else "labels"] = labels
    return found


def say(theirs: Any, batch: Batch, heads: Sequence[str]) -> Any:
    """transformers' hidden states, attention probabilities, logits and loss."""
    given, labels = inputs(batch), labels_for(batch, heads)
    if heads == ["choose"]:
        given = {name: value[None] for name, value in given.items()}
        labels = {"labels": (batch.labels["choose"] == 0).nonzero()[0]}
    with torch.no_grad():
        return theirs.eval()(**given, **labels, output_hidden_states=True, output_attentions=True)


def compare(ours: Model, theirs: Any, batch: Batch) -> None:
    """Hidden states and probabilities of every layer, pooled vectors, logits of every head, and the loss."""
    real, heads = (batch.document_ids != 0).flatten(), list(ours.objectives)
    said = say(theirs, batch, heads)
    with torch.no_grad():
        encoding = ours.encoder(batch, return_layers=True, return_attentions=True)
        for mine, other in zip(encoding.layers, said.hidden_states, strict=True):
            assert relative_difference(mine[real], other.flatten(0, 1)[real]) < 1e-5
        for mine, other in zip(encoding.attentions, said.attentions, strict=True):
            assert (
                relative_difference(
                    mine.transpose(1, 2)[batch.document_ids != 0], other.transpose(1, 2)[batch.document_ids != 0]
                )
                < 1e-5
            )
        if getattr(said, "pooler_output", None) is not None:
            assert relative_difference(encoding.pooled, said.pooler_output) < 1e-5
        for head in heads:
            other = next(said[key] for key in (*LOGITS.get(head, ()), "logits") if key in said)
            mine = ours.predict(batch.replace(indices={}), head)
            if head in ("tag", "masked_lm"):
                mine, other = mine[real], other.flatten(0, 1)[real]
            elif head == "span":
                mine = mine.flatten(0, 1)[real]
                other = torch.stack((said.start_logits, said.end_logits), -1).flatten(0, 1)[real]
            assert relative_difference(mine, other.T if head == "choose" else other) < 1e-5, head
        if heads:
            loss = float(said.loss)
            if heads == ["span"]:  # theirs lets padding compete: its losses are of texts without any
                loss = sum(float(say(theirs, unpadded(batch, text), heads).loss) for text in range(3)) / 3
            assert ours(batch).mean().item() == pytest.approx(loss, rel=1e-5)


def written_by_transformers(architecture: str, path: Path, **changes: Any) -> Any:
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
    theirs = getattr(transformers, architecture)(transformers.AlbertConfig(**{**settings, **changes}))
    for number, parameter in enumerate(theirs.parameters()):
        drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        parameter.data.copy_(drawn * 0.3)
    theirs.save_pretrained(path)
    tokenizer().save(path)
    return theirs


@pytest.mark.parametrize(("architecture", "shape"), CASES)
def test_our_folders_load_in_transformers(architecture: str, shape: str, tmp_path: Path) -> None:
    ours = model(HEADS[architecture], pooler=architecture not in WITHOUT_POOLER, **SHAPES[shape])
    save_model(ours, tokenizer(), tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (written["architectures"], written["model_type"]) == ([architecture], "albert")
    theirs, loading = getattr(transformers, architecture).from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    compare(ours, theirs, asked())
    theirs.save_pretrained(tmp_path / "theirs")  # and back: what transformers writes of it is the same model
    tokenizer().save(tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        again, _, facts = open_model(tmp_path / folder)
        same_weights(ours, again)
        assert facts.notes == ()
        assert [getattr(head, "config", None) for head in again.objectives.values()] == [
            getattr(head, "config", None) for head in ours.objectives.values()
        ]


@pytest.mark.parametrize("architecture", HEADS)
def test_transformers_folders_load_here(architecture: str, tmp_path: Path) -> None:
    deep = {"num_hidden_groups": 2, "inner_group_num": 2} if architecture == "AlbertForPreTraining" else {}
    labels = {} if architecture == "AlbertForPreTraining" else {"num_labels": 3}
    labels = {"num_labels": 2} if architecture == "AlbertForQuestionAnswering" else labels
    theirs = written_by_transformers(architecture, tmp_path / "theirs", **deep, **labels)
    ours, _, facts = open_model(tmp_path / "theirs")
    assert facts.parameters == sum(parameter.numel() for parameter in theirs.parameters())
    assert facts.notes == ()
    compare(ours, theirs, asked())


def test_regression(tmp_path: Path) -> None:
    theirs = written_by_transformers("AlbertForSequenceClassification", tmp_path / "theirs", num_labels=1)
    ours, _, _ = open_model(tmp_path / "theirs")
    assert list(ours.objectives) == ["regress"]
    compare(ours, theirs, asked())
    save_model(model([regress.Config(dropout=0.0)]), tokenizer(), tmp_path / "ours")
    settings = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    assert (settings.num_labels, settings.problem_type, settings.classifier_dropout_prob) == (1, "regression", 0.0)


def test_an_old_folder_with_copies_and_buffers(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    theirs = written_by_transformers("AlbertForPreTraining", tmp_path / "theirs")
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    table, bias = (tensors[name] for name in ("albert.embeddings.word_embeddings.weight", "predictions.bias"))
    tensors |= {"predictions.decoder.weight": table.clone(), "predictions.decoder.bias": bias.clone()}
    tensors["albert.embeddings.position_ids"] = torch.arange(50)[None]
    save_file(tensors, tmp_path / "theirs" / "model.safetensors", metadata={"format": "pt"})
    ours, _, _ = open_model(tmp_path / "theirs")
    compare(ours, theirs, asked())


def test_a_pretrained_transformers_folder_under_a_new_head(tmp_path: Path) -> None:
    theirs = written_by_transformers("AlbertForMaskedLM", tmp_path / "theirs")
    made, _, facts = open_for(tmp_path / "theirs", [classify.Config(labels=NAMES)], seed=4)
    assert torch.equal(made.encoder.token_embeddings, theirs.albert.embeddings.word_embeddings.weight)
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
    ours = model(heads, **changes)
    save_model(ours, tokenizer(), tmp_path / "ours")
    with pytest.raises(ValueError, match="bertsmith"):
        transformers.AutoModel.from_pretrained(tmp_path / "ours")
    again, _, _ = open_model(tmp_path / "ours")
    same_weights(ours, again)
    batch = asked()
    assert torch.equal(again.encoder(batch).last_hidden, ours.encoder(batch).last_hidden)
    assert list(again.objectives) == list(ours.objectives)


def test_the_tokenizer_of_a_folder_gives_transformers_ids(tmp_path: Path) -> None:
    save_model(model(HEADS["AlbertForPreTraining"]), tokenizer(), tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    _, ours, _ = open_model(tmp_path / "ours")
    assert type(theirs).__name__.startswith("Albert")
    assert theirs.model_max_length == ours.max_length == 40
    for first in TEXTS:
        for second in TEXTS:
            row, found = ours.frame(ours.encode(first), ours.encode(second), max_length=40), theirs(first, second)
            assert list(found["input_ids"]) == row.ids.tolist()
            assert list(found["token_type_ids"]) == row.segment_ids.tolist()
    assert "▁서울" in theirs.tokenize("서울은")


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
        ours = albert.Config.size(size, vocab_size=30_000)
        pretraining = Model.build(ours, HEADS["AlbertForPreTraining"])
        theirs, with_heads = transformers.AlbertModel(settings), transformers.AlbertForPreTraining(settings)
    assert ours.heads == heads
    assert parameter_count(pretraining.encoder) == parameter_count(theirs) == count
    assert parameter_count(pretraining) == parameter_count(with_heads)
