"""Several runs side by side: differences, scores, names."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from reports.run_fixtures import RECIPE, RunBuilder, finished_run

from bertsmith.errors import BertsmithError
from bertsmith.reports.comparison import differences, dotted, read_runs, scores, shared, summary
from bertsmith.reports.run_history import read_run
from bertsmith.reports.run_summary import baselines, headline, perplexity, title


def test_differences_of_recipes(tmp_path: Path) -> None:
    finished_run(tmp_path / "a")
    other = RECIPE | {"learning_rate": 0.002, "warmup": 0.1, "seed": 3}
    finished_run(tmp_path / "b", recipe=other)
    runs = read_runs([tmp_path])
    assert differences(runs) == {"learning_rate": [0.001, 0.002], "seed": [0, 3], "warmup": [None, 0.1]}
    assert shared(runs)["encoder.layers"] == 2
    assert not shared(runs).keys() & differences(runs).keys()
    assert dotted({"a": {"b": {"c": 1}, "d": []}, "e": {}}) == {"a.b.c": 1, "a.d": [], "e": {}}


def test_scores_have_equal_columns(tmp_path: Path) -> None:
    finished_run(tmp_path / "a")
    RunBuilder(tmp_path / "b").steps(1, 5)
    first, second = scores(read_runs([tmp_path / "a", tmp_path / "b"]))
    assert first.keys() == second.keys()
    assert first["loss/guess_lm"] == pytest.approx(4.95)
    assert first["perplexity/guess_lm"] == pytest.approx(141.17, abs=0.01)
    assert first["best_step"] == 30
    assert second["loss"] is None
    assert json.loads(json.dumps(second, allow_nan=False))["steps"] == 5


def test_summary_is_plain_json(tmp_path: Path) -> None:
    built = RunBuilder(tmp_path / "run")
    built.steps(1, 3, loss=float("nan"))
    facts = json.loads(json.dumps(summary(read_run(built.folder)), allow_nan=False))
    assert facts["training"]["loss"] is None
    assert facts["steps"] == 3


def test_runs_with_the_same_folder_name_get_unique_names(tmp_path: Path) -> None:
    for name in ("x/run", "y/run", "other"):
        finished_run(tmp_path / name)
    assert [run.name for run in read_runs([tmp_path])] == ["other", "x/run", "y/run"]
    repeated = read_runs([tmp_path / "x" / "run", tmp_path / "x" / ".." / "x" / "run"])
    assert [run.name for run in repeated] == ["run"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BertsmithError, match="no run in"):
        read_runs([tmp_path / "empty"])


def test_baselines_titles_and_headline(tmp_path: Path) -> None:
    run = read_run(finished_run(tmp_path / "run"))
    assert baselines(run, "loss/guess_lm") == {"unigram 7.25": 7.25}
    assert baselines(run, "accuracy/next_sentence") == {"chance 50%": 0.5}
    assert baselines(run, "loss/next_sentence") == {"chance 0.69": pytest.approx(math.log(2))}
    output = replace(run, facts={"chance": {"next_sentence": 1.0, "kind": 0.25}, "unigram": "?"})
    assert baselines(output, "accuracy/kind") == {"chance 25%": 0.25}
    assert baselines(output, "accuracy/next_sentence") == baselines(output, "loss/kind") == {}
    assert baselines(run, "loss") == {}
    assert perplexity("loss/guess_lm", 0.0) == 1.0
    assert perplexity("loss/next_sentence", 0.0) is None
    assert title("loss/guess_lm") == ("Loss: guess lm", "nats")
    assert title("matthews") == ("Matthews", "")
    result = headline(run)
    assert result["steps"] == "40 of 40"
    assert result["parameters"] == "12.3k"
    assert (result["best loss"], result["last loss"]) == ("5.650 at step 30", "6.200 at step 40")
