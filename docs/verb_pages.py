"""The pages about verbs and their flags, made of the command line itself: they cannot be out of date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertsmith import cli


def commands() -> dict[str, Any]:
    """Every verb of the command line; those of a group, such as `runs show`, under both words."""
    found: dict[str, Any] = {}

    def visit(command: Any, words: tuple[str, ...]) -> None:
        if hasattr(command, "commands"):
            for name, below in command.commands.items():
                visit(below, (*words, name))
        else:
            found[" ".join(words)] = command

    visit(cli.command(), ())
    return found


def pages() -> dict[str, str]:
    """File name -> Markdown: one for each verb or group of verbs, and an index of them."""
    grouped: dict[str, dict[str, Any]] = {}
    for verb, command in commands().items():
        grouped.setdefault(verb.split()[0], {})[verb] = command
    found = {f"{name}.md": _page(name, verbs) for name, verbs in grouped.items()}
    return {"index.md": _index(grouped), **found}


def write(folder: Path) -> None:
    """Writes the pages that are not there as they should be, so that a second build has nothing to do."""
    folder.mkdir(exist_ok=True)
    wanted = pages()
    for path in folder.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _index(grouped: dict[str, dict[str, Any]]) -> str:
    lines = ["# Verbs", "", "Every verb of `bertsmith`, with its flags. `bertsmith VERB --help` says the same.", ""]
    lines += ["| verb | what it does |", "|---|---|"]
    for name, verbs in grouped.items():
        for verb, command in verbs.items():
            lines.append(f"| [`{verb}`]({name}.md) | {_cell(_first_sentence(command))} |")
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *grouped, "```", ""])


def _page(name: str, verbs: dict[str, Any]) -> str:
    lines = [f"# {name}", ""]
    for verb, command in verbs.items():
        lines += [f"## {verb}", ""] if len(verbs) > 1 else []
        lines += [command.help or "", "", "```console", _usage(verb, command), "```", ""]
        lines += _table("argument", [one for one in command.params if one.param_type_name == "argument"])
        lines += _table("flag", [one for one in command.params if one.param_type_name == "option"])
    return "\n".join(lines)


def _usage(verb: str, command: Any) -> str:
    arguments = [_name(one) for one in command.params if one.param_type_name == "argument"]
    needed = [
        f"{one.opts[-1]} {one.metavar or one.name.upper()}"
        for one in command.params
        if one.param_type_name == "option" and one.required
    ]
    return " ".join(["$ bertsmith", verb, *arguments, *needed, "[FLAGS]"])


def _table(what: str, parameters: list[Any]) -> list[str]:
    if not parameters:
        return []
    lines = [f"| {what} | default | |", "|---|---|---|"]
    for one in parameters:
        lines.append(f"| `{_name(one)}` | {_default(one)} | {_cell(getattr(one, 'help', '') or '')} |")
    return [*lines, ""]


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    names = " / ".join(", ".join(some) for some in (parameter.opts, parameter.secondary_opts) if some)
    return names if parameter.is_flag else f"{names} {parameter.metavar or parameter.name.upper()}"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "needed"
    value = parameter.default
    if value is None or value is False or value == [] or callable(value):
        return ""
    return f"`{'on' if value is True else value}`"


def _first_sentence(command: Any) -> str:
    return str(command.help or "").split("\n\n")[0]


def _cell(text: str) -> str:
    """One cell of a table: one line, its words as they are."""
    plain = " ".join(text.split())
    for mark in "\\|*_[]<":
        plain = plain.replace(mark, f"\\{mark}")
    return plain
