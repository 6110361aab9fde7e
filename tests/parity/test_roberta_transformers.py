"""RoBERTa against transformers: folders load on both sides with equal hidden states, logits and losses."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import randomize_weights, relative_difference
from model_io.folder_fixtures import same_weights
from parity import test_heads_transformers as heads
from parity.test_folders_transformers import compare as compare_states
from parity.test_folders_transformers import outputs_in_both_precisions

from bertsmith.data.collate import collate
from bertsmith.encoders import roberta
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_for, open_model, save_model
from bertsmith.objectives import causal_lm, choose, classify, masked_lm, regress, span, tag
from bertsmith.tokenizers import byte_bpe, training
from bertsmith.types import Batch

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TEXTS = ["The smith heats the iron, then strikes it.", "서울은 한국의 수도이다!", "  a café 😀 서울", ""]
NAMES = ("O", "B", "I")
CASES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "encoder": ("RobertaModel", ()),
    "masked_lm": ("RobertaForMaskedLM", (masked_lm.Config(),)),
    "causal_lm": ("RobertaForCausalLM", (causal_lm.Config(),)),
    "classify": ("RobertaForSequenceClassification", (classify.Config(labels=NAMES, dropout=0.3),)),
    "regress": ("RobertaForSequenceClassification", (regress.Config(dropout=0.0),)),
    "tag": ("RobertaForTokenClassification", (tag.Config(labels=NAMES),)),
    "span": ("RobertaForQuestionAnswering", (span.Config(),)),
    "choose": ("RobertaForMultipleChoice", (choose.Config(),)),
}
WITH_POOLER = (
    "encoder",
    "classify",
    "regress",
    "choose",
)  # cases whose class has a pooler in transformers, under any name
LOGITS = ("masked_lm", "causal_lm")


@cache
def tokenizer() -> byte_bpe.ByteBPE:
    settings = byte_bpe.Config()
    counts = training.count_words(TEXTS * 3, settings.word_splitter())
    return settings.train(counts, vocab_size=320)


def random_model(case: str, **changes: Any) -> Model:
    """A small RoBERTa with large weights."""
    small = {
        "layers": 2,
        "width": 32,
        "heads": 4,
        "feed_forward": 48,
        "vocab_size": tokenizer().vocab_size,
        "max_positions": 60,
        "pooler": case in WITH_POOLER,
        "pooler_dropout": 0.1 if case in ("classify", "regress") else 0.0,
        "causal": case == "causal_lm",
    }
    return randomize_weights(Model.build(roberta.Config(**small | changes), CASES[case][1])).eval()


def batch() -> Batch:
    """Two pairs and a single text, padded, with labels for every head."""
    tokens = tokenizer()
    parts = [tokens.encode(text) for text in TEXTS]
    rows = [tokens.frame(parts[0], parts[1], max_length=60), tokens.frame(parts[2], max_length=60)]
    result = collate([*rows, tokens.frame(parts[1], parts[2], max_length=60)], length=60, padding_id=tokens.padding_id)
    return heads.with_labels(result)


def reference_model(case: str, path: Path | None = None, **settings: Any) -> Any:
    """transformers' model, from a folder or with large random weights."""
    cls = getattr(transformers, CASES[case][0])
    if path is None:
        result = cls(transformers.RobertaConfig(**settings))
        for number, parameter in enumerate(result.parameters()):
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.data.copy_(drawn * 0.3)
        return result.eval()
    result, loading = cls.from_pretrained(path, output_loading_info=True, attn_implementation="eager")
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    return result.eval()


def compare(bertsmith_model: Model, reference: Any, case: str) -> None:
    """Every hidden state, pooled vector, logit and loss."""
    inputs_batch = batch()
    if case not in ("encoder", *LOGITS):
        heads.compare(bertsmith_model, reference, case, inputs_batch)
        return
    mask = (inputs_batch.document_ids != 0).long()
    outputs = outputs_in_both_precisions(reference, {"input_ids": inputs_batch.input_ids, "attention_mask": mask})
    compare_states(bertsmith_model, outputs, inputs_batch)
    if case == "encoder":
        assert relative_difference(bertsmith_model.encoder(inputs_batch).pooled, outputs[0].pooler_output) < 1e-6
    else:
        labels = torch.where(mask.bool(), inputs_batch.input_ids, -100)
        labelled = (
            bertsmith_model.objectives[case].corrupt(inputs_batch)
            if case == "causal_lm"
            else fully_labelled(inputs_batch)
        )
        with torch.no_grad():
            loss = reference(input_ids=inputs_batch.input_ids, attention_mask=mask, labels=labels).loss.item()
            assert bertsmith_model(labelled).mean().item() == pytest.approx(loss, rel=1e-5)


def fully_labelled(inputs_batch: Batch) -> Batch:
    """The batch with every token as its own MLM label."""
    positions = (inputs_batch.document_ids != 0).flatten().nonzero()[:, 0]
    return inputs_batch.replace(
        labels={"masked_lm": inputs_batch.input_ids.flatten()[positions]}, indices={"masked_lm": positions}
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "changes",
    [{}, {"activation": "gelu_new", "layer_norm_eps": 1e-12, "max_positions": 61, "segment_types": 2}],
    ids=["usual", "other"],
)
def test_bertsmith_folders_load_in_transformers(case: str, changes: dict[str, Any], tmp_path: Path) -> None:
    bertsmith_model = random_model(case, **changes)
    save_model(bertsmith_model, tokenizer(), tmp_path / "bertsmith")
    config_json = json.loads((tmp_path / "bertsmith" / "config.json").read_text())
    assert config_json["architectures"] == [CASES[case][0]]
    assert (
        config_json["max_position_embeddings"]
        == bertsmith_model.encoder.config.max_positions + bertsmith_model.encoder.config.padding_id + 1
    )
    reference = reference_model(case, tmp_path / "bertsmith")
    compare(bertsmith_model, reference, case)
    reloaded, _, facts = open_model(tmp_path / "bertsmith")
    assert reloaded.encoder.config == bertsmith_model.encoder.config
    assert facts.notes == ()
    reference.save_pretrained(
        tmp_path / "transformers"
    )  # round trip: the folder written by transformers holds the same model
    tokenizer().save(tmp_path / "transformers")
    round_trip, _, facts = open_model(tmp_path / "transformers")
    same_weights(bertsmith_model, round_trip)
    assert facts.notes == ()
    assert [head.config for head in round_trip.objectives.values() if hasattr(head, "config")] == [
        head.config for head in bertsmith_model.objectives.values() if hasattr(head, "config")
    ]


@pytest.mark.parametrize("case", CASES)
def test_transformers_folders_load_here(case: str, tmp_path: Path) -> None:
    labels = {"classify": 5, "tag": 7, "regress": 1}.get(case, 2)
    reference = reference_model(
        case,
        vocab_size=tokenizer().vocab_size,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=64,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        num_labels=labels,
        is_decoder=case == "causal_lm",
        attn_implementation="eager",
    )
    reference.save_pretrained(tmp_path / "transformers", max_shard_size="60KB")
    tokenizer().save(tmp_path / "transformers")
    bertsmith_model, tokens, facts = open_model(tmp_path / "transformers")
    assert tokens.max_length == bertsmith_model.encoder.max_positions == 62
    assert list(bertsmith_model.objectives) == [case][: case != "encoder"]
    assert facts.parameters == sum(parameter.numel() for parameter in reference.parameters())
    if case in ("classify", "tag"):
        assert len(bertsmith_model.objectives[case].config.labels) == labels
    compare(bertsmith_model, reference, case)


def test_new_heads_on_a_pretrained_transformers_folder(tmp_path: Path) -> None:
    reference = reference_model("masked_lm", **{"vocab_size": tokenizer().vocab_size, "hidden_size": 24}, **SMALL)
    reference.save_pretrained(tmp_path / "transformers")
    tokenizer().save(tmp_path / "transformers")
    for head, pooler in ((classify.Config(labels=NAMES), ", the pooler"), (tag.Config(labels=NAMES), "")):
        result, _, facts = open_for(tmp_path / "transformers", [head], seed=4)
        assert torch.equal(result.encoder.token_embeddings, reference.roberta.embeddings.word_embeddings.weight)
        name = type(head).__module__.rpartition(".")[2]
        assert facts.notes[0].startswith(f"newly initialised: the head {name}{pooler}; unused weights")
        assert result.encoder.has_pooler == bool(pooler)


SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 20}


def test_parameter_counts_equal_transformers() -> None:
    with torch.device("meta"):
        bertsmith_model = Model.build(roberta.Config.size("base", vocab_size=50_265), [masked_lm.Config()])
    assert parameter_count(bertsmith_model) == 124_697_433


def test_the_first_position_follows_padding_id() -> None:
    """Rows of the position table up to padding_id are unused."""
    bertsmith_model, inputs_batch = random_model("masked_lm"), batch()
    before = bertsmith_model.predict(inputs_batch, "masked_lm").detach()
    real = (inputs_batch.document_ids != 0).flatten()
    table = bertsmith_model.encoder.get_parameter("embeddings.positions.weight").detach()
    table[:2] *= -3
    assert torch.equal(bertsmith_model.predict(inputs_batch, "masked_lm")[real], before[real])
    table[2] *= -3
    assert relative_difference(bertsmith_model.predict(inputs_batch, "masked_lm")[real], before[real]) > 1e-3
