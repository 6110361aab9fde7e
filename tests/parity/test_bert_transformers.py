"""BERT equals transformers with large weights: hidden states, probabilities, logits, losses and gradients."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import pretraining_model, random_batch, relative_difference
from torch import Tensor

from bertsmith.encoders import bert
from bertsmith.model_io.model import Model
from bertsmith.types import IGNORE_INDEX, Batch

transformers = pytest.importorskip("transformers")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
SHAPES = {  # settings of the encoder, lengths of the texts, length of a line
    "padded": ({}, [40, 17, 29, 5, 33], 40),
    "one long row": ({"max_positions": 64, "layers": 2}, [64], 64),
    "wide": ({"layers": 2, "width": 96, "heads": 3, "feed_forward": 160}, [21, 21, 9], 24),
    "tanh": ({"activation": "gelu_new"}, [40, 17, 29], 40),
    "relu, other epsilon": ({"activation": "relu", "layer_norm_eps": 1e-5}, [12, 40], 40),
}


def same_in_transformers(model: Model) -> torch.nn.Module:
    """BertForPreTraining with the weights of a bertsmith model, copied without the code under test."""
    bertsmith_model = model.encoder.config
    assert isinstance(bertsmith_model, bert.Config)
    reference = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=bertsmith_model.vocab_size,
            hidden_size=bertsmith_model.width,
            num_hidden_layers=bertsmith_model.layers,
            num_attention_heads=bertsmith_model.heads,
            intermediate_size=bertsmith_model.inner,
            max_position_embeddings=bertsmith_model.max_positions,
            type_vocab_size=bertsmith_model.segment_types,
            hidden_act=bertsmith_model.activation,
            layer_norm_eps=bertsmith_model.layer_norm_eps,
            attn_implementation="eager",
        )
    )
    reference = reference.to(next(model.parameters()).dtype).eval()
    with torch.no_grad():
        for parameter, actual in pairs_of_parameters(reference, dict(model.named_parameters())):
            parameter.copy_(actual)
    return reference


def pairs_of_parameters(reference: torch.nn.Module, bertsmith_model: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Pairs of corresponding parameters, each parameter of both sides exactly once."""
    remaining = dict(bertsmith_model)
    table = {
        "bert.embeddings.word_embeddings.weight": "encoder.embeddings.tokens.weight",
        "bert.embeddings.position_embeddings.weight": "encoder.embeddings.positions.weight",
        "bert.embeddings.token_type_embeddings.weight": "encoder.embeddings.segments.weight",
        "bert.embeddings.LayerNorm": "encoder.embeddings.norm",
        "bert.pooler.dense": "encoder.pooler",
        "cls.predictions.transform.dense": "objectives.masked_lm.transform",
        "cls.predictions.transform.LayerNorm": "objectives.masked_lm.norm",
        "cls.predictions.bias": "objectives.masked_lm.bias",
        "cls.seq_relationship": "objectives.next_sentence.classify",
        "attention.output.dense": "attention.output",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "feed_forward.expand",
        "output.LayerNorm": "feed_forward_norm",
        "output.dense": "feed_forward.contract",
        "bert.encoder.layer": "encoder.blocks",
    }
    result = []
    for name, parameter in reference.named_parameters():
        if ".attention.self." in name:
            before, part, kind = name.replace("bert.encoder.layer", "encoder.blocks").rsplit(".", 2)
            stacked = bertsmith_model[before.replace("attention.self", f"attention.qkv.{kind}")]
            result.append((parameter, stacked.chunk(3)[("query", "key", "value").index(part)]))
            remaining.pop(before.replace("attention.self", f"attention.qkv.{kind}"), None)
            continue
        for reference_name, bertsmith_name in table.items():
            name = name.replace(reference_name, bertsmith_name)
        result.append((parameter, remaining.pop(name)))
    assert not remaining, f"no transformers parameter for {', '.join(remaining)}"
    return result


@dataclass
class Results:
    """Outputs of one implementation at non-padding tokens, text by text."""

    hidden: list[Tensor]
    pooled: Tensor
    words: Tensor
    next_sentence: Tensor
    loss: Tensor


def texts_of(batch: Batch) -> list[Tensor]:
    """The flat token indices of each text, in the order of the texts."""
    document = batch.document_ids.flatten()
    length = batch.input_ids.shape[1]
    result = []
    for first in batch.cls_positions.tolist():
        end = first + 1
        while end % length and document[end] == document[first]:
            end += 1
        result.append(torch.arange(first, end))
    return result


def bertsmith_results(model: Model, batch: Batch) -> Results:
    positions = torch.cat(texts_of(batch))
    encoding = model.encoder(batch, return_layers=True)
    return Results(
        hidden=[layer[positions] for layer in encoding.layers],
        pooled=encoding.pooled,
        words=model.predict(batch.replace(indices={"masked_lm": positions}), "masked_lm"),
        next_sentence=model.predict(batch, "next_sentence"),
        loss=model(batch).mean(),
    )


def reference_results(model: torch.nn.Module, batch: Batch, *, separately: bool) -> Results:
    """Rows with padding and an attention mask; or every text alone, without padding, for packed rows."""
    texts = texts_of(batch)
    if separately:
        runs = [
            model(
                batch.input_ids.flatten()[at][None],
                token_type_ids=batch.segment_ids.flatten()[at][None],
                output_hidden_states=True,
            )
            for at in texts
        ]
        kept = [torch.arange(len(at)) for at in texts]
    else:
        mask = (batch.document_ids != 0).long()
        runs = [
            model(batch.input_ids, attention_mask=mask, token_type_ids=batch.segment_ids, output_hidden_states=True)
        ]
        kept = [torch.cat(texts)]
    layers = zip(*(run.hidden_states for run in runs), strict=True)
    hidden = [torch.cat([one.flatten(0, 1)[at] for one, at in zip(layer, kept, strict=True)]) for layer in layers]
    words = torch.cat([run.prediction_logits.flatten(0, 1)[at] for run, at in zip(runs, kept, strict=True)])
    next_sentence = torch.cat([run.seq_relationship_logits for run in runs])
    pooled = torch.cat([model.bert.pooler(run.hidden_states[-1]) for run in runs])
    labels = torch.full((batch.input_ids.numel(),), IGNORE_INDEX)
    labelled = batch.labels["masked_lm"] != IGNORE_INDEX
    labels[batch.indices["masked_lm"][labelled]] = batch.labels["masked_lm"][labelled]
    loss = F.cross_entropy(words, labels[torch.cat(texts)]) + F.cross_entropy(
        next_sentence, batch.labels["next_sentence"]
    )
    return Results(hidden, pooled, words, next_sentence, loss)


def compare(bertsmith_model: Model, reference: torch.nn.Module, batch: Batch, *, separately: bool) -> dict[str, float]:
    """Relative differences of all outputs and gradients, by name."""
    actual, expected = (
        bertsmith_results(bertsmith_model, batch),
        reference_results(reference, batch, separately=separately),
    )
    actual.loss.backward()
    expected.loss.backward()
    result = {
        f"layer {number}": relative_difference(*two)
        for number, two in enumerate(zip(actual.hidden, expected.hidden, strict=True))
    }
    for what in ("pooled", "words", "next_sentence", "loss"):
        result[what] = relative_difference(getattr(actual, what), getattr(expected, what))
    gradients = {name: parameter.grad for name, parameter in bertsmith_model.named_parameters()}
    names = [name for name, _ in reference.named_parameters()]
    for name, (parameter, gradient) in zip(names, pairs_of_parameters(reference, gradients), strict=True):
        difference = (gradient - parameter.grad).abs().max() / largest_gradient(reference, name)
        result[f"gradient of {name}"] = float(difference)
    return result


def largest_gradient(model: torch.nn.Module, name: str) -> Tensor:
    """The maximum of a parameter's gradient; over queries, keys and values together where one alone is noise.

    The gradient of a key bias is 0 up to rounding, since softmax is invariant to it. In float32 the gradients of
    queries and keys, which are 1e-4 of the values' here, are noise: transformers is 3e-4 from its own float64.
    """
    parameter = model.get_parameter(name)
    separately = parameter.dtype == torch.float64 and not name.endswith("key.bias")
    *before, part, kind = name.split(".")
    parts = [part] if separately or "self" not in before else ["query", "key", "value"]
    gradients = [model.get_parameter(".".join([*before, one, kind])).grad.abs().max() for one in parts]
    return torch.stack(gradients).max()


def largest_difference(differences: dict[str, float]) -> tuple[float, str]:
    return max((difference, name) for name, difference in differences.items())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_padded_rows_equal_transformers(shape: str, dtype: torch.dtype) -> None:
    settings, lengths, length = SHAPES[shape]
    model = pretraining_model(**settings).to(dtype)
    batch = model.corrupt(random_batch(lengths, length=length))
    difference, where = largest_difference(compare(model, same_in_transformers(model), batch, separately=False))
    assert difference < TOLERANCE[dtype], where


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_packed_rows_equal_separate_texts(dtype: torch.dtype) -> None:
    model = pretraining_model().to(dtype)
    batch = model.corrupt(random_batch([12, 9, 23, 7, 40, 5, 5, 16], length=40, pack=True))
    assert len(batch.input_ids) < 8, "several texts share a row"
    difference, where = largest_difference(compare(model, same_in_transformers(model), batch, separately=True))
    assert difference < TOLERANCE[dtype], where


@pytest.mark.parametrize(("bertsmith_model", "reference"), [("gelu", "gelu_new"), ("gelu_new", "gelu")])
def test_the_other_gelu_is_detected(bertsmith_model: str, reference: str) -> None:
    model, expected = pretraining_model(activation=bertsmith_model), pretraining_model(activation=reference)
    batch = model.corrupt(random_batch([40, 17, 29], length=40))
    differences = compare(model, same_in_transformers(expected), batch, separately=False)
    assert differences["layer 0"] < 1e-5, "before the first activation nothing differs"
    assert min(differences["layer 3"], differences["words"], differences["pooled"]) > 1e-5 * 3


def test_another_epsilon_is_detected() -> None:
    model, expected = pretraining_model(layer_norm_eps=1e-12), pretraining_model(layer_norm_eps=1e-5)
    batch = model.corrupt(random_batch([40, 17, 29], length=40))
    assert largest_difference(compare(model, same_in_transformers(expected), batch, separately=False))[0] > 1e-5


def test_attention_probabilities_equal_transformers() -> None:
    model = pretraining_model()
    batch = random_batch([40, 17, 29, 5, 33], length=40)
    bertsmith_model = model.encoder(batch, return_attentions=True).attentions
    mask = (batch.document_ids != 0).long()
    reference = (
        same_in_transformers(model).bert(batch.input_ids, mask, batch.segment_ids, output_attentions=True).attentions
    )
    real = mask.bool()
    assert len(bertsmith_model) == len(reference) == 3
    for actual, expected in zip(bertsmith_model, reference, strict=True):
        assert relative_difference(actual.transpose(1, 2)[real], expected.transpose(1, 2)[real]) < 1e-5
        assert (actual.sum(-1) - 1).abs().max() < 1e-6
