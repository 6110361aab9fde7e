"""`positions`: rotary or learned in every Transformer encoder, and in ELECTRA's generator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import SIZE, VOCABULARY, random_batch, randomize_weights, relative_difference
from model_io.folder_fixtures import tokenizer

from bertsmith import config
from bertsmith.encoders import albert, bert, electra, gpt, roberta, roformer
from bertsmith.encoders import encoder as encoders
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.export.sentence_transformers import export_sentence_transformers
from bertsmith.model_io.folder_tokenizer import vocabulary_of
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model, save_model
from bertsmith.objectives import causal_lm, masked_lm, replaced_token
from bertsmith.objectives.objective import ObjectiveConfig

SMALL: dict[str, Any] = {"layers": 2, "width": 32, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
LENGTHS = [12, 9, 23, 7]
CASES: dict[str, tuple[type[TransformerConfig], ObjectiveConfig]] = {
    "bert": (bert.Config, masked_lm.Config()),
    "roberta": (roberta.Config, masked_lm.Config()),
    "albert": (albert.Config, masked_lm.Config()),
    "electra": (electra.Config, replaced_token.Config(generator_width=0.5, generator_layers=1)),
    "gpt": (gpt.Config, causal_lm.Config()),
}


@pytest.mark.parametrize("name", CASES)
def test_rotary_positions_have_no_table_and_are_relative(name: str) -> None:
    encoder = randomize_weights(CASES[name][0](**SMALL, vocab_size=SIZE, positions="rotary").build()).eval()
    assert not [weight for weight, _ in encoder.named_parameters() if "positions" in weight]
    batch = random_batch(LENGTHS, length=40)
    later = batch.replace(position_ids=batch.position_ids + 20)
    stretched = batch.replace(position_ids=2 * batch.position_ids)
    before = encoder(batch).last_hidden
    assert relative_difference(encoder(later).last_hidden, before) < 1e-4
    assert relative_difference(encoder(stretched).last_hidden, before) > 1e-3


def test_bert_with_rotary_positions_computes_what_roformer_computes() -> None:
    rotary, theirs = (
        randomize_weights(kind.Config(**SMALL, vocab_size=SIZE, pooler=False, **positions).build()).eval()
        for kind, positions in ((bert, {"positions": "rotary"}), (roformer, {}))
    )
    theirs.load_state_dict(rotary.state_dict())
    batch = random_batch(LENGTHS, length=40)
    assert torch.equal(rotary(batch).last_hidden, theirs(batch).last_hidden)


def test_the_generator_has_the_positions_of_the_encoder() -> None:
    for positions in ("learned", "rotary"):
        encoder = electra.Config(**SMALL, vocab_size=SIZE, positions=positions)
        model = Model.build(encoder, [replaced_token.Config(generator_width=0.5)], vocabulary=VOCABULARY)
        model = randomize_weights(model).eval()
        generator = model.objectives["replaced_token"].generator
        batch = random_batch(LENGTHS, length=40)
        batch = batch.replace(indices={"masked_lm": torch.arange(120)})
        embedded = model.encoder.embed(batch)
        stretched = batch.replace(position_ids=2 * batch.position_ids)
        before, after = (generator(embedded, each).last_hidden for each in (batch, stretched))
        # learned positions are in the embeddings, which are the same in both
        assert (relative_difference(after, before) > 1e-2) == (positions == "rotary")


@pytest.mark.parametrize("name", CASES)
def test_a_folder_keeps_them_and_is_native(name: str, tmp_path: Path) -> None:
    words, (kind, head) = tokenizer(), CASES[name]
    encoder = kind(**SMALL, vocab_size=words.vocab_size, max_positions=40, positions="rotary", pooler=False)
    model = randomize_weights(Model.build(encoder, [head], vocabulary=vocabulary_of(words))).eval()
    save_model(model, words, tmp_path / "m")
    again, _, facts = open_model(tmp_path / "m")
    assert facts.architectures == ("Bertsmith",)
    assert facts.notes == ()
    assert again.encoder.config == encoder
    assert {key: value.tolist() for key, value in again.state_dict().items()} == {
        key: value.tolist() for key, value in model.state_dict().items()
    }
    batch = random_batch(LENGTHS, length=40)
    batch = batch.replace(input_ids=batch.input_ids % words.vocab_size)
    assert torch.equal(again.eval().encoder(batch).last_hidden, model.encoder(batch).last_hidden)
    with pytest.raises(BertsmithError, match=r"transformers has no class for this encoder.*--to onnx") as found:
        export_sentence_transformers(tmp_path / "m", tmp_path / "out")
    assert "\n" not in str(found.value)
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_rotary_generator_has_its_own_layers(tmp_path: Path) -> None:
    words, (kind, head) = tokenizer(), CASES["electra"]
    model = Model.build(kind(**SMALL, vocab_size=words.vocab_size, positions="rotary"), [head])
    save_model(model.auxiliary_models()["generator"], words, tmp_path / "generator")
    settings = json.loads((tmp_path / "generator" / "config.json").read_text())["encoder"]
    assert (settings["layers"], settings["width"], settings["positions"]) == (1, 16, "rotary")
    opened, _, _ = open_model(tmp_path / "generator")
    ours = model.objectives["replaced_token"].generator
    assert torch.equal(opened.encoder.blocks[0].attention.qkv.weight, ours.blocks[0].attention.qkv.weight)


def test_learned_positions_stay_a_transformers_folder(tmp_path: Path) -> None:
    words = tokenizer()
    encoder = electra.Config(**SMALL, vocab_size=words.vocab_size)
    save_model(Model.build(encoder, [replaced_token.Config(generator_width=0.5)]), words, tmp_path / "m")
    assert open_model(tmp_path / "m")[2].architectures == ("ElectraForPreTraining",)


def test_wrong_settings_are_one_line_errors() -> None:
    with pytest.raises(ConfigError, match=r"^positions=sines must be one of learned, rotary$"):
        bert.Config(positions="sines")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^rotary embeddings need an even head width: width=9 / heads=3 is odd$"):
        electra.Config(width=9, heads=3, positions="rotary")
    with pytest.raises(ConfigError, match=r"^roformer has rotary positions: for positions=learned set encoder\.kind=b"):
        roformer.Config(positions="learned")
    with pytest.raises(
        ConfigError, match=r"^rotary positions need an even head width, and the heads of a generator of width 15"
    ):
        Model.build(electra.Config(width=30, heads=1, positions="rotary"), [replaced_token.Config(generator_width=0.5)])


def test_kinds_with_the_setting_say_their_default() -> None:
    found = {
        kind: config.find_kind(encoders.FOLDER, kind).Config().positions
        for kind in config.kinds(encoders.FOLDER)
        if issubclass(config.find_kind(encoders.FOLDER, kind).Config, TransformerConfig)
    }
    assert {kind for kind, positions in found.items() if positions == "rotary"} == {"modern", "roformer"}
