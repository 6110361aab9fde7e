"""Generates the reference pages of all commands and options from the command line itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertsmith import cli


def commands() -> dict[str, Any]:
    """Every command by its full name, e.g. `runs show`."""
    by_name: dict[str, Any] = {}

    def collect(command: Any, words: tuple[str, ...]) -> None:
        if hasattr(command, "commands"):
            for name, below in command.commands.items():
                collect(below, (*words, name))
        else:
            by_name[" ".join(words)] = command

    collect(cli.command(), ())
    return by_name


def pages() -> dict[str, str]:
    """File name -> Markdown: one page per command or group of commands, and an index."""
    grouped: dict[str, dict[str, Any]] = {}
    for name, command in commands().items():
        grouped.setdefault(name.split()[0], {})[name] = command
    return {"index.md": _index(grouped), **{f"{name}.md": _page(name, group) for name, group in grouped.items()}}


def write(folder: Path) -> None:
    """Writes the pages that are missing or out of date, so that a second build has nothing to do."""
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
    lines = ["# Commands", "", "All commands of `bertsmith` with their options, as in `bertsmith COMMAND --help`.", ""]
    lines += ["| command | what it does |", "|---|---|"]
    for group, members in grouped.items():
        for name, command in members.items():
            lines.append(f"| [`{name}`]({group}.md) | {_cell(_first_sentence(command))} |")
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *grouped, "```", ""])


def _page(group: str, members: dict[str, Any]) -> str:
    lines = [f"# {group}", ""]
    for name, command in members.items():
        lines += [f"## {name}", ""] if len(members) > 1 else []
        examples = [f"$ {example}" for example in cli.EXAMPLES.get(name.split()[-1], ())]
        lines += [command.help or "", "", "```console", _usage(name, command), *examples, "```", ""]
        lines += _table("argument", [one for one in command.params if one.param_type_name == "argument"])
        lines += _table("option", [one for one in command.params if one.param_type_name == "option"])
    return "\n".join(lines)


def _usage(name: str, command: Any) -> str:
    arguments = [_name(one) for one in command.params if one.param_type_name == "argument"]
    needed = [
        f"{one.opts[-1]} {one.metavar or one.name.upper()}"
        for one in command.params
        if one.param_type_name == "option" and one.required
    ]
    return " ".join(["$ bertsmith", name, *arguments, *needed, "[OPTIONS]"])


def _table(what: str, parameters: list[Any]) -> list[str]:
    if not parameters:
        return []
    lines = [f"| {what} | default | |", "|---|---|---|"]
    for one in parameters:
        name = _name(one).replace("|", "\\|")
        lines.append(f"| `{name}` | {_default(one)} | {_cell(getattr(one, 'help', '') or '')} |")
    return [*lines, ""]


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    names = " / ".join(", ".join(some) for some in (parameter.opts, parameter.secondary_opts) if some)
    return names if parameter.is_flag else f"{names} {parameter.metavar or parameter.name.upper()}"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value in (None, False, "", []) or callable(value):
        return ""
    return f"`{'on' if value is True else value}`"


def _first_sentence(command: Any) -> str:
    return str(command.help or "").split("\n\n")[0]


def _cell(text: str) -> str:
    """A table cell: one line, with Markdown characters escaped."""
    plain = " ".join(text.split())
    for mark in "\\|*_[]<":
        plain = plain.replace(mark, f"\\{mark}")
    return plain
