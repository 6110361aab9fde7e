"""Studies: `lineage`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from bertsmith.api.corpus import Corpus
from bertsmith.api.settings import LineageSettings, PathLike, python_errors
from bertsmith.api.training import Examples, save_examples

if TYPE_CHECKING:
    from bertsmith.studies.lineage.result import LineageTable
    from bertsmith.studies.task_setup import TaskSetup


@python_errors
def lineage(
    text: Corpus,
    tasks: Mapping[str, PathLike | Mapping[str, Examples]],
    output: PathLike,
    *,
    minutes: float = 10.0,
    size: Literal["tiny", "quick"] = "quick",
    models: Sequence[str] = (),
    seeds: int = 3,
    device: str = "auto",
    quiet: bool = False,
    **settings: Unpack[LineageSettings],
) -> LineageTable:
    """Compares all models from word vectors to ELECTRA: the same text, the same minutes, the same tasks.

    The same call resumes an interrupted study, and trains only what is new if it has more models, tasks or seeds.

    Args:
        text: The pre-training text: files, folders or glob patterns, or documents in memory, as in `prepare`. Documents
            in memory are saved in the folder of the study.
        tasks: The folder of each task by its name, such as `{"glue/cola": "GLUE"}`; or its examples by split, such
            as `{"classification": {"train": rows, "dev": more_rows}}`, each a file or rows as in `finetune`.
        output: The folder of the study, with its table and all models.
        minutes: Minutes of pre-training of each model.
        size: Size of the models: `quick` for one GPU, `tiny` for a CPU.
        models: Rows of the table, such as `["word-vectors", "elmo", "bert"]`; by default all. CoVe needs `pairs`.
        seeds: Fine-tuning runs of each model on each task.
        device: `auto`, `cpu`, `cuda` or `mps`.
        quiet: Do not show progress.
        **settings: `finetune_settings` are settings of fine-tuning, for all or for single models and tasks:
            `{"epochs": 3, "bert": {"learning_rate": 2e-4}, "glue/cola": {"epochs": 5}}`; `learning_rates` to try, of
            which the best on dev is used; `jobs`: fine-tuning runs in parallel; `keep`: keep the fine-tuned models;
            `pairs`: parallel text for CoVe, a table or two line-aligned files; `sentences` for example predictions,
            each with one *marked* word; `vocab_size` of each tokenizer; `held_out`: fraction of the documents that
            nats per byte are measured on; `workers`: processes that prepare text; `seed`.

    Example:
        >>> import bertsmith as bs
        >>> rows = [("good iron", "positive"), ("bad iron", "negative")] * 20
        >>> tasks = {"classification": {"train": rows, "dev": rows[:4]}}
        >>> small = {"vocab_size": 500, "held_out": 0.5, "finetune_settings": {"epochs": 1}}
        >>> how = {"size": "tiny", "minutes": 0.01, "seeds": 1, "quiet": True}
        >>> table = bs.lineage("corpus/", tasks, "study", models=["word-vectors", "bert"], **how, **small)
        >>> [row["Model"] for row in table.rows]
        ['(no model)', 'word vectors', 'BERT']
        >>> table.page
        PosixPath('study/lineage.html')
    """
    from bertsmith import config
    from bertsmith.studies.lineage.models import MODELS
    from bertsmith.studies.lineage.result import LineageTable
    from bertsmith.studies.lineage.settings import LineageConfig
    from bertsmith.studies.lineage.study import lineage as study

    _check_tasks(tasks)
    folder, pairs = Path(output), [os.fspath(path) for path in settings.pop("pairs", ())]
    changes = settings.pop("finetune_settings", {})
    shared = {name: value for name, value in changes.items() if name not in MODELS and name not in tasks}
    own = {name: _changes(value, name) for name, value in changes.items() if name not in shared}
    setups = [
        _task_setup(name, data, (*_changes(shared), *own.get(name, ())), folder / "data")
        for name, data in tasks.items()
    ]
    of_models = [f"{name}:{change}" for name in MODELS for change in own.get(name, ())]
    given: dict[str, Any] = {"minutes": minutes, "size": size, "models": list(models), "seeds": seeds, "device": device}
    given |= {"tasks": setups, "output": folder, "pairs": pairs, "changes": of_models}
    files = _text_files(text, folder / "data" / "text.jsonl")
    chosen = config.from_dict(LineageConfig, dict(text=files, **given, **settings))
    report = (lambda line: None) if quiet else (lambda line: print(line, file=sys.stderr))
    return LineageTable(study(chosen, quiet=quiet, report=report))


def _check_tasks(tasks: Any) -> None:
    from bertsmith.errors import ConfigError

    if not isinstance(tasks, Mapping):
        raise ConfigError(f'tasks={tasks!r} must be a dict, such as {{"glue/cola": FOLDER}}')


def _changes(settings: Any, owner: str = "") -> tuple[str, ...]:
    """Nested settings as on the command line: `head.dropout=0.1`."""
    from bertsmith.errors import ConfigError
    from bertsmith.reports.comparison import dotted
    from bertsmith.training.recipe_toml import toml_value

    if not isinstance(settings, Mapping):
        raise ConfigError(f"finetune_settings: {owner}={settings!r} must be a dict of settings")
    return tuple(f"{name}={toml_value(value)}" for name, value in dotted(settings).items())


def _task_setup(
    task: str, data: PathLike | Mapping[str, Examples], changes: tuple[str, ...], folder: Path
) -> TaskSetup:
    """The task with its folder, or with its files; rows in memory are saved."""
    from bertsmith.studies.task_setup import TaskSetup
    from bertsmith.training.recipe import find_task

    if not isinstance(data, Mapping):
        return TaskSetup(task, {"data": Path(data)}, changes)
    chosen, own = find_task(task), folder / task.replace("/", "-")
    files = {split: save_examples(examples, chosen, split, own) for split, examples in data.items()}
    return TaskSetup(task, files, changes)


def _text_files(text: Corpus, path: Path) -> list[str]:
    """The files of a corpus; documents in memory are saved as JSON lines."""
    from bertsmith.data.in_memory import open_corpus
    from bertsmith.errors import ConfigError
    from bertsmith.system.durable import Disk

    corpus = open_corpus(text)
    if corpus.files:
        return [str(file) for file in corpus.files]

    def lines() -> Iterator[bytes]:
        for document in corpus:
            yield json.dumps({"text": document.text}).encode() + b"\n"

    if path.is_file():
        with open(path, "rb") as stored:
            if any(line != known for line, known in zip_longest(lines(), stored)):
                raise ConfigError(f"{path} holds other texts: choose another output, or remove that folder")
    else:
        Disk().make_folder(path.parent)
        Disk().write_file(path, lines())
    return [str(path)]
