"""Arguments and options that several commands share, and how results are printed."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from glob import escape, glob
from pathlib import Path
from typing import Annotated, Any

import typer

from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.system.suggestions import as_written

FILES = (".json", ".toml")  # of recipes


def complete_recipe(incomplete: str) -> list[str]:
    """Shell completion of pre-training recipes: their names and files."""
    return _matching(incomplete, _recipe_names("RECIPES"), files=True)


def complete_any_recipe(incomplete: str) -> list[str]:
    """Those for fine-tuning, too."""
    return _matching(incomplete, [*_recipe_names("RECIPES"), *_recipe_names("FINETUNING")], files=True)


def _recipe_names(kind: str) -> list[str]:
    """Names of recipes, read from the source since importing it takes seconds."""
    names = []
    for path in sorted((Path(__file__).parents[1] / "recipes").glob("[!_]*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Dict)
                and ast.unparse(node.targets[0]) == kind
            ):
                names += [f"{path.stem}/{ast.literal_eval(key)}" for key in node.value.keys if key]
    return names


def complete_task(incomplete: str) -> list[str]:
    from bertsmith.tasks.task import task_names

    return _matching(incomplete, task_names(), files=True)


def complete_task_or_recipe(incomplete: str) -> list[str]:
    """Tasks, and fine-tuning recipes."""
    return [*complete_task(incomplete), *_matching(incomplete, _recipe_names("FINETUNING"))]


def complete_kind(incomplete: str) -> list[str]:
    """Kinds of tokenizers."""
    from bertsmith import config

    return _matching(incomplete, config.kinds("bertsmith.tokenizers"))


def complete_split(incomplete: str) -> list[str]:
    return _matching(incomplete, ["train", "dev", "test"])


def complete_device(incomplete: str) -> list[str]:
    return _matching(incomplete, ["auto", "cpu", "cuda", "mps"])


def _matching(incomplete: str, names: Sequence[str], *, files: bool = False) -> list[str]:
    """The names with this prefix; with `files` also folders and recipe files."""
    paths = [Path(path) for path in sorted(glob(f"{escape(incomplete)}*"))] if files else []
    found = [f"{path}/" if path.is_dir() else str(path) for path in paths if path.is_dir() or path.suffix in FILES]
    return [name for name in names if name.startswith(incomplete)] + found


def option(name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, metavar=metavar)


def output(metavar: str, help: str) -> Any:
    return typer.Option("--output", "-o", metavar=metavar, help=help)


def overrides(examples: str) -> Any:
    return typer.Argument(metavar="[SETTING=VALUE]...", help=f"Override settings, e.g. {examples}.")


def at_least(minimum: int, help: str) -> Any:
    return typer.Option(min=minimum, help=help, callback=_check_size)


def _check_size(value: int | None) -> int | None:
    if value is not None and value > sys.maxsize:
        raise typer.BadParameter(f"it must be at most {sys.maxsize:,}.")
    return value


CORPUS_HELP = "Files, folders or quoted globs: txt, jsonl, csv, tsv, parquet, WikiExtractor; also .gz .bz2 .xz .zst."
Corpora = Annotated[list[str], typer.Argument(metavar="CORPUS...", help=CORPUS_HELP)]
Output = Annotated[Path, output("DIR", "Output folder.")]
FORMAT_HELP = "auto, blank (lines between documents), line, file, wiki, jsonl, csv, tsv or parquet."
FileFormat = Annotated[str, typer.Option("--format", help=FORMAT_HELP)]
Field = Annotated[str, typer.Option(help="Column or key of the text in jsonl, csv, tsv and parquet.")]
Encoding = Annotated[str, typer.Option(help="Character encoding of text files, e.g. utf-8 or cp949.")]
DECODING_HELP = "Bytes that cannot be decoded: strict (an error), replace or ignore."
DecodingErrors = Annotated[str, typer.Option("--errors", help=DECODING_HELP)]
PARALLEL_HELP = "Parallel text: two line-aligned files, or tables (tsv, csv, jsonl) with a source and a target column."
Parallel = Annotated[bool, option("--parallel", PARALLEL_HELP)]
FIELDS_HELP = (
    "With --parallel: columns or keys of source and target in tables, or numbers of columns without a header such as "
    "1,2; default: source,target."
)
Fields = Annotated[str, typer.Option(metavar="SOURCE,TARGET", help=FIELDS_HELP)]
Workers = Annotated[int | None, at_least(1, "Number of processes; default: one per core.")]
Limit = Annotated[int | None, at_least(1, "Read only the first N documents or texts.")]
ModelFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model folder of bertsmith or transformers, or a run folder.")
]
RECIPE_HELP = "A name such as bert/base, or the path of a recipe.json or .toml file."
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help=RECIPE_HELP, autocompletion=complete_recipe)]
Overrides = Annotated[list[str] | None, overrides("encoder.layers=4 steps=1000")]
TASK_HELP = "Task, e.g. glue/cola, squad/1.1, classification, tagging; or a fine-tuning recipe (.toml or .json file)."
TaskName = Annotated[str, typer.Option("--task", "-t", metavar="TASK", help=TASK_HELP, autocompletion=complete_task)]
Data = Annotated[Path, typer.Option("--data", "-d", metavar="DIR", help="Shards written by `bertsmith prepare`.")]
DATA_HELP = "Folder of a benchmark, or with files named train, dev and test; instead of single files."
TaskData = Annotated[Path | None, option("--data", DATA_HELP, "DIR")]
TrainFile = Annotated[Path | None, option("--train", "Training examples.", "FILE")]
DevFile = Annotated[Path | None, option("--dev", "Examples to score on.", "FILE")]
TestFile = Annotated[Path | None, option("--test", "Labelled test examples, whose scores are reported.", "FILE")]
RATES_HELP = "Learning rates to try; the best on dev is used."
LearningRates = Annotated[str, option("--learning-rates", RATES_HELP, "A,B,...")]
Seeds = Annotated[int, at_least(1, "Runs per learning rate, each with a different seed.")]
Jobs = Annotated[int, at_least(1, "Fine-tuning runs in parallel; the device needs memory for all of them.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.", autocompletion=complete_device)]
Json = Annotated[bool, option("--json", "Print the result as one JSON object on stdout.")]
OVERWRITE_HELP = "Replace what an earlier call of this command wrote to the folder."
Overwrite = Annotated[bool, option("--overwrite", OVERWRITE_HELP)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]


HEAD_HELP = (
    "Use only this head: that of one of several tasks, e.g. classify-cola, or in a folder of unknown class, e.g. tag."
)
IGNORE_HELP = "Load the encoder without its heads."
TOKENIZER_HELP = "Folder of the tokenizer; default: the model folder."
Tokenizer = Annotated[Path | None, typer.Option(metavar="DIR", help=TOKENIZER_HELP)]
Opening = dict[str, Any]  # how a model folder is opened, see `opens_model`
OPENING = {
    "head": (Annotated[str | None, typer.Option(metavar="NAME", help=HEAD_HELP)], None),
    "ignore_heads": (Annotated[bool, typer.Option("--ignore-heads", help=IGNORE_HELP)], False),
    "tokenizer": (Tokenizer, None),
}


def opens_model(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options on how a model folder is opened, unless the command has them; it gets them as `opening`."""
    own = inspect.signature(command, eval_str=True).parameters
    added = {name: option for name, option in OPENING.items() if name not in own}

    @wraps(command)
    def wrapped(**values: Any) -> None:
        opening = {name: values.pop(name) for name in added}
        command(**values, opening={name: value for name, value in opening.items() if value})

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [one.replace(kind=kind) for one in own.values() if one.name != "opening"]
    parameters += [
        inspect.Parameter(name, kind, default=usual, annotation=hint) for name, (hint, usual) in added.items()
    ]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
    del wrapped.__wrapped__
    return wrapped


COMMANDS = {"train": "pretrain, or finetune for a task", "fit": "finetune", "test": "evaluate", "infer": "predict"}


# in the words of different versions of typer
NOT_A_NUMBER = re.compile("is not a valid (int|float)|valid (integer|number), unable to parse")


def usage_message(error: Any, words: Sequence[str]) -> str:
    """An error of the option parser in one line that says what to write; `words`: the command line."""
    text: str = error.format_message()
    parameter: Any = getattr(error, "param", None)
    command = error.ctx.command_path if error.ctx else "bertsmith"
    if hasattr(error, "option_name"):
        text = _unknown_option(error, words)
    elif type(error).__name__ == "MissingParameter" and getattr(parameter, "help", None):
        text = f"{text.rstrip('.')} ({parameter.help.rstrip('.')})."
    elif parameter is not None and (found := NOT_A_NUMBER.search(text)):
        option = next((one for one in parameter.opts if one in words[:-1]), None)
        expected = "an integer" if "int" in found[0] else "a number"
        if option:
            value = words[words.index(option) + 1]
            text = f"{option} {value} must be {expected}{as_written(option, value, expected) if ',' in value else ''}."
    elif command == "bertsmith" and words and words[0] in COMMANDS:
        text = f"No such command '{words[0]}'. Did you mean {COMMANDS[words[0]]}?"
    return f"{text} Try {command} --help."


def _unknown_option(error: Any, words: Sequence[str]) -> str:
    """For a command with settings also how to write the option as one: `epochs=3` for `--epochs 3`."""
    index = next((index for index, word in enumerate(words) if word.startswith(error.option_name)), len(words))
    name, _, value = "".join(words[index : index + 1]).partition("=")
    value = value or "".join(word for word in words[index + 1 : index + 2] if not word.startswith("-"))
    options = {one.name for one in error.ctx.command.params}
    if name in ("--train", "--test") and "file" in options:  # a command for the examples of one split
        split = f" --split {name.lstrip('-')}" if "split" in options else ""
        return f"No such option: {name}. Write --file {value or 'FILE'}{split}."
    near = [one for one in error.possibilities or () if one != "--help"]
    text = f"No such option: {name or error.option_name}" + (f". Did you mean {near[0]}?" if near else ".")
    if name and "overrides" in options:
        setting = f"{name.lstrip('-').replace('-', '_')}={value or 'VALUE'}"
        text += f" If it is a setting, write {setting} without dashes."
    return text


def is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def print_result(facts: dict[str, Any], as_json: bool, show: Callable[[], None] | None = None) -> None:
    """Prints the result as one JSON object, or with `show`, or as a table; in a distributed run only on rank 0."""
    if not is_first_rank():
        return
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
    elif show:
        show()
    else:
        from bertsmith.reports.terminal import facts_table

        facts_table(facts)


def reporter(quiet: bool) -> Callable[[str], None]:
    """Prints lines about progress on stderr, or nothing."""
    return (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr))


def read_options(file_format: str, field: str, encoding: str, errors: str) -> Any:
    from bertsmith import config
    from bertsmith.data.corpus import ReadOptions

    values = {"format": file_format, "field": field, "encoding": encoding, "errors": errors}
    return config.from_dict(ReadOptions, values)


FILE_OPTION_DEFAULTS = {
    "format": "auto",
    "field": "text",
    "fields": "",
    "encoding": "utf-8",
    "errors": "strict",
    "limit": None,
}
TABLE_OPTIONS = ("format", "field", "fields")


def check_text_options(*, stdin: bool = False, **values: str | int | None) -> None:
    """An error where an option for files was passed with a text, or one for tables with lines on stdin."""
    for name in TABLE_OPTIONS if stdin else FILE_OPTION_DEFAULTS:
        if values.get(name, FILE_OPTION_DEFAULTS[name]) != FILE_OPTION_DEFAULTS[name]:
            found = "lines on stdin" if stdin else "a text"
            raise BertsmithError(f"--{name} is for files, but the argument is {found}: pass a file, or leave it out")


def read_stdin(encoding: str = "utf-8", errors: str = "strict") -> str:
    """The text on stdin, with every line end as \\n."""
    data = sys.stdin.buffer.read()
    try:
        text = data.decode(encoding, errors)
    except UnicodeDecodeError as error:
        found = f"byte {error.start:,} (0x{data[error.start]:02x}) is not {encoding}"
        raise DataError(f"stdin: {found}: convert the text first, for example with iconv") from None
    except UnicodeError as error:
        raise DataError(f"stdin is not {encoding}: {error}") from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def stdin_texts(encoding: str, errors: str, limit: int | None) -> list[str]:
    """The lines on stdin that are not empty, at most `limit`."""
    read_options("line", "text", encoding, errors)  # raises where they are wrong
    texts = [line for line in read_stdin(encoding, errors).split("\n") if line.strip()][:limit]
    if not texts:
        raise DataError("stdin has no texts: write one per line")
    return texts


def reading(
    file_format: str, field: str, encoding: str, errors: str, workers: int | None, limit: int | None, quiet: bool
) -> dict[str, Any]:
    """The arguments of functions that read a corpus in several processes."""
    options = read_options(file_format, field, encoding, errors)
    return {"read_options": options, "workers": workers, "limit": limit, "quiet": quiet}


def corpus(paths: Sequence[str], read_options: Any, parallel: bool, **pair_options: Any) -> Any:
    """Files as documents, or with `parallel` as pairs."""
    files = list(map(Path, paths))
    if not parallel:
        if pair_options.get("fields"):
            raise ConfigError("--fields names the columns of pairs: add --parallel")
        return files
    from bertsmith.data.parallel import PairOptions, ParallelCorpus

    fields = field_names(pair_options.pop("fields"))
    return ParallelCorpus(files, read_options, PairOptions(fields=fields, **pair_options))


def field_names(text: str) -> Any:
    """`source,target` as two names; None where they are not given."""
    return tuple(name.strip() for name in text.split(",") if name.strip()) or None


def comma_separated(text: str) -> tuple[str, ...]:
    """`a,b` as a tuple."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def given(**values: Any) -> dict[str, Any]:
    """The options that were passed on the command line."""
    return {name: value for name, value in values.items() if value is not None}
