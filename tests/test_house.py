"""The house is straight: who may know whom, sizes, and a README that tells the truth."""

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
FILES = sorted(SOURCE.rglob("*.py"))
GROUND = {"errors", "types", "config", "durable", "workers", "progress", "pictures", "bertsmith"}
MODEL = {"counters", "nn", "encoders", "objectives", "model", "batching"}
# Which rooms each room may import. A new room is entered here on purpose, not by accident.
MAY_IMPORT: dict[str, set[str]] = {
    "bertsmith": {"serve"},  # bertsmith.load, imported when it is called
    "errors": set(),
    "types": set(),
    "config": {"errors"},
    "durable": {"errors"},
    "durable_faults": {"durable", "errors"},
    "power_loss": {"durable", "durable_faults", "errors"},
    "workers": {"errors"},
    "progress": set(),
    "pictures": set(),
    "pages": {"errors", "durable"},
    "devices": {"errors"},
    "ceilings": {"devices", "nn"},
    "counters": set(),
    "scores": {"errors", "types"},
    "batching": {"errors", "types"},
    "text": GROUND,
    "corpus": GROUND | {"text"},
    "tasks": GROUND | {"text", "scores"},
    "nn": GROUND | {"counters"},
    "encoders": GROUND | {"nn", "counters"},
    "objectives": GROUND | {"nn", "counters"},
    "model": GROUND | {"nn", "encoders", "objectives"},
    "train": GROUND | {"counters", "pictures", "devices"},  # batches and losses only
    "weights": GROUND | MODEL | {"text"},
    "run": GROUND | {"text", "corpus"},
    "trackers": GROUND,
    "loop": GROUND | {"train", "trackers"},
    "effort": {"model", "nn", "objectives"},
    "recipe": GROUND | {"train"},
    "recipes": GROUND | {"recipe", "train", "encoders", "objectives", "corpus"},
    "finetuning": GROUND | MODEL | {"text", "scores", "tasks", "weights", "devices", "train", "loop", "effort", "runs"},
    "evaluating": GROUND | {"text", "scores", "tasks", "model", "weights", "devices", "finetuning", "runs", "pages"},
    "studies": GROUND | MODEL | {"text", "scores", "tasks", "weights", "devices", "finetuning", "evaluating", "runs"},
    "comparing": GROUND | {"pretraining", "recipe", "runs"},
    "pretraining": GROUND
    | MODEL
    | {"text", "corpus", "weights", "devices", "ceilings", "train", "recipe", "loop", "effort"},
    "recipe_text": GROUND | {"recipe"},
    "checking": GROUND | MODEL | {"text", "corpus", "weights", "devices", "train", "recipe", "loop", "pretraining"},
    "serve": GROUND
    | MODEL
    | {"text", "corpus", "weights", "devices", "tasks", "finetuning", "pages", "runs", "evaluating"},
    "exporting": GROUND | MODEL | {"text", "weights", "serve"},
    "runs": GROUND | {"pages"},
    "terminal": GROUND | {"text", "corpus"},
    "terminal_studies": GROUND | {"terminal"},
    "terminal_answers": GROUND | {"terminal"},
    "terminal_exports": GROUND | {"terminal"},
    "terminal_runs": GROUND | {"runs", "terminal"},
    "terminal_evaluation": GROUND | {"evaluating", "terminal"},
    "doctor": GROUND | {"devices", "ceilings"},
    "demo": GROUND
    | {
        "text",
        "corpus",
        "run",
        "terminal",
        "terminal_runs",
        "runs",
        "recipe",
        "recipes",
        "pretraining",
        "serve",
        "finetuning",
        "scores",
    },
    "cli": GROUND
    | {"text", "corpus", "run", "runs", "terminal", "terminal_runs", "doctor", "demo", "serve", "weights"}
    | {"pretraining", "recipe", "recipes", "recipe_text", "checking", "comparing", "finetuning", "trackers"}
    | {"evaluating", "terminal_evaluation", "studies", "terminal_studies", "terminal_answers"}
    | {"exporting", "terminal_exports"},
    "__main__": {"cli"},
}
WITHOUT_TORCH = {
    "trackers",
    "scores",
    "tasks",
    "text",
    "corpus",
    "errors",
    "config",
    "durable",
    "workers",
    "progress",
    "pictures",
    "pages",
    "run",
    "runs",
    "terminal",
    "terminal_runs",
    "terminal_studies",
    "terminal_answers",
    "terminal_exports",
    "terminal_evaluation",
    "evaluating",
    "cli",
    "demo",
}
LONGEST_FILE, LONGEST_FUNCTION, MOST_PARAMETERS = 400, 60, 12


def room(path: Path) -> str:
    inside = path.relative_to(SOURCE)
    return (
        "bertsmith" if inside.name == "__init__.py" and len(inside.parts) == 1 else inside.parts[0].removesuffix(".py")
    )


def modules_imported(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, dotted; `from package import name` counts the name too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide the room"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms_imported(path: Path) -> set[str]:
    ours = {name for name in modules_imported(path) if name.split(".")[0] == "bertsmith"}
    known = set(MAY_IMPORT)
    return {name.split(".")[1] for name in ours if "." in name and name.split(".")[1] in known}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_arrows_point_down(path: Path) -> None:
    here = room(path)
    assert here in MAY_IMPORT, f"{here} is a new room: enter it in MAY_IMPORT and in docs/architecture.md"
    wrong = rooms_imported(path) - MAY_IMPORT[here] - {here}
    assert not wrong, f"{here} must not import {', '.join(sorted(wrong))}"


@pytest.mark.parametrize(
    "path", [path for path in FILES if room(path) in WITHOUT_TORCH], ids=lambda path: str(path.relative_to(SOURCE))
)
def test_rooms_without_torch(path: Path) -> None:
    heavy = {name.split(".")[0] for name in modules_imported(path)} & {"torch", "transformers"}
    assert not heavy


def test_no_circles_between_files() -> None:
    names = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in FILES
    }
    arrows = {
        name: {other for other in modules_imported(path) if other in names and other != name}
        for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"circle: {' -> '.join([*trail[trail.index(name) :], name])}"
        if name not in done:
            for other in sorted(arrows[name] - {"bertsmith"}):
                visit(other, (*trail, name))
            done.add(name)

    for name in sorted(arrows):
        visit(name, ())


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is in Triton's language, which knows pointers and numbers and nothing that holds them."""
    return any(ast.unparse(decorator) == "triton.jit" for decorator in node.decorator_list)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_sizes_and_manners(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert path.stem not in {"utils", "helpers", "common", "misc"}
    assert text.count("\n") <= LONGEST_FILE
    assert ast.get_docstring(tree), "a file says what it owns"
    assert not re.search(r"if TYPE_CHECKING:[^\n]*\n(\s+from torch[^\n]*\n)*\s+(from|import) bertsmith", text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and room(path) != "cli":
            assert (node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, f"{node.name} is too long"
            taken = len(node.args.args) + len(node.args.kwonlyargs)
            assert taken <= MOST_PARAMETERS or is_kernel(node), f"{node.name} takes too much"
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, "a bare except hides defects"


@pytest.mark.parametrize(
    "path", [path for path in FILES if room(path) != "durable"], ids=lambda path: str(path.relative_to(SOURCE))
)
def test_every_persistent_write_goes_through_the_durable_room(path: Path) -> None:
    if room(path) in {"durable_faults", "power_loss"}:
        pytest.skip("these rooms are the fault campaign's stand-ins for the disk")
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"""\bopen\([^)\n]*,\s*["'][wax]""", text)
    assert not re.search(r"\.(write_text|write_bytes|tofile)\(|\bnp\.save|\bshutil\.(rmtree|move|copy)", text)


def test_light_imports() -> None:
    """`import bertsmith` and `bertsmith --help` answer without torch."""
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
def test_documents_name_only_what_is_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert ((ROOT / name).parent / link).exists(), f"{name} links to {link}"
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", text)) - {"and"} <= targets


def test_the_readme_tour_uses_verbs_and_flags_that_exist() -> None:
    for name in ("README.md", "README.ko.md"):
        for line in re.findall(
            r"^\$ bertsmith ([^#\n]+)", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE
        ):
            words = line.split()
            verb = words[:2] if words[0] == "tokenizer" else words[:1]
            done = call(*verb, "--help")
            assert done.returncode == 0, line
            for flag in re.findall(r"(?<=\s)--?[a-z][a-z-]*", line):
                assert re.search(rf"{re.escape(flag)}\b", done.stdout), f"{name}: {flag} in {line}"


def test_architecture_page_lists_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    missing = [name for name in MAY_IMPORT if name not in {"bertsmith", "__main__"} and f"`{name}" not in page]
    assert not missing
