"""The layout of the source: import direction, sizes, durable writes, and documents that name only what exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "bertsmith"
FILES = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
# A package may import those of the lines below its own, and of its own line only what SIDEWAYS lists.
LAYERS = [
    {"cli", "__main__", "__init__"},
    {"server", "api"},
    {"inference", "evaluation", "studies", "export"},
    {"training", "recipes"},
    {"model_io", "tasks", "encoders", "objectives", "reports"},
    {"nn", "data", "tokenizers", "metrics"},
    {"system", "types", "config", "errors"},
]
SIDEWAYS = {
    ("__main__", "cli"),
    ("studies", "evaluation"),
    ("studies", "inference"),
    ("export", "inference"),
    ("recipes", "training"),
    ("model_io", "encoders"),
    ("model_io", "objectives"),
    ("data", "tokenizers"),
    ("config", "errors"),
    ("config", "system"),
    ("system", "errors"),
}
WITHOUT_TORCH = {"tokenizers", "metrics", "tasks", "reports", "evaluation", "config", "errors"}
MAX_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 400, 60, 12


def package_of(name: str) -> str:
    return Path(name).parts[0].removesuffix(".py")


def imported_modules(tree: ast.Module) -> set[str]:
    """Every module that a file imports, anywhere in it; `from package import name` counts `package.name` too."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "relative imports hide the package"
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def test_imports_point_downwards() -> None:
    level = {package: number for number, packages in enumerate(LAYERS) for package in packages}
    wrong = []
    for name, tree in TREES.items():
        here = package_of(name)
        modules = {module.split(".")[1] for module in imported_modules(tree) if module.startswith("bertsmith.")}
        for other in sorted((modules & set(level)) - {here}):
            if level[other] < level[here] or (level[other] == level[here] and (here, other) not in SIDEWAYS):
                wrong.append(f"{name} imports {other}")
    assert not wrong


def test_the_root_holds_the_packages_of_the_architecture() -> None:
    modules = {package_of(name) for name in FILES}
    assert modules == {package for packages in LAYERS for package in packages}
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    missing = sorted(name for name in modules - {"__init__", "__main__"} if f"`{name}" not in page)
    assert not missing, f"docs/architecture.md does not mention {', '.join(missing)}"


def test_text_packages_do_not_import_torch() -> None:
    heavy = {
        name: result
        for name, tree in TREES.items()
        if package_of(name) in WITHOUT_TORCH
        and (result := {module.split(".")[0] for module in imported_modules(tree)} & {"torch", "transformers"})
    }
    assert not heavy


def test_no_import_cycles() -> None:
    names = {f"bertsmith.{name[:-3].replace('/', '.')}".removesuffix(".__init__"): name for name in FILES}
    imports = {module: (imported_modules(TREES[name]) & set(names)) - {module} for module, name in names.items()}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, f"cycle: {' -> '.join([*trail[trail.index(module) :], module])}"
        if module not in done:
            for other in sorted(imports[module] - {"bertsmith"}):
                visit(other, (*trail, module))
            done.add(module)

    for module in sorted(imports):
        visit(module, ())


def test_sizes_of_files_and_functions() -> None:
    wrong = []
    for name, tree in TREES.items():
        lines = FILES[name].read_text(encoding="utf-8").count("\n")
        if lines > MAX_LINES:
            wrong.append(f"{name} has {lines} lines")
        if not ast.get_docstring(tree) or Path(name).stem in {"utils", "helpers", "common", "misc"}:
            wrong.append(f"{name} does not say what it contains")
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                wrong.append(f"{name}:{node.lineno} has a bare except")
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or package_of(name) == "cli":
                continue
            parameters = len(node.args.args) + len(node.args.kwonlyargs)
            kernel = any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)
            explained = len((ast.get_docstring(node) or "").splitlines())
            if (node.end_lineno or 0) - node.lineno - explained >= MAX_FUNCTION_LINES:
                wrong.append(f"{name}: {node.name} is too long")
            if parameters > MAX_PARAMETERS and not kernel:
                wrong.append(f"{name}: {node.name} has {parameters} parameters")
    assert not wrong


def test_every_persistent_write_is_durable() -> None:
    pattern = re.compile(
        r"""\bopen\([^)\n]*,\s*["'][wax]|\.(write_text|write_bytes|tofile)\(|\bnp\.save|\bshutil\.(rmtree|move|copy)"""
    )
    texts = {name: path.read_text(encoding="utf-8") for name, path in FILES.items() if name != "system/durable.py"}
    assert not [name for name, text in texts.items() if pattern.search(text)]


def test_the_command_line_answers_help_without_torch() -> None:
    script = (
        "import sys, bertsmith, bertsmith.cli\n"
        "sys.argv = ['bertsmith', 'prepare', '--help']\n"
        "try: bertsmith.cli.main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules and 'pyarrow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--tokenizer" in done.stdout


@pytest.mark.parametrize("name", ["README.md", "README.ko.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_documents_link_to_files_and_targets_that_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert ((ROOT / name).parent / link).exists(), f"{name} links to {link}"
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", text)) - {"and"} <= targets


def test_the_readme_tour_uses_commands_and_flags_that_exist() -> None:
    for name in ("README.md", "README.ko.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for line in re.findall(r"^\$ bertsmith ([^#\n]+)", text, flags=re.MULTILINE):
            words = line.split()
            command = words[:2] if words[0] == "tokenizer" else words[:1]
            done = call(*command, "--help")
            assert done.returncode == 0, line
            for flag in re.findall(r"(?<=\s)--?[a-z][a-z-]*", line):
                assert re.search(rf"{re.escape(flag)}\b", done.stdout), f"{name}: {flag} in {line}"


def test_the_reading_guide_lists_connected_files() -> None:
    """Each file of a path exists, and all but the entries are imported by another file of the path."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for title, count, entries in (("From text to a checkpoint", 25, 2), ("One `/predict` request", 12, 1)):
        section = (
            page.partition(f"**{title}: {count} files.**")[2].partition("\n\n**")[0].partition("\n\nEverything")[0]
        )
        names = {f"{name}.py" for name in re.findall(r"`(\w+/[\w/]+)`", section)}
        assert len(names) == count
        assert names <= set(FILES)
        packages = {str(Path(name).parent / "__init__.py") for name in names}  # which may export names of their modules
        imported = {module for name in names | packages for module in imported_modules(TREES[name])}
        alone = [name for name in names if f"bertsmith.{name[:-3].replace('/', '.')}" not in imported]
        assert len(alone) <= entries, alone
