"""Settings of the study, where its files are, and the results of its finished parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bertsmith import config
from bertsmith.errors import ConfigError
from bertsmith.studies.lineage.models import MODELS, PAIRS, SIZES, STAGES, LineageModel, Size, chosen_models, stages_of
from bertsmith.studies.stored_results import plain, read_stored, write_result
from bertsmith.studies.task_setup import TaskSetup, check_owner
from bertsmith.system.suggestions import OtherNames

Report = Callable[[str], None]

TEXT, PRETRAIN, EVALUATE, TASKS = "text", "pretrain", "evaluate", "tasks"  # kinds of parts, and their folders
RESULT = "result.json"
VOCABULARY: Mapping[Size, int] = {"tiny": 8192, "quick": 32_768}
SENTENCES = (
    "They walked along the *bank* of the river.",
    "The *bank* lent them the money for a house.",
    "He opened an account at the *bank* last year.",
)


@dataclass(frozen=True, kw_only=True)
class LineageConfig:
    """What is trained on what, and for how long."""

    other_names: ClassVar[OtherNames] = OtherNames("lineage")
    text: tuple[str, ...]  # files of the pre-training text
    tasks: tuple[TaskSetup, ...]
    output: Path
    minutes: float = 10.0  # of pre-training, for each model
    size: Size = "quick"
    models: tuple[str, ...] = ()  # rows of the table; empty: all
    pairs: tuple[str, ...] = ()  # files of parallel text, for CoVe
    vocab_size: int = 0  # of each tokenizer; 0: by size
    held_out: float = 0.01  # share of the documents
    seeds: int = 3  # fine-tuning runs of each model on each task
    seed: int = 0  # of pre-training, and the first one of fine-tuning
    learning_rates: tuple[float, ...] = ()  # of fine-tuning; the best on dev counts; empty: that of the model
    changes: tuple[str, ...] = ()  # settings of fine-tuning of single models, MODEL:NAME=VALUE; others are in `tasks`
    sentences: tuple[str, ...] = SENTENCES  # for example predictions, each with one *marked* word
    jobs: int = 1  # fine-tuning runs in parallel
    workers: int | None = None  # processes that prepare text
    device: str = "auto"
    keep: bool = False  # fine-tuned models

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ConfigError(f"--size {self.size} must be one of {', '.join(SIZES)}")
        if not self.text:
            raise ConfigError("lineage needs a text: pass --text FILE")
        if not self.tasks:
            raise ConfigError("lineage needs a task: pass --task glue/cola --data DIR")
        if not 0 < self.minutes < float("inf"):
            raise ConfigError(f"--minutes {self.minutes:g} must be above 0")
        if not 0 < self.held_out < 1:
            raise ConfigError(f"--held-out {self.held_out:g} must be above 0 and below 1")
        if len(self.pairs) > 2:
            raise ConfigError("--pairs takes one table with two columns, or two line-aligned files")
        if self.models and (left_out := self.left_out()):
            problems = "; ".join(f"{name} {reason}" for name, reason in left_out.items())
            raise ConfigError(f"--models {','.join(self.models)}: {problems}")

    @property
    def vocabulary(self) -> int:
        """The size of each vocabulary."""
        return self.vocab_size or VOCABULARY[self.size]

    def rows(self) -> dict[str, LineageModel]:
        """The rows of the table."""
        return {name: model for name, model in chosen_models(self.models).items() if name not in self.left_out()}

    def left_out(self) -> dict[str, str]:
        """Chosen rows that cannot be trained, and why."""
        reason = "needs parallel text: pass it with --pairs"
        return {
            name: reason
            for name, model in chosen_models(self.models).items()
            if not self.pairs
            and any(STAGES[self.size][stage].tokenizer == PAIRS for stage in stages_of(model, self.size))
        }

    def stages(self) -> list[str]:
        """All stages of the rows, once each, in an order in which they can be trained."""
        return list(dict.fromkeys(stage for row in self.rows().values() for stage in stages_of(row, self.size)))

    def tuning(self, row: str) -> list[str]:
        """The changes of a row, without its name."""
        named = (change.partition(":") for change in self.changes)
        return [change for owner, _, change in named if owner == row]

    def changes_of_rows(self) -> list[str]:
        """The changes of single rows together, without their names."""
        return [change for row in self.rows() for change in self.tuning(row)]

    def folder(self, kind: str, name: str) -> Path:
        """The folder of a tokenizer with its shards, of a stage, or of a row with its fine-tuning runs."""
        return self.output / kind / name


def split_changes(changes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of single models, `bert:epochs=5`, and the others."""
    for change in changes:
        check_owner(change, list(MODELS))
    of_models = [change for change in changes if change.partition(":")[0] in MODELS]
    return of_models, [change for change in changes if change not in of_models]


def is_part_finished(folder: Path) -> bool:
    """Whether a part has a result."""
    return (folder / RESULT).is_file()


def read_part(folder: Path, key: Mapping[str, Any], *, replace: bool = False) -> dict[str, Any] | None:
    """The result of a finished part; None if there is none.

    A part with other settings or data is an error, or with `replace` not finished: it is computed again.
    """
    stored = read_stored(folder / RESULT)
    if stored is None:
        return None
    for name, value in plain(key).items():
        if stored.get(name) != value and replace:
            return None
        if stored.get(name) != value:
            differences = _differences(stored.get(name), value)
            raise ConfigError(
                f"{folder} is finished with other {name} ({differences}): choose another -o, or remove that folder"
            )
    result: dict[str, Any] = stored["result"]
    return result


def write_part(folder: Path, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Marks a part as finished."""
    write_result(folder / RESULT, key, result)


def _differences(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        return "; ".join(config.resume_differences(old, new)[:3])
    return f"{old}, now {new}"


def chosen_parts(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """The parts that begin with one of these words, which name parts or folders of parts; all if there are none."""
    for word in words:
        if not any(_selects(word, name) for name in names):
            kinds = ", ".join(dict.fromkeys(name.partition("/")[0] for name in names))
            raise ConfigError(
                f"--only {word} is not a part of this study: name {kinds}, or one part, such as {names[-1]}"
            )
    return [name for name in names if not words or any(_selects(word, name) for word in words)]


def _selects(word: str, name: str) -> bool:
    return name == word or name.startswith(f"{word.rstrip('/')}/")
