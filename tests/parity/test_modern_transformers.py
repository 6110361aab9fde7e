"""ModernBERT against transformers: folders load on both sides with equal results, or are rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import randomize_weights, relative_difference
from model_io.folder_fixtures import one_line, same_weights, tokenizer
from parity.test_folders_transformers import batch
from parity.test_roberta_transformers import fully_labelled

from bertsmith.encoders import modern
from bertsmith.errors import ConfigError
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_for, open_model, save_model
from bertsmith.objectives import classify, masked_lm

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CLASSES = {"ModernBertModel": (), "ModernBertForMaskedLM": (masked_lm.Config(),)}
ATTENTIONS = ("eager", "sdpa")
DEVIATION = 0.25
SMALL_CONFIG: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "feed_forward": 48, "max_positions": 40}
REFERENCE_CONFIG: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 33,
    "global_attn_every_n_layers": 1,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    "cls_token_id": None,
    "sep_token_id": None,
}
OTHER = {"biases": True, "activation": "gelu_new", "layer_norm_eps": 1e-3, "rotary_base": 500.0, "depth_scaled": True}


def random_model(name: str, **changes: Any) -> Model:
    """A small encoder with large weights."""
    settings = modern.Config(**SMALL_CONFIG | {"vocab_size": tokenizer().vocab_size} | changes)
    return randomize_weights(Model.build(settings, CLASSES[name]), std=DEVIATION).eval()


def random_reference(name: str, attention: str, **changes: Any) -> Any:
    """transformers' model with large random weights."""
    settings = REFERENCE_CONFIG | {"vocab_size": tokenizer().vocab_size, "attn_implementation": attention} | changes
    result = getattr(transformers, name)(transformers.ModernBertConfig(**settings))
    return randomize_weights(result, std=DEVIATION).eval()


def open_in_transformers(name: str, attention: str, path: Path) -> Any:
    result, loading = getattr(transformers, name).from_pretrained(
        path, output_loading_info=True, attn_implementation=attention
    )
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    return result.eval()


def compare(bertsmith_model: Model, reference: Any) -> None:
    """Every hidden state, the logits and the loss."""
    inputs_batch = batch()
    mask = (inputs_batch.document_ids != 0).long()
    real = mask.flatten().bool()
    labels = {"labels": torch.where(mask.bool(), inputs_batch.input_ids, -100)} if bertsmith_model.objectives else {}
    with torch.no_grad():
        outputs = reference(input_ids=inputs_batch.input_ids, attention_mask=mask, output_hidden_states=True, **labels)
        result = bertsmith_model.encoder(inputs_batch, return_layers=True)
        assert len(result.layers) == len(outputs.hidden_states)
        for actual, expected in zip(result.layers, outputs.hidden_states, strict=True):
            assert relative_difference(actual[real], expected.flatten(0, 1)[real]) < 1e-5
        if bertsmith_model.objectives:
            assert (
                relative_difference(
                    bertsmith_model.predict(inputs_batch, "masked_lm")[real], outputs.logits.flatten(0, 1)[real]
                )
                < 1e-5
            )
            assert bertsmith_model(fully_labelled(inputs_batch)).mean().item() == pytest.approx(
                outputs.loss.item(), rel=1e-5
            )
        else:
            assert relative_difference(result.last_hidden[real], outputs.last_hidden_state.flatten(0, 1)[real]) < 1e-5


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("changes", [{}, OTHER], ids=["usual", "other"])
@pytest.mark.parametrize("name", CLASSES)
def test_bertsmith_folders_load_in_transformers(
    name: str, changes: dict[str, Any], attention: str, tmp_path: Path
) -> None:
    bertsmith_model = random_model(name, **changes)
    save_model(bertsmith_model, tokenizer(), tmp_path / "bertsmith")
    config_json = json.loads((tmp_path / "bertsmith" / "config.json").read_text())
    assert (config_json["model_type"], config_json["architectures"]) == ("modernbert", [name])
    reference = open_in_transformers(name, attention, tmp_path / "bertsmith")
    compare(bertsmith_model, reference)
    reloaded, _, facts = open_model(tmp_path / "bertsmith")
    assert reloaded.encoder.config == bertsmith_model.encoder.config
    assert facts.notes == ()
    reference.save_pretrained(
        tmp_path / "transformers"
    )  # round trip: the folder written by transformers holds the same model
    tokenizer().save(tmp_path / "transformers")
    round_trip, _, facts = open_model(tmp_path / "transformers")
    same_weights(bertsmith_model, round_trip)
    assert round_trip.encoder.config == bertsmith_model.encoder.config
    assert facts.notes == ()


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True, "norm_eps": 1e-6},
        {"hidden_activation": "silu", "global_rope_theta": 300.0, "num_hidden_layers": 1},
    ],
    ids=["usual", "biases", "one layer"],
)
@pytest.mark.parametrize("name", CLASSES)
def test_transformers_folders_load_here(name: str, changes: dict[str, Any], attention: str, tmp_path: Path) -> None:
    reference = random_reference(name, attention, **changes)
    reference.save_pretrained(tmp_path / "transformers", max_shard_size="60KB")
    tokenizer().save(tmp_path / "transformers")
    bertsmith_model, tokens, facts = open_model(tmp_path / "transformers")
    assert tokens.max_length == bertsmith_model.encoder.max_positions == 33
    assert bertsmith_model.encoder.config.rotary_base == changes.get("global_rope_theta", 160_000.0)
    assert facts.parameters == sum(parameter.numel() for parameter in reference.parameters())
    compare(bertsmith_model, reference)


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        (
            {"local_attention": 64, "local_rope_theta": 160_000.0},
            True,
        ),  # a window of 32 to each side covers 33 positions
        ({"local_attention": 62, "local_rope_theta": 160_000.0}, False),
        ({"local_attention": 64}, False),  # local layers have another rope_theta
    ],
    ids=["within the window", "beyond it", "two bases"],
)
def test_local_attention_loads_where_it_makes_no_difference(
    changes: dict[str, Any], fits: bool, tmp_path: Path
) -> None:
    reference = random_reference("ModernBertForMaskedLM", "sdpa", global_attn_every_n_layers=3, **changes)
    reference.save_pretrained(tmp_path / "transformers")
    tokenizer().save(tmp_path / "transformers")
    if fits:
        bertsmith_model, _, _ = open_model(tmp_path / "transformers")
        long = torch.randint(5, tokenizer().vocab_size, (2, 33), generator=torch.Generator().manual_seed(3))
        inputs_batch = batch().replace(
            input_ids=long, position_ids=torch.arange(33).expand(2, 33), segment_ids=torch.zeros_like(long)
        )
        inputs_batch = inputs_batch.replace(
            document_ids=torch.ones_like(long, dtype=torch.int32), dense=True, max_seqlen=33
        )
        inputs_batch = inputs_batch.replace(
            cls_positions=torch.tensor([0, 33]), sample_ids=torch.arange(2)[:, None].expand(2, 33)
        )
        with torch.no_grad():
            assert (
                relative_difference(
                    bertsmith_model.predict(inputs_batch, "masked_lm"), reference(input_ids=long).logits.flatten(0, 1)
                )
                < 1e-5
            )
        return
    with pytest.raises(ConfigError) as result:
        open_model(tmp_path / "transformers")
    one_line(result, "2 of 4 layers have local attention", "global_attn_every_n_layers=1")


def test_the_encoder_loads_without_unsupported_heads(tmp_path: Path) -> None:
    reference = random_reference("ModernBertForSequenceClassification", "sdpa", num_labels=3)
    reference.save_pretrained(tmp_path / "transformers")
    tokenizer().save(tmp_path / "transformers")
    opened, _, facts = open_model(tmp_path / "transformers")
    assert list(opened.objectives) == []
    assert "unused weights: classifier.bias" in facts.notes[0]
    result, _, facts = open_for(tmp_path / "transformers", [classify.Config(labels=("a", "b"))], seed=4)
    assert torch.equal(result.encoder.token_embeddings, reference.model.embeddings.tok_embeddings.weight)
    assert facts.notes[0].startswith("newly initialised: the head classify, the pooler; unused weights")


@pytest.mark.parametrize(("size", "count"), [("base", 149_655_232), ("large", 395_881_664)])
def test_parameter_counts_equal_transformers(size: str, count: int) -> None:
    with torch.device("meta"):
        bertsmith_model = Model.build(modern.Config.size(size, vocab_size=50_368), [masked_lm.Config()])
        shape = bertsmith_model.encoder.config
        settings = {"hidden_size": shape.width, "num_hidden_layers": shape.layers, "intermediate_size": shape.inner}
        settings = transformers.ModernBertConfig(num_attention_heads=shape.heads, **settings)
        reference = transformers.ModernBertForMaskedLM(settings)
    assert parameter_count(bertsmith_model) == parameter_count(reference) == count
