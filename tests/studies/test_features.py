"""`features` end to end at the smallest size: every row is encoded once, a table, no repeated work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call
from frozen_fixtures import WORDS, bert_folder, conll_file, saved, word_folder
from model_fixtures import small_bert_config
from studies.study_fixtures import model_folder, tag_files, tokenizer_of
from threads import threads

from bertsmith.encoders import elmo, seq2seq_lstm
from bertsmith.errors import ConfigError
from bertsmith.model_io.model_folder import open_model
from bertsmith.reports.run_history import read_run
from bertsmith.studies import features as study
from bertsmith.studies.features import chosen_layers, feature_config, features
from bertsmith.studies.published import BERT_FEATURES, CONLL
from bertsmith.training import finetune_loader
from bertsmith.training.finetune import finetune
from bertsmith.training.finetune_data import build_task
from bertsmith.training.log import last_of_each_step, read_events
from bertsmith.training.plan import Unfreeze
from bertsmith.training.sweep import best_scores

QUICK = [
    "epochs=8",
    "batch_size=8",
    "learning_rate=3e-2",
    "max_length=32",
    "head.recurrent_width=16",
    "head.recurrent_layers=1",
    "evals_per_epoch=0",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("features")
    return model_folder(base / "m", tokenizer_of(base))


@pytest.fixture(autouse=True)
def one_thread_and_known_peak_flops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("bertsmith.training.finetune.cached_peak_flops", lambda device, dtype: 1e9)
    with threads(1):
        yield


def words(model: Path, folder: Path, *more: object) -> list[object]:
    files = [item for split, path in tag_files(folder).items() for item in (f"--{split}", path)]
    return ["features", model, "-t", "tagging", *files, "-o", folder / "s", "--device", "cpu", *QUICK, *more]


def test_the_table_is_computed_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled = words(model, tmp_path, "--seeds", "2", "--json")
    done = call(*labelled, "--layers", "embeddings,last_four_concat")
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)
    assert [row["layers"] for row in first["rows"]] == ["embeddings", "last_four_concat"]
    for row in first["rows"]:
        assert row["dev"]["runs"] == row["test"]["runs"] == 2
        assert row["dev"]["mean"] > 0.6
        assert row["test"]["mean"] > 0.6
        assert row["published"] is None
    assert not list(tmp_path.glob("s/*/seed-*/checkpoints"))
    assert not list(tmp_path.glob("s/*/seed-*/best"))
    marks = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*") if path.name != "features.json"}
    monkeypatch.setattr(study, "finetune", lambda *words, **how: pytest.fail("a finished run was repeated"))
    repeated = json.loads(call(*labelled, "--layers", "embeddings,last_four_concat").stdout)
    assert repeated == first
    assert {path: path.stat().st_mtime_ns for path in marks if path.is_file()} == {
        path: mark for path, mark in marks.items() if path.is_file()
    }
    shown = call(*[word for word in labelled if word != "--json"], "--layers", "embeddings", "-q").stdout
    assert "embeddings" in shown
    assert " ± " in shown


def test_the_best_tagger_is_saved_with_its_encoder_and_predicts_the_same(model: Path, tmp_path: Path) -> None:
    result = json.loads(call(*words(model, tmp_path, "--seeds", "1", "--json", "--layers", "top")).stdout)
    kept, tokenizer, _ = open_model(result["model"])
    original, _, _ = open_model(model)
    assert torch.equal(kept.encoder.token_embeddings, original.encoder.token_embeddings)
    tuning = feature_config("tagging", model, tag_files(tmp_path), QUICK)
    task = build_task(tuning)
    for split in ("dev", "test"):
        output = study.predict(kept, task, task.examples(split), tokenizer, length=32)
        score = task.score(task.examples(split), output)["f1"]
        assert score == pytest.approx(result["rows"][0][split]["mean"], abs=1e-9)
    more = json.loads(call(*words(model, tmp_path, "--seeds", "1", "--json", "--layers", "embeddings,top")).stdout)
    best = max(row["dev"]["best"] for row in more["rows"])
    repeated, _, _ = open_model(more["model"])
    output = study.predict(repeated, task, task.examples("dev"), tokenizer, length=32)
    assert task.score(task.examples("dev"), output)["f1"] == pytest.approx(best, abs=1e-9)


def shown_and_written(model: Path, folder: Path, *more: object) -> tuple[str, dict[str, Any]]:
    """The terminal's text and features.json of a study of a tiny CoNLL-2003."""
    data = folder / "conll"
    data.mkdir(exist_ok=True)
    for number, name in enumerate(("eng.train", "eng.testa", "eng.testb")):
        conll_file(data / name, 3 - number)
    study = ["features", model, "-t", CONLL, "--data", data, "-o", folder / f"s-{model.name}", "--seeds", 1, "-q"]
    done = call(*study, "--device", "cpu", *QUICK, "epochs=1", *more)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / f"s-{model.name}" / "features.json").read_text(encoding="utf-8"))


def test_elmo_has_its_mix_and_the_scores_of_its_paper(tmp_path: Path) -> None:
    config = elmo.Config(width=4, hidden=6, filters=((1, 4), (2, 4)), character_width=4, highway=1)
    shown, written = shown_and_written(saved(tmp_path / "elmo", config, WORDS), tmp_path)
    assert [row["layers"] for row in written["rows"]] == ["embeddings", "second_to_last", "top", "all_sum", "mix"]
    assert [row["published"] for row in written["rows"]] == [None] * 4 + [92.22]
    assert "P-ELMo Table 1, test" in shown
    assert "P-ELMo Table 1: tagger without ELMo: 90.15 on test" in shown
    assert "P-BERT" not in shown + json.dumps(written)
    kept, _, _ = open_model(written["model"])
    assert isinstance(kept.encoder, elmo.ELMo)


def test_bert_has_the_scores_of_its_paper_and_other_encoders_have_none(tmp_path: Path) -> None:
    shown, written = shown_and_written(bert_folder(tmp_path / "bert"), tmp_path, "--layers", "top,mix")
    assert [row["published"] for row in written["rows"]] == [94.9, None]
    assert "P-BERT Table 7, dev" in shown
    assert "P-BERT Table 7: base, fine-tuned: 96.4 on dev, 92.4 on test" in shown
    shown, written = shown_and_written(word_folder(tmp_path / "words"), tmp_path, "--layers", "embeddings")
    assert written["rows"][0]["published"] is written["source"] is None
    assert "Table" not in shown
    both, causal = (small_bert_config(causal=causal).build() for causal in (False, True))
    assert study.reference_for(both, CONLL) is BERT_FEATURES
    assert study.reference_for(causal, CONLL) is study.reference_for(both, "tagging") is None


def losses(folder: Path) -> list[float]:
    return [event["loss"] for event in last_of_each_step(read_events(folder / "events.jsonl"), "step")]


def test_training_equals_that_of_a_live_frozen_encoder(model: Path, tmp_path: Path) -> None:
    tuning = feature_config("tagging", model, tag_files(tmp_path), [*QUICK, "epochs=2"])
    result = features(tuning, tmp_path / "cached", layers=["all_sum"], seeds=1, device="cpu", quiet=True)
    asleep = replace(tuning, head={**tuning.head, "layers": "all_sum"}, unfreeze=(Unfreeze(after=0, groups=1),))
    finetune(asleep, tmp_path / "live", device="cpu", quiet=True)
    cached = losses(tmp_path / "cached" / "all_sum" / "seed-0")
    assert cached == pytest.approx(losses(tmp_path / "live"), abs=1e-6)
    assert cached[-1] < 0.7 * cached[0]
    assert result["rows"][0]["runs"][0]["dev"] == pytest.approx(
        best_scores(read_run(tmp_path / "live"), "f1"), abs=1e-6
    )


def test_every_row_is_read_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    feature_extractor = study.feature_extractor

    def counted(encoder: Any, layers: Any, **how: Any) -> Any:
        say = feature_extractor(encoder, layers, **how)

        def one(rows: Any) -> Any:
            read.extend(bytes(row.ids) for row in rows)
            return say(rows)

        return one

    monkeypatch.setattr(study, "feature_extractor", counted)
    tuning = feature_config("tagging", model, tag_files(tmp_path), [*QUICK, "epochs=0.5"])
    features(tuning, tmp_path / "s", layers=["top", "mix"], seeds=2, device="cpu", quiet=True)
    assert len(read) == len(set(read)) > 30
    features(tuning, tmp_path / "s", layers=["top", "mix"], seeds=2, device="cpu", quiet=True)
    assert len(read) == len(set(read))


def test_an_interrupted_study_resumes(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = feature_config("tagging", model, tag_files(tmp_path), [*QUICK, "epochs=2", "save_every=3"])
    how: dict[str, Any] = {"layers": ["top"], "seeds": 2, "device": "cpu", "quiet": True}
    whole = features(tuning, tmp_path / "whole", **how)
    train, begun = study.finetune, []

    def stopped(one: Any, folder: Path, **rest: Any) -> Any:
        begun.append(folder.name)
        return train(one, folder, **rest)

    def interrupted(self: Any, step: int) -> Any:
        if len(begun) == 2 and step == 7:
            raise KeyboardInterrupt
        return feeder(self, step)

    feeder = finetune_loader.FinetuneLoader.__call__
    with monkeypatch.context() as patch:
        patch.setattr(study, "finetune", stopped)
        patch.setattr(finetune_loader.FinetuneLoader, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            features(tuning, tmp_path / "again", **how)
    assert list((tmp_path / "again" / "top" / "seed-1" / "checkpoints").iterdir())
    repeated = features(tuning, tmp_path / "again", **how)
    assert begun == ["seed-0", "seed-1"]
    assert repeated["rows"] == whole["rows"]
    for seed in (0, 1):
        assert losses(tmp_path / "again" / "top" / f"seed-{seed}") == losses(
            tmp_path / "whole" / "top" / f"seed-{seed}"
        )


@pytest.mark.slow
def test_parallel_taggers_read_characters(tmp_path: Path) -> None:
    """The features of unknown words are found by their spelling, also in other processes."""
    config = elmo.Config(width=4, hidden=6, filters=((1, 4), (2, 4)), character_width=4, highway=1)
    folder = saved(tmp_path / "elmo", config, WORDS)
    alone = shown_and_written(folder, tmp_path, "--layers", "embeddings,top")[1]
    shutil.move(tmp_path / "s-elmo", tmp_path / "alone")
    assert shown_and_written(folder, tmp_path, "--layers", "embeddings,top", "--jobs", 2)[1]["rows"] == alone["rows"]


@pytest.mark.slow
def test_parallel_taggers_equal_sequential_ones(model: Path, tmp_path: Path) -> None:
    """In processes of their own."""
    labelled = words(model, tmp_path, "--seeds", "2", "--json", "--layers", "embeddings,top", "epochs=2")
    alone = json.loads(call(*labelled).stdout)
    beside = [tmp_path / "beside" if word == tmp_path / "s" else word for word in labelled]
    done = call(*[word for word in beside if word != "--json"], "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "4 of 4: top, seed 1: done" in done.stderr
    result = json.loads(call(*beside).stdout)
    assert result["rows"] == alone["rows"]
    for path in (tmp_path / "s").glob("*/seed-*"):
        assert losses(tmp_path / "beside" / path.parent.name / path.name) == losses(path)
    kept, _, _ = open_model(result["model"])
    expected, _, _ = open_model(alone["model"])
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in kept.state_dict().items())


def test_scores_that_were_not_saved_are_recomputed_from_the_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = feature_config("tagging", model, tag_files(tmp_path), [*QUICK, "epochs=2"])
    how: dict[str, Any] = {"layers": ["top"], "seeds": 1, "device": "cpu", "quiet": True}

    def killed(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(study._Study, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            features(tuning, tmp_path / "s", **how)
    steps = losses(tmp_path / "s" / "top" / "seed-0")
    result = features(tuning, tmp_path / "s", **how)
    assert losses(tmp_path / "s" / "top" / "seed-0") == steps
    assert result["rows"] == features(tuning, tmp_path / "whole", **how)["rows"]


def test_invalid_studies_are_errors(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tag_files(tmp_path)
    with pytest.raises(ConfigError, match=r"the study sets head\.layers"):
        feature_config("tagging", model, files, ["head.layers=top"])
    with pytest.raises(ConfigError, match="pass --dev FILE"):
        features(feature_config("tagging", model, {"train": files["train"]}, QUICK), tmp_path / "s", quiet=True)
    (tmp_path / "x.csv").write_text("text,label\na,yes\nb,no\n" * 4, encoding="utf-8")
    other = {"train": tmp_path / "x.csv", "dev": tmp_path / "x.csv"}
    with pytest.raises(ConfigError, match="classification is not a tagging task"):
        features(feature_config("classification", model, other, ["epochs=1"]), tmp_path / "s", quiet=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="trains each model on one device"):
        features(feature_config("tagging", model, files, QUICK), tmp_path / "s", quiet=True)


def test_layers_of_another_width_than_the_last_are_left_out() -> None:
    """CoVe's word vectors are narrower than its layers."""
    encoder = seq2seq_lstm.Config(width=8, embedding_width=6, vocab_size=16).build()
    assert chosen_layers(encoder, ()) == ("second_to_last", "top", "all_sum")  # nor the mix
    with pytest.raises(ConfigError, match=r"--layers embeddings reads layers of width 6, where the last has 8: leave"):
        chosen_layers(encoder, ("embeddings",))
