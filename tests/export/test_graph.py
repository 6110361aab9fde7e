"""The exported graph equals the model, for every encoder and head, with any padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from export.export_fixtures import KINDS, difference, model, rows

from bertsmith.encoders import seq2seq
from bertsmith.errors import BertsmithError
from bertsmith.export.folder import ParityError
from bertsmith.export.graph import OnnxModule, with_lstm_nodes
from bertsmith.export.onnx import ParityCheck, check_parity
from bertsmith.inference.encoder_outputs import POOLINGS
from bertsmith.model_io.model import Model
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.objectives import (
    causal_lm,
    choose,
    classify,
    masked_lm,
    next_sentence,
    regress,
    replaced_token,
    sentence_order,
    span,
    tag,
    translation,
)

CLASSES = ("O", "B", "I")
HEADS: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "none": ([], ("last_hidden_state", "pooler_output")),
    "masked_lm": ([masked_lm.Config()], ("logits",)),
    "next_sentence": ([next_sentence.Config()], ("logits",)),
    "pre-training": ([masked_lm.Config(), next_sentence.Config()], ("prediction_logits", "seq_relationship_logits")),
    "classify": ([classify.Config(labels=CLASSES)], ("logits",)),
    "regress": ([regress.Config()], ("logits",)),
    "tag": ([tag.Config(labels=CLASSES)], ("logits",)),
    "span": ([span.Config()], ("start_logits", "end_logits")),
    "choose": ([choose.Config()], ("logits",)),
    "first as it is": ([classify.Config(pooling="cls")], ("logits",)),
    "mean of all layers": ([classify.Config(pooling="concat", layers="mix")], ("logits",)),
    "last": ([regress.Config(pooling="last", layers="second_to_last")], ("logits",)),
    "tag by BiLSTM": ([tag.Config(labels=CLASSES, layers="mix", recurrent="bilstm", recurrent_width=6)], ("logits",)),
    "class by BiLSTM": ([classify.Config(pooling="last", recurrent="bilstm", recurrent_width=6)], ("logits",)),
    "span by BiLSTM": ([span.Config(recurrent="bilstm", recurrent_width=6)], ("start_logits", "end_logits")),
}


FOR_ALL = ("none", "masked_lm", "classify", "span", "tag by BiLSTM")  # heads that are tested with every encoder
CASES = [(kind, name) for kind in KINDS for name in HEADS if kind == "bert" or name in FOR_ALL]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_graph_equals_the_model(kind: str, name: str) -> None:
    heads, outputs = HEADS[name]
    graph = OnnxModule(model(kind, *heads, pooler=True)).eval()
    pooled = "pooler_output" in outputs and not graph.model.encoder.has_pooler
    assert graph.output_names == (outputs[:-1] if pooled else outputs)
    assert difference(graph, rows(graph)) < 2e-5


@pytest.mark.parametrize(
    ("kind", "heads", "outputs"),
    [
        ("electra", [replaced_token.Config(generator_width=0)], ("logits",)),
        ("albert", [masked_lm.Config(), sentence_order.Config()], ("prediction_logits", "sop_logits")),
    ],
)
def test_heads_of_electra_and_albert(kind: str, heads: list[Any], outputs: tuple[str, ...]) -> None:
    graph = OnnxModule(model(kind, *heads)).eval()
    assert graph.output_names == outputs
    assert difference(graph, rows(graph)) < 2e-5


def test_causal_lm() -> None:
    graph = OnnxModule(model("bert", causal_lm.Config(), causal=True)).eval()
    assert difference(graph, rows(graph)) < 2e-5


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("normalize", [False, True])
def test_sentence_embeddings(pooling: str, normalize: bool) -> None:
    graph = OnnxModule(model("bert"), pooling=pooling, normalize=normalize).eval()
    assert graph.output_names == ("last_hidden_state", "sentence_embedding")
    assert difference(graph, rows(graph)) < 2e-5


def test_wrong_inputs_are_detected() -> None:
    """A graph that reads padding, or other segment ids, differs from the model."""
    graph = OnnxModule(model("bert", classify.Config())).eval()
    texts = rows(graph)
    size = (len(texts), max(map(len, texts)))
    assert difference(graph, texts, attention_mask=np.ones(size, np.int64)) > 1e-2
    assert difference(graph, texts, token_type_ids=np.zeros(size, np.int64)) > 1e-2


def test_an_encoder_without_segments_has_two_inputs() -> None:
    graph = OnnxModule(model("bert", segment_types=1)).eval()
    assert graph.input_names == ("input_ids", "attention_mask")
    assert difference(graph, rows(graph)) < 2e-5


def test_lstms_are_restored() -> None:
    made = model("bert", tag.Config(recurrent="bilstm", recurrent_width=6))
    (network,) = [module for module in made.modules() if isinstance(module, BiLSTM)]
    before = list(network.forward_lstms)
    with with_lstm_nodes(made):
        assert list(network.forward_lstms) != before
    assert list(network.forward_lstms) == before


@pytest.mark.parametrize(
    ("heads", "changes", "how", "words"),
    [
        ([classify.Config()], {}, {"pooling": "mean"}, "without heads"),
        ([], {"pooler": False}, {"pooling": "pooled"}, "no pooler"),
        ([], {}, {"pooling": "median"}, "mean, first, max, mean_sqrt_len, pooled"),
    ],
)
def test_invalid_pooling(heads: list[Any], changes: Any, how: Any, words: str) -> None:
    with pytest.raises(BertsmithError, match=words):
        OnnxModule(model("bert", *heads, **changes), **how)


def test_check_parity_uses_the_worst_batch() -> None:
    found = [ParityCheck((3,), {"logits": (1e-6, 0.5)}), ParityCheck((4, 2), {"logits": (1e-3, 0.5)})]
    assert check_parity(found, 1e-2, "it") == 1e-3
    with pytest.raises(ParityError, match=r"it differs from the model by up to 0.001 \(2 texts of up to 4 tokens\)"):
        check_parity(found, 1e-4, "it")
    with pytest.raises(ParityError, match="nan"):
        check_parity([*found, ParityCheck((5,), {"logits": (float("nan"), 0.5)})], 1e9, "it")


def test_tolerance_is_relative_to_the_largest_value_of_each_output() -> None:
    large = {"logits": (3e-3, 40.0), "last_hidden_state": (9e-5, 0.1)}
    assert (
        check_parity([ParityCheck((3,), dict.fromkeys(large, (0.0, 0.0))), ParityCheck((3,), large)], 1e-4, "it")
        == 3e-3
    )
    with pytest.raises(ParityError, match=r"by up to 0.005 .* more than 0.004, .* --tolerance 0.0001 .* value 40"):
        check_parity([ParityCheck((3,), large | {"logits": (5e-3, 40.0)})], 1e-4, "it")
    with pytest.raises(ParityError, match="last_hidden_state"):
        check_parity([ParityCheck((3,), large | {"last_hidden_state": (3e-3, 0.1)})], 1e-4, "it")


def test_a_translation_model_has_no_graph_of_its_head() -> None:
    encoder = seq2seq.Config(layers=1, width=32, heads=4, vocab_size=97)
    model = Model.build(encoder, [translation.Config()])
    with pytest.raises(BertsmithError, match=r"^a graph has no decoder: export the encoder"):
        OnnxModule(model)
