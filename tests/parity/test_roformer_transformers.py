"""RoFormer equals transformers: hidden states, logits and losses of every class, folders in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import randomize_weights, relative_difference
from model_io.folder_fixtures import change_config, one_line, same_weights, tokenizer
from parity.test_electra_transformers import NAMES, compare
from parity.test_folders_transformers import batch
from safetensors.torch import load_file

from bertsmith.encoders import roformer
from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_for, open_model, save_model
from bertsmith.objectives import causal_lm, choose, classify, masked_lm, next_sentence, regress, span, tag

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CASES: dict[str, tuple[str, Any]] = {
    "alone": ("RoFormerModel", None),
    "masked_lm": ("RoFormerForMaskedLM", masked_lm.Config()),
    "causal_lm": ("RoFormerForCausalLM", causal_lm.Config()),
    "classify": ("RoFormerForSequenceClassification", classify.Config(labels=NAMES, dropout=0.3)),
    "regress": ("RoFormerForSequenceClassification", regress.Config(dropout=0.0)),
    "tag": ("RoFormerForTokenClassification", tag.Config(labels=NAMES)),
    "span": ("RoFormerForQuestionAnswering", span.Config()),
    "choose": ("RoFormerForMultipleChoice", choose.Config(dropout=0.2)),
}
DEVIATION = 0.25  # large enough for attention to be far from uniform
OTHER: dict[str, Any] = {
    "activation": "relu",
    "layer_norm_eps": 1e-5,
    "max_positions": 33,
    "feed_forward": 80,
    "heads": 2,
}
REFERENCE_CONFIG: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 33,
}


def random_model(kind: str, **changes: Any) -> Model:
    small: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "feed_forward": 64, "max_positions": 40}
    small["vocab_size"] = tokenizer().vocab_size
    pooler = kind in ("classify", "regress", "choose")
    settings = roformer.Config(**small | {"causal": kind == "causal_lm", "pooler": pooler} | changes)
    heads = [] if CASES[kind][1] is None else [CASES[kind][1]]
    return randomize_weights(Model.build(settings, heads), std=DEVIATION).eval()


@pytest.mark.parametrize("kind", CASES)
def test_bertsmith_folders_load_in_transformers(kind: str, tmp_path: Path) -> None:
    architecture, head = CASES[kind]
    bertsmith_model = random_model(kind, **(OTHER if kind in ("masked_lm", "classify", "choose") else {}))
    save_model(bertsmith_model, tokenizer(), tmp_path / "bertsmith")
    assert json.loads((tmp_path / "bertsmith" / "config.json").read_text())["architectures"] == [architecture]
    reference, loading = getattr(transformers, architecture).from_pretrained(
        tmp_path / "bertsmith", output_loading_info=True
    )
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    compare(bertsmith_model, reference, kind)
    if kind == "choose":
        assert reference.sequence_summary.last_dropout.p == head.dropout
    reference.save_pretrained(
        tmp_path / "transformers"
    )  # round trip: the folder written by transformers holds the same model
    tokenizer().save(tmp_path / "transformers")
    reloaded, _, _ = open_model(tmp_path / "transformers")
    same_weights(bertsmith_model, reloaded)


def random_reference(architecture: str, **changes: Any) -> Any:
    settings = transformers.RoFormerConfig(**REFERENCE_CONFIG | {"vocab_size": tokenizer().vocab_size} | changes)
    result = getattr(transformers, architecture)(settings)
    angles = result.base_model.encoder.embed_positions
    randomize_weights(result, std=DEVIATION)
    with torch.no_grad():
        angles.weight.copy_(angles.create_weight())
    return result.eval()


@pytest.mark.parametrize("kind", CASES)
def test_transformers_folders_load_here(kind: str, tmp_path: Path) -> None:
    labels = {"classify": len(NAMES), "tag": len(NAMES), "regress": 1}.get(kind, 2)
    summary = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
    changes = {"num_labels": labels, "is_decoder": kind == "causal_lm", **(summary if kind == "choose" else {})}
    reference = random_reference(CASES[kind][0], **changes)
    reference.save_pretrained(tmp_path / "transformers")
    tokenizer().save(tmp_path / "transformers")
    bertsmith_model, _, facts = open_model(tmp_path / "transformers")
    assert facts.architectures == (CASES[kind][0],)
    compare(bertsmith_model.eval(), reference, kind)


def test_saved_angles_equal_transformers(tmp_path: Path) -> None:
    save_model(random_model("masked_lm"), tokenizer(), tmp_path / "m")
    result = load_file(tmp_path / "m" / "model.safetensors")["roformer.encoder.embed_positions.weight"]
    expected = transformers.models.roformer.modeling_roformer.RoFormerSinusoidalPositionalEmbedding(
        40, 8
    ).create_weight()
    assert torch.allclose(result, expected, atol=1e-5)


def test_a_next_sentence_model_has_the_bertsmith_type_until_it_is_fine_tuned(tmp_path: Path) -> None:
    encoder_config = random_model("alone", pooler=True).encoder.config
    built = randomize_weights(Model.build(encoder_config, [masked_lm.Config(), next_sentence.Config()])).eval()
    save_model(built, tokenizer(), tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "bertsmith"
    reloaded, message, _ = open_model(tmp_path / "m")
    same_weights(built, reloaded)
    tuned = open_for(tmp_path / "m", [classify.Config(labels=NAMES)])[0].eval()
    assert torch.equal(tuned.encoder.pooler.weight, built.encoder.pooler.weight)
    save_model(tuned, message, tmp_path / "tuned")
    reference = transformers.RoFormerForSequenceClassification.from_pretrained(tmp_path / "tuned")
    compare(tuned, reference, "classify")


def test_positions_act_only_through_rotation() -> None:
    encoder = random_model("alone").encoder
    assert encoder.embeddings.positions is None
    inputs_batch = batch()
    moved = inputs_batch.replace(position_ids=inputs_batch.position_ids + 3)  # relative positions are unchanged
    stretched = inputs_batch.replace(position_ids=inputs_batch.position_ids * 2)
    real = (inputs_batch.document_ids != 0).flatten()
    with torch.no_grad():
        outputs, moved_outputs, stretched_outputs = (
            encoder(variant).last_hidden[real] for variant in (inputs_batch, moved, stretched)
        )
    assert relative_difference(moved_outputs, outputs) < 1e-5 < 1e-3 < relative_difference(stretched_outputs, outputs)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("alone", {"rotary_value": True}, "rotary_value=true; bertsmith reads false only"),
        ("alone", {"embedding_size": 24}, "embedding_size=24 differs from hidden_size=32"),
        ("choose", {"summary_type": "mean"}, "summary_type='mean'; bertsmith reads 'first' only"),
        ("choose", {"summary_type": None}, "has no summary_type; bertsmith reads the first token of choices"),
    ],
)
def test_unsupported_settings_are_rejected(kind: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_model(random_model(kind), tokenizer(), tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()
    change_config(tmp_path / "m", **changes)
    with pytest.raises(ConfigError) as result:
        open_model(tmp_path / "m")
    one_line(result, str(tmp_path / "m"), message)
