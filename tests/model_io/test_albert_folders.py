"""ALBERT folders with false settings: groups, layers and sizes are compared with the weights before building."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_io.folder_fixtures import change_config, change_weights, one_line
from parity.test_albert_transformers import model, tokenizer

from bertsmith.errors import BertsmithError
from bertsmith.model_io.model_folder import open_model, save_model
from bertsmith.objectives import masked_lm, sentence_order


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder without checksums."""
    made = model([masked_lm.Config(), sentence_order.Config()], groups=2, inner_layers=2)
    save_model(made, tokenizer(), tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"num_hidden_groups": 1}, "num_hidden_groups=1 and inner_group_num=2, but the weights have 4 blocks"),
        ({"num_hidden_groups": ...}, "num_hidden_groups=1 and inner_group_num=2, but the weights have 4 blocks"),
        ({"inner_group_num": 10**6}, "instead of 2000000"),
        (
            {"num_hidden_groups": 4, "inner_group_num": 1, "num_hidden_layers": 3},
            "num_hidden_groups=4 must be from 1 to num_hidden_layers=3",
        ),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 is more than 1,024"),
        ({"num_hidden_layers": ...}, "has no num_hidden_layers"),
        ({"num_hidden_layers": "12"}, "num_hidden_layers='12' must be an integer"),
        ({"embedding_size": 32}, "embedding_size=32, but the weights have 24"),
        ({"hidden_size": 64}, "hidden_size=64, but the weights have 32"),
        ({"intermediate_size": 10**9}, "intermediate_size=1000000000, but the weights have 48"),
        ({"num_attention_heads": 5}, "hidden_size=32 must be a multiple of num_attention_heads=5"),
        ({"hidden_act": "swiglu"}, "hidden_act='swiglu' is not supported"),
    ],
    ids=str,
)
def test_configs_that_do_not_match_the_weights(folder: Path, claim: dict[str, Any], words: str) -> None:
    change_config(folder, **claim)
    with pytest.raises(BertsmithError) as caught:
        open_model(folder)
    one_line(caught, words, "config.json")


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("albert.encoder.embedding_hidden_mapping_in.weight", "lack albert.encoder.embedding_hidden_mapping_in.weight"),
        ("albert.encoder.albert_layer_groups.1.albert_layers.1.ffn.bias", "weights are missing: albert.encoder"),
        ("sop_classifier.classifier.bias", "weights are missing: sop_classifier"),
    ],
)
def test_weights_that_are_missing(folder: Path, gone: str, words: str) -> None:
    change_weights(folder, lambda tensors: tensors.pop(gone))
    with pytest.raises(BertsmithError) as caught:
        open_model(folder)
    one_line(caught, words)


def test_settings_that_transformers_ignores(folder: Path) -> None:
    change_config(folder, is_decoder=True, hidden_dropout_prob=..., attention_probs_dropout_prob=..., hidden_act=...)
    opened, _, _ = open_model(folder)
    settings = opened.encoder.config
    assert not settings.causal, "AlbertModel reads both ways whatever is_decoder says"
    assert (settings.dropout, settings.attention_dropout, settings.activation) == (0.0, 0.0, "gelu_new")
    assert json.loads((folder / "config.json").read_text())["classifier_dropout_prob"] == 0.1
