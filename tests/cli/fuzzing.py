"""Command lines with hostile values for every verb and option, and the checks that hold for any of them.

Verbs and options are read from the application, so new ones are covered.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 # an interrupted import of it is not repeated
from cli.fuzz_sandbox import guard, run
from command_line import Done
from hypothesis import strategies as some
from server.http_fixtures import KINDS

from bertsmith import cli, config, recipes
from bertsmith.training.recipe import make_finetune_config

EXIT_CODES = (0, 2, 65, 69, 74, 75, 78)

# The first value of each list is valid.
NUMBERS = [
    "1",
    "2",
    "nan",
    "inf",
    "-inf",
    "-0",
    "0",
    "-1",
    "-7",
    "1e300",
    "-1e300",
    "1e-320",
    ".5",
    "1_000",
    "1,000",
    "0x10",
    "true",
    "2147483648",
]
NUMBERS += [str(2**63), str(2**64), "9" * 30, "9" * 5000]
TEXTS = ["the cat sat", "", " ", "-", "--", "=", "a=b", "a,b,,c", ",", "a\nb\r\tc", "\x1b[31mred\x07", "\x01\x7f"]
TEXTS += [
    "x" * 5000,
    "the cat " * 3000,
    "\udcff\udc80",
    "쇠 \u202e\u200b e\u0301",
    "[bold]x[/red]",
    "[/]",
    "%s {0} {b}",
]
TEXTS += [
    "*",
    "[a",
    "~",
    "$HOME",
    "\\",
    "'",
    '"',
    "http://localhost/x",
    "hf://a/b",
    "[MASK] [MASK] the [MASK]",
    "--json",
]
PATHS = ["text.txt", "corpus", "t", "shards", "run", "tuned", "runs", *map("m-{}".format, KINDS), "m-words/config.json"]
PATHS += ["train.csv", "dev.jsonl", "tuning.toml", "pretraining.toml", "empty", "empty.txt", "binary.txt", "bad.json"]
PATHS += ["deep.json", "bad.toml", "dangling", "loop", "link", "unreadable", "unreadable.txt", "missing", "missing/x"]
PATHS += ["text.txt/x", "n" * 300, "/".join(["n" * 200] * 30), ".", "..", "/dev/null", "/dev/null/x", "new", "new/a/b"]
PATHS += ["\udcff.txt", "a b.txt", "run/checkpoints", "run/events.jsonl", "m-words/model.safetensors", "bert/tiny"]
PATHS += ["a.npy", "a.parquet", "a.csv", "a.jsonl", "a.html", "x=m-words", "x=", "=m-words", "a.toml", "broken-model"]
TASKS = [
    "classification",
    "pairs",
    "tagging",
    "qa",
    "choice",
    "multi_label",
    "regression",
    "glue/cola",
    "squad/2.0",
    "conll/wnut17",
]
VALID: dict[str, list[str]] = {
    "model": ["m-words", "m-kinds", "tuned", "run"],
    "models": ["m-words", "a=m-words", "m-kinds"],
    "data": ["shards", "corpus", "x=corpus"],
    "corpus": ["text.txt", "corpus", "texts.jsonl", "*.txt", "train.csv"],
    "tokenizer": ["t"],
    "recipe": ["bert/tiny", "pretraining.toml"],
    "variants": [f"bert/tiny,name={name},steps=1,batch_size=2,max_length=32,eval_rows=2" for name in "ab"],
    "task": [*TASKS, "tuning.toml", "tuned/recipe.json"],
    "question": ["who sat"],
    "choices": ["the cat", "a mat"],
    "query": ["a cat"],
    "first": ["the cat sat"],
    "second": ["on a mat"],
    "texts": ["the cat sat", "a mat"],
    "train": ["train.csv"],
    "dev": ["train.csv", "dev.jsonl"],
    "test": ["dev.jsonl"],
    "file": ["dev.jsonl", "text.txt", "train.csv"],
    "output": ["new", "new.csv", "new.jsonl", "new.npy", "new.parquet", "new.html"],
    "folder": ["shards", "t", "run", "runs"],
    "source": ["text.txt", "the cat sat", "m-words"],
    "text": ["the [MASK] sat", "the cat"],
    "context": ["the cat sat on a mat", "text.txt"],
    "run": ["run", "tuned"],
    "runs": ["runs", "run", "tuned"],
    "device": ["cpu"],
    "host": ["127.0.0.1", "localhost"],
    "port": ["0"],
    "kind": config.kinds("bertsmith.tokenizers"),
    "to": ["sentence-transformers", "onnx"],
    "layers": ["-1", "all_sum", "-2,-1"],
    "pooling": ["mean", "first", "max"],
    "file_format": ["auto", "line", "jsonl"],
    "encoding": ["utf-8", "cp949", "utf-16", "idna", "rot13", "unicode_escape", "punycode"],
    "errors": ["replace", "strict"],
    "resume": ["auto", "never", "run/checkpoints/step-1"],
    "learning_rates": ["1e-4,2e-4", "1e-4"],
    "api_key_file": ["key.txt"],
    "head": ["masked_lm", "classify", "1"],
    "vocab_size": ["120"],
    "workers": ["1", "2"],
    "jobs": ["1"],
    "seeds": ["1", "2"],
}
ALWAYS = ("device", "train", "dev", "recipe", "seeds", "layers")
BY_VERB = {
    ("classify", "model"): ["m-kinds"],
    ("ner", "model"): ["m-places"],
    ("tag-words", "model"): ["m-places"],
    ("ask", "model"): ["m-spans"],
    ("choose", "model"): ["m-choices"],
    ("rank", "model"): ["m-order", "m-words"],
    ("evaluate", "model"): ["tuned"],
    ("predict", "model"): ["tuned"],
    ("finetune", "task"): ["classification", "tuning.toml"],
    ("embed", "layers"): ["-1", "-2,-1"],
    ("features", "task"): ["tagging"],
    ("features", "layers"): ["top"],
    ("features", "seeds"): ["1"],
    ("features", "train"): ["tags.txt"],
    ("features", "dev"): ["tags.txt"],
    ("ablate", "data"): ["task"],
    ("ablate", "task"): ["classification"],
    ("sample-efficiency", "model"): ["m-words", "a=m-words", "m-kinds"],
    ("sample-efficiency", "task"): ["classification"],
    ("sample-efficiency", "sizes"): ["2", "2,all", "50%,all"],
    ("sample-efficiency", "seeds"): ["1"],
    ("sample-efficiency", "min_steps"): ["0", "2"],
    ("lineage", "text"): ["missing"],  # a whole study takes minutes: its command lines are only read
    ("lineage", "task"): ["no-task"],
    ("lineage", "data"): ["missing"],
}
VALID_SETTINGS = {"train": ["min_count=1"], "ablate": ["epochs=0.2", "batch_size=4"]}
SETTINGS = {  # always given, so that a run is short
    "pretrain": ["steps=1", "batch_size=2", "max_length=32", "eval_rows=2"],
    "check": ["steps=1", "batch_size=2", "max_length=32", "eval_rows=2"],
    "finetune": ["epochs=0.2", "batch_size=4", "max_length=32"],
    "features": ["epochs=0.2", "batch_size=4", "max_length=32", "head.recurrent_width=4"],
    "sample-efficiency": ["epochs=0.2", "batch_size=4", "max_length=32"],
}


@cache
def verbs() -> dict[tuple[str, ...], Any]:
    """All commands that do something, by the words that name them."""
    return dict(_leaves(cli.command(), ()))


def _leaves(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield from _leaves(command, (*words, name)) if hasattr(command, "commands") else [((*words, name), command)]


@cache
def settings_keys() -> list[str]:
    """The dotted names of all settings of pre-training, fine-tuning, tasks and tokenizers, and a few wrong ones."""
    trees = [recipes.find(name) for name in ("bert/tiny", "electra/small")]
    trees += [make_finetune_config(task, "m-words", {}, []) for task in TASKS]
    trees += [config.find_kind("bertsmith.tokenizers", kind).Config() for kind in config.kinds("bertsmith.tokenizers")]
    keys = itertools.chain.from_iterable(_dotted(config.to_dict(tree), "") for tree in trees)
    return [*dict.fromkeys(keys), "", ".", "..", "encoder.", ".layers", "lr", "stepz", "encoder.x.y", "a b", "\udcff"]


def _dotted(table: dict[str, Any], above: str) -> Iterator[str]:
    for key, value in table.items():
        yield above + key
        if isinstance(value, dict):
            yield from _dotted(value, f"{above}{key}.")


@some.composite
def settings(draw: Any, verb: str, hostile: bool) -> str:
    """A setting: valid, or with an unknown name, of another type, or out of range."""
    if not hostile or draw(some.integers(0, 2)) == 0:
        return str(draw(some.sampled_from(SETTINGS.get(verb) or VALID_SETTINGS.get(verb, ["max_length=32"]))))
    values = ["true", "auto", '"a"', "[]", "[1, 2]", "[-1.5, nan]", "{}", "{kind='bert'}", "none", "[[", '"\\ud800"']
    value = draw(some.sampled_from([*values, *NUMBERS, *TEXTS, *PATHS, *TASKS]))
    key = draw(some.sampled_from(settings_keys()))
    return f"{key}{draw(some.sampled_from(['='] * 9 + [' = ', '', '==']))}{value}"


@some.composite
def command_lines(draw: Any, verb: tuple[str, ...]) -> list[str]:
    """A call of a verb; a few of its values are hostile, the others are valid, so that code behind them is reached."""
    words: list[list[str]] = []
    parameters = [one for one in verbs()[verb].params if one.name != "help"]
    hostile = draw(some.sets(some.sampled_from([one.name for one in parameters]), max_size=3))
    for parameter in parameters:
        if parameter.name == "overrides":
            words += [[setting] for setting in SETTINGS.get(verb[-1], [])]
        for _ in range(_count(draw, parameter, parameter.name in hostile)):
            value = _value(draw, verb, parameter, parameter.name in hostile)
            if parameter.param_type_name == "argument":
                words.append([value])
            else:
                name = draw(some.sampled_from([*parameter.opts, *parameter.secondary_opts]))
                words.append([name] if parameter.is_flag else [name, value])
    if len(hostile) == 3:
        words = draw(some.permutations(words))
    return [*verb, *itertools.chain.from_iterable(words)]


def _count(draw: Any, parameter: Any, hostile: bool) -> int:
    """How often a parameter is given."""
    if parameter.nargs == -1 or getattr(parameter, "multiple", False):
        return int(draw(some.integers(1 if parameter.required or hostile else 0, 3)))
    if hostile:
        return int(draw(some.sampled_from([1, 1, 1, 1, 1, 1, 0, 2])))
    return int(parameter.required or parameter.name in ALWAYS or draw(some.integers(0, 5)) == 5)


def _value(draw: Any, verb: tuple[str, ...], parameter: Any, hostile: bool) -> str:
    if parameter.name in ("overrides", "settings"):
        return str(draw(settings(verb[-1], hostile)))
    kind = parameter.type_descriptor.annotation
    if hostile and draw(some.integers(0, 9)) < 9:
        pool = NUMBERS if kind in (int, float) else PATHS if issubclass_path(kind) else [*TEXTS, *PATHS, *NUMBERS]
        return str(draw(some.sampled_from(pool)))
    valid = VALID.get(parameter.name, ["1"] if parameter.default is None else [str(parameter.default)])
    valid = BY_VERB.get((verb[-1], parameter.name), valid)
    return str(draw(some.sampled_from([*valid, *NUMBERS, *TEXTS, *PATHS] if hostile else valid)))


def issubclass_path(kind: Any) -> bool:
    return kind is Path or kind == list[Path]


def check(base: Path, words: Sequence[str]) -> Done:
    """Runs a command, and checks what holds for all of them."""
    done = run(base, words)
    assert not guard().refused, guard().refused
    assert done.returncode in EXIT_CODES, done
    assert "Traceback" not in done.stderr, done.stderr
    if done.returncode:
        lines = [
            line for line in done.stderr.splitlines() if not line.startswith(("bertsmith: note", "bertsmith: warn"))
        ]
        assert lines, done
        assert lines[-1].startswith("bertsmith: "), done.stderr
        assert len(lines[-1]) > len("bertsmith: .."), done.stderr
        if done.returncode in (2, 65, 78) and {"-q", "--quiet", "--json"} & set(words):
            assert len(lines) == 1, done.stderr
    elif "--json" in words and done.stdout:
        for line in done.stdout.splitlines():
            json.loads(line, parse_constant=lambda name: refuse(name, words))
    return done


def refuse(constant: str, words: Sequence[str]) -> None:
    raise AssertionError(f"{constant} in the JSON of {words}")
