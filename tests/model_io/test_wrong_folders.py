"""Folders that cannot be opened: each error is one line with the path, what was found and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_io.folder_fixtures import TABLE, Tensors, change_config, change_weights, folder, foreign, one_line

from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.model_io.model_folder import open_model


def untied(tensors: Tensors) -> None:
    tensors["cls.predictions.decoder.weight"] = tensors[TABLE] + 1


WEIGHTS: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "of the encoder": (lambda tensors: tensors.update({"bert.odd": torch.ones(1)}), "unexpected weights: bert.odd"),
    "missing": (
        lambda tensors: tensors.pop("bert.encoder.layer.1.output.dense.bias"),
        "bert.encoder.layer.1.output.dense.bias",
    ),
    "missing table": (lambda tensors: tensors.pop(TABLE), f"the weights lack {TABLE}"),
    "missing head": (lambda tensors: tensors.pop("cls.seq_relationship.bias"), "missing: cls.seq_relationship.bias"),
    "untied": (untied, "decoder.weight and bert.embeddings.word_embeddings.weight differ"),
    "two names": (lambda tensors: tensors.update({"pooler.dense.bias": torch.ones(32)}), "two names of one weight"),
    "shape": (
        lambda tensors: tensors.update({"bert.pooler.dense.bias": torch.ones(31)}),
        "has the shape [31], the config requires [32]",
    ),
    "whole numbers": (
        lambda tensors: tensors.update({"bert.pooler.dense.bias": torch.ones(32).int()}),
        "is of type I32",
    ),
    "table of three dimensions": (lambda tensors: tensors.update({TABLE: tensors[TABLE][None]}), "is not a table"),
    "control characters": (
        lambda tensors: tensors.update({"bert.a\n\x1b[31mb": torch.ones(1)}),
        "'bert.a\\n\\x1b[31mb'",
    ),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_wrong_weights(case: str, tmp_path: Path) -> None:
    path = foreign(tmp_path / "m")
    change_weights(path, WEIGHTS[case][0])
    with pytest.raises(DataError) as found:
        open_model(path)
    one_line(found, str(path), WEIGHTS[case][1])


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "another family": (
        {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"]},
        "'xlm-roberta' model ('XLMRobertaForMaskedLM')",
    ),
    "gpt2": ({"model_type": "gpt2"}, "bertsmith reads "),
    "architecture of others": (
        {"architectures": ["RobertaModel"]},
        "('RobertaModel'); bertsmith reads BertModel, BertForPreTraining",
    ),
    "native without an encoder": ({"model_type": "bertsmith"}, "needs a table 'encoder', not null"),
    "width": ({"hidden_size": 10**9}, "hidden_size=1000000000, but the weights have 32"),
    "layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000, but the weights have 2 layers"),
    "too few layers": ({"num_hidden_layers": 1}, "num_hidden_layers=1, but the weights have 2"),
    "vocabulary": ({"vocab_size": 2**40}, "vocab_size=1099511627776 must be an integer"),
    "heads": ({"num_attention_heads": 5}, "hidden_size=32 must be a multiple of num_attention_heads=5"),
    "no heads": ({"num_attention_heads": ...}, "has no num_attention_heads"),
    "zero heads": ({"num_attention_heads": 0}, "num_attention_heads=0 must be"),
    "text as a size": ({"hidden_size": "32"}, "hidden_size='32' must be an integer"),
    "true as a size": ({"type_vocab_size": True}, "type_vocab_size=true must be"),
    "dropout": ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob=1.5"),
    "epsilon": ({"layer_norm_eps": 0}, "layer_norm_eps=0.0"),
    "activation": ({"hidden_act": "gelo"}, "hidden_act='gelo' is not supported"),
    "activation that is none": ({"hidden_act": {"a": 1}}, "must be a string"),
    "relative positions": ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    "cross attention": ({"add_cross_attention": True}, "add_cross_attention=true"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantised"),
    "padding": ({"pad_token_id": 10**6}, "pad_token_id=1000000 is outside"),
    "decoder": ({"is_decoder": "yes"}, "is_decoder='yes' must be true or false"),
    "architectures": ({"architectures": "BertModel"}, "must be a list of names"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_wrong_settings(case: str, tmp_path: Path) -> None:
    path = foreign(tmp_path / "m")
    change_config(path, **SETTINGS[case][0])
    with pytest.raises((DataError, ConfigError)) as found:
        open_model(path)
    one_line(found, str(path / "config.json"), SETTINGS[case][1])


def test_tokenizer_and_table_of_different_size(tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="23 tokens, the model's token table only 22 rows"):
        folder(tmp_path / "m", vocab_size=22)
    path = foreign(tmp_path / "m", vocab_size=32)
    assert open_model(path)[2].notes == ("the token table has 9 rows more than the tokenizer has tokens",)
    change_config(path, vocab_size=22)
    change_weights(path, lambda tensors: tensors.update({TABLE: tensors[TABLE][:22].clone()}))
    with pytest.raises(DataError) as found:
        open_model(path)
    one_line(found, str(path), "the tokenizer has 23 tokens, the model's token table only 22 rows")


def test_a_run_without_that_model_names_the_one_it_has(tmp_path: Path) -> None:
    (tmp_path / "run" / "last").mkdir(parents=True)
    with pytest.raises(DataError) as found:
        open_model(tmp_path / "run" / "best")
    one_line(found, f"the model of this run is {tmp_path / 'run' / 'last'}; pass {tmp_path / 'run'}")


def test_not_a_model_folder(tmp_path: Path) -> None:
    cases = {"nowhere": "does not exist", "file": "is not a folder", "empty": "has no config.json"}
    cases |= {"config only": "has no model.safetensors", "pickled": "bertsmith import", "google": "bertsmith import"}
    for name in ("empty", "config only", "pickled", "google"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("a")
    for name in ("config only", "pickled"):
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "pickled" / "pytorch_model.bin").write_text("x")
    (tmp_path / "google" / "bert_model.ckpt.index").write_text("x")
    for name, words in cases.items():
        with pytest.raises(DataError) as found:
            open_model(tmp_path / name)
        one_line(found, str(tmp_path / name), words)


def test_no_tokenizer(tmp_path: Path) -> None:
    path = foreign(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        (path / name).unlink()
    with pytest.raises(DataError, match="has no tokenizer: expected"):
        open_model(path)
