"""The public API: the snippet of the documentation, doctests, data in memory, settings as keywords, types."""

from __future__ import annotations

import doctest
import io
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import nbclient
import nbformat
import numpy as np
import pandas
import pyarrow
import pytest

import bertsmith as bs
from bertsmith.api import settings
from bertsmith.data.sample_text import python_documentation
from bertsmith.studies.lineage.settings import LineageConfig
from bertsmith.training.recipe import FinetuneConfig, Recipe

WORDS = "the smith heats iron and strikes an anvil while fire burns hot cold good bad film fine slow it is".split()  # noqa: SIM905
SMALL = {"layers": 1, "width": 32, "heads": 2, "max_positions": 64}
LABELS = {"good": "positive", "bad": "negative"}
ROWS = [(f"a {word} film about {thing}", label) for word, label in LABELS.items() for thing in WORDS]
FAST: dict[str, Any] = {"epochs": 1, "batch_size": 8, "max_length": 16, "quiet": True, "device": "cpu"}
pytestmark = pytest.mark.xdist_group("api")  # the tests share a folder
SNIPPET = Path(__file__).with_name("snippet.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpus/, tokenizer/, shards/ and the pre-trained run/."""
    base = tmp_path_factory.mktemp("api")
    texts = [document.text for document in python_documentation(limit=60_000)]
    (base / "corpus").mkdir()
    (base / "corpus" / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    return base


EXAMPLES = [bs.train_tokenizer, bs.load_tokenizer, bs.prepare, bs.pretrain, bs.Run, bs.finetune, bs.evaluate, bs.load]
EXAMPLES += [bs.open_run, bs.list_recipes, bs.list_tasks, bs.lineage]


@pytest.fixture(scope="module")
def finished(folder: Path) -> Iterator[Path]:
    """The current folder, after the examples in the docstrings of all functions, in the order of a project."""
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for function in EXAMPLES:
            (test, *_) = doctest.DocTestFinder(recurse=False).find(function, function.__name__)
            assert test.examples, f"{function.__name__} has no example"
            report = io.StringIO()
            assert not runner.run(test, out=report.write).failed, report.getvalue()
        yield folder


def test_every_public_name_has_an_example_or_is_a_result() -> None:
    results = {"BertsmithError", "Evaluation", "LineageTable", "Predictor", "Shards", "Tokenizer", "__version__"}
    assert {function.__name__ for function in EXAMPLES} | results == set(bs.__all__)
    assert set(bs.__all__) <= set(dir(bs))
    with pytest.raises(AttributeError, match="has no attribute 'fine_tune'"):
        bs.fine_tune  # type: ignore[attr-defined]  # noqa: B018


def test_the_snippet_runs_in_a_script_without_a_main_guard(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").symlink_to(folder / "corpus")
    done = subprocess.run([sys.executable, SNIPPET], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in ("positive best", "negative best", "positive last", "negative last")


def test_the_snippet_runs_in_a_notebook(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").symlink_to(folder / "corpus")
    cells = [SNIPPET.read_text(encoding="utf-8"), "run", "scores", "run.plot()", "model.predict(['A fine film.'])"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells[1:]:
        assert "text/html" in cell.outputs[-1]["data"], cell.source
    streams = [output.get("text", "") for output in notebook.cells[0].outputs]
    assert len("".join(streams).splitlines()) < 60
    assert "\x1b" not in "".join(streams)


def test_importing_the_package_imports_neither_torch_nor_pyarrow() -> None:
    check = (
        "import sys, bertsmith; bertsmith.finetune; sys.exit(bool({'torch', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def dataset(rows: list[tuple[str, str]]) -> Any:
    """An object with the interface of a Hugging Face dataset: rows as dicts, classes as numbers."""
    names = ["negative", "positive"]

    class Dataset(list[Any]):
        column_names = ("text", "label")

        def __init__(self, rows: Any) -> None:
            super().__init__(rows)
            self.features = {"text": SimpleNamespace(), "label": SimpleNamespace(names=names)}

    return Dataset({"text": text, "label": names.index(label)} for text, label in rows)


FORMS: dict[str, Any] = {
    "tuples": lambda: ROWS,
    "generator": lambda: (row for row in ROWS),
    "dicts": lambda: [{"text": text, "label": label} for text, label in ROWS],
    "columns": lambda: {"text": [text for text, _ in ROWS], "label": np.array([label for _, label in ROWS])},
    "pandas": lambda: pandas.DataFrame(ROWS, columns=["text", "label"]).assign(extra=pandas.NA),
    "arrow": lambda: pyarrow.table({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}),
    "dataset": lambda: dataset(ROWS),
}


@pytest.mark.parametrize("form", FORMS)
def test_examples_in_memory_equal_those_of_a_file(form: str, tmp_path: Path) -> None:
    from bertsmith.api.training import save_examples
    from bertsmith.tasks import classification

    path = save_examples(FORMS[form](), classification.Config(), "train", tmp_path / "data")
    examples = classification.Config().build(files={"train": path}).examples("train")
    assert [(example.texts[0], example.gold) for example in examples] == ROWS


TEXTS = ["One text.", "Another text about iron."]
CORPORA: dict[str, Any] = {
    "list": TEXTS,
    "generator": (text for text in TEXTS),
    "series": pandas.Series(TEXTS),
    "frame": pandas.DataFrame({"text": TEXTS, "n": [1, 2]}),
    "arrow": pyarrow.table({"text": TEXTS}),
    "array": pyarrow.array(TEXTS),
    "numpy": np.array(TEXTS),
    "dicts": [{"text": text} for text in TEXTS],
}


@pytest.mark.parametrize("form", CORPORA)
def test_a_corpus_in_memory(form: str) -> None:
    from bertsmith.data.in_memory import open_corpus

    assert [document.text for document in open_corpus(CORPORA[form])] == TEXTS


def test_texts_in_memory_give_the_same_shards_as_a_file(finished: Path, tmp_path: Path) -> None:
    texts = (finished / "corpus" / "text.txt").read_text(encoding="utf-8").split("\n\n")
    how: dict[str, Any] = {"tokenizer": bs.load_tokenizer("tokenizer"), "quiet": True}
    one, other = bs.prepare(texts, tmp_path / "a", **how), bs.prepare(["corpus/"], tmp_path / "b", **how)
    assert (one.tokens, one.held_out_tokens, one.documents) == (other.tokens, other.held_out_tokens, other.documents)
    for path in sorted((tmp_path / "a").glob("*.shard")):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_typed_settings_are_those_of_the_recipes() -> None:
    for typed, own in ((settings.RecipeSettings, Recipe), (settings.FinetuneSettings, FinetuneConfig)):
        names = set(get_type_hints(typed)) - {"lr", "weight_decay", "task_settings"}
        assert names == {item.name for item in fields(own)} - {"task", "model", "files"}


def test_typed_settings_are_those_of_the_study() -> None:
    positional = {"text", "tasks", "output", "minutes", "size", "models", "seeds", "device"}
    names = set(get_type_hints(settings.LineageSettings)) - {"finetune_settings"}
    assert names == {item.name for item in fields(LineageConfig)} - positional - {"changes"}


TUPLES: dict[str, tuple[Any, tuple[str, ...], Any]] = {
    "pairs": (("It rains.", "It is wet.", "entailment"), ("It rains.", "It is wet."), "entailment"),
    "regression": (("It rains.", 0.5), ("It rains.",), 0.5),
    "multi_label": (("It rains.", ["weather", "news"]), ("It rains.",), ("weather", "news")),
    "tagging": ((["It", "rains"], ["O", "B-W"]), ("It rains",), ("O", "B-W")),
    "qa": (("What?", "It rains.", "rains"), ("What?", "It rains."), ("rains",)),
    "choice": (("What?", ["rain", "snow"], "rain"), ("What?", "rain", "snow"), 0),
}


@pytest.mark.parametrize("task", TUPLES)
def test_every_task_reads_tuples(task: str, tmp_path: Path) -> None:
    from bertsmith.api.training import save_examples
    from bertsmith.training.recipe import find_task

    row, texts, gold = TUPLES[task]
    found = find_task(task)
    other = (*row[:-1], "neutral") if task == "pairs" else row
    path = save_examples([row, other], found, "train", tmp_path / "data")
    example = found.build(files={"train": path}).examples("train")[0]
    assert (example.texts, example.gold) == (texts, gold)


def test_the_tokenizer_of_a_run(finished: Path) -> None:
    assert bs.load_tokenizer("run").fingerprint == bs.load_tokenizer("tokenizer").fingerprint


def test_a_run_has_models_scores_history_and_a_plot(finished: Path) -> None:
    run = bs.open_run("reviews")
    assert run.best == Path("reviews/best")
    assert run.last == Path("reviews/last")
    assert run.scores.keys() >= {"accuracy", "macro_f1"}
    history = run.history
    assert list(history["step"]) == list(range(1, run.steps + 1))
    assert history["held_out/score/accuracy"].notna().sum() == 1
    assert "accuracy" in repr(run)
    assert "<svg" in run._repr_html_()
    assert run.plot().path == Path("reviews/report.html")
    assert Path("reviews/report.html").exists()


def test_the_same_call_returns_the_finished_model_and_overwrite_trains_again(finished: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    model = bs.finetune("run", "classification", train=ROWS, dev=0.5, output=output, **FAST)
    started = (output / "events.jsonl").read_text(encoding="utf-8")
    again = bs.finetune("run", "classification", train=ROWS, dev=0.5, output=output, **FAST)
    assert np.array_equal(model.encode("good"), again.encode("good"))
    assert (output / "events.jsonl").read_text(encoding="utf-8").startswith(started)
    assert bs.evaluate(model).examples == len(ROWS) - model.run.read().facts["examples"]
    bs.finetune("run", "classification", train=ROWS[5:], dev=0.5, output=output, overwrite=True, **FAST)
    assert bs.open_run(output).read().facts["examples"] < model.run.read().facts["examples"] + 5
    assert len((output / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines()) == len(ROWS) - 5


def test_several_learning_rates_keep_the_best(finished: Path, tmp_path: Path) -> None:
    how = {**FAST, "learning_rates": [1e-3, 1e-5]}
    model = bs.finetune("run", "classification", train=ROWS, dev=ROWS[:4], output=tmp_path / "sweep", **how)
    scores = [bs.open_run(tmp_path / "sweep" / f"lr-{rate}-seed-0").scores["accuracy"] for rate in ("0.001", "1e-05")]
    assert model.run.scores["accuracy"] == max(scores)
