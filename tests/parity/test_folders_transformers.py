"""Folders written by bertsmith or transformers load in the other with equal outputs and token ids."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import relative_difference
from model_io.folder_fixtures import OBJECTIVES, TEXTS, folder, model, same_weights, tokenizer

from bertsmith.data.collate import collate
from bertsmith.encoders import bert
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model, save_model
from bertsmith.types import Batch

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

HEADS = {
    "BertModel": (),
    "BertForPreTraining": ("masked_lm", "next_sentence"),
    "BertForMaskedLM": ("masked_lm",),
    "BertForNextSentencePrediction": ("next_sentence",),
    "BertLMHeadModel": ("causal_lm",),
}
LOGITS = {"masked_lm": ("logits", "prediction_logits"), "causal_lm": ("logits",)}
LOGITS["next_sentence"] = ("logits", "seq_relationship_logits")


def batch() -> Batch:
    """Two pairs and a single text, padded."""
    tokens = tokenizer()
    parts = [tokens.encode(text) for text in TEXTS]
    rows = [tokens.frame(parts[0], parts[1], max_length=32), tokens.frame(parts[2], max_length=32)]
    return collate([*rows, tokens.frame(parts[1], parts[2], max_length=32)], length=20)


def reference_outputs_of(
    architecture: str, inputs_batch: Batch, path: Path | None = None, **settings: Any
) -> tuple[Any, Any]:
    """transformers' model, from a folder or with large random weights, and its outputs for a batch."""
    cls = getattr(transformers, architecture)
    if path is None:
        result = cls(transformers.BertConfig(**settings))
        for number, parameter in enumerate(result.parameters()):
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.data.copy_(drawn * 0.3)
    else:
        result, loading = cls.from_pretrained(path, output_loading_info=True, attn_implementation="eager")
        assert not loading["missing_keys"], loading
        assert not loading["mismatched_keys"], loading
        assert not [name for name in loading["unexpected_keys"] if "pooler" not in name], loading
    mask = (inputs_batch.document_ids != 0).long()
    inputs = {"input_ids": inputs_batch.input_ids, "attention_mask": mask, "token_type_ids": inputs_batch.segment_ids}
    return result, outputs_in_both_precisions(result, inputs)


def outputs_in_both_precisions(reference: Any, inputs: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    """Outputs of transformers' model in single and in double precision."""
    with torch.no_grad():
        single, double = reference.eval(), deepcopy(reference.eval()).double()
        return single(**inputs, output_hidden_states=True), double(**inputs, output_hidden_states=True)


def compare(bertsmith_model: Model, outputs: tuple[Any, Any], inputs_batch: Batch) -> None:
    """Single precision to 1e-6, double precision to 1e-9.

    The two small logits of next sentence in single precision are compared with transformers' in double: on some
    processors both sides are 6e-7 from those, to either side.
    """
    single, double = outputs
    compare_states(
        bertsmith_model,
        single,
        inputs_batch,
        1e-6,
        names=[name for name in bertsmith_model.objectives if name != "next_sentence"],
    )
    compare_states(
        deepcopy(bertsmith_model).double(), double, inputs_batch, 1e-9, names=list(bertsmith_model.objectives)
    )
    if "next_sentence" in bertsmith_model.objectives:
        with torch.no_grad():
            actual = bertsmith_model.predict(inputs_batch, "next_sentence")
        assert actual.dtype == torch.float32
        assert relative_difference(actual, logits_of("next_sentence", double)) < 1e-6


def logits_of(name: str, outputs: Any) -> torch.Tensor:
    return next(outputs[key] for key in LOGITS[name] if key in outputs)


def compare_states(
    bertsmith_model: Model, outputs: Any, inputs_batch: Batch, limit: float, *, names: list[str]
) -> None:
    """Compares hidden states at non-padding tokens, pooled vectors and logits, relative to the maximum."""
    real = (inputs_batch.document_ids != 0).flatten()
    with torch.no_grad():
        encoding = bertsmith_model.encoder(inputs_batch, return_layers=True)
        assert len(encoding.layers) == len(outputs.hidden_states)
        for actual, expected in zip(encoding.layers, outputs.hidden_states, strict=True):
            assert relative_difference(actual[real], expected.flatten(0, 1)[real]) < limit
        if getattr(outputs, "pooler_output", None) is not None:
            assert relative_difference(encoding.pooled, outputs.pooler_output) < limit
        for name in names:
            actual, expected = bertsmith_model.predict(inputs_batch, name), logits_of(name, outputs)
            if name != "next_sentence":
                actual, expected = actual[real], expected.flatten(0, 1)[real]
            assert relative_difference(actual, expected) < limit, name


@pytest.mark.parametrize("architecture", HEADS)
@pytest.mark.parametrize(
    "changes", [{}, {"activation": "gelu_new", "layer_norm_eps": 1e-5, "max_positions": 33}], ids=["usual", "other"]
)
def test_bertsmith_folders_load_in_transformers(architecture: str, changes: dict[str, Any], tmp_path: Path) -> None:
    bertsmith_model = model(*HEADS[architecture], causal=architecture == "BertLMHeadModel", **changes)
    save_model(bertsmith_model, tokenizer(), tmp_path / "bertsmith")
    config_json = json.loads((tmp_path / "bertsmith" / "config.json").read_text())
    assert config_json["architectures"] == [architecture]
    assert transformers.AutoConfig.from_pretrained(tmp_path / "bertsmith").dtype == torch.float32
    inputs_batch = batch()
    reference, outputs = reference_outputs_of(architecture, inputs_batch, tmp_path / "bertsmith")
    compare(bertsmith_model, outputs, inputs_batch)
    reference.save_pretrained(
        tmp_path / "transformers"
    )  # round trip: the folder written by transformers holds the same model
    tokenizer().save(tmp_path / "transformers")
    reloaded, _, _ = open_model(tmp_path / "transformers")
    if architecture not in ("BertForMaskedLM", "BertLMHeadModel"):  # these have no pooler in transformers
        same_weights(bertsmith_model, reloaded)
    compare(reloaded, outputs, inputs_batch)


@pytest.mark.parametrize("architecture", HEADS)
def test_transformers_folders_load_here(architecture: str, tmp_path: Path) -> None:
    inputs_batch = batch()
    settings = {
        "vocab_size": tokenizer().vocab_size + 3,  # padded, as many are
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 80,
        "max_position_embeddings": 50,
        "type_vocab_size": 2,
        "attn_implementation": "eager",
        "is_decoder": architecture == "BertLMHeadModel",
    }
    reference, outputs = reference_outputs_of(architecture, inputs_batch, **settings)
    reference.save_pretrained(tmp_path / "transformers", max_shard_size="40KB")
    assert (tmp_path / "transformers" / "model.safetensors.index.json").exists()
    (tmp_path / "vocab.txt").write_bytes(tokenizer().vocabulary_files()["vocab.txt"])
    transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "transformers")
    bertsmith_model, _, facts = open_model(tmp_path / "transformers")
    assert tuple(bertsmith_model.objectives) == HEADS[architecture]
    padded, accents = facts.notes
    assert padded == "the token table has 3 rows more than the tokenizer has tokens"
    assert "composed Hangul syllables, which become unknown" in accents  # transformers' default strips accents
    assert facts.parameters == sum(parameter.numel() for parameter in reference.parameters())
    compare(bertsmith_model, outputs, inputs_batch)


def test_the_tokenizer_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", max_positions=24)
    reference = transformers.AutoTokenizer.from_pretrained(path)
    _, bertsmith_model, _ = open_model(path)
    assert reference.model_max_length == bertsmith_model.max_length == 24
    for first in TEXTS:
        row = bertsmith_model.frame(bertsmith_model.encode(first), max_length=24)
        result = reference(first)
        assert result["input_ids"] == row.ids.tolist()
        for second in filter(None, TEXTS):  # transformers treats an empty second text as absent
            row = bertsmith_model.frame(bertsmith_model.encode(first), bertsmith_model.encode(second), max_length=24)
            result = reference(first, second)
            assert result["input_ids"] == row.ids.tolist()
            assert result["token_type_ids"] == row.segment_ids.tolist()
            assert result["attention_mask"] == [1] * len(row)
    assert "서울" in reference.tokenize("서울은")


@pytest.mark.parametrize(
    ("size", "heads", "expected"),
    [("base", (), 109_482_240), ("base", HEADS["BertForPreTraining"], 110_106_428), ("large", (), 335_141_888)],
)
def test_parameter_counts(size: str, heads: tuple[str, ...], expected: int) -> None:
    with torch.device("meta"):
        built = Model.build(bert.Config.size(size, vocab_size=30_522), [OBJECTIVES[name]() for name in heads])
    assert parameter_count(built) == expected
