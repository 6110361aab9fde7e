"""Examples of one or two texts from somebody's own table, whose columns are named or guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertsmith.tasks import columns
from bertsmith.tasks.columns import FileSettings, Guess
from bertsmith.tasks.places import Files
from bertsmith.tasks.task import Example

TEXTS = ("text", "first", "second")  # roles that hold texts, in the order in which they are asked


class OwnColumns:
    """Reads files one after another: what was guessed of one file, of train where there is one, holds for the others.

    `texts`: what the texts may be called; of several such guesses the first counts for which there are columns.
    """

    def __init__(
        self,
        settings: FileSettings,
        *,
        files: Files,
        given: Mapping[str, str],
        texts: Sequence[Guess],
        label: Guess,
        answer: Callable[[Any, str, str], Any],
    ) -> None:
        self.settings = settings
        self.found: dict[str, str] = {}  # role -> column
        self._files = files
        self._given = given
        self._texts = texts
        self._label = label
        self._answer = answer

    def __call__(self, path: Path, split: str) -> list[Example]:
        if split != "train" and not self.found and "train" in self._files:
            self(self._files["train"][0], "train")
        table = self.settings.table(path)
        given = {role: name for role, name in (dict(self._given) | self.found).items() if name}
        spare = ("label",) if split == "test" else ()  # nobody may know the answers yet
        given = {role: name for role, name in given.items() if role not in spare or table.has(name)}
        guess = next((guess for guess in self._texts if columns.fits(table, given, guess)), self._texts[-1])
        chosen = columns.choose(table, given, [guess, self._label], spare=spare)
        self.found |= chosen
        asked = zip(*(columns.texts(table, chosen[role]) for role in TEXTS if role in chosen), strict=True)
        answers: list[Any] = [None] * len(table)
        if name := chosen.get("label"):
            answers = [self._answer(cell, table.source(row), name) for row, cell in enumerate(table.column(name))]
        return [
            Example(id=own, texts=texts, gold=gold, source=table.source(row))
            for row, (own, texts, gold) in enumerate(zip(columns.ids(table), asked, answers, strict=True))
        ]
