"""Starting from a model folder: the encoder has the folder's shape; settings that contradict it are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from model_fixtures import randomize_weights
from model_io.folder_fixtures import change_config, folder, foreign, one_line, tokenizer

from bertsmith import config, recipes
from bertsmith.encoders import awd_lstm
from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model, save_model
from bertsmith.objectives import causal_lm
from bertsmith.tokenizers.wordpiece import SPECIALS, WordPiece
from bertsmith.tokenizers.words import Rules, Words
from bertsmith.training.pretrain_data import build_model
from bertsmith.training.recipe import Recipe, with_overrides
from bertsmith.training.start import load_weights

SMALL = ["max_length=16", "encoder.vocab_size=64"]


def started(path: Path, *changes: str, name: str = "bert/base") -> Recipe:
    return with_overrides(recipes.find(name), [*SMALL, f"start={path}", *changes])


def test_the_encoder_has_the_shape_of_the_folder(tmp_path: Path) -> None:
    path = foreign(tmp_path / "m", layers=3, heads=4)
    change_config(path, hidden_act="relu", layer_norm_eps=1e-5)
    recipe = started(path, "encoder.dropout=0.3")
    encoder = recipe.encoder
    assert (encoder.layers, encoder.width, encoder.heads, encoder.max_positions) == (3, 32, 4, 40)
    assert (encoder.activation, encoder.layer_norm_eps, encoder.dropout) == ("relu", 1e-5, 0.3)
    model = build_model(recipe, tokenizer())
    assert load_weights(model, path, tokenizer()) == [f"started from the weights of {path}"]
    for name, value in open_model(path)[0].state_dict().items():
        assert torch.equal(model.state_dict()[name][: len(value)], value), name


CONTRADICTIONS = {
    "heads": ("encoder.heads=2", "encoder.heads=2 contradicts {}, where it is 4"),
    "activation": ("encoder.activation=relu", "encoder.activation=relu contradicts {}, where it is gelu"),
    "epsilon": ("encoder.layer_norm_eps=1e-6", "encoder.layer_norm_eps=1e-06 contradicts {}, where it is 1e-12"),
    "fewer layers": ("encoder.layers=1", "encoder.layers=1 contradicts {}, where it is 2"),
    "fewer positions": ("encoder.max_positions=32", "encoder.max_positions=32 contradicts {}, where it is 40"),
    "width": ("encoder.width=64", "encoder.width=64 contradicts {}, where it is 32"),
    "feed-forward": ("encoder.feed_forward=99", "encoder.feed_forward=99 contradicts {}, where it is 64"),
    "segments": ("encoder.segment_types=3", "encoder.segment_types=3 contradicts {}, where it is 2"),
    "kind": ("encoder.kind=roberta", "{} has the encoder bert, the recipe roberta"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_setting_that_contradicts_the_folder_is_refused(case: str, tmp_path: Path) -> None:
    change, words = CONTRADICTIONS[case]
    path = folder(tmp_path / "m", heads=4)
    reopened = [*SMALL[1:], "encoder.width=32", "encoder.heads=4"] if case == "kind" else []
    recipe = started(path, change, *reopened, name="bert/no_nsp")
    with pytest.raises(ConfigError) as raised:
        load_weights(build_model(recipe, tokenizer()), path, tokenizer())
    one_line(raised, words.format(path))


def test_a_recipe_of_a_file_keeps_its_encoder(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    usual = recipes.find("bert/tiny")
    assert with_overrides(usual, [f"start={path}"], from_file=True).encoder == usual.encoder


def test_a_recipe_file_may_leave_out_the_encoder(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", heads=4)
    values = config.to_dict(recipes.find("bert/tiny")) | {"start": str(path), "max_length": 16}
    file = tmp_path / "mine.json"
    for encoder, heads in (({}, 4), ({"kind": "bert", "heads": 2, "dropout": 0.3}, 2)):
        file.write_text(json.dumps(values | {"encoder": encoder}))
        found = recipes.find(str(file)).encoder
        assert (found.width, found.layers, found.heads, found.max_positions) == (32, 2, heads, 40)
    file.write_text(json.dumps({key: value for key, value in values.items() if key != "encoder"}))
    assert recipes.find(str(file)).encoder.heads == 4


def test_more_layers_and_positions_are_new_and_noted(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    recipe = started(path, "encoder.layers=3", "encoder.max_positions=80")
    model = build_model(recipe, tokenizer())
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    notes = load_weights(model, path, tokenizer())
    assert [note.partition(":")[0] for note in notes] == [
        f"started from the weights of {path}",
        f"encoder.layers=3 instead of the 2 of {path}",
        f"encoder.max_positions=80 instead of the 40 of {path}",
    ]
    positions, added = "encoder.embeddings.positions.weight", "encoder.blocks.2.attention.output.weight"
    stored = open_model(path)[0].state_dict()[positions]
    assert torch.equal(model.state_dict()[positions], torch.cat((stored, fresh[positions][40:])))
    assert torch.equal(model.state_dict()[added], fresh[added])


def test_tokenizers_with_the_same_vocabulary_and_other_rules_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    model = build_model(started(path), tokenizer())
    cased = WordPiece.build(tokenizer().tokens(), lowercase=False)
    assert cased.tokens() == tokenizer().tokens()
    with pytest.raises(ConfigError) as raised:
        load_weights(model, path, cased)
    one_line(raised, str(path), "the shards' vocabulary, but other rules", tokenizer().fingerprint, cased.fingerprint)
    other = WordPiece.build([*SPECIALS.tokens(), "other"])
    with pytest.raises(ConfigError, match="another vocabulary than the shards"):
        load_weights(model, path, other)


def test_matching_tokens_keep_their_vectors_and_new_ones_start_as_the_mean(tmp_path: Path) -> None:
    """As fastai's `match_embeds`; rows beyond either vocabulary are neither read nor written."""
    rules = Rules()
    theirs = Words([*rules.reserved(), "iron", "gold", "red"], word_rules=rules)
    ours = Words([*rules.reserved(), "red", "anvil", "iron", "water"], word_rules=rules)
    specials, sizes = len(rules.reserved()), {"layers": 2, "width": 6, "hidden": 8}
    source = randomize_weights(
        Model.build(awd_lstm.Config(**sizes, vocab_size=theirs.vocab_size + 5), [causal_lm.Config()])
    )
    save_model(source, theirs, tmp_path / "m")
    target = Model.build(awd_lstm.Config(**sizes, vocab_size=ours.vocab_size + 2), [causal_lm.Config()])
    before = {name: value.clone() for name, value in target.state_dict().items()}
    notes = load_weights(target, tmp_path / "m", ours, match_tokens=True)
    assert (
        notes[1]
        == f"{specials + 2} of {specials + 4} tokens are in its vocabulary; the others start as the mean of all"
    )
    tables = ("encoder.embeddings.weight", "objectives.causal_lm.bias")
    for name in tables:
        old, new = source.state_dict()[name], target.state_dict()[name]
        mean = old[: theirs.vocab_size].mean(0)
        rows = [*old[:specials], old[specials + 2], mean, old[specials], mean]
        assert torch.equal(new[: ours.vocab_size], torch.stack(rows)), name
        assert torch.equal(new[ours.vocab_size :], before[name][ours.vocab_size :]), name
    for name, value in source.state_dict().items():
        assert name in tables or torch.equal(target.state_dict()[name], value), name
