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
    """BertForPreTraining with the weights of our model, copied without the code under test."""
    ours = model.encoder.config
    assert isinstance(ours, bert.Config)
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=ours.vocab_size,
            hidden_size=ours.width,
            num_hidden_layers=ours.layers,
            num_attention_heads=ours.heads,
            intermediate_size=ours.inner,
            max_position_embeddings=ours.max_positions,
            type_vocab_size=ours.segment_types,
            hidden_act=ours.activation,
            layer_norm_eps=ours.layer_norm_eps,
            attn_implementation="eager",
        )
    )
    theirs = theirs.to(next(model.parameters()).dtype).eval()
    with torch.no_grad():
        for parameter, mine in pairs_of_parameters(theirs, dict(model.named_parameters())):
            parameter.copy_(mine)
    return theirs


def pairs_of_parameters(theirs: torch.nn.Module, ours: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Pairs of corresponding parameters, each parameter of both sides exactly once."""
    left = dict(ours)
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
    found = []
    for name, parameter in theirs.named_parameters():
        if ".attention.self." in name:
            before, part, kind = name.replace("bert.encoder.layer", "encoder.blocks").rsplit(".", 2)
            stacked = ours[before.replace("attention.self", f"attention.qkv.{kind}")]
            found.append((parameter, stacked.chunk(3)[("query", "key", "value").index(part)]))
            left.pop(before.replace("attention.self", f"attention.qkv.{kind}"), None)
            continue
        for theirs_name, ours_name in table.items():
            name = name.replace(theirs_name, ours_name)
        found.append((parameter, left.pop(name)))
    assert not left, f"nothing of theirs for {', '.join(left)}"
    return found


@dataclass
class Results:
    """The outputs of one side at non-padding tokens, text by text."""

    hidden: list[Tensor]
    pooled: Tensor
    words: Tensor
    follows: Tensor
    loss: Tensor


def texts_of(batch: Batch) -> list[Tensor]:
    """The flat token indices of each text, in the order of the texts."""
    document = batch.document_ids.flatten()
    length = batch.input_ids.shape[1]
    found = []
    for first in batch.cls_positions.tolist():
        end = first + 1
        while end % length and document[end] == document[first]:
            end += 1
        found.append(torch.arange(first, end))
    return found


def of_ours(model: Model, batch: Batch) -> Results:
    places = torch.cat(texts_of(batch))
    encoding = model.encoder(batch, return_layers=True)
    return Results(
        hidden=[layer[places] for layer in encoding.layers],
        pooled=encoding.pooled,
        words=model.predict(batch.replace(indices={"masked_lm": places}), "masked_lm"),
        follows=model.predict(batch, "next_sentence"),
        loss=model(batch).mean(),
    )


def of_theirs(model: torch.nn.Module, batch: Batch, *, alone: bool) -> Results:
    """Rows with padding and an attention mask; or every text alone, without padding, for packed rows."""
    texts = texts_of(batch)
    if alone:
        runs = [
            model(
                batch.input_ids.flatten()[at][None],
                token_type_ids=batch.segment_ids.flatten()[at][None],
                output_hidden_states=True,
            )
            for at in texts
        ]
        keep = [torch.arange(len(at)) for at in texts]
    else:
        mask = (batch.document_ids != 0).long()
        runs = [
            model(batch.input_ids, attention_mask=mask, token_type_ids=batch.segment_ids, output_hidden_states=True)
        ]
        keep = [torch.cat(texts)]
    layers = zip(*(run.hidden_states for run in runs), strict=True)
    hidden = [torch.cat([one.flatten(0, 1)[at] for one, at in zip(layer, keep, strict=True)]) for layer in layers]
    words = torch.cat([run.prediction_logits.flatten(0, 1)[at] for run, at in zip(runs, keep, strict=True)])
    follows = torch.cat([run.seq_relationship_logits for run in runs])
    pooled = torch.cat([model.bert.pooler(run.hidden_states[-1]) for run in runs])
    labels = torch.full((batch.input_ids.numel(),), IGNORE_INDEX)
    asked = batch.labels["masked_lm"] != IGNORE_INDEX
    labels[batch.indices["masked_lm"][asked]] = batch.labels["masked_lm"][asked]
    loss = F.cross_entropy(words, labels[torch.cat(texts)]) + F.cross_entropy(follows, batch.labels["next_sentence"])
    return Results(hidden, pooled, words, follows, loss)


def compare(ours: Model, theirs: torch.nn.Module, batch: Batch, *, alone: bool) -> dict[str, float]:
    """The relative differences of everything, by name."""
    mine, other = of_ours(ours, batch), of_theirs(theirs, batch, alone=alone)
    mine.loss.backward()
    other.loss.backward()
    found = {
        f"layer {number}": relative_difference(*two)
        for number, two in enumerate(zip(mine.hidden, other.hidden, strict=True))
    }
    for what in ("pooled", "words", "follows", "loss"):
        found[what] = relative_difference(getattr(mine, what), getattr(other, what))
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    names = [name for name, _ in theirs.named_parameters()]
    for name, (parameter, gradient) in zip(names, pairs_of_parameters(theirs, gradients), strict=True):
        difference = (gradient - parameter.grad).abs().max() / largest_gradient(theirs, name)
        found[f"gradient of {name}"] = float(difference)
    return found


def largest_gradient(model: torch.nn.Module, name: str) -> Tensor:
    """The largest number in a parameter's gradient; of queries, keys and values together where one alone is noise.

    A key's bias has the gradient 0 but for rounding, since softmax does not notice it. And in float32 queries and keys,
    whose gradients are 1e-4 of the values' here, are noise on both sides: transformers is 3e-4 from its own float64.
    """
    parameter = model.get_parameter(name)
    alone = parameter.dtype == torch.float64 and not name.endswith("key.bias")
    *before, part, kind = name.split(".")
    parts = [part] if alone or "self" not in before else ["query", "key", "value"]
    gradients = [model.get_parameter(".".join([*before, one, kind])).grad.abs().max() for one in parts]
    return torch.stack(gradients).max()


def worst(differences: dict[str, float]) -> tuple[float, str]:
    return max((difference, name) for name, difference in differences.items())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_padded_rows(shape: str, dtype: torch.dtype) -> None:
    settings, lengths, length = SHAPES[shape]
    model = pretraining_model(**settings).to(dtype)
    batch = model.corrupt(random_batch(lengths, length=length))
    difference, where = worst(compare(model, same_in_transformers(model), batch, alone=False))
    assert difference < TOLERANCE[dtype], where


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_packed_rows_equal_separate_texts(dtype: torch.dtype) -> None:
    model = pretraining_model().to(dtype)
    batch = model.corrupt(random_batch([12, 9, 23, 7, 40, 5, 5, 16], length=40, pack=True))
    assert len(batch.input_ids) < 8, "several texts share a row"
    difference, where = worst(compare(model, same_in_transformers(model), batch, alone=True))
    assert difference < TOLERANCE[dtype], where


@pytest.mark.parametrize(("ours", "theirs"), [("gelu", "gelu_new"), ("gelu_new", "gelu")])
def test_the_other_gelu_is_detected(ours: str, theirs: str) -> None:
    model, other = pretraining_model(activation=ours), pretraining_model(activation=theirs)
    batch = model.corrupt(random_batch([40, 17, 29], length=40))
    differences = compare(model, same_in_transformers(other), batch, alone=False)
    assert differences["layer 0"] < 1e-5, "before the first activation nothing differs"
    assert min(differences["layer 3"], differences["words"], differences["pooled"]) > 1e-5 * 3


def test_another_epsilon_is_detected() -> None:
    model, other = pretraining_model(layer_norm_eps=1e-12), pretraining_model(layer_norm_eps=1e-5)
    batch = model.corrupt(random_batch([40, 17, 29], length=40))
    assert worst(compare(model, same_in_transformers(other), batch, alone=False))[0] > 1e-5


def test_attention_probabilities() -> None:
    model = pretraining_model()
    batch = random_batch([40, 17, 29, 5, 33], length=40)
    ours = model.encoder(batch, return_attentions=True).attentions
    mask = (batch.document_ids != 0).long()
    theirs = (
        same_in_transformers(model).bert(batch.input_ids, mask, batch.segment_ids, output_attentions=True).attentions
    )
    real = mask.bool()
    assert len(ours) == len(theirs) == 3
    for mine, other in zip(ours, theirs, strict=True):
        assert relative_difference(mine.transpose(1, 2)[real], other.transpose(1, 2)[real]) < 1e-5
        assert (mine.sum(-1) - 1).abs().max() < 1e-6
