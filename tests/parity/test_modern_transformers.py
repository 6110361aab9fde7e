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
from parity.test_roberta_transformers import in_full

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
SMALL: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "feed_forward": 48, "max_positions": 40}
THEIRS: dict[str, Any] = {
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


def ours_of(name: str, **changes: Any) -> Model:
    """A small encoder with large weights."""
    settings = modern.Config(**SMALL | {"vocab_size": tokenizer().vocab_size} | changes)
    return randomize_weights(Model.build(settings, CLASSES[name]), std=DEVIATION).eval()


def theirs_of(name: str, attention: str, **changes: Any) -> Any:
    """transformers' model with large random weights."""
    settings = THEIRS | {"vocab_size": tokenizer().vocab_size, "attn_implementation": attention} | changes
    found = getattr(transformers, name)(transformers.ModernBertConfig(**settings))
    return randomize_weights(found, std=DEVIATION).eval()


def opened_there(name: str, attention: str, path: Path) -> Any:
    found, loading = getattr(transformers, name).from_pretrained(
        path, output_loading_info=True, attn_implementation=attention
    )
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    return found.eval()


def compare(ours: Model, theirs: Any) -> None:
    """Every hidden state, the logits and the loss."""
    asked = batch()
    mask = (asked.document_ids != 0).long()
    real = mask.flatten().bool()
    labels = {"labels": torch.where(mask.bool(), asked.input_ids, -100)} if ours.objectives else {}
    with torch.no_grad():
        said = theirs(input_ids=asked.input_ids, attention_mask=mask, output_hidden_states=True, **labels)
        found = ours.encoder(asked, return_layers=True)
        assert len(found.layers) == len(said.hidden_states)
        for mine, other in zip(found.layers, said.hidden_states, strict=True):
            assert relative_difference(mine[real], other.flatten(0, 1)[real]) < 1e-5
        if ours.objectives:
            assert relative_difference(ours.predict(asked, "masked_lm")[real], said.logits.flatten(0, 1)[real]) < 1e-5
            assert ours(in_full(asked)).mean().item() == pytest.approx(said.loss.item(), rel=1e-5)
        else:
            assert relative_difference(found.last_hidden[real], said.last_hidden_state.flatten(0, 1)[real]) < 1e-5


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("changes", [{}, OTHER], ids=["usual", "other"])
@pytest.mark.parametrize("name", CLASSES)
def test_our_folders_load_in_transformers(name: str, changes: dict[str, Any], attention: str, tmp_path: Path) -> None:
    ours = ours_of(name, **changes)
    save_model(ours, tokenizer(), tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (written["model_type"], written["architectures"]) == ("modernbert", [name])
    theirs = opened_there(name, attention, tmp_path / "ours")
    compare(ours, theirs)
    again, _, facts = open_model(tmp_path / "ours")
    assert again.encoder.config == ours.encoder.config
    assert facts.notes == ()
    theirs.save_pretrained(tmp_path / "theirs")  # and back: what transformers writes of it is the same model
    tokenizer().save(tmp_path / "theirs")
    back, _, facts = open_model(tmp_path / "theirs")
    same_weights(ours, back)
    assert back.encoder.config == ours.encoder.config
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
    theirs = theirs_of(name, attention, **changes)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="60KB")
    tokenizer().save(tmp_path / "theirs")
    ours, words, facts = open_model(tmp_path / "theirs")
    assert words.max_length == ours.encoder.max_positions == 33
    assert ours.encoder.config.rotary_base == changes.get("global_rope_theta", 160_000.0)
    assert facts.parameters == sum(parameter.numel() for parameter in theirs.parameters())
    compare(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"local_attention": 64, "local_rope_theta": 160_000.0}, True),  # 32 ahead and back: just enough for 33 places
        ({"local_attention": 62, "local_rope_theta": 160_000.0}, False),
        ({"local_attention": 64}, False),  # local layers turn faster
    ],
    ids=["within the window", "beyond it", "two bases"],
)
def test_local_attention_loads_where_it_makes_no_difference(
    changes: dict[str, Any], fits: bool, tmp_path: Path
) -> None:
    theirs = theirs_of("ModernBertForMaskedLM", "sdpa", global_attn_every_n_layers=3, **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer().save(tmp_path / "theirs")
    if fits:
        ours, _, _ = open_model(tmp_path / "theirs")
        long = torch.randint(5, tokenizer().vocab_size, (2, 33), generator=torch.Generator().manual_seed(3))
        asked = batch().replace(
            input_ids=long, position_ids=torch.arange(33).expand(2, 33), segment_ids=torch.zeros_like(long)
        )
        asked = asked.replace(document_ids=torch.ones_like(long, dtype=torch.int32), dense=True, max_seqlen=33)
        asked = asked.replace(cls_positions=torch.tensor([0, 33]), sample_ids=torch.arange(2)[:, None].expand(2, 33))
        with torch.no_grad():
            assert (
                relative_difference(ours.predict(asked, "masked_lm"), theirs(input_ids=long).logits.flatten(0, 1))
                < 1e-5
            )
        return
    with pytest.raises(ConfigError) as found:
        open_model(tmp_path / "theirs")
    one_line(found, "2 of 4 layers have local attention", "global_attn_every_n_layers=1")


def test_the_encoder_loads_without_unsupported_heads(tmp_path: Path) -> None:
    theirs = theirs_of("ModernBertForSequenceClassification", "sdpa", num_labels=3)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer().save(tmp_path / "theirs")
    opened, _, facts = open_model(tmp_path / "theirs")
    assert list(opened.objectives) == []
    assert "unused weights: classifier.bias" in facts.notes[0]
    made, _, facts = open_for(tmp_path / "theirs", [classify.Config(labels=("a", "b"))], seed=4)
    assert torch.equal(made.encoder.token_embeddings, theirs.model.embeddings.tok_embeddings.weight)
    assert facts.notes[0].startswith("newly initialised: the head classify, the pooler; unused weights")


@pytest.mark.parametrize(("size", "count"), [("base", 149_655_232), ("large", 395_881_664)])
def test_parameter_counts_equal_transformers(size: str, count: int) -> None:
    with torch.device("meta"):
        ours = Model.build(modern.Config.size(size, vocab_size=50_368), [masked_lm.Config()])
        shape = ours.encoder.config
        settings = {"hidden_size": shape.width, "num_hidden_layers": shape.layers, "intermediate_size": shape.inner}
        settings = transformers.ModernBertConfig(num_attention_heads=shape.heads, **settings)
        theirs = transformers.ModernBertForMaskedLM(settings)
    assert parameter_count(ours) == parameter_count(theirs) == count
