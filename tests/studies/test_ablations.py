"""`ablate` end to end at the smallest size, and the paper's numbers in its table."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call
from studies.study_fixtures import METALS, model_folder, mrpc, tokenizer_of
from threads import threads

from bertsmith import recipes
from bertsmith.errors import ConfigError, DataError
from bertsmith.studies import ablations, published
from bertsmith.studies.ablations import Candidate, Cell, candidates
from bertsmith.studies.published import BERT_FEATURES, MASKS, OBJECTIVES, SIZES, scores_for
from bertsmith.studies.task_setup import TaskSetup, task_setups
from bertsmith.training.finetune import open_with_head
from bertsmith.training.sweep import parse_learning_rates

SMALL = [f"head.{setting}" for setting in ("recurrent_width=8", "recurrent_layers=1")]
QUICK = ["epochs=6", "batch_size=16", "max_length=32", "evals_per_epoch=0", *SMALL]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("ablate")
    tokenizer = tokenizer_of(base)
    return {
        "base": model_folder(base / "a" / "best", tokenizer, layers=2),
        "ltr": model_folder(base / "b" / "best", tokenizer, layers=2, causal=True),
    }


@pytest.fixture(autouse=True)
def one_thread_and_known_peak_flops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("bertsmith.training.finetune.cached_peak_flops", lambda device, dtype: 1e9)
    with threads(1):
        yield


def conll(folder: Path) -> Path:
    """Files in CoNLL-2003's format."""
    folder.mkdir(parents=True)
    for name, count in (("train.txt", 32), ("valid.txt", 16)):
        lines = []
        for number in range(count):
            metal = METALS[number % 4]
            lines += ["the DT B-NP O", f"{metal} NN I-NP B-{'LOC' if number % 2 else 'PER'}", "is VB B-VP O", ""]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_one_table_and_finished_runs_are_reused(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [f"{name}={path}" for name, path in folders.items()] + ["ltr+bilstm"]
    positions = ["--data", mrpc(tmp_path / "glue"), "--data", f"conll={conll(tmp_path / 'conll')}"]
    labelled = ["ablate", *given, "-t", "glue/mrpc", "-t", "conll/conll2003", *positions, "-o", tmp_path / "s"]
    labelled += ["--device", "cpu", "--learning-rates", "1e-2", "--seeds", "2"]
    labelled += [item for change in QUICK for item in ("--set", change)]
    done = call(*labelled, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [row["name"] for row in result["rows"]] == ["no model", "base", "ltr", "ltr+bilstm"]
    nothing, base, ltr, bilstm = (row["cells"] for row in result["rows"])
    assert (nothing["glue/mrpc"]["score"]["mean"], nothing["glue/mrpc"]["baseline"]) == (0.625, "always 0")
    assert nothing["conll/conll2003"]["score"]["mean"] == 0
    assert (base["glue/mrpc"]["metric"], base["glue/mrpc"]["published"]) == ("accuracy", 86.7)
    assert (base["conll/conll2003"]["published"], ltr["conll/conll2003"]["published"]) == (95.4, None)
    assert result["source"] == "P-BERT Table 5, P-BERT Table 8"
    assert (base["glue/mrpc"]["learning_rate"], base["glue/mrpc"]["score"]["runs"]) == (1e-2, 2)
    assert base["glue/mrpc"]["score"]["mean"] > 0.8
    asked_of_all = {"recurrent_width": 8, "recurrent_layers": 1}
    assert ltr["glue/mrpc"]["head"] == asked_of_all | {"pooling": "last"}
    assert (
        ltr["glue/mrpc"]["score"]["mean"] > 0.8
    )  # the label is the last word, which the first token of a causal model does not see
    assert base["glue/mrpc"]["head"] == asked_of_all
    assert bilstm["glue/mrpc"]["head"] == ltr["glue/mrpc"]["head"] | {"recurrent": "bilstm"}
    assert bilstm["glue/mrpc"]["score"]["mean"] > 0.8
    assert bilstm["conll/conll2003"]["head"] == ltr["conll/conll2003"]["head"] | {"recurrent": "bilstm"}
    assert bilstm["conll/conll2003"]["score"]["runs"] == 2
    assert "base" in Path(result["page"]).read_text(encoding="utf-8")
    kept = [path.parent.name for path in (tmp_path / "s").glob("*/*/lr-*/best")]
    assert len(kept) == 6  # the best run of each cell
    assert not list((tmp_path / "s").glob("*/*/lr-*/checkpoints"))
    monkeypatch.setattr(ablations, "sweep", lambda *words, **how: pytest.fail("a finished sweep was repeated"))
    assert json.loads(call(*labelled, "--json").stdout) == result
    shown = call(*labelled, "-q").stdout
    assert "ltr+bilstm" in shown
    assert "(86.7)" in shown
    assert "P-BERT Table 5" in shown


def quick_mrpc(folder: Path, epochs: int = 1) -> TaskSetup:
    """MRPC with short runs."""
    settings = (f"epochs={epochs}", "batch_size=16", "max_length=32", "evals_per_epoch=0")
    return TaskSetup("glue/mrpc", {"data": mrpc(folder)}, settings)


def test_an_interrupted_sweep_resumes(folders: dict[str, Path], tmp_path: Path) -> None:
    """The file of a cell is missing: its scores are read from the finished runs, whose models were removed."""
    those = [Candidate("base", folders["base"])]
    tried = [quick_mrpc(tmp_path / "glue", epochs=6)]
    how = {"learning_rates": [1e-9, 1e-2], "seeds": 1, "device": "cpu", "quiet": True}
    first = ablations.ablate(those, tried, tmp_path / "s", **how)
    assert first["rows"][1]["cells"]["glue/mrpc"]["learning_rate"] == 1e-2
    (tmp_path / "s" / "base" / "glue-mrpc" / "ablation.json").unlink()
    marks = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("events.jsonl")}
    assert len(marks) == 2
    assert ablations.ablate(those, tried, tmp_path / "s", **how) == first
    assert {path: path.stat().st_mtime_ns for path in marks} == marks


def test_runs_are_pickled_for_worker_processes(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[tuple[int, int]] = []

    def sent(function: Any, units: list[Any], **how: Any) -> Iterator[Any]:
        if how["workers"] > 1:
            workers.append((how["workers"], len(units)))
        return (pickle.loads(pickle.dumps(function))(pickle.loads(pickle.dumps(unit))) for unit in units)

    monkeypatch.setattr("bertsmith.training.sweep.ordered_map", sent)
    reported: list[str] = []
    those = candidates([f"base={folders['base']}", "base+fresh"])
    tried = [quick_mrpc(tmp_path / "glue")]
    how: dict[str, Any] = {"device": "cpu", "jobs": 3, "seeds": 2, "report": reported.append}
    result = ablations.ablate(those, tried, tmp_path / "s", **how)
    assert workers == [(3, 4)]  # every seed of its own
    monkeypatch.setattr("bertsmith.training.sweep.finetune", None)  # nothing is done twice
    assert ablations.ablate(those, tried, tmp_path / "s", **how) == result
    assert workers[1:] == [(3, 0)]
    del reported[2:]
    assert reported == ["base on glue/mrpc: done", "base+fresh on glue/mrpc: done"]
    assert [row["name"] for row in result["rows"]] == ["no model", "base", "base+fresh"]
    base, fresh = (Cell.planned(one, tried[0], tmp_path) for one in those)
    models = [open_with_head(cell.settings, cell.task)[0] for cell in (base, fresh)]
    assert not torch.equal(*(model.encoder.token_embeddings for model in models))


@pytest.mark.slow
def test_parallel_runs_equal_sequential_runs(folders: dict[str, Path], tmp_path: Path) -> None:
    those = candidates([f"base={folders['base']}", "base+fresh"])
    tried = [quick_mrpc(tmp_path / "glue")]
    how = {"learning_rates": [1e-3], "device": "cpu", "quiet": True}
    both = ablations.ablate(those, tried, tmp_path / "two", jobs=2, **how)
    alone = ablations.ablate(those, tried, tmp_path / "one", **how)
    assert [row["cells"]["glue/mrpc"]["score"] for row in both["rows"]] == [
        row["cells"]["glue/mrpc"]["score"] for row in alone["rows"]
    ]


def test_a_left_to_right_model_is_pooled_at_the_last_token(folders: dict[str, Path], tmp_path: Path) -> None:
    setup = TaskSetup("glue/mrpc", {"data": mrpc(tmp_path, 16)})
    causal, bidirectional = (Candidate(name, folders[name]) for name in ("ltr", "base"))
    assert (causal.causal, bidirectional.causal) == (True, False)
    cell = Cell.planned(causal, setup, tmp_path)
    model, _, _ = open_with_head(cell.settings, cell.task)
    assert model.encoder.direction == "forward"
    assert model.objectives["classify"].config.pooling == "last"
    named = Cell.planned(causal, TaskSetup("glue/mrpc", setup.files, ("head.pooling=mean",)), tmp_path)
    assert named.settings.head == {"pooling": "mean"}
    assert Cell.planned(bidirectional, setup, tmp_path).settings.head == {}
    behind = Candidate("base+bilstm", bidirectional.folder)
    assert Cell.planned(behind, setup, tmp_path).settings.head == {"recurrent": "bilstm", "pooling": "cls"}
    assert Cell.planned(causal, TaskSetup("glue/MRPC", setup.files), tmp_path).task.name == "glue/mrpc"


def test_heads_that_read_only_the_embeddings(folders: dict[str, Path], tmp_path: Path) -> None:
    """With the pooling of the encoder's heads, or the mean: a first token's embedding is the same in every text."""
    (plain, words) = candidates([f"base={folders['base']}", "base+embeddings"])
    assert words.folder == plain.folder
    setup = TaskSetup("glue/mrpc", {"data": mrpc(tmp_path / "glue")})
    head = Cell.planned(words, setup, tmp_path).settings.head
    assert (head["layers"], head["pooling"]) == ("embeddings", "mean")
    assert "layers" not in Cell.planned(plain, setup, tmp_path).settings.head


def test_errors_are_raised_before_training(folders: dict[str, Path], tmp_path: Path) -> None:
    tried = [
        TaskSetup("glue/mrpc", {"data": mrpc(tmp_path / "glue")}),
        TaskSetup("squad/1.1", {"data": tmp_path / "glue"}),
    ]
    with pytest.raises(DataError, match="no file of squad"):
        ablations.ablate([Candidate("base", folders["base"])], tried, tmp_path / "s", device="cpu", quiet=True)
    assert not list((tmp_path / "s").iterdir())


def test_candidates_are_parsed_from_the_command_line(folders: dict[str, Path], tmp_path: Path) -> None:
    a, b = folders["base"], folders["ltr"]
    assert candidates([str(a), f"x={b}", "x+bilstm"]) == [
        Candidate("a", a),
        Candidate("x", b),
        Candidate("x+bilstm", b),
    ]
    assert candidates([f"x+bilstm={b}"])[0].bilstm
    fresh = candidates([f"x={b}", "x+fresh", "x+bilstm+fresh"])
    assert [(one.folder, one.bilstm, one.fresh) for one in fresh] == [
        (b, False, False),
        (b, False, True),
        (b, True, True),
    ]
    with pytest.raises(ConfigError, match="must be unique"):
        candidates([f"x={a}", f"x={b}"])
    with pytest.raises(ConfigError, match="letters, digits"):
        candidates([f"x/y={a}"])
    with pytest.raises(DataError, match="nowhere is not a folder"):
        candidates(["base=nowhere"])
    with pytest.raises(DataError, match="for a setting of fine-tuning write --set epochs=1"):
        candidates([f"x={a}", "epochs=1"])


def test_tasks_are_parsed_from_the_command_line() -> None:
    result = task_setups(
        ["glue/mrpc", "glue/rte", "squad/1.1"],
        ["all", "glue=g", "glue/rte=r"],
        ["epochs=2", "squad:batch_size=48", "glue/rte:epochs=10"],
    )
    assert [(one.task, str(one.files["data"])) for one in result] == [
        ("glue/mrpc", "g"),
        ("glue/rte", "r"),
        ("squad/1.1", "all"),
    ]
    assert [one.changes for one in result] == [
        ("epochs=2",),
        ("epochs=2", "epochs=10"),
        ("epochs=2", "batch_size=48"),
    ]
    assert parse_learning_rates("2e-5,3e-5") == [2e-5, 3e-5]
    assert parse_learning_rates("") == []
    with pytest.raises(ConfigError, match="such as 2e-5"):
        parse_learning_rates("fast")
    with pytest.raises(ConfigError, match=r"pass --data squad/1\.1=DIR"):
        task_setups(["squad/1.1"], ["glue=g"], [])
    with pytest.raises(ConfigError, match=r"^--set gleu:epochs=2: gleu is not a task; did you mean glue\?$"):
        task_setups(["glue/rte"], ["g"], ["gleu:epochs=2"])
    assert task_setups(["glue/rte"], ["g"], ["metrics=module:function"])[0].changes == ("metrics=module:function",)


def test_a_study_may_combine_tables_of_the_paper() -> None:
    mrpc, sst2, conll = "glue/mrpc", "glue/sst-2", published.CONLL
    both = scores_for(["base", "no_nsp", "mask_0_0_100", "mine"], [mrpc, conll])
    assert both.scores == {
        "base": {mrpc: 86.7, conll: 95.4},
        "no_nsp": {mrpc: 86.5},
        "mask_0_0_100": {conll: 94.9},
    }
    assert both.source == "P-BERT Table 5, P-BERT Table 8"
    one = scores_for(["base", "size_6_768_3", "size_3_768_12", "ltr"], [sst2])
    assert one.scores["base"][sst2] == 92.9  # Table 5 has 92.7, and fewer of these rows
    assert one.scores["ltr"][sst2] == 92.1
    assert one.source == "P-BERT Table 5, P-BERT Table 6"
    assert scores_for(["mine"], [mrpc]).scores == {}
    assert published.METRICS[mrpc] == "accuracy"


def test_the_papers_rows_are_our_recipes() -> None:
    for table in (OBJECTIVES, SIZES, MASKS):
        for name in table.scores:
            assert recipes.find(f"bert/{name.removesuffix('+bilstm')}")
        for row in table.scores.values():
            assert set(row) <= set(published.METRICS)
            assert all(50 < score < 100 for score in row.values())
    for names, task, table in (  # rows that differ between two tables
        (["base"], published.SST2, OBJECTIVES),
        (["base", "ltr"], published.SST2, OBJECTIVES),
        (["base", "size_6_768_3"], published.SST2, SIZES),
        (["base", "mask_0_0_100", "mask_80_0_20"], published.MNLI, MASKS),
    ):
        result = scores_for(names, [task])
        assert (result.source, result.scores["base"][task]) == (table.source, table.scores["base"][task])
    assert {OBJECTIVES.scores["base"][task] for task in (published.SST2, published.MNLI)}.isdisjoint(
        {SIZES.scores["base"][published.SST2], MASKS.scores["base"][published.MNLI]}
    )
    scores = BERT_FEATURES.table.scores
    assert max(scores, key=lambda name: scores[name][published.CONLL]) == "last_four_concat"
