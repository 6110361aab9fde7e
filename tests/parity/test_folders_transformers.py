"""Folders written by either side open in the other with the same numbers, and tokenizers give the same ids."""

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
    words = tokenizer()
    parts = [words.encode(text) for text in TEXTS]
    rows = [words.frame(parts[0], parts[1], max_length=32), words.frame(parts[2], max_length=32)]
    return collate([*rows, words.frame(parts[1], parts[2], max_length=32)], length=20)


def theirs_of(architecture: str, asked: Batch, path: Path | None = None, **settings: Any) -> tuple[Any, Any]:
    """transformers' model, from a folder or with large random weights, and what it says to a batch."""
    cls = getattr(transformers, architecture)
    if path is None:
        found = cls(transformers.BertConfig(**settings))
        for number, parameter in enumerate(found.parameters()):
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.data.copy_(drawn * 0.3)
    else:
        found, loading = cls.from_pretrained(path, output_loading_info=True, attn_implementation="eager")
        assert not loading["missing_keys"], loading
        assert not loading["mismatched_keys"], loading
        assert not [name for name in loading["unexpected_keys"] if "pooler" not in name], loading
    mask = (asked.document_ids != 0).long()
    inputs = {"input_ids": asked.input_ids, "attention_mask": mask, "token_type_ids": asked.segment_ids}
    return found, said_by(found, inputs)


def said_by(theirs: Any, inputs: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    """What transformers' model says in single and in double precision."""
    with torch.no_grad():
        single, double = theirs.eval(), deepcopy(theirs.eval()).double()
        return single(**inputs, output_hidden_states=True), double(**inputs, output_hidden_states=True)


def compare(ours: Model, said: tuple[Any, Any], asked: Batch) -> None:
    """Single precision to 1e-6, double precision to 1e-9.

    The two small logits of next sentence in single precision are compared with transformers' in double: on some
    processors both sides are 6e-7 from those, to either side.
    """
    single, double = said
    compare_states(ours, single, asked, 1e-6, names=[name for name in ours.objectives if name != "next_sentence"])
    compare_states(deepcopy(ours).double(), double, asked, 1e-9, names=list(ours.objectives))
    if "next_sentence" in ours.objectives:
        with torch.no_grad():
            mine = ours.predict(asked, "next_sentence")
        assert mine.dtype == torch.float32
        assert relative_difference(mine, logits_of("next_sentence", double)) < 1e-6


def logits_of(name: str, said: Any) -> torch.Tensor:
    return next(said[key] for key in LOGITS[name] if key in said)


def compare_states(ours: Model, said: Any, asked: Batch, limit: float, *, names: list[str]) -> None:
    """Hidden states of every layer at real places, pooled vectors, logits of heads, relative to the largest."""
    real = (asked.document_ids != 0).flatten()
    with torch.no_grad():
        encoding = ours.encoder(asked, return_layers=True)
        assert len(encoding.layers) == len(said.hidden_states)
        for mine, other in zip(encoding.layers, said.hidden_states, strict=True):
            assert relative_difference(mine[real], other.flatten(0, 1)[real]) < limit
        if getattr(said, "pooler_output", None) is not None:
            assert relative_difference(encoding.pooled, said.pooler_output) < limit
        for name in names:
            mine, other = ours.predict(asked, name), logits_of(name, said)
            if name != "next_sentence":
                mine, other = mine[real], other.flatten(0, 1)[real]
            assert relative_difference(mine, other) < limit, name


@pytest.mark.parametrize("architecture", HEADS)
@pytest.mark.parametrize(
    "changes", [{}, {"activation": "gelu_new", "layer_norm_eps": 1e-5, "max_positions": 33}], ids=["usual", "other"]
)
def test_transformers_opens_our_folder(architecture: str, changes: dict[str, Any], tmp_path: Path) -> None:
    ours = model(*HEADS[architecture], causal=architecture == "BertLMHeadModel", **changes)
    save_model(ours, tokenizer(), tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert written["architectures"] == [architecture]
    assert transformers.AutoConfig.from_pretrained(tmp_path / "ours").dtype == torch.float32
    asked = batch()
    theirs, said = theirs_of(architecture, asked, tmp_path / "ours")
    compare(ours, said, asked)
    theirs.save_pretrained(tmp_path / "theirs")  # and back: what transformers writes of it is the same model
    tokenizer().save(tmp_path / "theirs")
    again, _, _ = open_model(tmp_path / "theirs")
    if architecture not in ("BertForMaskedLM", "BertLMHeadModel"):  # these have no pooler in transformers
        same_weights(ours, again)
    compare(again, said, asked)


@pytest.mark.parametrize("architecture", HEADS)
def test_we_open_the_folder_of_transformers(architecture: str, tmp_path: Path) -> None:
    asked = batch()
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
    theirs, said = theirs_of(architecture, asked, **settings)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    (tmp_path / "vocab.txt").write_bytes(tokenizer().vocabulary_files()["vocab.txt"])
    transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "theirs")
    ours, _, facts = open_model(tmp_path / "theirs")
    assert tuple(ours.objectives) == HEADS[architecture]
    assert facts.notes == ("the token table has 3 rows more than the tokenizer has tokens",)
    assert facts.parameters == sum(parameter.numel() for parameter in theirs.parameters())
    compare(ours, said, asked)


def test_the_tokenizer_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", max_positions=24)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    _, ours, _ = open_model(path)
    assert theirs.model_max_length == ours.max_length == 24
    for first in TEXTS:
        row = ours.frame(ours.encode(first), max_length=24)
        found = theirs(first)
        assert found["input_ids"] == row.ids.tolist()
        for second in filter(None, TEXTS):  # transformers takes an empty second text for none
            row = ours.frame(ours.encode(first), ours.encode(second), max_length=24)
            found = theirs(first, second)
            assert found["input_ids"] == row.ids.tolist()
            assert found["token_type_ids"] == row.segment_ids.tolist()
            assert found["attention_mask"] == [1] * len(row)
    assert "서울" in theirs.tokenize("서울은")


@pytest.mark.parametrize(
    ("size", "heads", "expected"),
    [("base", (), 109_482_240), ("base", HEADS["BertForPreTraining"], 110_106_428), ("large", (), 335_141_888)],
)
def test_parameter_counts(size: str, heads: tuple[str, ...], expected: int) -> None:
    with torch.device("meta"):
        built = Model.build(bert.Config.size(size, vocab_size=30_522), [OBJECTIVES[name]() for name in heads])
    assert parameter_count(built) == expected
