"""Executes the notebooks of this folder, each in an empty temporary folder, and saves their outputs.

python notebooks/execute.py [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parent
TIMEOUT = 1800  # seconds of a cell


def notebooks() -> list[Path]:
    """The notebooks of this folder."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> NotebookNode:
    """A notebook of the current format."""
    return nbformat.read(path, as_version=4)


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Runs all cells with `folder` as the current folder; raises on the first error."""
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3", resources=resources)
    return client.execute()


def cleaned(notebook: NotebookNode) -> NotebookNode:
    """The notebook as it is committed: without progress, times and what depends on the machine."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main(names: list[str]) -> None:
    """Executes and saves the notebooks with these names, or all."""
    for path in [FOLDER / f"{name}.ipynb" for name in names] or notebooks():
        with tempfile.TemporaryDirectory() as folder:
            notebook = cleaned(execute(read(path), Path(folder)))
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        print(path, f"{path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
