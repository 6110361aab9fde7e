"""Where the files of a task lie: given one by one, or under the names that a folder has for them. Knows no task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bertsmith.errors import DataError
from bertsmith.tasks.tables import FORMATS, JSON_ANY, JSON_LINES, PARQUET, shown
from bertsmith.tasks.task import SPLITS

Files = dict[str, list[Path]]  # by split
Layout = Mapping[
    str, Sequence[tuple[str, ...]]
]  # by split: sets of file names, of which the first that is there counts

_ENDINGS = [*FORMATS, *JSON_LINES, JSON_ANY, PARQUET, *(f"{ending}.gz" for ending in (".csv", ".tsv", ".jsonl"))]
OWN: Layout = {
    split: [(name + ending,) for name in names for ending in _ENDINGS]
    for split, names in {
        "train": ["train"],
        "dev": ["dev", "valid", "validation", "val"],
        "test": ["test"],
    }.items()
}


def own_files(name: str, files: Mapping[str, Path]) -> Files:
    """The files of somebody's own data: by split, or `train`, `dev` (also `valid`, `validation`, `val`), `test`."""
    return benchmark_files(name, files, OWN, expected="train.csv, dev.csv, test.csv (or .tsv, .jsonl, .parquet)")


def benchmark_files(
    name: str, files: Mapping[str, Path], layout: Layout, *, inside: Sequence[str] = (), expected: str = ""
) -> Files:
    """The files of a benchmark: by split, or from its folder, which may be `files["data"]` or lie `inside` it."""
    found = {split: [Path(path)] for split, path in files.items() if split != "data"}
    for split in found:
        if split not in SPLITS:
            raise DataError(f"{name} has no split {split!r}: its files are {', '.join(SPLITS)}, or data=FOLDER")
    if "data" not in files:
        return found
    folder = Path(files["data"])
    if not folder.is_dir():
        raise DataError(f"{shown(folder)} is no folder: {name} needs one, or its files by name")
    for place in (folder, *(below(folder, path) for path in inside)):
        there = _in(place, layout)
        if there:
            return {**there, **found}
    if found:
        return found
    wanted = expected or ", ".join(" and ".join(sets[0]) for sets in layout.values())
    where = f" (or in {', '.join(inside)} there)" if inside else ""
    raise DataError(f"{shown(folder)} has no file of {name}: expected {wanted}{where}")


def _in(folder: Path, layout: Layout) -> Files:
    found: Files = {}
    for split, sets in layout.items():
        for names in sets:
            paths = [folder / name for name in names]
            if all(path.is_file() for path in paths):
                found[split] = paths
                break
    return found


def below(folder: Path, path: str) -> Path:
    """A folder below another; upper and lower case and hyphens do not matter."""
    here = folder
    for part in path.split("/"):
        there = sorted(item for item in here.iterdir() if _plain(item.name) == _plain(part)) if here.is_dir() else []
        here = there[0] if there else here / part
    return here


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
