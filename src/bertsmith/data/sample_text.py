"""Sample text without a download: English prose from Python's help topics and from the docstrings of its library and of
installed packages, which are parsed, never imported; and a little Korean.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from importlib import resources
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from bertsmith.errors import DataError
from bertsmith.types import Document

LARGEST_SOURCE = 2**20  # bytes; longer sources are mostly generated
MIN_QUOTED = 0.2  # fraction of a source between triple quotes; others are not worth parsing
SHORTEST_DOCUMENT = 200  # characters
SKIPPED_FOLDER = re.compile(
    r"[._].*|tests?|testing|idlelib|site-packages|dist-packages|.*\.(?:dist-info|egg-info)|_vendor"
)
SKIPPED_FILE = re.compile(r"test_.*|.*_tests?\.py|conftest\.py")

RULE = re.compile(r"\s*([-=*~^#+_.`])\1{2,}\s*")
DIRECTIVE = re.compile(r"\s*\.\. .*|\s*:\w[^:]*:(?: .*)?")
SECTION = re.compile(
    r"\s*(?:Args|Arguments|Parameters|Returns?|Yields?|Raises|Attributes|Notes?|Warnings?|Examples?|See Also|References"
    r"|Shape|Inputs?|Outputs?|Keyword args|Keyword arguments|Tip|Important):{0,2}\s*",
    re.IGNORECASE,
)
ITEM = re.compile(r"\s*(?:[-*•+]|\d{1,2}[.)])\s+")
CODE = re.compile(r">>>|::=|^\s*\.\.\. |[{}|\\]|\w\(\w+=|==|->|\+-", re.MULTILINE)
MARKUP = [
    (re.compile(r":[a-z:]+:`~?(?:[^`<]*<)?([^`<>]*)>?`"), r"\1"),  # :class:`~package.Name`
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?"), r"\1"),  # `a link <https://…>`_
    (re.compile(r"\[([^]]+)\]\([^)\s]*\)"), r"\1"),  # [a link](https://…)
    (re.compile(r"``?([^`]+)``?_?"), r"\1"),
    (re.compile(r"\*\*?(\S[^*\n]*?)\*\*?"), r"\1"),
    (re.compile(r"\s+"), " "),
]
ORDINARY_WORD = re.compile(r"[\"'“‘(]?[A-Za-z][a-z]*(?:['’-][A-Za-z][a-z]*)*[\"'”’)]?[,.;:!?]?[\"'”’)]?")
BEGINS = re.compile(r"[\"“(]?[A-Z]")
ENDS = re.compile(r"[.!?][\"'”’)]?$")


def python_documentation(*, limit: int = 3_000_000) -> Iterator[Document]:
    """English documents of `limit` characters in total: help topics first, then one document per module."""
    from pydoc_data.topics import topics

    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    modules = ((source, _docstrings(path)) for folder in folders for source, path in _modules(Path(folder)))
    helps = ((f"help {name}", [text]) for name, text in sorted(topics.items()))
    return _documents(chain(helps, modules), limit=limit)


def package_documentation(name: str, *, limit: int = 3_000_000) -> Iterator[Document]:
    """English documents of `limit` characters in total: the docstrings of an installed package, one per module."""
    spec = None if "." in name else find_spec(name)  # of a subpackage it would import the package
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f'no installed package is called "{name}": name one such as torch')
    folders = map(Path, spec.submodule_search_locations)
    modules = ((f"{name}.{source}", _docstrings(path)) for folder in folders for source, path in _modules(folder))
    return _documents(modules, limit=limit)


def _documents(sources: Iterable[tuple[str, Iterable[str]]], *, limit: int) -> Iterator[Document]:
    """The prose of (name, texts), each paragraph once, until there are `limit` characters."""
    seen: set[str] = set()
    size = 0
    for source, texts in sources:
        document = _document(source, texts, seen)
        if len(document.text) >= SHORTEST_DOCUMENT:
            yield document
            size += len(document.text)
        if size >= limit:
            return


def korean_samples() -> Iterator[Document]:
    """Korean documents written for this package."""
    text = resources.files(__package__).joinpath("korean.txt").read_text(encoding="utf-8")
    for number, document in enumerate(text.split("\n\n"), start=1):
        yield Document(document.strip(), f"korean.txt:{number}")


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of the Python sources below a folder except tests, sorted by name."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not SKIPPED_FOLDER.fullmatch(name))
        for name in sorted(names):
            if name.endswith(".py") and not SKIPPED_FILE.fullmatch(name):
                path = Path(parent, name)
                yield ".".join(path.relative_to(folder).with_suffix("").parts), path


def _docstrings(path: Path) -> list[str]:
    """The docstrings of a source file in order; none if these are few or the file cannot be parsed."""
    try:
        source = path.read_bytes() if path.stat().st_size <= LARGEST_SOURCE else b""
        quoted = sum(map(len, source.split(b'"""')[1::2]))
        if quoted <= MIN_QUOTED * len(source):
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences in other packages
            return list(_docstrings_below(ast.parse(source)))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []


def _docstrings_below(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    if text := ast.get_docstring(node, clean=False):  # paragraphs() cleans it
        yield text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings_below(child)


def _document(source: str, texts: Iterable[str], seen: set[str]) -> Document:
    """The paragraphs that are prose and not in `seen`, one per line."""
    new = dict.fromkeys(paragraph for text in texts for paragraph in paragraphs(text) if paragraph not in seen)
    seen.update(new)
    return Document("\n".join(new), source)


def paragraphs(text: str) -> Iterator[str]:
    """The prose of a docstring: paragraphs and list items, unwrapped, without markup, code and tables."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if CODE.search(block):
            continue
        lines: list[str] = []
        for line in block.split("\n"):
            if RULE.fullmatch(line) or DIRECTIVE.fullmatch(line) or SECTION.fullmatch(line):
                continue
            if item := ITEM.match(line):
                yield from _prose(lines)
                lines = [line[item.end() :]]
            else:
                lines.append(line)
        yield from _prose(lines)


def _prose(lines: list[str]) -> Iterator[str]:
    """The lines as one paragraph, if it consists of sentences."""
    text = " ".join(lines).strip()
    if text[:1].islower() or not ENDS.search(text):  # a cheap test before the slow ones
        return
    for pattern, replacement in MARKUP:
        text = pattern.sub(replacement, text)
    words = text.split()
    if len(words) < 6 or not BEGINS.match(text):
        return
    ordinary = sum(ORDINARY_WORD.fullmatch(word) is not None for word in words)
    if ordinary >= 0.85 * len(words):
        yield text
