"""The contract of transformers families: a new file in model_io/huggingface/ is tested here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_fixtures import randomize_weights
from model_io.folder_fixtures import change_config, change_weights, one_line, same_weights, tokenizer

from bertsmith import config as registry
from bertsmith.encoders import encoder as encoders
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io import huggingface
from bertsmith.model_io.huggingface.family import Family
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model, save_model
from bertsmith.model_io.untrusted_files import ConfigReader
from bertsmith.objectives import objective as objectives

NAMES = list(huggingface.families())
CASES = [(name, architecture) for name in NAMES for architecture in huggingface.families()[name].architectures]
SMALL: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "feed_forward": 128, "max_positions": 24}


def built(family: Family, architecture: str) -> Model:
    """A small model with the heads of one of transformers' classes."""
    heads = family.architectures[architecture]
    reader = ConfigReader({}, Path("config.json"))
    settings = [registry.find_kind(objectives.FOLDER, name).Config(**family.read_head(name, reader)) for name in heads]
    words = tokenizer()
    small = SMALL | {"vocab_size": words.vocab_size, "padding_id": words.padding_id}
    plain = family.encoder(**small, **({"causal": True} if "causal_lm" in heads else {}))
    pools = Model.build(family.with_pooler(plain, readers=heads, stored=True), settings).objectives.values()
    readers = [head.name for head in pools if head.reads_pooled]
    created = Model.build(family.with_pooler(plain, readers=readers, stored=False), settings)
    return randomize_weights(created).eval()


@pytest.mark.parametrize(("name", "architecture"), CASES)
def test_weight_names_are_unique_and_reversible(name: str, architecture: str, tmp_path: Path) -> None:
    family = huggingface.families()[name]
    model = built(family, architecture)
    heads = tuple(model.objectives)
    expected = [each for actual in model.state_dict() for each in family.transformers_names(actual, heads=heads)]
    assert len(expected) == len(set(expected))
    prefixes = (family.prefix, family.pooler(heads), *family.head_prefixes(heads))
    assert all(each.startswith(prefixes) for each in expected)
    save_model(model, tokenizer(), tmp_path / "m")
    repeated, _, facts = open_model(tmp_path / "m")
    assert facts.architectures == (architecture,)
    assert facts.notes == ()
    same_weights(model, repeated)
    assert repeated.encoder.config == model.encoder.config
    written = json.loads((tmp_path / "m" / "config.json").read_text())
    assert written["model_type"] == family.model_type
    encoder, _, _ = open_model(tmp_path / "m", objectives=())
    assert list(encoder.objectives) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_family_has_an_encoder_and_every_head_of_its_classes(name: str) -> None:
    family = huggingface.families()[name]
    assert family.name == name
    assert name in registry.kinds(encoders.FOLDER)
    assert {head for heads in family.architectures.values() for head in heads} <= set(family.heads)
    assert set(family.heads) <= set(registry.kinds(objectives.FOLDER))
    assert all(each.startswith(family.classes) for each in family.architectures)
    assert family.architecture_of(["tag", "span"]) == ""


@pytest.mark.parametrize("name", NAMES)
def test_wrong_sizes_are_refused(name: str, tmp_path: Path) -> None:
    family = huggingface.families()[name]
    save_model(built(family, list(family.architectures)[1]), tokenizer(), tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()
    for key in (*family.size_tensors, family.key("num_hidden_layers")):
        before = json.loads((tmp_path / "m" / "config.json").read_text())[key]
        for wrong in (10**9, 0, "2", None):
            change_config(tmp_path / "m", **{key: wrong})
            with pytest.raises((ConfigError, DataError)) as result:
                open_model(tmp_path / "m")
            one_line(result, str(tmp_path / "m" / "config.json"), key)
        change_config(tmp_path / "m", **{key: before})
    open_model(tmp_path / "m")
    change_weights(tmp_path / "m", lambda tensors: tensors.pop(max(tensors)))
    with pytest.raises((ConfigError, DataError)) as missing:
        open_model(tmp_path / "m")
    one_line(missing, str(tmp_path / "m"))


def test_bert_and_roberta_are_among_them() -> None:
    assert {"bert", "roberta"} <= set(NAMES)
