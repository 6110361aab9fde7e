"""The fine-tuning recipes of `taglm` at a tiny size, over word vectors and a frozen language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import call
from frozen_fixtures import bert_folder, conll_file, word_folder

import bertsmith as bs
from bertsmith import config, recipes
from bertsmith.encoders import taglm
from bertsmith.errors import ConfigError
from bertsmith.model_io.model_folder import open_model
from bertsmith.objectives import tag
from bertsmith.training.log import last_of_each_step, read_events
from bertsmith.training.recipe import FinetuneConfig, make_finetune_config

FILES = {"conll/conll2003": ("eng.train", "eng.testa"), "conll/conll2000": ("train.txt", "dev.txt")}
TINY = ["encoder.hidden=4", "encoder.character_hidden=2", "batch_size=8", "epochs=1"]  # two steps of 8 sentences
# of the papers: where they differ from the settings of a plain `encoder.kind=taglm`
PAPERS: dict[str, dict[str, Any]] = {
    "taglm/ner": {},
    "taglm/chunking": {
        **{"characters": "cnn", "character_width": 30, "character_hidden": 30},
        **{"cell": "lstm", "hidden": 200, "dropout": 0.5},
    },
    "taglm/elmo": {
        **{"characters": "cnn", "character_width": 16, "character_hidden": 128},
        **{"cell": "lstm", "hidden": 200, "dropout": 0.5},
        **{"features_at": (0,), "feature_layers": "mix", "mix_l2": 0.1},
    },
}


def data_of(recipe: FinetuneConfig, folder: Path) -> Path:
    folder.mkdir()
    for repeats, name in zip((4, 1), FILES[recipe.name], strict=True):
        conll_file(folder / name, repeats)
    return folder


@pytest.mark.parametrize("name", recipes.finetuning_names())
def test_a_tagger_is_trained_for_two_steps(name: str, tmp_path: Path) -> None:
    recipe = recipes.find_finetuning(name)
    assert recipe is not None
    words, lm = word_folder(tmp_path / "words"), bert_folder(tmp_path / "lm")
    data, run = data_of(recipe, tmp_path / "data"), tmp_path / "run"
    features = f'encoder.features=["{lm}"]'
    done = call("finetune", words, "-t", name, "--data", data, "-o", run, "-q", "--device", "cpu", features, *TINY)
    assert done.returncode == 0, done.stderr
    assert len(last_of_each_step(read_events(run / "events.jsonl"), "step")) == 2
    resolved = config.read_file(FinetuneConfig, run / "recipe.json")
    expected = make_finetune_config(recipe, words, {"data": data}, [features, *TINY])
    assert config.to_dict(resolved) == config.to_dict(expected)
    assert (resolved.learning_rate, resolved.schedule.kind) == (1e-3, "reduce_on_plateau")
    encoder = open_model(run / "best")[0].encoder
    assert isinstance(encoder, taglm.TagLM)
    assert encoder.config.characters == recipe.encoder["characters"]


@pytest.mark.parametrize("name", recipes.finetuning_names())
def test_the_settings_are_those_of_the_paper(name: str) -> None:
    recipe = recipes.find_finetuning(name)
    assert recipe is not None
    built = {key: value for key, value in recipe.encoder.items() if key not in ("kind", "mix_l2", "feature_layers")}
    found = config.to_dict(config.from_dict(taglm.Config, built, "encoder")) | recipe.encoder
    assert found == config.to_dict(taglm.Config()) | {"kind": "taglm"} | config_values(PAPERS[name])
    head = tag.Config(**recipe.head)
    assert head.crf
    assert head.crf_start_end == (name != "taglm/elmo")
    assert recipe.task.label_scheme == ("BILOU" if name == "taglm/elmo" else "IOBES")
    assert recipe.batch_size == (64 if name == "taglm/elmo" else 32)
    assert (recipe.compute.max_grad_norm, recipe.optimizer.weight_decay) == (5.0, 0.0)


def config_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: [*value] if isinstance(value, tuple) else value for name, value in values.items()}


def test_they_are_listed_and_written_as_toml(tmp_path: Path) -> None:
    assert recipes.finetuning_names() == [*PAPERS]
    assert {"taglm/ner", "bert/base"} < bs.list_recipes().keys()
    path = tmp_path / "tagger.toml"
    assert call("init", "taglm/elmo", "epochs=7", "-o", path).returncode == 0
    recipe = recipes.find_finetuning("taglm/elmo")
    assert make_finetune_config(str(path), "m", {}, []) == make_finetune_config(recipe, "m", {}, ["epochs=7"])


def test_other_names_are_one_line_with_the_nearest(tmp_path: Path) -> None:
    for words in (["init", "taglm/nr"], ["finetune", tmp_path, "-t", "taglm/nr", "-o", tmp_path / "run"]):
        done = call(*words)
        assert done.returncode == 78
        assert done.stderr.endswith(
            "taglm/nr is not a recipe: `bertsmith init` lists all recipes; did you mean taglm/ner?\n"
        )
    with pytest.raises(ConfigError, match="taglm/ner is a fine-tuning recipe: use it with bertsmith finetune MODEL -t"):
        recipes.find("taglm/ner")
    assert recipes.find_finetuning("conll/conll2003") is None


def test_elmo_needs_a_language_model(tmp_path: Path) -> None:
    recipe = recipes.find_finetuning("taglm/elmo")
    assert recipe is not None
    words = ["finetune", word_folder(tmp_path / "words"), "-t", "taglm/elmo", "-o", tmp_path / "run"]
    done = call(*words, "--data", data_of(recipe, tmp_path / "data"), "-q", "--device", "cpu")
    assert done.returncode == 78
    assert "mix_l2=0.1 is for features of frozen encoders: set encoder.features=[FOLDER]" in done.stderr


def test_other_data_replace_the_benchmark(tmp_path: Path) -> None:
    files = {"train": str(conll_file(tmp_path / "train.conll", 4)), "dev": str(conll_file(tmp_path / "dev.conll", 1))}
    tiny = {"encoder.hidden": 4, "encoder.character_hidden": 2, "task_settings": {"kind": "tagging"}, "epochs": 0.5}
    how: dict[str, Any] = {**files, **tiny, "output": tmp_path / "run", "device": "cpu", "quiet": True}
    model = bs.finetune(word_folder(tmp_path / "words"), "taglm/ner", **how)
    assert model.tag_words("Anna lives in Paris")[0]["label"] in model.labels
