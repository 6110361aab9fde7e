"""Runs of taglm: every kind of task, exact resumption, sweeps and sample efficiency, on one tiny network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from finetune_fixtures import made_up, write
from frozen_fixtures import bert_folder, conll_file, lm_folder, word_folder

import bertsmith as bs
from bertsmith import config
from bertsmith.errors import ConfigError
from bertsmith.studies.sample_efficiency import sample_efficiency
from bertsmith.training.finetune import finetune
from bertsmith.training.log import last_of_each_step, read_events
from bertsmith.training.recipe import FinetuneConfig, make_finetune_config
from bertsmith.training.sweep import sweep

CHANGES = ["encoder.kind=taglm", "encoder.hidden=4", "encoder.character_hidden=2", "batch_size=8", "save_every=2"]
CHANGES += ["learning_rate=0.01", "max_length=40"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taglm")
    word_folder(folder / "words")
    lm_folder(folder / "lm", backward=True)
    bert_folder(folder / "bert")
    return folder


def settings_of(base: Path, task: str, files: dict[str, Path], *more: str) -> FinetuneConfig:
    return make_finetune_config(task, base / "words", files, [*CHANGES, *more])


def features(base: Path, *names: str) -> str:
    listed = ",".join(f'"{base / name}"' for name in names)
    return f"encoder.features=[{listed}]"


@pytest.mark.parametrize("kind", ["pairs", "qa", "choice", "regression", "multi_label"])
def test_every_kind_of_task_reads_features(kind: str, base: Path, tmp_path: Path) -> None:
    files = {
        split: write(tmp_path / f"{split}.jsonl", made_up(kind, 8, seed)) for seed, split in enumerate(("train", "dev"))
    }
    settings = settings_of(base, kind, files, features(base, "lm"), "encoder.features_at=[0,2]", "epochs=1")
    finetune(settings, tmp_path / "run", device="cpu", quiet=True)
    event = next(one for one in read_events(tmp_path / "run" / "events.jsonl")[::-1] if one["kind"] == "evaluation")
    evaluated = bs.evaluate(tmp_path / "run", device="cpu").scores
    name = next(name for name in evaluated if f"score/{name}" in event)
    assert evaluated[name] == pytest.approx(event[f"score/{name}"])


def test_a_list_whose_quotes_the_shell_removed_is_one_line(base: Path, tmp_path: Path) -> None:
    data = {"train": conll_file(tmp_path / "train.conll", 4), "dev": conll_file(tmp_path / "dev.conll", 1)}
    settings = settings_of(base, "tagging", data, "encoder.features=[lm, bert]")
    with pytest.raises(
        ConfigError, match=re.escape("encoder.features=[lm, bert]: a list needs quotes; write ")
    ) as found:
        finetune(settings, tmp_path / "run", device="cpu", quiet=True)
    assert str(found.value).endswith("write encoder.features=lm,bert")


def losses(folder: Path) -> list[float]:
    return [one["loss"] for one in last_of_each_step(read_events(folder / "events.jsonl"), "step")]


def test_a_resumed_run_is_bit_identical(base: Path, tmp_path: Path) -> None:
    data = {"train": conll_file(tmp_path / "train.conll", 4), "dev": conll_file(tmp_path / "dev.conll", 1)}
    mix = ["encoder.feature_layers=mix", "encoder.mix_l2=0.1", "head.crf=true", "epochs=2", "keep_checkpoints=9"]
    settings = settings_of(base, "tagging", data, features(base, "bert"), *mix)
    finetune(settings, tmp_path / "whole", device="cpu", quiet=True)
    middle = sorted((tmp_path / "whole" / "checkpoints").iterdir())[0]
    again = config.read_file(FinetuneConfig, tmp_path / "whole" / "recipe.json")
    finetune(again, tmp_path / "again", device="cpu", quiet=True, resume=str(middle))
    assert losses(tmp_path / "again") == losses(tmp_path / "whole")[2:]
    last = [(run / "last" / "model.safetensors").read_bytes() for run in (tmp_path / "whole", tmp_path / "again")]
    assert last[0] == last[1]
    logged = next(event for event in read_events(tmp_path / "whole" / "events.jsonl") if event["kind"] == "step")
    assert "loss/penalty" in logged


def test_sweeps_keep_the_tokenizers_of_frozen_encoders(base: Path, tmp_path: Path) -> None:
    data = {"train": conll_file(tmp_path / "train.conll", 2), "dev": conll_file(tmp_path / "dev.conll", 1)}
    settings = settings_of(base, "tagging", data, features(base, "lm", "bert"), "epochs=1")
    result = sweep(settings, tmp_path / "s", learning_rates=[0.01], seeds=1, device="cpu", quiet=True, lean=True)
    model = bs.load(result["model"], device="cpu")
    assert set(model.model.encoder.frozen_encoders()) == {"features-0", "features-1"}
    assert model.tag_words("Anna lives in Paris")[0]["label"] in model.labels


def test_sample_efficiency_compares_it_with_and_without_features(base: Path, tmp_path: Path) -> None:
    files = {split: write(tmp_path / f"{split}.jsonl", made_up("classification", 8, 1)) for split in ("train", "dev")}
    models = dict.fromkeys(("plain", "lm"), base / "words")
    changes = [*CHANGES, f"lm:{features(base, 'lm')}", "epochs=1"]
    how = {"sizes": [4, "all"], "seeds": 1, "min_steps": 1, "changes": changes, "device": "cpu", "quiet": True}
    result = sample_efficiency(models, "classification", files, tmp_path / "s", **how)
    assert [model["name"] for model in result["models"]] == ["plain", "lm"]
    saved = config.read_file(FinetuneConfig, Path(result["runs"][-1]["run"]) / "recipe.json")
    assert saved.encoder["features"] == [str(base / "lm")]
