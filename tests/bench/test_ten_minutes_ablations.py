"""The paper's ablations in `bench/ten_minutes`: valid `compare` and `ablate` arguments, and the stored results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import call
from smoke.smoke_fixtures import make_shards, write_text
from studies.study_fixtures import mrpc

from bench.ten_minutes import ablations, command_line
from bench.ten_minutes.ablations import SHAPES, STUDIES, Plan, commands, run_studies
from bench.ten_minutes.table import table
from bertsmith import recipes
from bertsmith.errors import BertsmithError, StoppedError
from bertsmith.studies.published import scores_for
from bertsmith.studies.task_setup import task_setups
from bertsmith.training.compare import chosen_recipes, folder_name
from bertsmith.training.pretrain_data import meta_model
from bertsmith.training.recipe import Recipe


def plan(output: Path, **changes: object) -> Plan:
    defaults: dict[str, object] = {"data": Path("shards"), "tasks": output, "output": output, "steps": 800}
    return Plan(**defaults | changes)  # type: ignore[arg-type]


def values(arguments: list[str], option: str) -> list[str]:
    return [arguments[index + 1] for index, argument in enumerate(arguments) if argument == option]


def trained(arguments: list[str]) -> dict[str, Recipe]:
    return chosen_recipes(arguments[1 : arguments.index("-d")], recipes.find)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_one_compare_and_one_ablate_command(name: str, tmp_path: Path) -> None:
    compare, ablate = commands([name], plan(tmp_path, together=6, jobs=14))
    assert (compare[0], ablate[0]) == ("compare", "ablate")
    chosen = trained(compare)
    for recipe in chosen.values():
        meta_model(recipe)
        assert type(recipe.encoder).__module__.endswith("roformer")
        assert recipe.encoder.causal is ("causal_lm" in recipe.objectives)
        assert recipe.encoder.pooler is ("next_sentence" in recipe.objectives)
    models = dict(argument.split("=", 1) for argument in ablate[1 : ablate.index("-t")] if "=" in argument)
    (output,) = values(compare, "-o")
    assert list(models.values()) == [f"{output}/{folder_name(argument)}/last" for argument in chosen]
    for found in task_setups(values(ablate, "-t"), values(ablate, "--data"), values(ablate, "--set")):
        assert {"epochs", "learning_rate"} <= {change.partition("=")[0] for change in found.changes}
    assert (values(compare, "--jobs"), values(ablate, "--jobs"), values(ablate, "--seeds")) == (["6"], ["14"], ["3"])
    if name != "steps":
        known = scores_for([*models, *STUDIES[name].more], values(ablate, "-t"))
        assert set(known.scores) == {*models, *STUDIES[name].more}
        assert known.source == f"P-BERT {STUDIES[name].source}"


def test_sizes_and_steps_match_their_names(tmp_path: Path) -> None:
    sizes = trained(commands(["sizes"], plan(tmp_path))[0])
    found = [(one.encoder.layers, one.encoder.width, one.encoder.heads) for one in sizes.values()]
    assert found == list(SHAPES.values())
    assert {one.steps for one in sizes.values()} == {800}
    compare, ablate = commands(["steps"], plan(tmp_path))
    counts = [one.steps for one in trained(compare).values()]
    assert counts == [100, 200, 400, 800] * 2
    names = [argument.partition("=")[0] for argument in ablate[1 : ablate.index("-t")]]
    assert names == [f"{model}_{count}" for model, count in zip(["base"] * 4 + ["ltr"] * 4, counts, strict=True)]


def test_runs_shared_by_studies_are_trained_once(tmp_path: Path) -> None:
    compare, *ablates = commands(["objectives", "steps", "masks"], plan(tmp_path))
    assert len(trained(compare)) == 3 + 6 + 5  # all steps of base and of left to right, and base of the masks: known
    models = [
        dict(argument.split("=", 1) for argument in arguments[1 : arguments.index("-t")] if "=" in argument)
        for arguments in ablates
    ]
    assert {folder for found in models for folder in found.values()} == {
        f"{tmp_path / 'pretrained'}/{folder_name(argument)}/last" for argument in trained(compare)
    }
    objectives, steps, masks = models
    assert objectives["base"] == steps["base_800"] == masks["base"]
    assert objectives["ltr"] == steps["ltr_800"] != steps["ltr_400"]
    assert [values(arguments, "-o") for arguments in ablates] == [
        [str(tmp_path / name)] for name in ("objectives", "steps", "masks")
    ]


def test_a_study_is_trained_fine_tuned_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_shards(tmp_path, write_text(tmp_path, between=" ", documents=60), "--vocab-size", 160)
    mrpc(tmp_path / "tasks" / "glue")
    monkeypatch.setattr(ablations, "_bertsmith", lambda arguments: call(*arguments).returncode)
    tiny = [
        "encoder.layers=1",
        "encoder.width=16",
        "encoder.heads=2",
        "max_length=32",
        "batch_size=8",
        "micro_batch_size=0",
    ]
    arguments = [
        "ablations",
        "objectives",
        "--data",
        tmp_path / "shards",
        "--tasks",
        tmp_path / "tasks",
        "-o",
        tmp_path / "out",
    ]
    arguments += ["--steps", 2, "-t", "glue/mrpc", "--seeds", 1, "--device", "cpu", "--tune", "epochs=1"]
    arguments += [
        "--tune",
        "head.recurrent_width=8",
        *(argument for one in (*tiny, "eval_rows=8") for argument in ("--set", one)),
    ]
    assert command_line.main([str(argument) for argument in arguments]) == 0
    output = capsys.readouterr().out
    assert [line.split()[:3] for line in output.splitlines() if line.startswith("$")] == [
        ["$", "bertsmith", "compare"],
        ["$", "bertsmith", "ablate"],
    ]
    table = json.loads((tmp_path / "out" / "objectives" / "ablations.json").read_text(encoding="utf-8"))
    assert "ltr+bilstm" in json.dumps(table)


def test_a_study_stops_at_the_first_failing_command(tmp_path: Path) -> None:
    for status, error in ((75, StoppedError), (70, BertsmithError)):
        called: list[str] = []

        def fake_call(arguments: list[str], called: list[str] = called, status: int = status) -> int:
            called.append(arguments[0])
            return status

        with pytest.raises(error, match="run the same command again to resume"):
            run_studies(["masks"], plan(tmp_path), fake_call)
        assert called == ["compare"]
    assert command_line.main(["ablations", "nothing", "--data", "d", "--tasks", "t", "-o", str(tmp_path)]) == 78


@pytest.mark.parametrize(
    ("text", "name", "entry", "least"),
    [
        ("english", "baseline", "**Ten minutes of the baseline**", 10),
        ("english", "paper-medium", "**Ten minutes of the paper's recipe**", 20),
        ("english_twenty", "quick", "**Twenty minutes**", 5),
        ("english_twenty", "quick-pairs", "**Twenty minutes**", 20),
        ("korean", "quick", "**Ten minutes of Korean**", 5),
        ("korean", "quick-pairs", "**Ten minutes of Korean**", 12),
        ("korean", "no pre-training", "**Ten minutes of Korean**", 6),
        ("korean", "baseline", "**Ten minutes of Korean, baselines**", 10),
        ("korean", "paper-medium", "**Ten minutes of Korean, baselines**", 10),
    ],
)
def test_stored_results_give_the_table_in_the_log(text: str, name: str, entry: str, least: int, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    markdown = table([root / "bench" / "ten_minutes" / "measured" / text], tmp_path, [])["text"]
    log = (root / "LOG.md").read_text(encoding="utf-8")
    row = next(line for line in markdown.splitlines() if line.startswith(f"| {name} "))
    numbers = re.findall(r"\d+\.\d+", row.split("|", 3)[3])
    assert len(numbers) >= least
    about = log[log.index(entry) :].split("\n- ")[0]
    assert [number for number in numbers if number not in about] == []


@pytest.mark.parametrize(
    ("name", "entry", "pages", "count"),
    [
        ("objectives", "**The paper's objectives (Table 5)**", ["docs/recipes.md"], 12),
        ("steps", "**The paper's training steps (Figure 5)**", ["docs/recipes.md"], 6),
        ("sizes", "**The paper's sizes (Table 6)**", ["docs/recipes.md"], 10),
        ("features", "**The paper's features (Table 7)**", ["docs/features.md"], 12),
    ],
)
def test_stored_studies_match_the_log_and_the_docs(name: str, entry: str, pages: list[str], count: int) -> None:
    root = Path(__file__).parents[2]
    found = json.loads((root / "bench" / "ten_minutes" / "measured" / "studies" / f"{name}.json").read_bytes())
    cells = [row[split] for row in found["rows"] for split in ("dev", "test") if split in row]
    cells += [cell["score"] for row in found["rows"] for cell in row.get("cells", {}).values()]
    scores = [
        f"{100 * one['mean']:.1f} ± {100 * one['deviation']:.1f}" for one in cells if one["deviation"] is not None
    ]
    assert len(scores) == count
    log = (root / "LOG.md").read_text(encoding="utf-8")
    about = log[log.index(entry) :].split("\n- ")[0]
    for text in (about, *((root / page).read_text(encoding="utf-8") for page in pages)):
        assert [score for score in scores if score not in text] == []


@pytest.mark.parametrize(
    ("texts", "picture"), [(["english", "english_twenty"], "minutes.svg"), (["korean"], "minutes_ko.svg")]
)
def test_the_plot_in_the_docs_shows_the_stored_results(texts: list[str], picture: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    folders = [root / "bench" / "ten_minutes" / "measured" / name for name in texts]
    found = table(folders, tmp_path, ["quick-pairs", "paper-medium", "baseline"])
    drawn = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert drawn == (root / "docs" / "pictures" / picture).read_text(encoding="utf-8")
    (passed,) = (one for one in found["times_to_loss"] if (one["who"], one["whom"]) == ("quick-pairs", "baseline"))
    assert passed["share"] < 1 / 3


def test_the_docs_contain_the_stored_korean_scores(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    text = table([root / "bench" / "ten_minutes" / "measured" / "korean"], tmp_path, [])["text"]
    lines = [line for line in text.splitlines() if line.startswith("| ") and "±" in line]
    assert len(lines) == 4
    cells = [cell for line in lines for cell in line.split("|")[-3:-1]]
    scores = [cell.split(" / ")[-1].strip() for cell in cells]  # of KorSTS the second, Spearman
    means = [score.partition(" ")[0] for score in scores]
    places = {"docs/minutes.md": ("\n## Korean\n", scores), "docs/ko.md": ("\n## GPU", scores)}
    for page, (mark, wanted) in (places | {"README.md": ("of Korean Wikipedia", means)}).items():
        about = (root / page).read_text(encoding="utf-8").split(mark)[1].split("\n## ")[0]
        assert [score for score in wanted if score not in about] == []
