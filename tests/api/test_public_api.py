"""The public API: the snippet of the documentation, doctests, data in memory, settings as keywords, types."""

from __future__ import annotations

import doctest
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import numpy as np
import pandas
import pyarrow
import pytest

import bertsmith as bs
from bertsmith.api import settings
from bertsmith.data.sample_text import python_documentation
from bertsmith.training.recipe import FinetuneConfig, Recipe

WORDS = "the smith heats iron and strikes an anvil while fire burns hot cold good bad film fine slow it is".split()  # noqa: SIM905
SMALL = {"layers": 1, "width": 32, "heads": 2, "max_positions": 64}
LABELS = {"good": "positive", "bad": "negative"}
ROWS = [(f"a {word} film about {thing}", label) for word, label in LABELS.items() for thing in WORDS]
FAST: dict[str, Any] = {"epochs": 1, "batch_size": 8, "max_length": 16, "quiet": True, "device": "cpu"}
SNIPPET = """
import pandas
import bertsmith as bs

rows = [("A fine film.", "positive"), ("A slow film.", "negative")] * 20
test_rows = {data}

tokenizer = bs.train_tokenizer(["corpus/"], "tokenizer", vocab_size=500)
shards    = bs.prepare(["corpus/"], "shards", tokenizer=tokenizer)           # paths, or any iterable of texts
run       = bs.pretrain("bert/tiny", shards, "run", steps=4, encoder={{"layers": 1, "width": 32}}, batch_size=8)
model     = bs.finetune(run.best, "classification", train=rows, dev=0.5, output="reviews", epochs=1)
scores    = bs.evaluate(model, test_rows)
model.predict(["A fine film."]); model.save("folder"); model = bs.load("folder")
label = model.predict(["A fine film."])[0]["label"]
print(label, bs.evaluate(model, test_rows)["accuracy"] == scores["accuracy"])
"""
LISTS = "rows[:4]"
FRAMES = 'pandas.DataFrame(rows[:4], columns=["text", "label"])'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpus/, tokenizer/, shards/ and the pre-trained run/."""
    base = tmp_path_factory.mktemp("api")
    texts = [document.text for document in python_documentation(limit=60_000)]
    (base / "corpus").mkdir()
    (base / "corpus" / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    return base


@pytest.fixture(scope="module")
def finished(folder: Path) -> Iterator[Path]:
    """The folder after the doctests of all functions, in the order of a project."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


EXAMPLES = [bs.train_tokenizer, bs.load_tokenizer, bs.prepare, bs.pretrain, bs.Run, bs.finetune, bs.evaluate, bs.load]
EXAMPLES += [bs.open_run, bs.list_recipes, bs.list_tasks]


def test_the_examples_in_docstrings_run(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for function in EXAMPLES:
        (test, *_) = doctest.DocTestFinder(recurse=False).find(function, function.__name__)
        assert test.examples, f"{function.__name__} has no example"
        assert not runner.run(test).failed, capsys.readouterr().out


def test_every_public_name_has_an_example_or_is_a_result() -> None:
    results = {"BertsmithError", "Evaluation", "Predictor", "Shards", "Tokenizer", "__version__"}
    assert {function.__name__ for function in EXAMPLES} | results == set(bs.__all__)
    assert set(bs.__all__) <= set(dir(bs))
    with pytest.raises(AttributeError, match="has no attribute 'fine_tune'"):
        bs.fine_tune  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("data", [LISTS, FRAMES], ids=["lists", "data frame"])
def test_the_snippet_runs_in_a_script_without_a_main_guard(data: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").symlink_to(folder / "corpus")
    (tmp_path / "script.py").write_text(SNIPPET.format(data=data))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True"


def test_the_snippet_runs_in_a_notebook(folder: Path, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    (tmp_path / "corpus").symlink_to(folder / "corpus")
    cells = [nbformat.v4.new_code_cell(text) for text in (SNIPPET.format(data=FRAMES), "run", "scores", "run.plot()")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells[1:]:
        assert "text/html" in cell.outputs[-1]["data"], cell.source
    streams = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    assert "\x1b" not in streams


def test_the_snippet_passes_mypy_strict(tmp_path: Path) -> None:
    code = textwrap.dedent(SNIPPET.format(data=LISTS)).replace("import pandas\n", "")
    code += "reveal_type(model)\nreveal_type(scores)\nreveal_type(run.best)\n"
    code += "bs.pretrain('bert/tiny', shards, 'run', stps=3)\n"
    (tmp_path / "script.py").write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert ['Unexpected keyword argument "stps"' in error for error in errors] == [True], done.stdout
    for expected in ("predictor.Predictor", "evaluation.Evaluation", "pathlib.Path"):
        assert expected in done.stdout


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
