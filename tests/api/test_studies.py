"""`lineage` in Python: data in memory, settings of single models and tasks, the result, and mistakes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from threads import threads

import bertsmith as bs
from bertsmith.studies.lineage import tasks as lineage_tasks

TEXTS = [f"the smith heats iron number {number}. it is hot." * 8 for number in range(80)]
ROWS = [(f"{word} iron {number}", word) for number in range(12) for word in ("good", "bad")]
SMALL: dict[str, Any] = {"models": ["none"], "minutes": 0.01, "size": "tiny", "seeds": 2, "vocab_size": 300}
SMALL |= {"held_out": 0.2, "workers": 1, "device": "cpu", "quiet": True}
CHANGES = {
    "epochs": 1,
    "head": {"dropout": 0.3},
    "unfreeze": [{"after": 0.0, "groups": 1}],
    "none": {"batch_size": 4},
    "classification": {"max_length": 16},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


def study(output: Path, **changes: Any) -> bs.LineageTable:
    given: dict[str, Any] = {"text": iter(TEXTS), "tasks": {"classification": {"train": ROWS, "dev": iter(ROWS[:6])}}}
    return bs.lineage(**{**given, "output": output, "finetune_settings": CHANGES, **SMALL, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bs.LineageTable]:
    output = tmp_path_factory.mktemp("studies") / "s"
    return output, study(output)


def test_texts_and_rows_in_memory_are_saved_in_the_study(finished: tuple[Path, bs.LineageTable]) -> None:
    output, table = finished
    with open(output / "data" / "text.jsonl", encoding="utf-8") as lines:
        assert [json.loads(line)["text"] for line in lines] == TEXTS
    assert len((output / "data" / "classification" / "train.jsonl").read_text(encoding="utf-8").splitlines()) == 24
    (task,) = table.to_dict()["tasks"]
    assert (task["train_examples"], task["dev_examples"]) == (24, 6)


def test_settings_are_those_of_all_of_a_model_and_of_a_task(finished: tuple[Path, bs.LineageTable]) -> None:
    (recipe, _) = sorted((finished[0] / "tasks" / "none").rglob("recipe.json"))
    settings = json.loads(recipe.read_text(encoding="utf-8"))
    assert [settings[name] for name in ("epochs", "batch_size", "max_length")] == [1, 4, 16]
    assert (settings["head"]["dropout"], settings["unfreeze"]) == (0.3, [{"after": 0.0, "groups": 1}])


def test_the_same_call_trains_nothing(
    finished: tuple[Path, bs.LineageTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, table = finished
    monkeypatch.setattr(lineage_tasks, "finetune", lambda *given, **how: pytest.fail("a finished run was trained"))
    assert study(output).to_dict() == table.to_dict()
    with pytest.raises(bs.BertsmithError, match=r"text\.jsonl holds other texts: choose another output"):
        study(output, text=TEXTS[1:])


def test_the_result_as_rows_markdown_and_markup(finished: tuple[Path, bs.LineageTable]) -> None:
    output, table = finished
    assert [row["Model"] for row in table.rows] == ["(no model)", "no pre-training"]
    assert " ± " in table.rows[1]["classification, accuracy"]
    assert table.added == []
    assert table.cost[0]["Tokens"] == "0"
    assert table.to_markdown() == (output / "lineage.md").read_text(encoding="utf-8")
    assert table.page == output / "lineage.html"
    assert repr(table) == f"LineageTable(1 models, classification, {str(table.page)!r})"
    markup = table._repr_html_()
    assert table.rows[1]["classification, accuracy"] in markup
    assert table.page.is_file()


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt model": ({"models": ["brt"]}, "models=brt: it must be one of"),
    "another size": ({"size": "huge"}, "size=huge must be one of tiny, quick"),
    "a misspelt setting": ({"vocab_siz": 3}, 'lineage has no setting "vocab_siz"; did you mean vocab_size?'),
    "no minutes": ({"minutes": 0}, "minutes=0 must be above 0"),
    "everything held out": ({"held_out": 1}, "held_out=1 must be above 0 and below 1"),
    "nothing held out": ({"held_out": 0.001}, "pass a larger held_out, or more text"),
    "no task": ({"tasks": {}}, 'lineage needs a task: pass tasks={"glue/cola": FOLDER}'),
    "a misspelt task": ({"tasks": {"clasification": "x"}}, "did you mean classification?"),
    "a task without dev": (
        {"tasks": {"classification": {"train": ROWS}}},
        'pass finetune_settings={"classification": {"dev_fraction": 0.1}}',
    ),
    "a misspelt setting of fine-tuning": ({"finetune_settings": {"none": {"epochz": 1}}}, "did you mean epochs"),
    "a task without data": ({"tasks": ["classification"]}, "tasks=['classification'] must be a dict"),
    "a setting for a model": ({"finetune_settings": {"none": 3}}, "finetune_settings: none=3 must be a dict"),
    "a path instead of texts": ({"text": "some text"}, "is not a file or folder: pass texts as a list"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_keyword(mistake: str, tmp_path: Path) -> None:
    changes, expected = MISTAKES[mistake]
    with pytest.raises(bs.BertsmithError) as caught:
        study(tmp_path / "s", **changes)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)
