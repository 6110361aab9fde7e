"""`sample-efficiency` at the smallest size: subsets, the table, resuming, and the page with its chart."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser_fixtures import IN_A_BROWSER, Reader, open_pages, running_browser, unfolded
from command_line import call
from frozen_fixtures import lm_folder
from studies.study_fixtures import METALS, model_folder, tokenizer_of
from threads import threads

from bertsmith import config
from bertsmith.errors import ConfigError, StoppedError
from bertsmith.evaluation import evaluate
from bertsmith.studies import sample_efficiency_report as report
from bertsmith.studies.sample_efficiency import labels_needed, sample_efficiency
from bertsmith.studies.subset_sizes import parse_sizes, resolve_sizes
from bertsmith.system.durable import read_checksummed_json
from bertsmith.training.finetune import finetune
from bertsmith.training.finetune_data import build_task, train_and_dev
from bertsmith.training.recipe import FinetuneConfig
from bertsmith.training.sweep import SweepRun

CHANGES = ["batch_size=8", "max_length=16", "epochs=1", "learning_rate=3e-3", "from-scratch:learning_rate=1e-3"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two model folders, and texts whose label is one of their words."""
    base = tmp_path_factory.mktemp("labels")
    tokenizer = tokenizer_of(base)
    for name, seed in (("general", 1), ("target", 2)):
        model_folder(base / name, tokenizer, seed=seed, layers=1)
    draw = random.Random(5)
    for split, count in (("train", 40), ("dev", 12), ("test", 20)):
        rows = []
        for _ in range(count):
            metal = draw.choice(METALS[:2] if draw.random() < 0.8 else METALS[2:])
            rows.append({"text": f"the smith has a thing of {metal}", "label": metal})
        (base / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return base


def files(base: Path) -> dict[str, Path]:
    return {split: base / f"{split}.jsonl" for split in ("train", "dev", "test")}


def study(base: Path, output: Path, **how: Any) -> dict[str, Any]:
    models = {name: base / name for name in ("general", "target")}
    given: dict[str, Any] = {
        "models": models,
        "sizes": [8, "all"],
        "seeds": 2,
        "min_steps": 3,
        "from_scratch": True,
        "changes": CHANGES,
    }
    given |= {"task": "classification", "files": files(base), "output": output, "device": "cpu", "quiet": True}
    return sample_efficiency(**{**given, **how})


@pytest.fixture(scope="module")
def finished(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    output = tmp_path_factory.mktemp("study") / "s"
    return output, study(base, output)


def run_settings(folder: Path) -> FinetuneConfig:
    return config.read_file(FinetuneConfig, folder / "recipe.json")


def test_every_model_is_trained_on_the_same_subsets(base: Path, finished: tuple[Path, dict[str, Any]]) -> None:
    output, result = finished
    drawn: dict[tuple[str, int, int], list[str]] = {}
    for row in result["runs"]:
        settings = run_settings(Path(row["run"]))
        train, dev = train_and_dev(settings, build_task(settings))
        drawn[row["model"], row["size"], row["seed"]] = [example.id for example in train]
        assert len(train) == row["size"]
        assert len(dev) == 12
    assert len(drawn) == 3 * 2 * 2
    for seed in (0, 1):
        for size in (8, 40):
            alike = {name: drawn[name, size, seed] for name in ("general", "target", "from-scratch")}
            assert alike["general"] == alike["target"] == alike["from-scratch"]
        assert set(drawn["general", 8, seed]) < set(drawn["general", 40, seed])
    assert drawn["general", 8, 0] != drawn["general", 8, 1]
    scratch, general = (run_settings(output / name / "8" / "seed-0") for name in ("from-scratch", "general"))
    assert (scratch.random_init, scratch.learning_rate, scratch.model) == (True, 1e-3, str(base / "general"))
    assert (general.random_init, general.learning_rate, general.epochs) == (False, 3e-3, 3.0)
    assert {row["size"]: row["steps"] for row in result["runs"]} == {8: 3, 40: 5}  # at least three


def test_scores_are_those_of_single_runs_on_test(
    base: Path, finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, result = finished
    row = next(row for row in result["runs"] if (row["model"], row["size"], row["seed"]) == ("target", 8, 1))
    finetune(run_settings(Path(row["run"])), tmp_path / "run", device="cpu", quiet=True)
    alone = evaluate(tmp_path / "run", "classification", files(base), split="test", device="cpu")
    assert row["scores"] == alone.scores
    assert row["score"] == alone.scores["accuracy"]
    target = next(model for model in result["models"] if model["name"] == "target")
    scores = [row["score"] for row in result["runs"] if (row["model"], row["size"]) == ("target", 8)]
    assert target["scores"][0]["mean"] == pytest.approx(sum(scores) / 2)
    assert target["scores"][0]["deviation"] == pytest.approx(abs(scores[0] - scores[1]) / math.sqrt(2))
    assert (result["split"], result["examples"], result["metric"]) == ("test", 20, "accuracy")
    gold = [json.loads(line)["label"] for line in (base / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    assert result["baseline"]["score"] == max(map(gold.count, METALS)) / 20


def test_finished_runs_keep_no_model_and_are_reused(
    base: Path, finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, result = finished
    assert not [path for path in output.rglob("*") if path.name in ("best", "last", "checkpoints")]
    monkeypatch.setattr(SweepRun, "run", lambda *words, **how: pytest.fail("a finished run was trained again"))
    assert len(study(base, output, sizes=[8], seeds=1)["runs"]) == 3
    assert study(base, output) == result
    stored = read_checksummed_json(output / "sample_efficiency.json")
    assert {name: stored[name] for name in result if name in stored} == {
        name: value for name, value in result.items() if name in stored
    }


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("learning_rate=1e-2", "holds a run with other settings: learning_rate was 0.003 and is now 0.01"),
        ("epochs=20", "holds a finished run whose checkpoints were removed, so that it cannot continue"),
    ],
)
def test_other_settings_in_the_same_folder_advise_what_the_command_offers(
    base: Path, finished: tuple[Path, dict[str, Any]], change: str, found: str
) -> None:
    folder = finished[0] / "general" / "8" / "seed-0"
    before = (folder / "events.jsonl").read_bytes()
    with pytest.raises(ConfigError) as error:
        study(base, finished[0], changes=[*CHANGES, change])
    assert str(error.value) == f"{folder} {found}: choose another -o, or remove that folder"
    assert (folder / "events.jsonl").read_bytes() == before


def test_a_stopped_study_resumes_with_the_same_result(
    base: Path, finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped in the middle of the second size, when the results of the first one can be read."""
    train, done = SweepRun.run, list[SweepRun]()

    def stopping(run: SweepRun, *words: Any, **options: Any) -> None:
        done.append(run)
        if len(done) == 4:
            raise StoppedError("stopped")
        train(run, *words, **options)

    monkeypatch.setattr(SweepRun, "run", stopping)
    output, how = tmp_path / "s", {"models": {"general": base / "general"}, "seeds": 1}
    with pytest.raises(StoppedError):
        study(base, output, **how)
    partial = (output / "sample_efficiency.md").read_text(encoding="utf-8")
    assert [line.count("—") for line in partial.splitlines() if line.startswith("| 40 ")] == [2, 1]
    damaged = output / "general" / "8" / "seed-0" / "scores.json"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    again = study(base, output, **how)
    trained = [f"{run.folder.parts[-3]}/{run.folder.parts[-2]}" for run in done]
    assert trained == ["general/8", "from-scratch/8", "general/40", "from-scratch/40", "general/8", "from-scratch/40"]
    whole = [row for row in finished[1]["runs"] if row["seed"] == 0 and row["model"] != "target"]
    assert [row["scores"] for row in again["runs"]] == [row["scores"] for row in whole]


def test_the_command_prints_and_writes_the_tables(base: Path, finished: tuple[Path, dict[str, Any]]) -> None:
    output, result = finished
    words = ["sample-efficiency", "-m", f"general={base / 'general'}", "-m", f"target={base / 'target'}"]
    words += ["--from-scratch", "-t", "classification", *CHANGES, "--sizes", "8,all", "--seeds", "2"]
    words += ["--min-steps", "3", "--device", "cpu", "-o", str(output)]
    words += [item for split, path in files(base).items() for item in (f"--{split}", str(path))]
    assert json.loads(call(*words, "--json").stdout) == json.loads(json.dumps(result))
    shown = call(*words)
    assert shown.returncode == 0, shown.stderr
    assert "12 of 12: from-scratch, 40 labels, seed 1" in shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == "Accuracy on test (20 examples), mean ± sd of 2 seeds, in percent"
    assert lines[1].split() == ["Labels", "general", "target", "from-scratch"]
    cells = [model["scores"][0] for model in result["models"]]
    assert lines[2].split() == [
        "8",
        *f"{100 * cells[0]['mean']:.1f} ± {100 * cells[0]['deviation']:.1f}".split(),
        *lines[2].split()[4:],
    ]
    assert any(line.startswith("Labels that from-scratch training needs for the same accuracy") for line in lines)
    text = (output / "sample_efficiency.md").read_text(encoding="utf-8")
    assert "| Labels | general | target | from-scratch |" in text


def test_labels_needed_are_interpolated_on_a_logarithmic_axis() -> None:
    curve = [(100, 0.6), (1000, 0.8), (10_000, 0.75), (100_000, 0.9)]
    assert labels_needed(0.6, curve) == 100
    assert labels_needed(0.7, curve) == pytest.approx(math.sqrt(100 * 1000))
    assert labels_needed(0.8, curve) == pytest.approx(1000)
    assert labels_needed(0.825, curve) == pytest.approx(math.sqrt(10_000 * 100_000))
    assert labels_needed(0.59, curve) is None
    assert labels_needed(0.91, curve) is None
    assert labels_needed(0.5, []) is None


def test_wrong_settings_are_errors_before_anything_is_trained(base: Path, tmp_path: Path) -> None:
    for how, message in (
        ({"sizes": [8, 41]}, r"--sizes 41: there are 40 training examples: for all, write all"),
        ({"sizes": ["1%", "all"]}, r"--sizes 1%: 1% of 40 training examples is less than one example"),
        ({"sizes": []}, r"no sizes: pass numbers or percentages of training examples, such as 100,1%,all"),
        ({"changes": ["limit=5"]}, r"the study sets limit: pass --sizes"),
        ({"changes": ["from-scratch:random_init=false"]}, r"the study sets random_init: pass --from-scratch"),
        ({"changes": ["target:seed=3"]}, r"target: all models have the same task, files, .*and seed"),
        ({"changes": ["tagret:seed=3"]}, r"tagret:seed"),
    ):
        with pytest.raises(ConfigError, match=message):
            study(base, tmp_path / "s", **how)
    with pytest.raises(ConfigError, match=r"pass --dev FILE, or dev_fraction=0\.1"):
        sample_efficiency(
            {"a": base / "general"}, "classification", {"train": base / "train.jsonl"}, tmp_path / "s", device="cpu"
        )
    assert not (tmp_path / "s").exists()
    refused = call("sample-efficiency", "-m", base / "general", "-m", "general+fresh", "-t", "pairs", "-o", "s")
    assert "--model general+fresh: pass model folders, and --from-scratch" in refused.stderr


def test_from_scratch_trains_all_layers_from_the_start(base: Path, tmp_path: Path) -> None:
    """Not gradually from the top, as the pre-trained AWD-LSTM."""
    how = {"models": {"lm": lm_folder(tmp_path / "lm")}, "sizes": [8], "seeds": 1, "changes": CHANGES[:3]}
    study(base, tmp_path / "s", **how)
    known, fresh = (run_settings(tmp_path / "s" / name / "8" / "seed-0") for name in ("lm", "from-scratch"))
    assert (len(known.unfreeze), known.layer_decay) == (4, 1 / 2.6)
    assert (fresh.unfreeze, fresh.layer_decay, fresh.random_init) == ((), 1.0, True)


def test_percentages_are_shares_of_the_training_examples(base: Path, finished: tuple[Path, dict[str, Any]]) -> None:
    """20% of 40 examples are the 8 of the finished runs, which are not trained again."""
    output, result = finished
    again = study(base, output, sizes=["all", "20%"])
    assert (again["sizes"], again["percentages"]) == ([8, 40], ["20%", None])
    assert (again["runs"], again["models"]) == (result["runs"], result["models"])
    lines = (output / "sample_efficiency.md").read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("| 8 (20%) | ") for line in lines) == 2  # scores, and labels needed from scratch
    assert sum(line.startswith("| 40 | ") for line in lines) == 2


def test_sizes_are_numbers_percentages_or_all() -> None:
    assert parse_sizes("100, 2_000, .5%,10%,all") == [100, 2000, ".5%", "10%", "all"]
    for text in ("1e3", "-1", "many", "1 %", "-1%", "%", "1/100", "٣%"):
        with pytest.raises(ConfigError, match="expected a number or a percentage of training examples, or all"):
            parse_sizes(text)
    with pytest.raises(ConfigError, match="--sizes is empty: expected numbers or percentages"):
        parse_sizes(" ,")
    assert resolve_sizes(["100%", "0.1%", 14, "1%", "all", "1.00%", 500], 14_041) == {
        14: "0.1%",
        140: "1%, 1.00%",
        500: None,
        14_041: "100%",
    }
    assert resolve_sizes(["0.29%"], 10_000) == {29: "0.29%"}  # not 28, as with floating-point numbers
    for size, message in (
        ("0%", "0% of 50 training examples is less than one example"),
        ("101%", "a percentage of the training examples is at most 100%"),
        (0, "--sizes 0: expected a number or a percentage"),
        (0.01, "--sizes 0.01: expected a number or a percentage"),
        ("few", "--sizes few: expected a number or a percentage"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve_sizes([size], 50)  # type: ignore[list-item]


def table(**changes: Any) -> dict[str, Any]:
    """A study with made-up scores."""

    def cell(mean: float, deviation: float | None = 0.02) -> dict[str, Any]:
        return {"mean": mean, "deviation": deviation}

    sizes = [100, 1000, 10_000, 100_000]
    scores = {
        "general <i>": [cell(0.7), cell(0.8), cell(0.88, 0.005), cell(0.92, None)],
        "target": [cell(0.8), cell(0.86), cell(0.9), cell(0.93)],
        "from-scratch": [cell(0.5), cell(0.6), cell(0.7), cell(0.9)],
    }
    curve = [(size, one["mean"]) for size, one in zip(sizes, scores["from-scratch"], strict=True)]
    models = [
        {
            "name": name,
            "folder": f"runs/{name}",
            "random_init": name == "from-scratch",
            "scores": own,
            "labels_from_scratch": None
            if name == "from-scratch"
            else [labels_needed(one["mean"], curve) for one in own],
        }
        for name, own in scores.items()
    ]
    about = {"task": "nsmc", "metric": "macro_f1", "split": "dev", "examples": 500, "train_examples": 100_000}
    baseline = {"description": "always 0", "score": 0.48}
    settings = {"epochs": 3.0, "head": {"pooling": "mean"}}
    return {
        **about, "sizes": sizes, "percentages": [None] * 4, "seeds": 3, "min_steps": 200, "baseline": baseline,
        "models": models, "settings": settings, "page": "x.html", **changes,
    }  # fmt: skip


def test_tables_as_markdown() -> None:
    text = report.markdown(table())
    assert "Macro f1 on dev (500 examples), mean ± sd of 3 seeds, in percent." in text
    assert "| 100 | 70.0 ± 2.0 | 80.0 ± 2.0 | 50.0 ± 2.0 |" in text
    assert "| 100,000 | 92.0 | 93.0 ± 2.0 | 90.0 ± 2.0 |" in text
    assert "| 100 | 10,000 (100.0×) | 31,623 (316.2×) |" in text  # 80 % is half-way between 10^4 and 10^5 labels
    assert "| 100,000 | — | — |" in text


def test_the_chart_has_a_logarithmic_axis_and_error_bars() -> None:
    svg = ElementTree.fromstring(report.chart(table(), width=860, height=400, name="broad"))
    groups = [one for one in svg if one.tag == "g"]
    assert [one.get("class") for one in groups] == ["pretrained", "pretrained", "scratch"]
    for index, group in enumerate(groups):
        points = [(float(one.get("cx", "")), float(one.get("cy", ""))) for one in group if one.tag == "circle"]
        gaps = [b[0] - a[0] for a, b in pairwise(points)]
        assert gaps == pytest.approx([gaps[0]] * 3, abs=0.2)  # equal, from 100 to 100,000
        bars = [one.get("d", "") for one in group if "error" in one.get("class", "")]
        assert len(bars) == (3 if index == 0 else 4)  # one run has no deviation
        for bar, (x, y) in zip(bars, points, strict=False):
            (top, bottom) = map(float, re.match(r"M[\d.]+ ([\d.]+)V([\d.]+)", bar).groups())  # type: ignore[union-attr]
            assert (top + bottom) / 2 == pytest.approx(y, abs=0.11)
            assert bar.startswith(f"M{x:.1f} ")
    labels = [one.text for one in svg if one.tag == "text"]
    assert {"100", "1000", "10k", "100k", "always 0", "macro f1 in %", "labelled training examples"} <= {*labels}


def test_percentages_are_shown_below_the_numbers_in_the_chart() -> None:
    shares = table(percentages=["0.1%", "1%", None, "100%"])
    svg = ElementTree.fromstring(report.chart(shares, width=860, height=400, name="broad"))
    places = {one.text: (float(one.get("x", "")), float(one.get("y", ""))) for one in svg if one.tag == "text"}
    for count, percentage in (("100", "0.1%"), ("1000", "1%"), ("100k", "100%")):
        assert places[count][0] == places[percentage][0]
        assert places[count][1] < places[percentage][1] < places["labelled training examples"][1] <= 400
    assert "| 100 (0.1%) | 70.0" in report.markdown(shares)


def test_the_page_is_one_file_without_requests(tmp_path: Path) -> None:
    page = report.write_page(table(), tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<i>" not in page.replace("<i class", "")
    assert "general &lt;i&gt;" in page
    reader = Reader(page)
    assert {tag for tag, _ in reader.elements} >= {"svg", "table", "figure"}
    assert not [tag for tag, values in reader.elements if {"src", "href"} & values.keys() or tag == "script"]
    assert "default-src 'none'; style-src 'sha256-" in page
    assert "script-src" not in page
    assert page.count("<svg role") == 2
    one = table(
        sizes=[100], percentages=[None], models=[{**model, "scores": [None]} for model in table()["models"][2:]]
    )
    assert "0 of 1 cells finished" in report.write_page(one, tmp_path / "q.html").read_text(encoding="utf-8")


class TestInABrowser:
    pytestmark = IN_A_BROWSER

    def test_text_is_legible_on_a_phone_and_in_the_dark(self, tmp_path: Path) -> None:
        page = report.write_page(table(percentages=["0.1%", "1%", "10%", "100%"]), tmp_path / "p.html")
        with running_browser() as browser, open_pages(browser, {"p": page}) as opened:
            for width, scheme, shown in ((390, "dark", "narrow"), (1280, "light", "broad")):
                one = opened("p", viewport={"width": width, "height": 800}, color_scheme=scheme)
                assert one.locator("figure > svg:visible").get_attribute("class") == shown
                heights = [row.bounding_box()["height"] for row in one.locator("table").first.locator("tr").all()]
                assert max(heights[1:]) < 36, "no cell is wrapped"
                assert one.locator("figure > svg:visible text").first.bounding_box()["height"] > 11
                found, light, size = unfolded(one, tmp_path / f"{shown}.png")
                assert (found, light) == (width, scheme == "light")
                assert size > 10_000
