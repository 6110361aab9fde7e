"""Taggers with a CRF end to end: fine-tuned, resumed, saved, loaded, evaluated, and refused as a graph."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from finetune_fixtures import COLOURS, METALS, QUICK, tiny_model, write

import bertsmith
from bertsmith.errors import BertsmithError
from bertsmith.evaluation.evaluation import evaluate
from bertsmith.export.graph import OnnxModule
from bertsmith.metrics.sequence_labelling import scheme_violations
from bertsmith.model_io.model_folder import open_model
from bertsmith.studies.features import feature_config, features
from bertsmith.training.finetune import finetune
from bertsmith.training.finetune_data import build_task, predict
from bertsmith.training.recipe import FinetuneConfig, make_finetune_config

WORDS = "the smith has a thing of it and in".split()  # noqa: SIM905
LABELS = ("O", "B-METAL", "E-METAL", "I-METAL", "S-METAL")
TEXTS = [" ".join(random.Random(seed).choices([*COLOURS, *METALS, *WORDS], k=14)) for seed in range(12)]


def sentences(count: int, seed: int) -> list[dict[str, object]]:
    """Runs of one to three metals are entities."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        words, tags = [], []
        for _ in range(draw.randint(1, 3)):
            before, metals = draw.choices(WORDS, k=draw.randint(1, 3)), draw.choices(METALS, k=draw.randint(1, 3))
            words += [*before, *metals]
            tags += [*("O" for _ in before), "B-METAL", *("I-METAL" for _ in metals[1:])]
        rows.append({"tokens": words, "tags": tags})
    return rows


def settings_of(model: Path, folder: Path, *changes: str) -> FinetuneConfig:
    files = {
        "train": write(folder / "train.jsonl", sentences(64, 0)),
        "dev": write(folder / "dev.jsonl", sentences(40, 1)),
    }
    crf = ["head.crf=true", "task.label_scheme=IOBES", "epochs=3", "head_learning_rate=3e-2"]
    return make_finetune_config("tagging", model, files, [*QUICK, *crf, *changes])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder and a fine-tuning run."""
    base = tmp_path_factory.mktemp("crf")
    finetune(settings_of(tiny_model(base), base), base / "run", device="cpu", quiet=True)
    return base


def test_it_learns_and_evaluates_as_in_training(base: Path) -> None:
    events = [json.loads(line) for line in (base / "run" / "events.jsonl").read_text().splitlines()]
    best = max(event["score/f1"] for event in events if event["kind"] == "evaluation")
    assert best > 0.4
    found = evaluate(base / "run" / "best", "tagging", {"dev": base / "dev.jsonl"}, max_length=32, device="cpu")
    assert found.scores["f1"] == pytest.approx(best, abs=1e-9)
    model, _, _ = open_model(base / "run" / "best")
    crf: Any = model.objectives["tag"].crf
    assert all(float(value.abs().max()) > 0.05 for value in crf.state_dict().values())


def test_a_resumed_run_is_bit_identical(base: Path) -> None:
    middle = sorted((base / "run" / "checkpoints").iterdir())[0]
    finetune(settings_of(base / "m", base), base / "again", device="cpu", quiet=True, resume=str(middle))
    weights = [(base / run / "last" / "model.safetensors").read_bytes() for run in ("run", "again")]
    assert weights[0] == weights[1]


def test_a_saved_tagger_predicts_the_same_and_only_valid_sequences(base: Path, tmp_path: Path) -> None:
    values = json.loads((base / "run" / "last" / "config.json").read_text())
    assert values["model_type"] == "bertsmith", "transformers has no CRF"
    predictor = bertsmith.load(base / "run" / "last", device="cpu")
    predictor.save(tmp_path / "copy")
    again = bertsmith.load(tmp_path / "copy", device="cpu")
    words = predictor.tag_words(TEXTS)
    assert words == again.tag_words(TEXTS)
    tags = [[one["label"] for one in some] for some in words]
    assert not [fault for some in tags for fault in scheme_violations(some, scheme="IOBES")]
    assert {tag for some in tags for tag in some} > {"O", "B-METAL", "E-METAL"}
    assert all(0 < one["score"] <= 1 for some in words for one in some)
    head: Any = predictor.model.objectives["tag"]
    alone = [labels_by_word(predictor, text) for text in TEXTS]
    assert [fault for some in alone for fault in scheme_violations(some, scheme="IOBES")], "without a CRF some are not"
    assert [predictor.tag_words(text) for text in TEXTS[:4]] == words[:4]
    assert head.config.labels == LABELS


def labels_by_word(predictor: Any, text: str) -> list[str]:
    """The label with the highest emission score of each word."""
    head = predictor.model.objectives["tag"]
    crf, head.crf = head.crf, None
    found = [one["label"] for one in predictor.tag_words(text)]
    head.crf = crf
    return found


def test_entities_of_the_predictor_are_those_of_the_task(base: Path) -> None:
    settings = settings_of(base / "m", base)
    model, tokenizer, _ = open_model(base / "run" / "last")
    task = build_task(settings)
    examples = task.examples("dev")
    predictions = predict(model, task, examples, tokenizer, length=32)
    entities = bertsmith.load(base / "run" / "last", device="cpu").ner([example.texts[0] for example in examples])
    for prediction, found in zip(predictions, entities, strict=True):
        expected = [(one["start"], one["end"], pytest.approx(one["score"])) for one in prediction.detail["entities"]]
        assert [(one["start"], one["end"], one["score"]) for one in found] == expected
        assert not scheme_violations(prediction.value, scheme="IOB2")


def test_long_texts_have_one_valid_sequence_over_all_windows(base: Path) -> None:
    predictor = bertsmith.load(base / "run" / "last", device="cpu")
    words = predictor.tag_words(" ".join(2 * TEXTS))
    assert len(words) == 24 * 14 > 3 * predictor.max_length
    assert not scheme_violations([one["label"] for one in words], scheme="IOBES")


def test_a_graph_is_refused_in_one_line(base: Path) -> None:
    model, _, _ = open_model(base / "run" / "last")
    with pytest.raises(BertsmithError, match=r"predicts by a CRF, .* head.crf=false to export it") as caught:
        OnnxModule(model)
    assert "\n" not in str(caught.value)


def test_taggers_over_frozen_features_may_have_a_crf(base: Path, tmp_path: Path) -> None:
    settings = settings_of(base / "m", tmp_path)
    changes = ["head.crf=true", "head.recurrent_width=8", "epochs=1", "max_length=32", "limit=16"]
    study = feature_config("tagging", base / "m", {name: Path(path) for name, path in settings.files.items()}, changes)
    table = features(study, tmp_path / "study", layers=["top"], seeds=1, device="cpu", quiet=True)
    tagger, _, _ = open_model(tmp_path / "study" / "best")
    head: Any = tagger.objectives["tag"]
    assert (head.crf is not None, head.recurrent is not None) == (True, True)
    assert 0 <= table["rows"][0]["dev"]["mean"] <= 1
