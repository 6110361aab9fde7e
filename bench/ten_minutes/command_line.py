"""Subcommands of the benchmark. User errors are reported in one line with an exit status, as in bertsmith's own CLI."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError, ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except BertsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.ten_minutes", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_pipeline(commands)
    _add_books(commands)
    _add_text(commands)
    _add_pretrain(commands)
    _add_proxies(commands)
    _add_baseline(commands)
    _add_tasks(commands)
    _add_evaluate(commands)
    _add_ablations(commands)
    table = commands.add_parser("table", help="merge all results into a table and a plot")
    table.set_defaults(command=_table)
    table.add_argument(
        "folders",
        nargs="+",
        type=Path,
        help="output folders of the other commands; for duplicate names the last one counts",
    )
    table.add_argument("-o", "--output", type=Path, help="folder for table.md, curves.svg and table.json")
    table.add_argument("--only", nargs="+", default=[], metavar="NAME", help="contestants to include; default: all")
    return parser


def _add_pipeline(commands: Any) -> None:
    parser = commands.add_parser("pipeline", help="everything from text to table; finished parts are skipped")
    parser.set_defaults(command=_pipeline)
    parser.add_argument("corpus", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with the task folders")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-t", "--tasks", choices=("english", "korean"), default="english")
    parser.add_argument("--vocab-size", type=int, default=32_768)
    parser.add_argument("--cased", action="store_true")
    parser.add_argument("--minutes", type=float, default=10.0, help="of training, for each contestant")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SETTING=VALUE", help="override in bertsmith's recipes"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="concurrent fine-tuning runs")
    parser.add_argument("--device", default="auto")


def _add_books(commands: Any) -> None:
    parser = commands.add_parser("books", help="convert a folder of books to one JSON Lines file for text")
    parser.set_defaults(command=_books)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="a .jsonl file")


def _add_text(commands: Any) -> None:
    parser = commands.add_parser("text", help="train a tokenizer and write shards from corpus files")
    parser.set_defaults(command=_text)
    parser.add_argument("corpus", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="use this tokenizer instead of training one")
    parser.add_argument("--kind", default="wordpiece")
    parser.add_argument("--vocab-size", type=int, default=30_522)
    parser.add_argument("--cased", action="store_true")
    parser.add_argument("--held-out", type=float, default=0.01, help="share of documents")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--quiet", action="store_true")


def _add_pretrain(commands: Any) -> None:
    parser = commands.add_parser("pretrain", help="pre-train a bertsmith contestant for a number of minutes")
    parser.set_defaults(command=_pretrain)
    parser.add_argument("name", help="a name from contestants.py, or any name with --recipe")
    parser.add_argument("--recipe", default="", help="recipe instead of the table's")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    parser.add_argument(
        "--after",
        default="",
        metavar="NAME",
        help="start from this contestant's model and add its minutes; default: the table's",
    )
    _add_run(parser)
    parser.add_argument("--quiet", action="store_true")


def _add_proxies(commands: Any) -> None:
    parser = commands.add_parser("proxies", help="many short bertsmith runs, each with one setting changed")
    parser.set_defaults(command=_proxies)
    parser.add_argument("file", type=Path, help="a .toml of variants, such as bench/ten_minutes/proxies.toml")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="variants to run; default: all")
    parser.add_argument("--together", type=int, default=3, help="concurrent runs, of which one trains at a time")
    parser.add_argument("--data", type=Path, required=True, metavar="SHARDS")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--minutes", type=float, default=1.0, help="of training, each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--tasks", action="append", metavar="[TASK=]DIR", help="fine-tune all on the tasks that the file names"
    )
    parser.add_argument("--task-seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="concurrent fine-tuning runs")
    _add_evaluator(parser)
    _add_machine(parser)


def _add_baseline(commands: Any) -> None:
    parser = commands.add_parser("baseline", help="train transformers' BertForMaskedLM for a number of minutes")
    parser.set_defaults(command=_baseline)
    parser.add_argument("name", nargs="?", default="baseline")
    parser.add_argument("--size", default="medium", help="a published size, or LAYERSxWIDTH")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--warmup", type=float, default=0.06, help="share of the minutes")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    _add_run(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, metavar="SHARDS")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the benchmark")
    parser.add_argument("--minutes", type=float, default=10.0, help="of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--every", type=float, default=0.0, help="training seconds between evaluations; 0: a twentieth of the minutes"
    )
    _add_evaluator(parser)
    parser.add_argument("--eval-length", type=int, default=128)
    parser.add_argument(
        "--lock",
        type=Path,
        metavar="FILE",
        help="runs with the same lock file compile concurrently and train one at a time",
    )
    _add_machine(parser)


def _add_evaluator(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--eval-rows", type=int, default=2048)
    parser.add_argument(
        "--eval-data", default="", metavar="SHARDS", help="shards with the held-out documents; default: --data"
    )


def _add_tasks(commands: Any) -> None:
    parser = commands.add_parser("tasks", help="fine-tune contestants on tasks")
    parser.set_defaults(command=_tasks)
    parser.add_argument(
        "names", nargs="+", help="contestants; NAME+fresh: without pre-training; NAME=FOLDER: any model"
    )
    parser.add_argument(
        "-t", "--task", action="append", metavar="TASK", help="a task, english or korean; default: english"
    )
    parser.add_argument(
        "--data", action="append", required=True, metavar="[TASK=]DIR", help="folder of a task or of all tasks"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the benchmark")
    parser.add_argument("--rates", default="", metavar="A,B,...")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="[TASK:]SETTING=VALUE")
    parser.add_argument(
        "--transformers", action="store_true", help="fine-tune with transformers' classes in a plain loop"
    )
    parser.add_argument("--jobs", type=int, default=1, help="concurrent fine-tuning runs")
    _add_machine(parser)
    parser.add_argument("--quiet", action="store_true")


def _add_evaluate(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate", help="evaluate finished models on held-out text, with piece and whole-word masking"
    )
    parser.add_argument(
        "--split", choices=("held-out", "train"), default="held-out", help="train: text seen in training"
    )
    parser.set_defaults(command=_evaluate)
    parser.add_argument("names", nargs="+", help="contestants; NAME=FOLDER: any model")
    parser.add_argument("--data", type=Path, required=True, metavar="SHARDS", help="shards with the documents")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the benchmark")
    parser.add_argument("--eval-rows", type=int, default=2048)
    parser.add_argument("--eval-length", type=int, default=128)
    parser.add_argument("--device", default="auto")


def _add_ablations(commands: Any) -> None:
    parser = commands.add_parser("ablations", help="pre-train and fine-tune the ablations of BERT's paper")
    parser.set_defaults(command=_ablations)
    parser.add_argument("studies", nargs="+", metavar="STUDY", help="objectives, sizes, masks or steps")
    parser.add_argument("--data", type=Path, required=True, metavar="SHARDS")
    parser.add_argument("--tasks", type=Path, required=True, metavar="DIR", help="folder with the task folders")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000, help="of pre-training")
    parser.add_argument(
        "-t", "--task", action="append", default=[], metavar="TASK", help="tasks instead of the paper's"
    )
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of pre-training, for all")
    parser.add_argument("--tune", action="append", default=[], metavar="[TASK:]SETTING=VALUE", help="of fine-tuning")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--together", type=int, default=1, help="concurrent pre-training runs")
    parser.add_argument("--jobs", type=int, default=1, help="concurrent fine-tuning runs")
    _add_machine(parser)


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stop-after",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="time limit of this call; the next call resumes",
    )
    parser.add_argument("--device", default="auto")


def _pipeline(options: argparse.Namespace) -> None:
    from bench.ten_minutes.pipeline import PipelineConfig, run_pipeline

    values = {name: value for name, value in vars(options).items() if name != "command"}
    run_pipeline(PipelineConfig(**values | {"corpus": tuple(options.corpus)}))


def _books(options: argparse.Namespace) -> None:
    from bench.ten_minutes.books import write_books

    _show({"books": write_books(options.folder, options.output)})


def _text(options: argparse.Namespace) -> None:
    from bench.ten_minutes.text import Preparation, prepare_text

    names = ("tokenizer", "kind", "vocab_size", "cased", "held_out", "workers")
    preparation = Preparation(**{name: getattr(options, name) for name in names})
    _show(prepare_text(options.corpus, options.output, preparation, quiet=options.quiet))


def _pretrain(options: argparse.Namespace) -> None:
    from bench.ten_minutes.contestants import before, recipe_of
    from bench.ten_minutes.pretraining import pretrain
    from bench.ten_minutes.results import MODEL
    from bertsmith.training.clock import TrainingLock, stop_after

    after = before(options.name, recipe=options.recipe, after=options.after)
    start = [f"start={options.output / after / MODEL}"] if after else []
    changes = [*options.set, *start]
    recipe = recipe_of(options.name, recipe=options.recipe, changes=changes, minutes=options.minutes, seed=options.seed)
    with stop_after(options.stop_after):
        result = pretrain(
            options.name,
            recipe,
            options.data,
            options.output,
            evaluator_config=_evaluator_config(options),
            device=options.device,
            quiet=options.quiet,
            lock=TrainingLock(options.lock),
            after=after,
        )
    _show(_short(result))


def _proxies(options: argparse.Namespace) -> None:
    from bench.ten_minutes.proxies import judge, run_all, table, variants
    from bench.ten_minutes.results import RESULT
    from bench.ten_minutes.tasks import FinetuneOptions, fine_tune
    from bertsmith.training.clock import stop_after

    chosen, judged = variants(options.file, options.only), judge(options.file)
    if options.tasks and not judged.tasks:
        raise ConfigError(f'--tasks: {options.file} names no tasks: write judge = ["glue/cola"] into it')
    tuning = FinetuneOptions(
        seeds=options.task_seeds, changes=judged.tuning, jobs=options.jobs, device=options.device, quiet=True
    )
    names = ("data", "seed", "eval_rows", "eval_data", "device")
    arguments = [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    try:
        with stop_after(options.stop_after):
            run_all(chosen, options.output, arguments, together=options.together, minutes=options.minutes)
            if options.tasks:
                stages = {one.after for one in chosen}  # of which the second one is judged
                last = [one.name for one in chosen if one.name not in stages]
                fine_tune(last, judged.tasks, options.tasks, options.output, tuning)
    finally:
        if any((options.output / variant.name / RESULT).exists() for variant in chosen):
            print(table(chosen, options.output, judged.tasks))


def _baseline(options: argparse.Namespace) -> None:
    from bench.ten_minutes.baseline import Settings, baseline
    from bertsmith.training.clock import TrainingLock, stop_after

    names = ("size", "minutes", "rate", "rows", "length", "warmup", "dropout", "weight_decay", "seed")
    settings = Settings(**{name: getattr(options, name) for name in names})
    kwargs = {
        "evaluator_config": _evaluator_config(options),
        "device": options.device,
        "lock": TrainingLock(options.lock),
    }
    with stop_after(options.stop_after):
        result = baseline(options.name, settings, options.data, options.output, **kwargs)
    _show(_short(result))


def _tasks(options: argparse.Namespace) -> None:
    from bench.ten_minutes.tasks import FinetuneOptions, chosen_tasks, fine_tune
    from bertsmith.training.clock import stop_after
    from bertsmith.training.sweep import parse_learning_rates

    finetune_options = FinetuneOptions(
        rates=tuple(parse_learning_rates(options.rates)),
        seeds=options.seeds,
        changes=tuple(options.set),
        use_transformers=options.transformers,
        jobs=options.jobs,
        device=options.device,
        quiet=options.quiet,
    )
    with stop_after(options.stop_after):
        fine_tune(
            options.names, chosen_tasks(options.task or ["english"]), options.data, options.output, finetune_options
        )


def _ablations(options: argparse.Namespace) -> None:
    from bench.ten_minutes.ablations import Plan, run_studies
    from bertsmith.training.clock import stop_after

    names = ("data", "tasks", "output", "steps", "seeds", "together", "jobs", "device")
    lists = {"chosen": tuple(options.task), "changes": tuple(options.set), "tuning": tuple(options.tune)}
    with stop_after(options.stop_after):
        run_studies(options.studies, Plan(**{name: getattr(options, name) for name in names}, **lists))


def _evaluate(options: argparse.Namespace) -> None:
    from bench.ten_minutes.held_out import evaluate_models
    from bench.ten_minutes.tasks import with_folders
    from bertsmith.studies.ablations import candidates

    models = candidates(with_folders(options.names, options.output))
    settings = {"rows": options.eval_rows, "length": options.eval_length, "split": options.split}
    print(evaluate_models(models, options.data, device=options.device, **settings))


def _table(options: argparse.Namespace) -> None:
    from bench.ten_minutes.table import table

    print(table(options.folders, options.output or options.folders[-1], options.only)["text"])


def _evaluator_config(options: argparse.Namespace) -> Any:
    from bench.ten_minutes.pretraining import EvaluatorConfig, with_defaults

    chosen = EvaluatorConfig(
        every=options.every, rows=options.eval_rows, length=options.eval_length, data=options.eval_data
    )
    return with_defaults(chosen, options.minutes)


def _short(result: dict[str, Any]) -> dict[str, Any]:
    """A result without its long fields."""
    left_out = ("curve", "settings", "fingerprints", "final", "judge")
    return {key: value for key, value in result.items() if key not in left_out} | result["final"]


def _show(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<20} {value}")
