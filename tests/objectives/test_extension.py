"""A user-defined objective is fine-tuned, saved, loaded, evaluated and served without other changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from extension_fixtures import FOCAL, extensions
from finetune_fixtures import METALS, QUICK, made_up, tiny_model, write

import bertsmith
from bertsmith import config
from bertsmith.errors import ConfigError
from bertsmith.evaluation.evaluator import make_evaluation_config, open_evaluator
from bertsmith.model_io.native import MODEL_TYPE
from bertsmith.server.server import running
from bertsmith.training.finetune import finetune
from bertsmith.training.recipe import make_finetune_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("focal")
    files = {
        split: write(base / f"{split}.jsonl", made_up("classification", 128, seed))
        for seed, split in enumerate(("train", "dev"))
    }
    with extensions(base / "mine", {"objectives/focal.py": FOCAL}):
        settings = make_finetune_config(
            "classification", tiny_model(base), files, [*QUICK, "head.kind=focal", "head.gamma=1.0"]
        )
        finetune(settings, base / "run", device="cpu", quiet=True)
        yield base / "run"


def test_the_folder_is_native_and_holds_the_settings(run: Path) -> None:
    values = json.loads((run / "best" / "config.json").read_text())
    assert (values["model_type"], values["encoder"]["kind"]) == (MODEL_TYPE, "bert")
    assert values["objectives"]["focal"] == {"kind": "focal", "labels": sorted(METALS), "gamma": 1.0, "weight": 1.0}


def test_it_predicts(run: Path) -> None:
    model = bertsmith.load(run / "best", device="cpu")
    found = model.predict(["the smith has red gold and a thing", "the smith has blue iron and a thing"])
    assert [one["label"] for one in found] == ["gold", "iron"]
    assert model.labels == tuple(sorted(METALS))


def test_a_task_finds_its_head(run: Path) -> None:
    evaluator = open_evaluator(
        make_evaluation_config(None, "classification"), run / "best", {"dev": run.parent / "dev.jsonl"}, device="cpu"
    )
    assert evaluator.task.objective == "focal"


def test_it_is_served(run: Path) -> None:
    with (
        running({"smith": bertsmith.load(run / "best", device="cpu")}) as address,
        httpx.Client(base_url=address) as client,
    ):
        answer = client.post("/predict", json={"inputs": "the smith has red gold and a thing"}).json()[0]
        assert answer["label"] == "gold"
        refused = client.post("/ner", json={"inputs": "the smith"})
        assert refused.status_code == 422


def test_an_objective_for_another_pipeline_is_refused(run: Path, tmp_path: Path) -> None:
    settings = make_finetune_config(
        "classification", run / "best", {"train": run.parent / "train.jsonl"}, ["head.kind=span"]
    )
    with pytest.raises(
        ConfigError,
        match=r"head\.kind=span predicts for question-answering; classification needs .*: classify, focal$",
    ):
        finetune(settings, tmp_path / "run", device="cpu", quiet=True)


def test_without_the_extension_the_folder_is_refused_in_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = config.kinds
    monkeypatch.setattr(config, "kinds", lambda folder: [kind for kind in kinds(folder) if kind != "focal"])
    with pytest.raises(ConfigError, match="'focal' is not among the objectives of this version"):
        bertsmith.load(run / "best", device="cpu")
