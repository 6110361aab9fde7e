"""Folders of `modern`: native where transformers has no class; settings of other folders are checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import randomize_weights, relative_difference
from model_io.folder_fixtures import change_config, change_weights, one_line, same_weights, tokenizer

from bertsmith.encoders import modern
from bertsmith.errors import BertsmithError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_for, open_model, save_model
from bertsmith.objectives import causal_lm, classify, masked_lm, next_sentence, span, tag

SMALL: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "feed_forward": 48, "max_positions": 24}
AS_BERT = {"norm": "after", "gated": False, "positions": "learned", "biases": True, "segment_types": 2, "pooler": True}
LABELS = ("a", "b", "c")
NATIVE: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "norm after": ({"norm": "after"}, [masked_lm.Config()]),
    "not gated": ({"gated": False}, [masked_lm.Config()]),
    "learned positions": ({"positions": "learned"}, [masked_lm.Config()]),
    "segments": ({"segment_types": 3}, [masked_lm.Config()]),
    "left to right": ({"causal": True, "depth_scaled": True}, [causal_lm.Config()]),
    "pooler alone": ({"pooler": True}, []),
    "all as BERT": (AS_BERT, [masked_lm.Config(), next_sentence.Config()]),
    "all as BERT, encoder": (AS_BERT, []),
    "classify": ({"pooler": True, "rotary_base": 77.0}, [classify.Config(labels=LABELS, dropout=0.2)]),
    "tag": ({"norm": "after", "dropout": 0.2, "attention_dropout": 0.3}, [tag.Config(labels=LABELS)]),
    "span": ({"gated": False, "positions": "learned"}, [span.Config()]),
}


def model(heads: list[Any], **changes: Any) -> Model:
    settings = modern.Config(**SMALL | {"vocab_size": tokenizer().vocab_size} | changes)
    return randomize_weights(Model.build(settings, heads)).eval()


@pytest.mark.parametrize("case", NATIVE)
def test_encoders_that_transformers_does_not_have_are_native(case: str, tmp_path: Path) -> None:
    changes, heads = NATIVE[case]
    made = model(heads, **changes)
    save_model(made, tokenizer(), tmp_path / "m")
    written = json.loads((tmp_path / "m" / "config.json").read_text())
    assert written["model_type"] == "bertsmith", "transformers refuses it instead of answering something else"
    assert written["encoder"]["kind"] == "modern"
    again, _, facts = open_model(tmp_path / "m")
    same_weights(made, again)
    assert again.encoder.config == made.encoder.config
    assert facts.notes == ()
    assert [head.config for head in again.objectives.values() if hasattr(head, "config")] == [
        head.config for head in made.objectives.values() if hasattr(head, "config")
    ]


def test_a_pretrained_folder_is_fine_tuned_and_saved(tmp_path: Path) -> None:
    made = model([masked_lm.Config()])
    save_model(made, tokenizer(), tmp_path / "m")
    tuned, words, facts = open_for(tmp_path / "m", [classify.Config(labels=LABELS)], seed=3)
    assert facts.notes[0].startswith("newly initialised: the head classify, the pooler; unused weights")
    assert torch.equal(tuned.encoder.token_embeddings, made.encoder.token_embeddings)
    save_model(tuned, words, tmp_path / "tuned")
    again, _, facts = open_model(tmp_path / "tuned")
    same_weights(tuned, again)
    assert facts.notes == ()


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder without checksums."""
    save_model(model([masked_lm.Config()]), tokenizer(), tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (
            {"global_attn_every_n_layers": 3, "local_attention": 16},
            "1 of 2 layers have local attention (local_attention=16)",
        ),
        ({"global_attn_every_n_layers": ..., "local_rope_theta": 99}, "1 of 2 layers have local attention"),
        ({"layer_types": ["full_attention"]}, "layer_types must be full_attention or sliding_attention for each of 2"),
        ({"layer_types": ["full_attention", ["x"]]}, "layer_types must be"),
        ({"global_rope_theta": "10000"}, "global_rope_theta='10000' must be a number above 1"),
        ({"global_rope_theta": 0.5}, "global_rope_theta=0.5 must be a number above 1"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "bertsmith reads default"),
        ({"rope_parameters": [1]}, "bertsmith reads default"),
        ({"rope_parameters": {"full_attention": 3}}, "bertsmith reads default"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling="),
        (
            {"mlp_bias": True},
            "mlp_bias=true, norm_bias=false; bertsmith reads models where all are equal",
        ),
        ({"classifier_bias": True}, "classifier_bias=true; bertsmith reads"),
        ({"classifier_activation": "silu"}, "classifier_activation='silu'; bertsmith reads 'gelu' only"),
        ({"decoder_bias": False}, "decoder_bias=false"),
        ({"norm_bias": 1}, "norm_bias=1 must be true or false"),
        ({"num_hidden_layers": 3}, "num_hidden_layers=3, but the weights have 2 layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000, but the weights have 2 layers"),
        ({"num_attention_heads": 5}, "hidden_size=32 must be a multiple of num_attention_heads=5"),
        ({"max_position_embeddings": 0}, "max_position_embeddings=0 must be an integer"),
        ({"hidden_activation": "swiglu"}, "hidden_activation='swiglu' is not supported"),
        ({"pad_token_id": ...}, "pad_token_id=50283 is outside a vocabulary"),
        ({"model_type": "modern"}, "is of a 'modern' model"),
    ],
    ids=str,
)
def test_configs_that_do_not_match_the_weights(theirs: Path, claim: dict[str, Any], words: str) -> None:
    change_config(theirs, **claim)
    with pytest.raises(BertsmithError) as caught:
        open_model(theirs)
    one_line(caught, words, "config.json")


def test_native_settings_are_ignored_in_a_transformers_folder(theirs: Path) -> None:
    before, _, _ = open_model(theirs)
    change_config(theirs, norm="after", gated=False, positions="learned", is_decoder=True, type_vocab_size=2)
    after, _, _ = open_model(theirs)
    assert after.encoder.config == before.encoder.config


def test_a_table_without_a_shape(theirs: Path) -> None:
    name = "model.embeddings.position_embeddings.weight"
    change_weights(theirs, lambda tensors: tensors | {name: torch.tensor(1.0)})
    with pytest.raises(BertsmithError) as caught:
        open_model(theirs)
    one_line(caught, "unexpected weights", name)


def test_an_untied_decoder_is_refused(theirs: Path) -> None:
    table = "model.embeddings.tok_embeddings.weight"
    change_weights(theirs, lambda tensors: tensors | {"decoder.weight": tensors[table].clone()})
    open_model(theirs)
    change_weights(theirs, lambda tensors: tensors | {"decoder.weight": tensors[table] + 1})
    with pytest.raises(BertsmithError, match=r"decoder\.weight and .* differ"):
        open_model(theirs)


def test_the_encoder_is_the_same_with_and_without_heads(theirs: Path) -> None:
    whole, _, _ = open_model(theirs)
    bare, _, _ = open_model(theirs, objectives=())
    assert relative_difference(whole.encoder.token_embeddings, bare.encoder.token_embeddings) == 0
    assert list(bare.objectives) == []
