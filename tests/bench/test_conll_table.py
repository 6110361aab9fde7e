"""`bench/conll_table.py` at the smallest size, on the CPU."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from frozen_fixtures import SENTENCES, conll_file
from threads import threads

from bertsmith.system.durable import read_checksummed_json

pytestmark = pytest.mark.slow
BENCH = Path(__file__).resolve().parents[2] / "bench"
SMALL = ["vectors:encoder.width=8", "elmo:encoder.width=8", "elmo:encoder.hidden=8", "elmo:encoder.filters=[[2,4]]"]
SMALL += ["forward:encoder.width=8", "backward:encoder.hidden=8", "bert:encoder.width=16"]
TUNED = ["tagger:encoder.hidden=4", "tagger:epochs=1", "bert:epochs=1", "ner:evals_per_epoch=1"]
ROWS = {
    "position": ["no features", "input of layer 1", "output of layer 1", "output of layer 2"],
    "models": ["no features", "forward", "backward", "elmo", "all"],
    "layers": ["layer 0", "layer 1", "layer 2", "mix"],
    "mix": ["no features", "top", "mix, λ=1", "mix, λ=0.001", "mix, λ=0", "mix, layer norm"],
    "injection": ["no features", "input", "input and output", "output"],
}


@pytest.fixture(scope="module", autouse=True)
def bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(BENCH))
    with threads(1):
        yield
    sys.path.remove(str(BENCH))


def overrides(changes: list[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def test_all_rows_of_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import conll_table

    text, data, out = tmp_path / "text.txt", tmp_path / "conll", tmp_path / "out"
    text.write_text("\n\n".join(f"{sentence} {number}" for number in range(1500) for sentence in SENTENCES))
    data.mkdir()
    for name in ("eng.train", "eng.testa", "eng.testb"):
        conll_file(data / name, 4)
    tiny = ["-o", str(out), "--size", "tiny", "--device", "cpu"]
    assert conll_table.main(["tasks", *tiny, "--data", str(data), "bert"]) != 0
    assert "bert is not finished: conll_table.py pretrain bert resumes it" in capsys.readouterr().err
    assert conll_table.main(["prepare", str(text), *tiny, "--vocabulary", "250"]) == 0
    train = [
        "pretrain",
        *tiny,
        "--minutes",
        "0.02",
        *overrides([*SMALL, "max_length=16", "batch_size=4", "eval_rows=8"]),
    ]
    assert conll_table.main(train) == 0
    capsys.readouterr()
    assert conll_table.main(train) == 0
    assert capsys.readouterr().out.count("is finished") == 5
    tune = ["tasks", *tiny, "--data", str(data), "--seeds", "2", "--jobs", "2", *overrides(TUNED)]
    assert conll_table.main(tune) == 0
    shown = capsys.readouterr().out
    assert shown.count("is trained") == 20
    for name in conll_table.NAMES:
        assert re.search(rf"^\| {name} \|( \d+\.\d ± \d+\.\d \(2\) \|){{4}}$", shown, re.MULTILINE), name
    assert len(re.findall("^- .* finished, .* M tokens", shown, re.MULTILINE)) == 5
    recipes = [json.loads(path.read_text()) for path in (out / "tasks").rglob("recipe.json")]
    assert [one.get("group_by_length", False) for one in recipes] == [False] * 20
    assert conll_table.main(tune) == 0
    assert "is trained" not in capsys.readouterr().out
    study = ["studies", *tiny, "--data", str(data), "--seeds", "1", "--sizes", "50%,100%", "--min-steps", "1"]
    study += overrides([*TUNED[:2], "ner:evals_per_epoch=1", "labels:evals_per_epoch=0"])
    assert conll_table.main([*study, "--stop-after", "8"]) == 75
    capsys.readouterr()
    assert conll_table.main(study) == 0
    shown = capsys.readouterr().out
    cell = r" \d+\.\d( \(\d+\.\d+\))? \|"
    for name, rows in ROWS.items():
        stored = read_checksummed_json(out / "studies" / name / "lm_features.json")
        assert [row["name"] for row in stored["rows"]] == rows
        for row in rows:
            assert re.search(rf"^\| {re.escape(row)} \|({cell}){{2}}$", shown, re.MULTILINE), row
    assert "| Labels | vectors | taglm | elmo | from-scratch |" in shown
    assert [f"({size}%)" in shown for size in (50, 100)] == [True, True]
    before = {path: path.stat().st_mtime_ns for path in (out / "studies").rglob("events.jsonl")}
    assert conll_table.main(study) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "studies").rglob("events.jsonl")} == before
    assert capsys.readouterr().out.endswith(shown[shown.index("# Where the features are read") :])
