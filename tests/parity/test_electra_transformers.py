"""ELECTRA equals transformers: hidden states, logits and losses of every class, folders in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import VOCABULARY, random_batch, randomize_weights, relative_difference
from model_io.folder_fixtures import same_weights, tokenizer
from parity.test_folders_transformers import batch as unlabelled_batch
from parity.test_heads_transformers import labelled_batch as labelled_texts
from parity.test_heads_transformers import reference_outputs as head_outputs
from parity.test_heads_transformers import unpadded

from bertsmith.encoders import electra
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_for, open_model, save_model
from bertsmith.objectives import causal_lm, choose, classify, masked_lm, regress, replaced_token, span, tag
from bertsmith.types import IGNORE_INDEX, Batch

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

NAMES = ("O", "B", "I")
CASES: dict[str, tuple[str, Any]] = {
    "alone": ("ElectraModel", None),
    "replaced_token": ("ElectraForPreTraining", replaced_token.Config(generator_width=0.0)),
    "masked_lm": ("ElectraForMaskedLM", masked_lm.Config()),
    "causal_lm": ("ElectraForCausalLM", causal_lm.Config()),
    "classify": ("ElectraForSequenceClassification", classify.Config(labels=NAMES, dropout=0.3)),
    "regress": ("ElectraForSequenceClassification", regress.Config(dropout=0.0)),
    "tag": ("ElectraForTokenClassification", tag.Config(labels=NAMES)),
    "span": ("ElectraForQuestionAnswering", span.Config()),
    "choose": ("ElectraForMultipleChoice", choose.Config(dropout=0.2)),
}
SHAPES: dict[str, dict[str, Any]] = {
    "narrow table": {"embedding_width": 24},
    "table as wide as the blocks": {"embedding_width": 32},
    "other settings": {
        "embedding_width": 40,
        "activation": "relu",
        "layer_norm_eps": 1e-5,
        "max_positions": 33,
        "feed_forward": 80,
    },
}


def settings(kind: str, **changes: Any) -> electra.Config:
    small: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "feed_forward": 64, "max_positions": 40}
    small["vocab_size"] = tokenizer().vocab_size
    pooler = kind in ("classify", "regress", "choose")
    return electra.Config(**small | {"causal": kind == "causal_lm", "pooler": pooler} | changes)


def random_model(kind: str, **changes: Any) -> Model:
    heads = [] if CASES[kind][1] is None else [CASES[kind][1]]
    return randomize_weights(Model.build(settings(kind, **changes), heads)).eval()


def compare_hidden_states(bertsmith_model: Model, reference: Any, batch: Batch) -> None:
    real = (batch.document_ids != 0).flatten()
    inputs = {
        "input_ids": batch.input_ids,
        "attention_mask": (batch.document_ids != 0).long(),
        "token_type_ids": batch.segment_ids,
    }
    with torch.no_grad():
        actual = bertsmith_model.encoder(batch, return_layers=True).layers
        outputs = reference.base_model.eval()(**inputs, output_hidden_states=True).hidden_states
    assert len(actual) == len(outputs) == 4
    for actual_layer, expected in zip(actual, outputs, strict=True):
        assert relative_difference(actual_layer[real], expected.flatten(0, 1)[real]) < 1e-5


def compare(bertsmith_model: Model, reference: Any, kind: str) -> None:
    """Every layer, the logits and the loss."""
    texts = unlabelled_batch()
    compare_hidden_states(bertsmith_model, reference, texts)
    if kind == "alone":
        return
    batch = labelled_batch(kind, texts)
    logits, loss = reference_outputs(reference, kind, batch)
    real = (batch.document_ids != 0).flatten()
    with torch.no_grad():
        actual = bertsmith_model.predict(batch if kind != "tag" else batch.replace(indices={}), kind)
        if kind == "replaced_token":
            actual = actual[:, 1:]
        if kind == "span":
            actual, logits = actual.flatten(0, 1), logits.flatten(0, 1)
            loss = sum(reference_outputs(reference, kind, unpadded(batch, text))[1] for text in range(3)) / 3
        if kind not in ("classify", "regress", "choose"):
            actual, logits = actual[real], logits[real]
        # small logits are sums of large terms: their rounding error is that of values around 1
        assert (actual - logits).abs().max() < 1e-5 * max(1.0, logits.abs().max().item())
        result = bertsmith_model(with_all_indices(batch, kind))
        assert (result.sums[kind] / result.counts[kind]).item() == pytest.approx(loss, rel=1e-5)


def labelled_batch(kind: str, texts: Batch) -> Batch:
    """Three texts with labels for that objective; for token objectives at every token [T]."""
    if kind not in ("replaced_token", "masked_lm", "causal_lm"):
        return labelled_texts()
    random = torch.Generator().manual_seed(0)
    classes = 2 if kind == "replaced_token" else tokenizer().vocab_size
    labels = torch.randint(classes, (texts.input_ids.numel(),), generator=random)
    return texts.replace(labels={kind: torch.where((texts.document_ids != 0).flatten(), labels, IGNORE_INDEX)})


def with_all_indices(batch: Batch, kind: str) -> Batch:
    if kind not in ("masked_lm", "causal_lm"):
        return batch
    return batch.replace(indices={kind: torch.arange(batch.input_ids.numel())})


def reference_outputs(reference: Any, kind: str, batch: Batch) -> tuple[torch.Tensor, float]:
    """Logits of transformers in bertsmith's layout, and its loss."""
    if kind not in ("replaced_token", "masked_lm", "causal_lm"):
        return head_outputs(reference, kind, batch)
    inputs = {
        "input_ids": batch.input_ids,
        "attention_mask": (batch.document_ids != 0).long(),
        "token_type_ids": batch.segment_ids,
    }
    labels = batch.labels[kind].view_as(batch.input_ids)
    with torch.no_grad():
        if kind == "causal_lm":  # transformers shifts labels itself
            logits = reference.eval()(**inputs).logits.flatten(0, 1)
            return logits, float(torch.nn.functional.cross_entropy(logits, labels.flatten()))
        result = reference.eval()(**inputs, labels=labels.clamp(min=0) if kind == "replaced_token" else labels)
    return result.logits.reshape(labels.numel(), -1), float(result.loss)


# every kind in one shape, both pre-training heads in all shapes
TESTED = [(kind, shape) for kind in ("replaced_token", "masked_lm") for shape in SHAPES]
TESTED += [
    (kind, list(SHAPES)[number % 3]) for number, kind in enumerate(CASES) if (kind, "narrow table") not in TESTED
]


@pytest.mark.parametrize(("kind", "shape"), TESTED)
def test_bertsmith_folders_load_in_transformers(kind: str, shape: str, tmp_path: Path) -> None:
    architecture, head = CASES[kind]
    bertsmith_model = random_model(kind, **SHAPES[shape])
    save_model(bertsmith_model, tokenizer(), tmp_path / "bertsmith")
    assert json.loads((tmp_path / "bertsmith" / "config.json").read_text())["architectures"] == [architecture]
    reference, loading = getattr(transformers, architecture).from_pretrained(
        tmp_path / "bertsmith", output_loading_info=True
    )
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    compare(bertsmith_model, reference, kind)
    if kind in ("classify", "regress"):
        assert reference.classifier.dropout.p == head.dropout
    if kind == "choose":
        assert reference.sequence_summary.last_dropout.p == head.dropout
    reference.save_pretrained(
        tmp_path / "transformers"
    )  # round trip: the folder written by transformers holds the same model
    tokenizer().save(tmp_path / "transformers")
    reloaded, _, facts = open_model(tmp_path / "transformers")
    same_weights(bertsmith_model, reloaded)
    assert reloaded.encoder.config == electra.Config(
        **vars(bertsmith_model.encoder.config) | {"pooler_dropout": reloaded.encoder.config.pooler_dropout}
    )
    if head is not None:
        expected = head.with_pooling("both") if hasattr(head, "with_pooling") else head
        assert getattr(reloaded.objectives[kind], "config", expected) == expected
    assert facts.notes == ()
    compare(reloaded, reference, kind)


@pytest.mark.parametrize(
    ("kind", "embedding_size"), [*((kind, 24) for kind in CASES), ("replaced_token", 48)], ids=lambda value: str(value)
)
def test_transformers_folders_load_here(kind: str, embedding_size: int, tmp_path: Path) -> None:
    architecture, _ = CASES[kind]
    config = transformers.ElectraConfig(
        vocab_size=tokenizer().vocab_size,
        embedding_size=embedding_size,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=50,
        is_decoder=kind == "causal_lm",
        num_labels={"classify": 5, "tag": 3, "regress": 1}.get(kind, 2),
    )
    reference = getattr(transformers, architecture)(config)
    for number, parameter in enumerate(reference.parameters()):
        drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        parameter.data.copy_(drawn * 0.25)
    reference.save_pretrained(tmp_path / "transformers")
    tokenizer().save(tmp_path / "transformers")
    bertsmith_model, _, facts = open_model(tmp_path / "transformers")
    assert list(bertsmith_model.objectives) == ([] if kind == "alone" else [kind])
    assert facts.notes == ()
    assert facts.parameters == sum(parameter.numel() for parameter in reference.parameters())
    compare(bertsmith_model, reference, kind)


def test_the_wrong_activation_is_detected(tmp_path: Path) -> None:
    save_model(random_model("classify"), tokenizer(), tmp_path / "m")
    reference = transformers.ElectraForSequenceClassification.from_pretrained(tmp_path / "m")
    reference.classifier.activation = torch.nn.Tanh()
    with pytest.raises(AssertionError):
        compare(random_model("classify"), reference, "classify")


def test_a_model_is_saved_without_its_generator(tmp_path: Path) -> None:
    heads = [replaced_token.Config(generator_width=0.5)]
    bertsmith_model = randomize_weights(Model.build(settings("replaced_token", embedding_width=24), heads)).eval()
    save_model(bertsmith_model, tokenizer(), tmp_path / "m")
    reference, loading = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    compare(without_generator(bertsmith_model), reference, "replaced_token")


def without_generator(bertsmith_model: Model) -> Model:
    discriminator = Model.build(bertsmith_model.encoder.config, [replaced_token.Config(generator_width=0.0)])
    discriminator.load_state_dict(bertsmith_model.state_dict(), strict=False)
    return discriminator.eval()


def test_the_discriminator_loss_equals_transformers() -> None:
    """With the same replacements and labels, transformers' discriminator has the same loss."""
    small = {"layers": 3, "width": 32, "heads": 4, "feed_forward": 64, "max_positions": 40, "vocab_size": 97}
    bertsmith_model = randomize_weights(
        Model.build(
            electra.Config(**small, embedding_width=24),
            [replaced_token.Config(generator_width=0.5)],
            vocabulary=VOCABULARY,
        )
    ).eval()
    corrupted = bertsmith_model.corrupt(random_batch([40, 17, 29, 5, 33], length=40))
    filled, _ = bertsmith_model.objectives["replaced_token"].sample_replacements(
        corrupted, bertsmith_model.encoder.embed, bertsmith_model.encoder.token_embeddings
    )
    reference = same_in_transformers(bertsmith_model)
    labels = filled.labels["replaced_token"].view_as(filled.input_ids)
    mask = (filled.document_ids != 0).long()
    with torch.no_grad():
        outputs = reference(filled.input_ids, attention_mask=mask, token_type_ids=filled.segment_ids, labels=labels)
        loss = bertsmith_model(corrupted)
    assert (loss.sums["replaced_token"] / loss.counts["replaced_token"]).item() == pytest.approx(
        float(outputs.loss), rel=1e-5
    )


def same_in_transformers(model: Model) -> Any:
    """ElectraForPreTraining with the weights of a bertsmith model, copied without the code under test."""
    config = model.encoder.config
    reference = transformers.ElectraForPreTraining(
        transformers.ElectraConfig(
            vocab_size=config.vocab_size,
            embedding_size=config.embedding_width,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.inner,
            max_position_embeddings=config.max_positions,
        )
    ).eval()
    table = {
        "electra.embeddings.word_embeddings": "encoder.embeddings.tokens",
        "electra.embeddings.position_embeddings": "encoder.embeddings.positions",
        "electra.embeddings.token_type_embeddings": "encoder.embeddings.segments",
        "electra.embeddings.LayerNorm": "encoder.embeddings.norm",
        "electra.embeddings_project": "encoder.embeddings.project",
        "discriminator_predictions.dense_prediction": "objectives.replaced_token.classifier",
        "discriminator_predictions.dense": "objectives.replaced_token.transform",
        "attention.output.dense": "attention.output",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "feed_forward.expand",
        "output.LayerNorm": "feed_forward_norm",
        "output.dense": "feed_forward.contract",
        "electra.encoder.layer": "encoder.blocks",
    }
    bertsmith_model = model.state_dict()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            for before, after in table.items():
                name = name.replace(before, after)
            if ".attention.self." in name:
                block, part, kind = name.rsplit(".", 2)
                stacked = bertsmith_model[f"{block.removesuffix('.self')}.qkv.{kind}"]
                parameter.copy_(stacked.chunk(3)[("query", "key", "value").index(part)])
            else:
                parameter.copy_(bertsmith_model[name])
    return reference


def test_a_new_head_on_a_pretrained_transformers_folder(tmp_path: Path) -> None:
    config = transformers.ElectraConfig(
        vocab_size=tokenizer().vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    reference = transformers.ElectraForPreTraining(config)
    reference.save_pretrained(tmp_path / "transformers")
    tokenizer().save(tmp_path / "transformers")
    built, _, facts = open_for(tmp_path / "transformers", [classify.Config(labels=NAMES)], seed=4)
    assert torch.equal(built.encoder.token_embeddings, reference.electra.embeddings.word_embeddings.weight)
    assert built.encoder.config.pooler_dropout == 0.1
    assert facts.notes[0].startswith("newly initialised: the head classify, the pooler; unused weights")


@pytest.mark.parametrize(("size", "expected"), [("small", 13_549_057), ("base", 109_483_009), ("large", 335_142_913)])
def test_parameter_counts(size: str, expected: int) -> None:
    with torch.device("meta"):
        built = Model.build(electra.Config.size(size, vocab_size=30_522), [replaced_token.Config(generator_width=0.0)])
        config = built.encoder.config
        reference = transformers.ElectraForPreTraining(
            transformers.ElectraConfig(
                embedding_size=config.embedding_width,
                hidden_size=config.width,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                intermediate_size=config.inner,
            )
        )
    assert parameter_count(built) == parameter_count(reference) == expected
