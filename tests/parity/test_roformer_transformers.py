"""RoFormer equals transformers: hidden states, logits and losses of every class, with folders of either side."""

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
DEVIATION = 0.25  # large enough for places to look at some others more than at the rest
OTHER: dict[str, Any] = {
    "activation": "relu",
    "layer_norm_eps": 1e-5,
    "max_positions": 33,
    "feed_forward": 80,
    "heads": 2,
}
THEIRS: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 33,
}


def ours_of(kind: str, **changes: Any) -> Model:
    small: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "feed_forward": 64, "max_positions": 40}
    small["vocab_size"] = tokenizer().vocab_size
    pooler = kind in ("classify", "regress", "choose")
    settings = roformer.Config(**small | {"causal": kind == "causal_lm", "pooler": pooler} | changes)
    heads = [] if CASES[kind][1] is None else [CASES[kind][1]]
    return randomize_weights(Model.build(settings, heads), std=DEVIATION).eval()


@pytest.mark.parametrize("kind", CASES)
def test_our_folders_load_in_transformers(kind: str, tmp_path: Path) -> None:
    architecture, head = CASES[kind]
    ours = ours_of(kind, **(OTHER if kind in ("masked_lm", "classify", "choose") else {}))
    save_model(ours, tokenizer(), tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [architecture]
    theirs, loading = getattr(transformers, architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    compare(ours, theirs, kind)
    if kind == "choose":
        assert theirs.sequence_summary.last_dropout.p == head.dropout
    theirs.save_pretrained(tmp_path / "theirs")  # and back: what transformers writes of it is the same model
    tokenizer().save(tmp_path / "theirs")
    again, _, _ = open_model(tmp_path / "theirs")
    same_weights(ours, again)


def theirs_of(architecture: str, **changes: Any) -> Any:
    settings = transformers.RoFormerConfig(**THEIRS | {"vocab_size": tokenizer().vocab_size} | changes)
    found = getattr(transformers, architecture)(settings)
    angles = found.base_model.encoder.embed_positions
    randomize_weights(found, std=DEVIATION)
    with torch.no_grad():
        angles.weight.copy_(angles.create_weight())
    return found.eval()


@pytest.mark.parametrize("kind", CASES)
def test_transformers_folders_load_here(kind: str, tmp_path: Path) -> None:
    labels = {"classify": len(NAMES), "tag": len(NAMES), "regress": 1}.get(kind, 2)
    summary = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
    changes = {"num_labels": labels, "is_decoder": kind == "causal_lm", **(summary if kind == "choose" else {})}
    theirs = theirs_of(CASES[kind][0], **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer().save(tmp_path / "theirs")
    ours, _, facts = open_model(tmp_path / "theirs")
    assert facts.architectures == (CASES[kind][0],)
    compare(ours.eval(), theirs, kind)


def test_saved_angles_equal_transformers(tmp_path: Path) -> None:
    save_model(ours_of("masked_lm"), tokenizer(), tmp_path / "m")
    found = load_file(tmp_path / "m" / "model.safetensors")["roformer.encoder.embed_positions.weight"]
    right = transformers.models.roformer.modeling_roformer.RoFormerSinusoidalPositionalEmbedding(40, 8).create_weight()
    assert torch.allclose(found, right, atol=1e-5)


def test_a_next_sentence_model_has_the_bertsmith_type_until_it_is_fine_tuned(tmp_path: Path) -> None:
    plain = ours_of("alone", pooler=True).encoder.config
    made = randomize_weights(Model.build(plain, [masked_lm.Config(), next_sentence.Config()])).eval()
    save_model(made, tokenizer(), tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "bertsmith"
    again, words, _ = open_model(tmp_path / "m")
    same_weights(made, again)
    tuned = open_for(tmp_path / "m", [classify.Config(labels=NAMES)])[0].eval()
    assert torch.equal(tuned.encoder.pooler.weight, made.encoder.pooler.weight)
    save_model(tuned, words, tmp_path / "tuned")
    theirs = transformers.RoFormerForSequenceClassification.from_pretrained(tmp_path / "tuned")
    compare(tuned, theirs, "classify")


def test_positions_act_only_through_rotation() -> None:
    encoder = ours_of("alone").encoder
    assert encoder.embeddings.positions is None
    asked = batch()
    moved = asked.replace(position_ids=asked.position_ids + 3)  # distances stay
    other = asked.replace(position_ids=asked.position_ids * 2)
    real = (asked.document_ids != 0).flatten()
    with torch.no_grad():
        here, there, far = (encoder(each).last_hidden[real] for each in (asked, moved, other))
    assert relative_difference(there, here) < 1e-5 < 1e-3 < relative_difference(far, here)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("alone", {"rotary_value": True}, "rotary_value=true; bertsmith reads false only"),
        ("alone", {"embedding_size": 24}, "embedding_size=24 differs from hidden_size=32"),
        ("choose", {"summary_type": "mean"}, "summary_type='mean'; bertsmith reads 'first' only"),
        ("choose", {"summary_type": None}, "has no summary_type; bertsmith reads the first token of choices"),
    ],
)
def test_unsupported_settings_are_rejected(kind: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    save_model(ours_of(kind), tokenizer(), tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()
    change_config(tmp_path / "m", **changes)
    with pytest.raises(ConfigError) as found:
        open_model(tmp_path / "m")
    one_line(found, str(tmp_path / "m"), words)
