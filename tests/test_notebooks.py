"""The notebooks: their code, links and outputs; and, marked slow, that they run from top to bottom."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

import bertsmith

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MACHINE = re.compile(r"/(?:home|root|tmp|work|Users|private|opt)/|[A-Z]:\\")
CHECKS = {  # what must be true in the kernel after the last cell
    "quick_start": """
        assert curve["held_out/loss/masked_lm"].iloc[-1] < 5.5 < curve["held_out/loss/masked_lm"].iloc[0]
        assert scores["accuracy"] > bs.evaluate(untrained, test)["accuracy"] + 0.1
        assert [one["label"] for one in model.predict(new)] == ["sentence", "shuffled"]
        assert bs.load("acceptability-model").predict(new) == model.predict(new)
    """,
    "own_domain": """
        assert curves["continued"].iloc[-1] + 0.3 < curves["scratch"].iloc[-1]
        assert losses["continued"].scores["loss/masked_lm"] + 0.3 < losses["general"].scores["loss/masked_lm"]
        assert scores["continued"]["accuracy"] > scores["random weights"]["accuracy"] + 0.1
    """,
    "korean": """
        assert right > 0.8 * len(questions)
        assert model.fill_mask("어제 할머니께서 커피를 [MASK].", top_k=1)[0]["token_str"] == "드셨다"
        assert rows["byte_bpe"]["미등록 어절"] == 0 < rows["unigram"]["미등록 어절"] < rows["wordpiece"]["미등록 어절"]
        assert scores["accuracy"] > 0.9 > 0.6 > baseline
    """,
    "reading_attention": """
        added = table["loss added by removal"]
        assert table.loc[previous, "previous"] > 0.3 < table.loc[following, "next"]
        assert added[[previous, following]].min() > 0.1 > added[idle]
        assert statistics(untrained)["entropy"].min() > 0.95
    """,
    "lineage": """
        titles = ["no pre-training", "word vectors", "ELMo", "GPT-1", "BERT"]
        assert [row["title"] for row in table["rows"]] == titles == list(shown.columns[2:])
        assert all(len(row["cells"]["classification"]["scores"]) == 2 for row in table["rows"])
        assert [round(row["minutes"], 6) for row in table["rows"]] == [0, 0.3, 0.3, 0.3, 0.3]
        curves = [stages[name]["curve"] for name in ("bilm", "gpt", "bert")]
        assert all(curve[-1]["loss"] + 0.1 < curve[0]["loss"] for curve in curves)
        assert cosines["word vectors"]["1 and 2"] > 0.999 > min(cosines["BERT"].values())
    """,
}


def load_script() -> Any:
    """notebooks/execute.py as a module."""
    spec = importlib.util.spec_from_file_location("execute", ROOT / "notebooks" / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code(path: Path) -> Iterator[ast.Module]:
    """The syntax tree of each code cell."""
    for cell in read(path).cells:
        if cell.cell_type == "code":
            yield ast.parse(cell.source)


def headings(page: Path) -> set[str]:
    """The anchors of a page."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_every_notebook_has_checks_and_is_linked_from_the_documentation() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(CHECKS)
    for page in ("docs/index.md", "docs/get_started.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert [path.name for path in NOTEBOOKS if f"(../notebooks/{path.name})" not in text] == [], page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_valid_and_its_outputs_are_small_and_of_no_machine(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run notebooks/execute.py"
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not MACHINE.search(json.dumps(outputs))
    assert path.stat().st_size < 200_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_names_of_the_package_in_a_notebook_exist(path: Path) -> None:
    nodes = [node for tree in code(path) for node in ast.walk(tree)]
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "bs"}
    steps = (
        {"lineage", "load"} if path.stem == "lineage" else {"train_tokenizer", "prepare", "pretrain"}
    )  # a study has all steps
    assert steps <= used <= set(bertsmith.__all__)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("bertsmith"):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, one.name) for one in node.names), ast.unparse(node)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_resolve(path: Path) -> None:
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", text)
    assert len(links) >= 3
    for target, anchor in links:
        page = path.parent / target
        assert page.is_file(), target
        assert not anchor or anchor in headings(page), f"{target}#{anchor}"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    notebook = read(path)
    lines = [line.strip() for line in CHECKS[path.stem].strip().splitlines()]
    notebook.cells.append(nbformat.v4.new_code_cell("\n".join(lines)))
    load_script().execute(notebook, tmp_path)
