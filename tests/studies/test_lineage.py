"""`lineage` at the smallest size: the models as data, parts, scores, resuming, stopping, and the whole command."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from finetune_fixtures import made_up, write
from studies.study_fixtures import COLOURS, METALS, tagged
from threads import threads

from bertsmith import config, recipes
from bertsmith.errors import BertsmithError, ConfigError, DataError, StoppedError
from bertsmith.studies.lineage import pretraining, table, tasks
from bertsmith.studies.lineage import study as study_module
from bertsmith.studies.lineage.models import MODELS, PAIRS, SIZES, STAGES, TOKENIZERS, share_of, stages_of
from bertsmith.studies.lineage.settings import LineageConfig, split_changes
from bertsmith.studies.lineage.study import lineage, part_names
from bertsmith.studies.lineage.tasks import TaskRun, task_facts
from bertsmith.studies.lineage.text import held_out_texts
from bertsmith.studies.task_setup import TaskSetup
from bertsmith.system.durable import read_checksummed_json

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
        "tasks": (TaskSetup("classification", {"data": base / "own"}, SMALL),),
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
    """Skips pre-training: its models have new weights."""

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
            assert stage.recipe in recipes.names()
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
    result = lineage(study, only=("text", "pretrain", "evaluate"), quiet=True)
    (found,) = result["rows"]
    assert list(found["stages"]) == [f"{row}-words", row]
    assert found["minutes"] == pytest.approx(0.02)
    assert found["tokens"] == sum(stage["tokens"] for stage in found["stages"].values())
    recipe = json.loads((tmp_path / "s" / "pretrain" / row / "recipe.json").read_text(encoding="utf-8"))
    assert recipe["start"] == str(tmp_path / "s" / "pretrain" / f"{row}-words" / "last")
    moved = tmp_path / "moved"
    (tmp_path / "s").rename(moved)
    monkeypatch.setattr(pretraining, "_train", lambda *given, **how: pytest.fail("a moved stage was trained again"))
    again = lineage(replace(study, output=moved), only=("text", "pretrain", "evaluate"), quiet=True)
    assert again["rows"] == result["rows"]
    other = replace(study, output=tmp_path / "t")
    with pytest.raises(ConfigError, match=f"{row}-words is not finished"):
        lineage(other, only=("text", f"pretrain/{row}"), quiet=True)


def test_cove_is_left_out_without_parallel_text(base: Path, tmp_path: Path) -> None:
    study = study_of(base, tmp_path, models=())
    assert list(study.rows()) == [name for name in MODELS if name != "cove"]
    assert study.left_out() == {"cove": "needs parallel text: pass it with --pairs"}
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
    cell_of, built = study_module.cell_of, list[str]()

    def counted(study: LineageConfig, row: str, *given: Any) -> tasks.Cell:
        cell: tasks.Cell = cell_of(study, row, *given)
        built.extend([row] if cell.runs else [])
        return cell

    monkeypatch.setattr(study_module, "cell_of", counted)
    study = study_of(base, tmp_path / "s")
    result = lineage(study, quiet=True)
    assert built == ["none", "word-vectors", "bert"], "each cell is built once, not after every run"
    assert [row["name"] for row in result["rows"]] == ["none", "word-vectors", "bert"]
    for row in result["rows"]:
        cell = row["cells"]["classification"]
        assert cell["score"]["runs"] == 2
        assert 0 <= cell["score"]["mean"] <= 1
        assert len(cell["shown"]) == 5
        assert {*cell["shown"]} <= {"warm", "cold"}
    assert result["rows"][1]["text_loss"] is None
    assert result["rows"][2]["text_loss"]["kind"] == "masked"
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
    with pytest.raises(ConfigError, match=r"holds a run with other settings: batch_size .+ or remove that folder"):
        lineage(study_of(base, tmp_path / "s", changes=("bert:batch_size=8",)), quiet=True)
    longer = (TaskSetup("classification", {"data": base / "own"}, (*SMALL, "epochs=9")),)
    with pytest.raises(ConfigError, match=r"holds a finished run with other settings: .+, or remove that folder"):
        lineage(study_of(base, tmp_path / "s", tasks=longer), quiet=True)


def test_finished_pre_training_serves_another_task(base: Path, tmp_path: Path, untrained: None) -> None:
    lineage(study_of(base, tmp_path / "s", models=("bert",), seeds=1), only=("text", "pretrain"), quiet=True)
    both = (
        TaskSetup("classification", {"data": base / "own"}, SMALL),
        TaskSetup("tagging", {"data": base / "tags"}, SMALL),
    )
    result = lineage(study_of(base, tmp_path / "s", models=("bert",), seeds=1, tasks=both), quiet=True)
    assert {*result["rows"][0]["cells"]} == {"classification", "tagging"}
    main = table.main_table(result)
    assert main.headings[-1] == "Mean"
    means = [result["rows"][0]["cells"][task]["score"]["mean"] for task in ("classification", "tagging")]
    assert main.rows[1][-1] == f"{50 * sum(means):.1f}"


def test_questions_are_a_task_of_features_and_of_fine_tuned_models(base: Path, tmp_path: Path, untrained: None) -> None:
    for split, count in (("train", 24), ("dev", 8)):
        write(tmp_path / f"{split}.jsonl", made_up("qa", count, seed=count))
    setup = TaskSetup("qa", {split: tmp_path / f"{split}.jsonl" for split in ("train", "dev")}, SMALL)
    how: dict[str, Any] = {"models": ("word-vectors", "elmo", "ulmfit", "gpt", "bert"), "seeds": 1}
    result = lineage(study_of(base, tmp_path / "s", tasks=(setup,), **how), quiet=True)
    for row in result["rows"]:
        cell = row["cells"]["qa"]
        assert cell["metric"] == "f1", cell
        assert len(cell["shown"]) == 5


def test_finished_rows_need_no_weights(base: Path, tmp_path: Path, untrained: None) -> None:
    """The results alone, without text and weights, are enough to continue a study on another machine."""
    how: dict[str, Any] = {"seeds": 1, "models": ("word-vectors", "bert")}
    before = lineage(study_of(base, tmp_path / "a", **how), quiet=True)
    left_out = shutil.ignore_patterns("*.safetensors", "text")
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=left_out)
    how["models"] = ("none", "word-vectors", "bert")
    row = ("text/wordpiece", "pretrain/none", "evaluate/none", "tasks/none")
    after = lineage(study_of(base, tmp_path / "b", **how), only=row, quiet=True)
    scores = [[row["cells"]["classification"]["scores"] for row in one["rows"]] for one in (before, after)]
    assert scores[0] == scores[1][1:]
    assert not (tmp_path / "b" / "pretrain" / "bert" / "last" / "model.safetensors").exists()
    assert lineage(study_of(base, tmp_path / "b", **how), quiet=True)["rows"] == after["rows"]
    with pytest.raises(ConfigError, match=r"pretrain/vectors has no weights any more: remove that folder to train it"):
        lineage(study_of(base, tmp_path / "b", **how | {"seeds": 2}), quiet=True)
    shutil.rmtree(tmp_path / "b" / "pretrain" / "bert" / "last")
    shutil.rmtree(tmp_path / "b" / "evaluate" / "bert")
    with pytest.raises(ConfigError, match=r"pretrain/bert has no weights any more"):
        lineage(study_of(base, tmp_path / "b", **how), only=("evaluate/bert",), quiet=True)


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
    assert any("2 cells are not finished" in line for line in table.notes(stopped))
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
    assert table.main_table(result).rows[1][-1] == table.EMPTY


@pytest.mark.slow
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
        lineage(
            study_of(base, tmp_path, tasks=(TaskSetup("classification", {"data": base / "own"}, ("epochz=1",)),)),
            quiet=True,
        )
    with pytest.raises(ConfigError, match="epochz"):
        lineage(study_of(base, tmp_path, changes=("bert:epochz=1",)), quiet=True)
    with pytest.raises(BertsmithError, match="has 0 marked words"):
        lineage(study_of(base, tmp_path, sentences=("no mark",)), quiet=True)
    with pytest.raises(ConfigError, match="pretrain/bert is not finished"):
        lineage(study_of(base, tmp_path / "s", models=("bert",)), only=("tasks",), quiet=True)
    with pytest.raises(DataError):
        task_facts(TaskSetup("classification", {"data": base / "missing"}))
    few = study_of(base, tmp_path / "t", models=("bert",), held_out=0.001)
    assert not (tmp_path / "t").exists()
    with pytest.raises(DataError, match="are held out to evaluate the models"):
        lineage(few, quiet=True)
    lineage(replace(few, held_out=0.3), only=("text",), quiet=True)  # what the error advises
    assert held_out_texts(replace(few, held_out=0.3)) != held_out_texts(replace(few, held_out=0.2))


def test_the_command_says_what_is_wrong(base: Path, tmp_path: Path) -> None:
    shown = call("lineage", "--help")
    assert "same text, minutes and tasks" in shown.stdout
    text = ["--text", base / "text.txt", "-o", tmp_path / "s"]
    assert "Missing option '--task'" in call("lineage", *text, "--data", base).stderr
    task = ["-t", "classification", "--data", base / "own"]
    for more, expected in (
        (["--size", "huge"], "--size huge must be one of tiny, quick"),
        (["--minutes", "0"], "--minutes 0 must be above 0"),
        (["--models", "gtp"], "did you mean gpt"),
        (["--models", "bert,cove"], "--models bert,cove: cove needs parallel text: pass it with --pairs"),
        (["--set", "berd:epochs=1"], "--set berd:epochs=1: berd is not a model or a task; did you mean bert?"),
        (["--only", "x"], "--only x is not a part of this study"),
    ):
        done = call("lineage", *text, *task, *more, "-q")
        assert done.returncode == 78
        assert expected in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "s").exists()


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
    kinds = {row["name"]: row["text_loss"] and row["text_loss"]["kind"] for row in result["rows"]}
    assert {name for name, kind in kinds.items() if kind == "likelihood"} == {"ulmfit", "gpt"}
    assert {name for name, kind in kinds.items() if kind == "masked"} == {"bert", "roberta", "albert"}
    assert kinds["elmo"] == kinds["taglm"] == "likelihood of both directions"
    contexts = {row["name"]: row["samples"].get("contexts") for row in result["rows"]}
    assert contexts["word-vectors"][0][1] == pytest.approx(1.0)
    assert contexts["bert"][0][1] < 1
    assert Path(result["page"]).stat().st_size > 20_000
