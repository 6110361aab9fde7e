"""`lineage` at the smallest size: the models as data, parts, the judge, the table, resuming and stopping, the page."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from browser_fixtures import IN_A_BROWSER, open_pages, running_browser, unfolded
from command_line import call
from studies.study_fixtures import COLOURS, METALS, tagged, tokenizer_of
from threads import threads

from bertsmith import config, recipes
from bertsmith.data.collate import collate
from bertsmith.encoders import bert, elmo, gpt
from bertsmith.errors import BertsmithError, ConfigError, DataError, StoppedError
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.folder_tokenizer import fitted_to, vocabulary_of
from bertsmith.model_io.model import Model
from bertsmith.objectives import bidirectional_lm, causal_lm, masked_lm
from bertsmith.studies.ablations import Trial
from bertsmith.studies.lineage import pretraining, table, tasks
from bertsmith.studies.lineage.judge import BYTE, judge
from bertsmith.studies.lineage.models import MODELS, PAIRS, SIZES, STAGES, TOKENIZERS, share_of, stages_of
from bertsmith.studies.lineage.page import write_page
from bertsmith.studies.lineage.settings import LineageConfig, split_changes
from bertsmith.studies.lineage.study import lineage, part_names
from bertsmith.studies.lineage.tasks import TaskRun, task_facts
from bertsmith.studies.lineage.text import judged_texts
from bertsmith.system.durable import read_checksummed_json
from bertsmith.tokenizers import training, words
from bertsmith.tokenizers.tokenizer import Tokenizer

SMALL = ("epochs=1", "batch_size=16", "max_length=32")
MINUTES_ON_TWO_CORES = 15


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


def sentence(draw: random.Random) -> str:
    return f"the smith has {draw.choice(COLOURS)} {draw.choice(METALS)} and a thing of {draw.choice(METALS)}."


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, parallel text, a task of labels and one of tags."""
    base, draw = tmp_path_factory.mktemp("lineage"), random.Random(2)
    documents = ["\n".join(sentence(draw) for _ in range(12)) for _ in range(240)]
    (base / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    for side, word in (("source", "smith"), ("target", "schmied")):
        again = random.Random(3)
        lines = [sentence(again).replace("smith", word) for _ in range(400)]
        (base / f"pairs.{side}").write_text("\n".join(lines), encoding="utf-8")
    for split, count in (("train", 64), ("dev", 24)):
        rows = [{"text": sentence(draw)} for _ in range(count)]
        labelled = [row | {"label": "warm" if "red" in row["text"] else "cold"} for row in rows]
        (base / "own").mkdir(exist_ok=True)
        lines = [json.dumps(row) for row in labelled]
        (base / "own" / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        (base / "tags").mkdir(exist_ok=True)
        tagged(base / "tags" / f"{split}.jsonl", count, seed=count)
    return base


def study_of(base: Path, output: Path, **changes: Any) -> LineageConfig:
    given: dict[str, Any] = {
        "text": (str(base / "text.txt"),),
        "tasks": (Trial("classification", base / "own", SMALL),),
        "output": output,
        "minutes": 0.01,
        "size": "tiny",
        "models": ("none", "word-vectors", "bert"),
        "vocab_size": 400,
        "held_out": 0.1,
        "seeds": 2,
        "sentences": ("the *smith* has red iron.", "a thing of the *smith* and gold."),
        "workers": 1,
        "device": "cpu",
    }
    return LineageConfig(**{**given, **changes})


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pre-training is not the point: its models have new weights."""

    def initialize(study: LineageConfig, stage: Any, recipe: Any, *given: Any, **how: Any) -> dict[str, Any]:
        facts = pretraining._initialize(study, stage, recipe, *given, **how)
        curve = [{"seconds": seconds, "tokens": 10 * seconds, "loss": 5 - seconds} for seconds in (0.3, 0.6)]
        trained = {"minutes": recipe.minutes, "seconds": 0.6, "tokens": 64, "flop": 1e6, "curve": curve}
        return facts | trained

    monkeypatch.setattr(pretraining, "_train", initialize)


@pytest.mark.parametrize("size", SIZES)
def test_every_model_has_the_same_minutes(size: Any) -> None:
    for name, model in MODELS.items():
        assert share_of(model, size) == pytest.approx(0 if name == "none" else 1)
        assert stages_of(model, size)[-1 if not model.features else 0]
        for stage in (STAGES[size][one] for one in stages_of(model, size)):
            assert stage.tokenizer in TOKENIZERS
            assert stage.recipe.partition("/")[0] in {one.partition("/")[0] for one in recipes.names()}
            assert stage.share == 0 or stage.changes == () or size == "tiny"
    used = {stage for model in MODELS.values() for stage in stages_of(model, size)}
    assert used == set(STAGES[size]), "a stage without a model"
    for kind, changes in TOKENIZERS.values():
        config.override(config.find_kind("bertsmith.tokenizers", kind).Config(), changes)


def test_shared_stages_are_trained_once(base: Path, tmp_path: Path) -> None:
    study = study_of(base, tmp_path, models=("taglm", "elmo", "cove"), pairs=("a.tsv",), size="quick")
    names = part_names(study)
    assert [name for name in names if name.startswith("pretrain")] == [
        "pretrain/vectors-short",
        "pretrain/bilm",
        "pretrain/translation",
    ]
    assert [name for name in names if name.startswith("text")] == ["text/words", f"text/{PAIRS}"]
    assert names[-1] == "tasks/elmo/classification"
    after = part_names(study_of(base, tmp_path, models=("bert",), size="quick"))
    assert after.index("pretrain/bert-words") < after.index("pretrain/bert")


@pytest.mark.parametrize("row", ["bert", "gpt"])
def test_a_second_stage_starts_from_the_first(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str
) -> None:
    shape = ("encoder.layers=1", "encoder.width=32", "encoder.heads=2", "batch_size=4", "max_length=64")
    small = {name: replace(stage, changes=shape) for name, stage in STAGES["quick"].items()}
    monkeypatch.setitem(STAGES, "quick", small)
    study = study_of(base, tmp_path / "s", models=(row,), size="quick", minutes=0.02)
    result = lineage(study, only=("text", "pretrain", "judge"), quiet=True)
    (found,) = result["rows"]
    assert list(found["stages"]) == [f"{row}-words", row]
    assert found["minutes"] == pytest.approx(0.02)
    assert found["tokens"] == sum(stage["tokens"] for stage in found["stages"].values())
    recipe = json.loads((tmp_path / "s" / "pretrain" / row / "recipe.json").read_text(encoding="utf-8"))
    assert recipe["start"] == str(tmp_path / "s" / "pretrain" / f"{row}-words" / "last")
    moved = tmp_path / "moved"
    (tmp_path / "s").rename(moved)
    monkeypatch.setattr(pretraining, "_train", lambda *given, **how: pytest.fail("a moved stage was trained again"))
    again = lineage(replace(study, output=moved), only=("text", "pretrain", "judge"), quiet=True)
    assert again["rows"] == result["rows"]
    other = replace(study, output=tmp_path / "t")
    with pytest.raises(ConfigError, match=f"{row}-words is not finished"):
        lineage(other, only=("text", f"pretrain/{row}"), quiet=True)


def test_cove_is_left_out_without_parallel_text(base: Path, tmp_path: Path) -> None:
    study = study_of(base, tmp_path, models=())
    assert list(study.rows()) == [name for name in MODELS if name != "cove"]
    assert study.left_out() == {"cove": "needs parallel text: pass --pairs FILE"}
    assert list(study_of(base, tmp_path, models=(), pairs=("a.tsv",)).rows()) == list(MODELS)


def test_settings_of_models_and_of_tasks_are_told_apart(base: Path, tmp_path: Path) -> None:
    given = ["epochs=2", "bert:epochs=5", "glue/cola:batch_size=8"]
    of_models, of_tasks = split_changes(given)
    assert of_models == ["bert:epochs=5"]
    assert of_tasks == ["epochs=2", "glue/cola:batch_size=8"]
    study = study_of(base, tmp_path, changes=tuple(of_models))
    assert study.tuning("bert") == ["epochs=5"]
    assert study.tuning("gpt") == []


def test_a_study_writes_its_table_and_is_not_repeated(
    base: Path, tmp_path: Path, untrained: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(base, tmp_path / "s")
    result = lineage(study, quiet=True)
    assert [row["name"] for row in result["rows"]] == ["none", "word-vectors", "bert"]
    for row in result["rows"]:
        cell = row["cells"]["classification"]
        assert cell["score"]["runs"] == 2
        assert 0 <= cell["score"]["mean"] <= 1
        assert len(cell["shown"]) == 5
        assert {*cell["shown"]} <= {"warm", "cold"}
    assert result["rows"][1]["judgement"] is None
    assert result["rows"][2]["judgement"]["kind"] == "masked"
    assert not list((tmp_path / "s" / "tasks").rglob("*.safetensors"))
    monkeypatch.setattr(tasks, "finetune", lambda *given, **how: pytest.fail("a finished run was trained again"))
    monkeypatch.setattr(pretraining, "_train", lambda *given, **how: pytest.fail("a stage was trained again"))
    assert lineage(study, quiet=True) == result
    stored = read_checksummed_json(tmp_path / "s" / "lineage.json")
    assert stored["rows"] == json.loads(json.dumps(result["rows"]))
    assert "| BERT | bidirectional |" in (tmp_path / "s" / "lineage.md").read_text(encoding="utf-8")
    page = (tmp_path / "s" / "lineage.html").read_text(encoding="utf-8")
    assert "http://" not in page.replace("http://www.w3.org", "")
    with pytest.raises(ConfigError, match=r"pretrain/vectors is finished with other settings \(minutes"):
        lineage(study_of(base, tmp_path / "s", minutes=0.02), quiet=True)
    with pytest.raises(ConfigError, match="holds a run with other settings: batch_size"):
        lineage(study_of(base, tmp_path / "s", changes=("bert:batch_size=8",)), quiet=True)


def test_finished_pre_training_serves_another_task(base: Path, tmp_path: Path, untrained: None) -> None:
    lineage(study_of(base, tmp_path / "s", models=("bert",), seeds=1), only=("text", "pretrain"), quiet=True)
    both = (Trial("classification", base / "own", SMALL), Trial("tagging", base / "tags", SMALL))
    result = lineage(study_of(base, tmp_path / "s", models=("bert",), seeds=1, tasks=both), quiet=True)
    assert {*result["rows"][0]["cells"]} == {"classification", "tagging"}
    headings, rows = table.main_columns(result)
    assert headings[-1] == "Mean"
    means = [result["rows"][0]["cells"][task]["score"]["mean"] for task in ("classification", "tagging")]
    assert rows[1][-1] == f"{50 * sum(means):.1f}"


def test_a_stopped_study_resumes(base: Path, tmp_path: Path, untrained: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run, done = TaskRun.run, list[str]()

    def stopping(one: TaskRun, **how: Any) -> dict[str, Any]:
        if len(done) == 3:
            raise StoppedError("stopped")
        done.append(str(one.folder))
        return run(one, **how)

    study = study_of(base, tmp_path / "s")
    monkeypatch.setattr(TaskRun, "run", stopping)
    with pytest.raises(StoppedError):
        lineage(study, quiet=True)
    stopped = read_checksummed_json(tmp_path / "s" / "lineage.json")
    assert [row["cells"]["classification"] is None for row in stopped["rows"]] == [False, True, True]
    assert any("2 fields are not finished" in line for line in table.notes(stopped))
    monkeypatch.setattr(TaskRun, "run", run)
    resumed, once = lineage(study, quiet=True), lineage(study_of(base, tmp_path / "t"), quiet=True)
    for one, other in zip(resumed["rows"], once["rows"], strict=True):
        assert one["cells"]["classification"]["scores"] == other["cells"]["classification"]["scores"]


def test_stop_after_ends_with_the_exit_status_for_resuming(base: Path, tmp_path: Path) -> None:
    words = ["--text", base / "text.txt", "-t", "classification", "--data", base / "own", "-o", tmp_path / "s"]
    small = ["--size", "tiny", "--models", "word-vectors", "--vocab-size", 400, "--held-out", 0.1, "--workers", 1]
    small += ["--minutes", 5, "--device", "cpu", "-q"]
    assert call("lineage", *words, *small, "--only", "text").returncode == 0
    began = time.monotonic()
    done = call("lineage", *words, *small, "--stop-after", 6)
    assert done.returncode == 75, done.stderr
    assert time.monotonic() - began < 60
    assert list((tmp_path / "s" / "pretrain" / "vectors" / "checkpoints").iterdir())


def test_what_a_model_cannot_do_is_an_empty_field(
    base: Path, tmp_path: Path, untrained: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(base, tmp_path / "s", models=("bert",), seeds=2, changes=("bert:head.nonsense=1",))
    result = lineage(study, quiet=True)
    assert "nonsense" in result["rows"][0]["cells"]["classification"]["reason"]
    (line,) = [line for line in table.notes(result) if "BERT" in line]
    assert line.startswith("BERT on classification is empty: ")
    assert table.main_columns(result)[1][1][-1] == table.EMPTY


def test_runs_in_parallel_have_the_same_scores(base: Path, tmp_path: Path, untrained: None) -> None:
    how: dict[str, Any] = {"models": ("none",), "seeds": 2}
    alone, together = (
        lineage(study_of(base, tmp_path / name, jobs=jobs, **how), quiet=True) for name, jobs in (("a", 1), ("b", 2))
    )
    cells = [one["rows"][0]["cells"]["classification"] for one in (alone, together)]
    assert cells[0]["scores"] == cells[1]["scores"]


def test_mistakes_are_found_before_anything_is_trained(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--models brt: it must be one of none, .+ bert"):
        study_of(base, tmp_path, models=("brt",))
    with pytest.raises(ConfigError, match="needs a task: pass --task"):
        study_of(base, tmp_path, tasks=())
    with pytest.raises(ConfigError, match="--only tasks/gpt is not a part of this study: name text, pretrain"):
        lineage(study_of(base, tmp_path), only=("tasks/gpt",), quiet=True)
    with pytest.raises(ConfigError, match="epochz"):
        lineage(study_of(base, tmp_path, tasks=(Trial("classification", base / "own", ("epochz=1",)),)), quiet=True)
    with pytest.raises(ConfigError, match="epochz"):
        lineage(study_of(base, tmp_path, changes=("bert:epochz=1",)), quiet=True)
    with pytest.raises(BertsmithError, match="has 0 marked words"):
        lineage(study_of(base, tmp_path, sentences=("no mark",)), quiet=True)
    with pytest.raises(ConfigError, match="pretrain/bert is not finished"):
        lineage(study_of(base, tmp_path / "s", models=("bert",)), only=("tasks",), quiet=True)
    with pytest.raises(DataError):
        task_facts(Trial("classification", base / "missing"))
    few = study_of(base, tmp_path / "t", models=("bert",), held_out=0.001)
    assert not (tmp_path / "t").exists()
    with pytest.raises(DataError, match="are held out to judge the models"):
        judged_texts(few)


def test_the_command_says_what_is_wrong(base: Path, tmp_path: Path) -> None:
    shown = call("lineage", "--help")
    assert "same minutes" in shown.stdout
    text = ["--text", base / "text.txt", "-o", tmp_path / "s"]
    assert "Missing option '--task'" in call("lineage", *text, "--data", base).stderr
    task = ["-t", "classification", "--data", base / "own"]
    for more, expected in (
        (["--size", "huge"], "--size huge must be one of tiny, quick"),
        (["--minutes", "0"], "--minutes 0 must be above 0"),
        (["--models", "gtp"], "did you mean gpt"),
        (["--only", "x"], "--only x is not a part of this study"),
    ):
        done = call("lineage", *text, *task, *more, "-q")
        assert done.returncode == 78
        assert expected in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "s").exists()


# The judge


@pytest.fixture(scope="module")
def vocabulary() -> Tokenizer:
    settings = words.Config(lowercase=False, min_count=1)
    counts = training.count_words(["the smith has red iron and a thing of gold ."], settings.word_splitter())
    return settings.train(counts, vocab_size=40)


def predictor_of(encoder: Any, objective: Any, tokenizer: Tokenizer) -> Predictor:
    torch.manual_seed(3)
    model = Model.build(encoder, [objective], vocabulary=vocabulary_of(tokenizer))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return Predictor(model, fitted_to(model.encoder, tokenizer))


def test_a_causal_model_is_judged_by_its_likelihood(vocabulary: Tokenizer) -> None:
    shape = {"layers": 1, "width": 32, "heads": 2, "max_positions": 64, "vocab_size": vocabulary.vocab_size}
    predictor = predictor_of(gpt.Config(**shape), causal_lm.Config(), vocabulary)
    known, unknown = "the smith has red iron", "the smith has rhodium iron"
    result = judge(predictor, [known])
    assert result is not None
    assert (result["kind"], result["tokens"], result["unknown_bytes"]) == ("likelihood", 4, 0)
    surprisal = predictor.score(known)["surprisal"]
    assert result["nats_per_byte"] == pytest.approx(surprisal / len("smithhasrediron"), rel=1e-6)
    spelled = judge(predictor, [unknown])
    assert spelled is not None
    nats = predictor.score(unknown)["surprisal"] + BYTE * len("rhodium")
    assert spelled["nats_per_byte"] == pytest.approx(nats / len("smithhasrhodiumiron"), rel=1e-6)
    assert spelled["unknown_bytes"] == pytest.approx(7 / 19)


def test_a_bidirectional_language_model_is_judged_by_both_directions(vocabulary: Tokenizer) -> None:
    shape = {"width": 8, "hidden": 16, "filters": ((1, 8), (2, 8)), "dropout": 0.0}
    predictor = predictor_of(elmo.Config(**shape), bidirectional_lm.Config(), vocabulary)
    text = "the smith has red iron"
    result = judge(predictor, [text])
    assert result is not None
    assert result["kind"] == "likelihood of both directions"
    row = predictor.tokenizer.frame(predictor.tokenizer.encode(text), max_length=32)
    batch = collate([row], length=len(row))
    with torch.no_grad():
        forward, backward = predictor.model.predict(batch, "bidirectional_lm").chunk(2)
    ids, nats, size = batch.input_ids.flatten(), 0.0, 0
    for index in np.flatnonzero(row.sequence_ids == 0).tolist():
        if 0 < index < len(row) - 1:
            nats += float(F.cross_entropy(forward[index - 1], ids[index]))
            nats += float(F.cross_entropy(backward[index + 1], ids[index]))
            size += 2 * int(np.diff(row.offsets[index])[0])
    assert size > 0
    assert result["nats_per_byte"] == pytest.approx(nats / size, rel=1e-5)


def test_a_masked_model_is_judged_on_the_same_masks(base: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    shape = {"layers": 1, "width": 32, "heads": 2, "max_positions": 128, "vocab_size": tokenizer.vocab_size}
    predictor = predictor_of(bert.Config(**shape), masked_lm.Config(), tokenizer)
    text = (base / "text.txt").read_text(encoding="utf-8")[:4000]
    result = judge(predictor, [text])
    assert result is not None
    assert result == judge(predictor, [text])
    assert result["kind"] == "masked"
    tokens = len(tokenizer.encode(text))
    assert 0.1 < int(str(result["tokens"])) / tokens < 0.2


# The table


def score(mean: float, deviation: float | None) -> dict[str, Any]:
    return {"score": {"mean": mean, "deviation": deviation, "runs": 3}, "seconds": 2.0, "shown": ["a"]}


def test_differences_have_the_deviation_of_independent_runs() -> None:
    before = {"title": "a", "cells": {"x": score(0.5, 0.03), "y": score(0.2, 0.0)}}
    after = {"title": "b", "adds": "more", "cells": {"x": score(0.6, 0.04), "y": score(0.1, 0.02)}}
    added = table.difference(before, after, ["x", "y"])
    assert added["gains"]["x"]["mean"] == pytest.approx(0.1)
    assert added["gains"]["x"]["deviation"] == pytest.approx(0.05)
    assert added["mean"]["mean"] == pytest.approx(0.0)
    assert added["mean"]["deviation"] == pytest.approx(math.hypot(0.05, 0.02) / 2)
    assert table.points(added["gains"]["x"]) == "+10.0 ± 5.0"
    without = table.difference(before, {**after, "cells": {"x": None, "y": {"reason": "no"}}}, ["x", "y"])
    assert without["mean"] is None
    assert table.points(without["gains"]["x"]) == table.EMPTY


def sample_table() -> dict[str, Any]:
    """Two models on two tasks, one field of which is empty, and one not finished."""
    curve = [{"seconds": 1.0, "tokens": 10.0, "loss": 3.0}, {"seconds": 2.0, "tokens": 20.0, "loss": 2.0}]
    stage = {"recipe": "gpt/tiny", "minutes": 1.0, "curve": curve, "device": "cpu"}
    judged = {"kind": "likelihood", "nats_per_byte": 1.25, "tokens": 9, "unknown_bytes": 0.1}
    costs = {"minutes": 1.0, "seconds": 60.0, "tokens": 99, "flop": 1e9, "compile_seconds": 0.0, "parameters": 7}
    samples = {"next": [["of", "<i>"], ["a"]], "contexts": [[1.0, 0.5], [0.5, 1.0]]}
    rows = [
        {"name": name, "title": title, "paper": "X", "idea": idea, "adds": "<b>", "stages": {name: stage}, **costs}
        for name, title, idea in (("gpt", "GPT-1", "fine-tuned"), ("bert", "BERT", "bidirectional"))
    ]
    cells = [{"x": score(0.5, 0.1), "y": {"reason": "it is <odd>"}}, {"x": score(0.75, 0.05), "y": None}]
    for row, own, figure in zip(rows, cells, (judged, judged | {"kind": "masked"}), strict=True):
        row |= {"cells": own, "judgement": figure, "samples": samples}
    facts = {"metric": "f1", "train_examples": 9, "dev_examples": 4, "shown": [{"text": "<text>", "gold": "a"}]}
    base = {"baseline": {"description": "most frequent label", "score": 0.4}}
    return {
        "minutes": 1.0,
        "size": "tiny",
        "seeds": 3,
        "sentences": ["the *a* b", "c *a*"],
        "texts": {"bpe": {"vocab_size": 9, "tokens": 99, "held_out_documents": 4, "data": "0" * 64}, "words": None},
        "tasks": [{"name": name, **facts, **base} for name in ("x", "y")],
        "rows": rows,
        "left_out": {"cove": "needs parallel text: pass --pairs FILE"},
        "added": [table.difference(*rows, ["x", "y"])],
    }


def test_the_table_says_what_is_missing_and_what_each_figure_is() -> None:
    shown = sample_table()
    headings, rows = table.main_columns(shown)
    assert headings == ["Model", "Idea", "Minutes", "Nats/byte", "Figure", "x, f1", "y, f1", "Mean"]
    assert rows[0] == ["(no model)", "–", "–", "–", "–", "40.0", "40.0", "–"]
    assert rows[1] == ["GPT-1", "fine-tuned", "1", "1.250", "likelihood", "50.0 ± 10.0", "–", "–"]
    assert rows[2] == ["BERT", "bidirectional", "1", "(1.250)", "masked", "75.0 ± 5.0", "…", "–"]
    notes = list(table.notes(shown))
    assert notes[0] == "cove is left out: it needs parallel text: pass --pairs FILE."
    assert notes[1] == "GPT-1 on y is empty: it is <odd>"
    assert any("GPT-1 10.0%" in line for line in notes)
    assert not any("devices" in line or "trained on" in line for line in notes)
    assert notes[-1] == "1 field is not finished (…): the same command resumes."
    assert table.added_columns(shown)[1] == [["GPT-1", "BERT", "<b>", "+25.0 ± 11.2", "–", "–"]]
    text = table.markdown(shown)
    assert "| GPT-1 | fine-tuned | 1 | 1.250 | likelihood | 50.0 ± 10.0 | – | – |" in text
    assert "| BERT | gpt/tiny (1 min) | 7 | 99 | 1.00e+09 | 60 | 0 | 2 |" in text


def test_different_devices_are_noted() -> None:
    shown = sample_table()
    shown["rows"][1]["stages"]["bert"] = {**shown["rows"][1]["stages"]["bert"], "device": "H200"}
    assert any("stages were trained on H200 and cpu" in line for line in table.notes(shown))


def test_the_page_escapes_text_and_draws_every_score(tmp_path: Path) -> None:
    text = write_page(sample_table(), tmp_path / "p.html").read_text(encoding="utf-8")
    for written in ("<i>", "<odd>", "<text>", "<b>"):
        assert written not in text
        assert written.replace("<", "&lt;").replace(">", "&gt;") in text
    assert "<title>GPT-1: 50.0 ± 10.0</title>" in text
    assert text.count('class="error"') == 2
    assert text.count('class="base"') == 2
    assert text.count('class="curve ') == 2
    assert "GPT-1</td><td>0.50</td>" in text


class TestInABrowser:
    pytestmark = IN_A_BROWSER

    def test_the_page_fits_a_phone(self, tmp_path: Path) -> None:
        page = write_page(sample_table(), tmp_path / "p.html")
        with running_browser() as browser, open_pages(browser, {"p": page}) as opened:
            for width, scheme in ((390, "dark"), (1280, "light")):
                one = opened("p", viewport={"width": width, "height": 800}, color_scheme=scheme)
                assert one.locator("figure svg text").first.bounding_box()["height"] > 10
                found, light, size = unfolded(one, tmp_path / f"{width}.png")
                assert (found, light) == (width, scheme == "light")
                assert size > 10_000


@pytest.mark.slow
def test_the_whole_lineage_on_a_cpu(base: Path, tmp_path: Path) -> None:
    """All models on generated text, a task of labels and one of tags, in one command."""
    words = ["--text", base / "text.txt", "--pairs", base / "pairs.source", "--pairs", base / "pairs.target"]
    words += ["-t", "classification", "--data", f"classification={base / 'own'}", "-t", "tagging"]
    words += ["--data", f"tagging={base / 'tags'}", "-o", tmp_path / "s", "--size", "tiny", "--minutes", 0.1]
    words += ["--vocab-size", 400, "--held-out", 0.1, "--seeds", 1, "--device", "cpu", "--workers", 1, "--json"]
    words += ["--set", "epochs=1", "--set", "max_length=48", "--sentence", "the *smith* has red iron ."]
    began = time.monotonic()
    done = call("lineage", *words, "--sentence", "a thing of the *smith* .")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 60 * MINUTES_ON_TWO_CORES
    result = json.loads(done.stdout)
    assert [row["name"] for row in result["rows"]] == list(MODELS)
    for row in result["rows"]:
        assert row["minutes"] == pytest.approx(0 if row["name"] == "none" else 0.1)
        for task, cell in row["cells"].items():
            assert "score" in cell, f"{row['name']} on {task}: {cell}"
    judged = {row["name"]: row["judgement"] and row["judgement"]["kind"] for row in result["rows"]}
    assert {name for name, kind in judged.items() if kind == "likelihood"} == {"ulmfit", "gpt"}
    assert {name for name, kind in judged.items() if kind == "masked"} == {"bert", "roberta", "albert"}
    assert judged["elmo"] == judged["taglm"] == "likelihood of both directions"
    contexts = {row["name"]: row["samples"].get("contexts") for row in result["rows"]}
    assert contexts["word-vectors"][0][1] == pytest.approx(1.0)
    assert contexts["bert"][0][1] < 1
    assert Path(result["page"]).stat().st_size > 20_000
