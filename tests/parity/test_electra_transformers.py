"""ELECTRA equals transformers: hidden states, logits and losses of every class, with folders of either side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import VOCABULARY, random_batch, randomize_weights, relative_difference
from model_io.folder_fixtures import same_weights, tokenizer
from parity.test_folders_transformers import batch as some_texts
from parity.test_heads_transformers import asked as asked_of_texts
from parity.test_heads_transformers import said_by, unpadded

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


def ours_of(kind: str, **changes: Any) -> Model:
    heads = [] if CASES[kind][1] is None else [CASES[kind][1]]
    return randomize_weights(Model.build(settings(kind, **changes), heads)).eval()


def compare_hidden(ours: Model, theirs: Any, batch: Batch) -> None:
    real = (batch.document_ids != 0).flatten()
    given = {
        "input_ids": batch.input_ids,
        "attention_mask": (batch.document_ids != 0).long(),
        "token_type_ids": batch.segment_ids,
    }
    with torch.no_grad():
        mine = ours.encoder(batch, return_layers=True).layers
        said = theirs.base_model.eval()(**given, output_hidden_states=True).hidden_states
    assert len(mine) == len(said) == 4
    for one, other in zip(mine, said, strict=True):
        assert relative_difference(one[real], other.flatten(0, 1)[real]) < 1e-5


def compare(ours: Model, theirs: Any, kind: str) -> None:
    """Every layer, the logits and the loss."""
    texts = some_texts()
    compare_hidden(ours, theirs, texts)
    if kind == "alone":
        return
    batch = asked(kind, texts)
    logits, loss = said_to(theirs, kind, batch)
    real = (batch.document_ids != 0).flatten()
    with torch.no_grad():
        mine = ours.predict(batch if kind != "tag" else batch.replace(indices={}), kind)
        if kind == "replaced_token":
            mine = mine[:, 1:]
        if kind == "span":
            mine, logits = mine.flatten(0, 1), logits.flatten(0, 1)
            loss = sum(said_to(theirs, kind, unpadded(batch, text))[1] for text in range(3)) / 3
        if kind not in ("classify", "regress", "choose"):
            mine, logits = mine[real], logits[real]
        # some logits are all small, sums of large numbers: their rounding is that of numbers about 1
        assert (mine - logits).abs().max() < 1e-5 * max(1.0, logits.abs().max().item())
        found = ours(asked_at(batch, kind))
        assert (found.sums[kind] / found.counts[kind]).item() == pytest.approx(loss, rel=1e-5)


def asked(kind: str, texts: Batch) -> Batch:
    """Three texts with labels for that objective; for token objectives at every token [T]."""
    if kind not in ("replaced_token", "masked_lm", "causal_lm"):
        return asked_of_texts()
    random = torch.Generator().manual_seed(0)
    most = 2 if kind == "replaced_token" else tokenizer().vocab_size
    labels = torch.randint(most, (texts.input_ids.numel(),), generator=random)
    return texts.replace(labels={kind: torch.where((texts.document_ids != 0).flatten(), labels, IGNORE_INDEX)})


def asked_at(batch: Batch, kind: str) -> Batch:
    if kind not in ("masked_lm", "causal_lm"):
        return batch
    return batch.replace(indices={kind: torch.arange(batch.input_ids.numel())})


def said_to(theirs: Any, kind: str, batch: Batch) -> tuple[torch.Tensor, float]:
    """Their logits, in the layout of ours, and their loss."""
    if kind not in ("replaced_token", "masked_lm", "causal_lm"):
        return said_by(theirs, kind, batch)
    given = {
        "input_ids": batch.input_ids,
        "attention_mask": (batch.document_ids != 0).long(),
        "token_type_ids": batch.segment_ids,
    }
    labels = batch.labels[kind].view_as(batch.input_ids)
    with torch.no_grad():
        if kind == "causal_lm":  # theirs moves labels itself
            logits = theirs.eval()(**given).logits.flatten(0, 1)
            return logits, float(torch.nn.functional.cross_entropy(logits, labels.flatten()))
        found = theirs.eval()(**given, labels=labels.clamp(min=0) if kind == "replaced_token" else labels)
    return found.logits.reshape(labels.numel(), -1), float(found.loss)


# each kind in some shape, both heads of pre-training in all of them
TRIED = [(kind, shape) for kind in ("replaced_token", "masked_lm") for shape in SHAPES]
TRIED += [(kind, list(SHAPES)[number % 3]) for number, kind in enumerate(CASES) if (kind, "narrow table") not in TRIED]


@pytest.mark.parametrize(("kind", "shape"), TRIED)
def test_our_folders_load_in_transformers(kind: str, shape: str, tmp_path: Path) -> None:
    architecture, head = CASES[kind]
    ours = ours_of(kind, **SHAPES[shape])
    save_model(ours, tokenizer(), tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [architecture]
    theirs, loading = getattr(transformers, architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    compare(ours, theirs, kind)
    if kind in ("classify", "regress"):
        assert theirs.classifier.dropout.p == head.dropout
    if kind == "choose":
        assert theirs.sequence_summary.last_dropout.p == head.dropout
    theirs.save_pretrained(tmp_path / "theirs")  # and back: what transformers writes of it is the same model
    tokenizer().save(tmp_path / "theirs")
    again, _, facts = open_model(tmp_path / "theirs")
    same_weights(ours, again)
    assert again.encoder.config == electra.Config(
        **vars(ours.encoder.config) | {"pooler_dropout": again.encoder.config.pooler_dropout}
    )
    if head is not None:
        assert again.objectives[kind].config == head if hasattr(again.objectives[kind], "config") else True
    assert facts.notes == ()
    compare(again, theirs, kind)


@pytest.mark.parametrize(
    ("kind", "narrow"), [*((kind, 24) for kind in CASES), ("replaced_token", 48)], ids=lambda value: str(value)
)
def test_transformers_folders_load_here(kind: str, narrow: int, tmp_path: Path) -> None:
    architecture, _ = CASES[kind]
    config = transformers.ElectraConfig(
        vocab_size=tokenizer().vocab_size,
        embedding_size=narrow,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=50,
        is_decoder=kind == "causal_lm",
        num_labels={"classify": 5, "tag": 3, "regress": 1}.get(kind, 2),
    )
    theirs = getattr(transformers, architecture)(config)
    for number, parameter in enumerate(theirs.parameters()):
        drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        parameter.data.copy_(drawn * 0.25)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer().save(tmp_path / "theirs")
    ours, _, facts = open_model(tmp_path / "theirs")
    assert list(ours.objectives) == ([] if kind == "alone" else [kind])
    assert facts.notes == ()
    assert facts.parameters == sum(parameter.numel() for parameter in theirs.parameters())
    compare(ours, theirs, kind)


def test_the_wrong_activation_is_detected(tmp_path: Path) -> None:
    save_model(ours_of("classify"), tokenizer(), tmp_path / "m")
    theirs = transformers.ElectraForSequenceClassification.from_pretrained(tmp_path / "m")
    theirs.classifier.activation = torch.nn.Tanh()
    with pytest.raises(AssertionError):
        compare(ours_of("classify"), theirs, "classify")


def test_a_model_is_saved_without_its_generator(tmp_path: Path) -> None:
    heads = [replaced_token.Config(generator_width=0.5)]
    ours = randomize_weights(Model.build(settings("replaced_token", embedding_width=24), heads)).eval()
    save_model(ours, tokenizer(), tmp_path / "m")
    theirs, loading = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    compare(ours_without_generator(ours), theirs, "replaced_token")


def ours_without_generator(ours: Model) -> Model:
    judging = Model.build(ours.encoder.config, [replaced_token.Config(generator_width=0.0)])
    judging.load_state_dict(ours.state_dict(), strict=False)
    return judging.eval()


def test_the_discriminator_loss_equals_transformers() -> None:
    """With replacements from our generator and the same labels, transformers' discriminator has the same loss."""
    small = {"layers": 3, "width": 32, "heads": 4, "feed_forward": 64, "max_positions": 40, "vocab_size": 97}
    ours = randomize_weights(
        Model.build(
            electra.Config(**small, embedding_width=24),
            [replaced_token.Config(generator_width=0.5)],
            vocabulary=VOCABULARY,
        )
    ).eval()
    hidden = ours.corrupt(random_batch([40, 17, 29, 5, 33], length=40))
    filled, _ = ours.objectives["replaced_token"].sample_replacements(
        hidden, ours.encoder.embed, ours.encoder.token_embeddings
    )
    theirs = same_in_transformers(ours)
    labels = filled.labels["replaced_token"].view_as(filled.input_ids)
    mask = (filled.document_ids != 0).long()
    with torch.no_grad():
        said = theirs(filled.input_ids, attention_mask=mask, token_type_ids=filled.segment_ids, labels=labels)
        loss = ours(hidden)
    assert (loss.sums["replaced_token"] / loss.counts["replaced_token"]).item() == pytest.approx(
        float(said.loss), rel=1e-5
    )


def same_in_transformers(model: Model) -> Any:
    """ElectraForPreTraining with the weights of our model, copied without the code under test."""
    config = model.encoder.config
    theirs = transformers.ElectraForPreTraining(
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
    ours = model.state_dict()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            for before, after in table.items():
                name = name.replace(before, after)
            if ".attention.self." in name:
                block, part, kind = name.rsplit(".", 2)
                stacked = ours[f"{block.removesuffix('.self')}.qkv.{kind}"]
                parameter.copy_(stacked.chunk(3)[("query", "key", "value").index(part)])
            else:
                parameter.copy_(ours[name])
    return theirs


def test_a_pretrained_transformers_folder_under_a_new_head(tmp_path: Path) -> None:
    config = transformers.ElectraConfig(
        vocab_size=tokenizer().vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    theirs = transformers.ElectraForPreTraining(config)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer().save(tmp_path / "theirs")
    made, _, facts = open_for(tmp_path / "theirs", [classify.Config(labels=NAMES)], seed=4)
    assert torch.equal(made.encoder.token_embeddings, theirs.electra.embeddings.word_embeddings.weight)
    assert made.encoder.config.pooler_dropout == 0.1
    assert facts.notes[0].startswith("newly initialised: the head classify, the pooler; unused weights")


@pytest.mark.parametrize(("size", "expected"), [("small", 13_549_057), ("base", 109_483_009), ("large", 335_142_913)])
def test_parameter_counts(size: str, expected: int) -> None:
    with torch.device("meta"):
        built = Model.build(electra.Config.size(size, vocab_size=30_522), [replaced_token.Config(generator_width=0.0)])
        config = built.encoder.config
        theirs = transformers.ElectraForPreTraining(
            transformers.ElectraConfig(
                embedding_size=config.embedding_width,
                hidden_size=config.width,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                intermediate_size=config.inner,
            )
        )
    assert parameter_count(built) == parameter_count(theirs) == expected
