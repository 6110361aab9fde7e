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
from parity.test_folders_transformers import said_by

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
POOLS = ("encoder", "classify", "regress", "choose")  # what has a pooler in transformers, by one name or another
LOGITS = ("masked_lm", "causal_lm")


@cache
def tokenizer() -> byte_bpe.ByteBPE:
    settings = byte_bpe.Config()
    counts = training.count_words(TEXTS * 3, settings.word_splitter())
    return settings.train(counts, vocab_size=320)


def ours_of(case: str, **changes: Any) -> Model:
    """A small RoBERTa with large weights."""
    small = {
        "layers": 2,
        "width": 32,
        "heads": 4,
        "feed_forward": 48,
        "vocab_size": tokenizer().vocab_size,
        "max_positions": 60,
        "pooler": case in POOLS,
        "pooler_dropout": 0.1 if case in ("classify", "regress") else 0.0,
        "causal": case == "causal_lm",
    }
    return randomize_weights(Model.build(roberta.Config(**small | changes), CASES[case][1])).eval()


def batch() -> Batch:
    """Two pairs and a single text, padded, with labels for every head."""
    words = tokenizer()
    parts = [words.encode(text) for text in TEXTS]
    rows = [words.frame(parts[0], parts[1], max_length=60), words.frame(parts[2], max_length=60)]
    found = collate([*rows, words.frame(parts[1], parts[2], max_length=60)], length=60, padding_id=words.padding_id)
    return heads.with_labels(found)


def theirs_of(case: str, path: Path | None = None, **settings: Any) -> Any:
    """transformers' model, from a folder or with large random weights."""
    cls = getattr(transformers, CASES[case][0])
    if path is None:
        found = cls(transformers.RobertaConfig(**settings))
        for number, parameter in enumerate(found.parameters()):
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.data.copy_(drawn * 0.3)
        return found.eval()
    found, loading = cls.from_pretrained(path, output_loading_info=True, attn_implementation="eager")
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    return found.eval()


def compare(ours: Model, theirs: Any, case: str) -> None:
    """Every hidden state, pooled vector, logit and loss."""
    asked = batch()
    if case not in ("encoder", *LOGITS):
        heads.compare(ours, theirs, case, asked)
        return
    mask = (asked.document_ids != 0).long()
    said = said_by(theirs, {"input_ids": asked.input_ids, "attention_mask": mask})
    compare_states(ours, said, asked)
    if case == "encoder":
        assert relative_difference(ours.encoder(asked).pooled, said[0].pooler_output) < 1e-6
    else:
        labels = torch.where(mask.bool(), asked.input_ids, -100)
        hidden = ours.objectives[case].corrupt(asked) if case == "causal_lm" else in_full(asked)
        with torch.no_grad():
            loss = theirs(input_ids=asked.input_ids, attention_mask=mask, labels=labels).loss.item()
            assert ours(hidden).mean().item() == pytest.approx(loss, rel=1e-5)


def in_full(asked: Batch) -> Batch:
    """The batch with every token as its own MLM label."""
    places = (asked.document_ids != 0).flatten().nonzero()[:, 0]
    return asked.replace(labels={"masked_lm": asked.input_ids.flatten()[places]}, indices={"masked_lm": places})


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "changes",
    [{}, {"activation": "gelu_new", "layer_norm_eps": 1e-12, "max_positions": 61, "segment_types": 2}],
    ids=["usual", "other"],
)
def test_our_folders_load_in_transformers(case: str, changes: dict[str, Any], tmp_path: Path) -> None:
    ours = ours_of(case, **changes)
    save_model(ours, tokenizer(), tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert written["architectures"] == [CASES[case][0]]
    assert written["max_position_embeddings"] == ours.encoder.config.max_positions + ours.encoder.config.padding_id + 1
    theirs = theirs_of(case, tmp_path / "ours")
    compare(ours, theirs, case)
    again, _, facts = open_model(tmp_path / "ours")
    assert again.encoder.config == ours.encoder.config
    assert facts.notes == ()
    theirs.save_pretrained(tmp_path / "theirs")  # and back: what transformers writes of it is the same model
    tokenizer().save(tmp_path / "theirs")
    back, _, facts = open_model(tmp_path / "theirs")
    same_weights(ours, back)
    assert facts.notes == ()
    assert [head.config for head in back.objectives.values() if hasattr(head, "config")] == [
        head.config for head in ours.objectives.values() if hasattr(head, "config")
    ]


@pytest.mark.parametrize("case", CASES)
def test_transformers_folders_load_here(case: str, tmp_path: Path) -> None:
    labels = {"classify": 5, "tag": 7, "regress": 1}.get(case, 2)
    theirs = theirs_of(
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
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="60KB")
    tokenizer().save(tmp_path / "theirs")
    ours, words, facts = open_model(tmp_path / "theirs")
    assert words.max_length == ours.encoder.max_positions == 62
    assert list(ours.objectives) == [case][: case != "encoder"]
    assert facts.parameters == sum(parameter.numel() for parameter in theirs.parameters())
    if case in ("classify", "tag"):
        assert len(ours.objectives[case].config.labels) == labels
    compare(ours, theirs, case)


def test_a_pretrained_transformers_folder_under_new_heads(tmp_path: Path) -> None:
    theirs = theirs_of("masked_lm", **{"vocab_size": tokenizer().vocab_size, "hidden_size": 24}, **SMALL)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer().save(tmp_path / "theirs")
    for head, pooler in ((classify.Config(labels=NAMES), ", the pooler"), (tag.Config(labels=NAMES), "")):
        made, _, facts = open_for(tmp_path / "theirs", [head], seed=4)
        assert torch.equal(made.encoder.token_embeddings, theirs.roberta.embeddings.word_embeddings.weight)
        name = type(head).__module__.rpartition(".")[2]
        assert facts.notes[0].startswith(f"newly initialised: the head {name}{pooler}; unused weights")
        assert made.encoder.has_pooler == bool(pooler)


SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 20}


def test_parameter_counts_equal_transformers() -> None:
    with torch.device("meta"):
        ours = Model.build(roberta.Config.size("base", vocab_size=50_265), [masked_lm.Config()])
    assert parameter_count(ours) == 124_697_433


def test_the_first_position_follows_padding_id() -> None:
    """Rows of the position table up to padding_id are unused."""
    ours, asked = ours_of("masked_lm"), batch()
    before = ours.predict(asked, "masked_lm").detach()
    real = (asked.document_ids != 0).flatten()
    table = ours.encoder.get_parameter("embeddings.positions.weight").detach()
    table[:2] *= -3
    assert torch.equal(ours.predict(asked, "masked_lm")[real], before[real])
    table[2] *= -3
    assert relative_difference(ours.predict(asked, "masked_lm")[real], before[real]) > 1e-3
