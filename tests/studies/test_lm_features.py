"""`lm-features` at the smallest size: the rows of each table, resuming, the page and the learned weights."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser_fixtures import IN_A_BROWSER, check_phone_and_screen
from command_line import call
from frozen_fixtures import bert_folder, conll_file, lm_folder, word_folder

from bertsmith.errors import ConfigError
from bertsmith.reports.report_page import write_report
from bertsmith.studies.lm_features import TABLES, Source, variants
from bertsmith.studies.lm_features_report import score_table, write_page
from bertsmith.studies.published import LM_FEATURES

QUICK = ["encoder.hidden=4", "encoder.character_hidden=2", "epochs=1", "batch_size=16", "learning_rate=0.01"]
MIXABLE, OTHER = Source("bert", "bert", 2, mixable=True), Source("lm", "lm", 2, mixable=False)


def named(table: Any, *models: Source) -> dict[str, dict[str, Any]]:
    return {one.name: dict(one.encoder) for one in variants(table, models or [MIXABLE], recurrent_layers=2)}


def test_the_rows_of_every_table_have_the_names_of_the_papers_tables() -> None:
    for table in TABLES:
        assert set() < set(LM_FEATURES[table].scores) <= set(named(table)), table
    assert {named(table)["no features"]["mix_l2"] for table in TABLES if "no features" in named(table)} == {0}
    without = [LM_FEATURES[table].scores["no features"] for table in ("position", "models")]
    assert without[0] == without[1], "the same tagger"
    assert [one.get("features_at") for one in named("position").values()] == [None, [0], [1], [2]]
    assert named("injection")["input and output"]["features_at"] == [0, 2]
    assert [one["feature_layers"] for one in named("layers").values()] == [0, 1, 2, "mix"]
    assert [one["feature_layers"] for one in named("layers", OTHER).values()] == [0, 1, 2]
    assert [one["features"] for one in named("models", MIXABLE, OTHER).values()] == [
        [],
        ["bert"],
        ["lm"],
        ["bert", "lm"],
    ]
    with pytest.raises(ConfigError, match="lm have different widths"):
        named("mix", OTHER)


class Links(HTMLParser):
    """Everything that a page would request."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [str(value) for name, value in attrs if name in ("src", "href")]


def test_a_table_is_trained_once_and_shows_the_learned_weights(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("eng.train", "eng.testa"):
        conll_file(data / name, 4)
    words, bert = word_folder(tmp_path / "words"), bert_folder(tmp_path / "bert")
    given = ["lm-features", words, "--features", f"bert={bert}", "-t", "conll/conll2003-pos", "--data", data]
    given += [
        "-o",
        tmp_path / "s",
        "--table",
        "layers",
        "--device",
        "cpu",
        *(part for one in QUICK for part in ("--set", one)),
    ]
    done = call(*given, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("unknown to this tokenizer") == 1, "one tokenizer, one task, four rows"
    result = json.loads(done.stdout)
    assert [row["name"] for row in result["rows"]] == ["layer 0", "layer 1", "layer 2", "mix"]
    cells = [row["cells"]["conll/conll2003-pos"] for row in result["rows"]]
    assert [cell["published"] for cell in cells] == [None, 97.3, 96.8, None]
    assert all(cell["metric"] == "accuracy" and 0 < cell["score"]["mean"] <= 1 for cell in cells)
    (weights,) = cells[-1]["weights"].values()
    assert sum(weights[name] for name in "012") == pytest.approx(1, abs=1e-4)
    assert not any(cell["weights"] for cell in cells[:-1])
    page = Path(result["page"]).read_text(encoding="utf-8")
    links = Links()
    links.feed(page)
    assert not links.found
    assert "97.3" in page
    assert "mix, conll/conll2003-pos: features-0 after layer 1, scale 1" in page
    assert f"{weights['1']:.3f}" in page
    report = write_report([cells[-1]["run"]], tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"{weights['1']:.3f}</text>" in report
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("events.jsonl")}
    again = call(*given)
    assert again.returncode == 0, again.stderr
    assert "(97.3)" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_published_scores_keep_their_decimals() -> None:
    cells = {"CoNLL": {**sample_table()["rows"][0]["cells"]["conll/conll2003"], "published": 91.55}}
    table = {**sample_table(), "tasks": ["CoNLL"], "rows": [{"name": "input of layer 1", "cells": cells}]}
    assert "| input of layer 1 | 80.0 (91.55) |" in score_table(table).markdown()
    cells["CoNLL"]["published"] = 81.0
    assert "| 80.0 (81.0) |" in score_table(table).markdown()


def test_wrong_models_and_tables_are_one_line_errors(tmp_path: Path) -> None:
    words, lm = word_folder(tmp_path / "words"), lm_folder(tmp_path / "lm")
    common = ["-t", "conll/conll2003", "--data", tmp_path, "-o", tmp_path / "s"]
    refused = call("lm-features", words, "--features", tmp_path / "none", *common)
    assert refused.returncode != 0
    assert "--features needs a model folder" in refused.stderr
    refused = call("lm-features", words, "--features", lm, *common, "--table", "layer")
    assert "--table layer must be one of position, models, layers, mix, injection" in refused.stderr


def sample_table() -> dict[str, Any]:
    """Two rows on one task, one of which has learned weights."""
    weights = {"features-0 after layer 1": {"0": 0.2, "1": 0.5, "2": 0.3, "scale": 1.04}}
    cell = {"metric": "f1", "score": {"mean": 0.8, "deviation": None, "runs": 1}, "published": 84.7}
    rows = [
        {"name": name, "cells": {"conll/conll2003": {**cell, "weights": own}}}
        for name, own in (("top <i>", {}), ("mix, λ=0", weights))
    ]
    return {"table": "mix", "source": "P-ELMo Table 2", "tasks": ["conll/conll2003"], "rows": rows}


class TestInABrowser:
    pytestmark = IN_A_BROWSER

    def test_the_page_fits_a_phone(self, tmp_path: Path) -> None:
        page = write_page(sample_table(), tmp_path / "p.html")
        assert "top &lt;i&gt;" in page.read_text(encoding="utf-8")
        check_phone_and_screen(page, tmp_path)
