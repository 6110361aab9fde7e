"""The verbs of the contest. What a user can cause is one line and an exit status, as in bertsmith's own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError


def main(words: Sequence[str] | None = None) -> int:
    """Does what the words ask; the exit status."""
    options = _parser().parse_args(words)
    try:
        options.verb(options)
    except BertsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.ten_minutes", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_whole(verbs)
    _add_books(verbs)
    _add_text(verbs)
    _add_pretrain(verbs)
    _add_proxies(verbs)
    _add_baseline(verbs)
    _add_tasks(verbs)
    _add_verdict(verbs)
    _add_ablations(verbs)
    one = verbs.add_parser("table", help="merge all results into a table and a picture")
    one.set_defaults(verb=_table)
    one.add_argument("folders", nargs="+", type=Path, help="output folders of the other verbs; of one name the last")
    one.add_argument("-o", "--output", type=Path, help="where table.md, curves.svg and table.json go")
    one.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these contestants; all if none")
    return parser


def _add_whole(verbs: Any) -> None:
    one = verbs.add_parser("whole", help="all of it, from text to table; what is finished is not done again")
    one.set_defaults(verb=_whole)
    one.add_argument("corpus", nargs="+", type=Path)
    one.add_argument("--data", type=Path, required=True, metavar="DIR", help="holds the tasks' folders")
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("-t", "--tasks", choices=("english", "korean"), default="english")
    one.add_argument("--vocab-size", type=int, default=32_768)
    one.add_argument("--cased", action="store_true")
    one.add_argument("--minutes", type=float, default=10.0, help="of learning, for everybody")
    one.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="in the recipes of ours")
    one.add_argument("--seeds", type=int, default=3)
    one.add_argument("--jobs", type=int, default=1, help="fine-tunings at a time")
    one.add_argument("--device", default="auto")


def _add_books(verbs: Any) -> None:
    one = verbs.add_parser("books", help="a folder of books to one file with a book a line, for text")
    one.set_defaults(verb=_books)
    one.add_argument("folder", type=Path)
    one.add_argument("-o", "--output", type=Path, required=True, help="a .jsonl file")


def _add_text(verbs: Any) -> None:
    one = verbs.add_parser("text", help="corpus files to a tokenizer and shards")
    one.set_defaults(verb=_text)
    one.add_argument("corpus", nargs="+", type=Path)
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="take this one instead of training one")
    one.add_argument("--kind", default="wordpiece")
    one.add_argument("--vocab-size", type=int, default=30_522)
    one.add_argument("--cased", action="store_true")
    one.add_argument("--held-out", type=float, default=0.01, help="share of documents")
    one.add_argument("--workers", type=int)
    one.add_argument("--quiet", action="store_true")


def _add_pretrain(verbs: Any) -> None:
    one = verbs.add_parser("pretrain", help="a contestant of ours, for so many minutes")
    one.set_defaults(verb=_pretrain)
    one.add_argument("name", help="of contestants.py, or any with --recipe")
    one.add_argument("--recipe", default="", help="instead of the table's")
    one.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    one.add_argument(
        "--after",
        default="",
        metavar="NAME",
        help="goes on from this contestant's model, minutes and all; else the table's",
    )
    _add_run(one)
    one.add_argument("--quiet", action="store_true")


def _add_proxies(verbs: Any) -> None:
    one = verbs.add_parser("proxies", help="many short runs of ours, each with one thing changed")
    one.set_defaults(verb=_proxies)
    one.add_argument("file", type=Path, help="a .toml of variants, such as bench/ten_minutes/proxies.toml")
    one.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these variants; all if none")
    one.add_argument("--together", type=int, default=3, help="runs under way; one of them learns")
    one.add_argument("--data", type=Path, required=True, metavar="SHARDS")
    one.add_argument("-o", "--output", type=Path, required=True, help="folder of the runs")
    one.add_argument("--minutes", type=float, default=1.0, help="of learning, each")
    one.add_argument("--seed", type=int, default=0)
    _add_judge(one)
    _add_machine(one)


def _add_baseline(verbs: Any) -> None:
    one = verbs.add_parser("baseline", help="transformers' BertForMaskedLM, for so many minutes")
    one.set_defaults(verb=_baseline)
    one.add_argument("name", nargs="?", default="baseline")
    one.add_argument("--size", default="medium", help="a published size, or LAYERSxWIDTH")
    one.add_argument("--rate", type=float, default=1e-3)
    one.add_argument("--rows", type=int, default=256)
    one.add_argument("--length", type=int, default=128)
    one.add_argument("--warmup", type=float, default=0.06, help="share of the minutes")
    one.add_argument("--dropout", type=float, default=0.1)
    one.add_argument("--weight-decay", type=float, default=0.01)
    _add_run(one)


def _add_run(one: argparse.ArgumentParser) -> None:
    one.add_argument("--data", type=Path, required=True, metavar="SHARDS")
    one.add_argument("-o", "--output", type=Path, required=True, help="folder of the contest")
    one.add_argument("--minutes", type=float, default=10.0, help="of learning")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--every", type=float, default=0.0, help="seconds of learning between points; 0: a twentieth")
    _add_judge(one)
    one.add_argument("--judge-length", type=int, default=128)
    one.add_argument("--turn", type=Path, metavar="FILE", help="runs that name it compile together and learn in turn")
    _add_machine(one)


def _add_judge(one: argparse.ArgumentParser) -> None:
    one.add_argument("--judge-rows", type=int, default=2048)
    one.add_argument("--judge-data", default="", metavar="SHARDS", help="hold the judge's documents; --data if none")


def _add_tasks(verbs: Any) -> None:
    one = verbs.add_parser("tasks", help="fine-tune contestants on tasks")
    one.set_defaults(verb=_tasks)
    one.add_argument("names", nargs="+", help="contestants, NAME+fresh for no pre-training, NAME=FOLDER for any model")
    one.add_argument("-t", "--task", action="append", metavar="TASK", help="a task, english or korean; english if none")
    one.add_argument("--data", action="append", required=True, metavar="[TASK=]DIR", help="a task's, or one of all")
    one.add_argument("-o", "--output", type=Path, required=True, help="folder of the contest")
    one.add_argument("--rates", default="", metavar="A,B,...")
    one.add_argument("--seeds", type=int, default=3)
    one.add_argument("--set", action="append", default=[], metavar="[TASK:]SETTING=VALUE")
    one.add_argument("--own-code", action="store_true", help="transformers' classes in a plain loop")
    one.add_argument("--jobs", type=int, default=1, help="fine-tunings at a time")
    _add_machine(one)
    one.add_argument("--quiet", action="store_true")


def _add_verdict(verbs: Any) -> None:
    one = verbs.add_parser("judge", help="finished models on held-out text once more, also with whole words hidden")
    one.add_argument("--split", choices=("held-out", "train"), default="held-out", help="train: what they have read")
    one.set_defaults(verb=_verdict)
    one.add_argument("names", nargs="+", help="contestants, NAME=FOLDER for any model")
    one.add_argument("--data", type=Path, required=True, metavar="SHARDS", help="hold the documents")
    one.add_argument("-o", "--output", type=Path, required=True, help="folder of the contest")
    one.add_argument("--judge-rows", type=int, default=2048)
    one.add_argument("--judge-length", type=int, default=128)
    one.add_argument("--device", default="auto")


def _add_ablations(verbs: Any) -> None:
    one = verbs.add_parser("ablations", help="the ablations of BERT's paper, pre-trained and fine-tuned")
    one.set_defaults(verb=_ablations)
    one.add_argument("studies", nargs="+", metavar="STUDY", help="objectives, sizes, masks or steps")
    one.add_argument("--data", type=Path, required=True, metavar="SHARDS")
    one.add_argument("--tasks", type=Path, required=True, metavar="DIR", help="holds the tasks' folders")
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--steps", type=int, default=4000, help="of pre-training")
    one.add_argument("-t", "--task", action="append", default=[], metavar="TASK", help="instead of the paper's")
    one.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of pre-training, for all")
    one.add_argument("--tune", action="append", default=[], metavar="[TASK:]SETTING=VALUE", help="of fine-tuning")
    one.add_argument("--seeds", type=int, default=3)
    one.add_argument("--together", type=int, default=1, help="pre-trainings at a time")
    one.add_argument("--jobs", type=int, default=1, help="fine-tunings at a time")
    _add_machine(one)


def _add_machine(one: argparse.ArgumentParser) -> None:
    one.add_argument("--stop-after", type=float, default=0.0, metavar="SECONDS", help="of this call; the next goes on")
    one.add_argument("--device", default="auto")


def _whole(options: argparse.Namespace) -> None:
    from bench.ten_minutes.whole import Whole, run_whole

    given = {name: value for name, value in vars(options).items() if name != "verb"}
    run_whole(Whole(**given | {"corpus": tuple(options.corpus)}))


def _books(options: argparse.Namespace) -> None:
    from bench.ten_minutes.books import write_books

    _show({"books": write_books(options.folder, options.output)})


def _text(options: argparse.Namespace) -> None:
    from bench.ten_minutes.text import Preparation, prepare_text

    names = ("tokenizer", "kind", "vocab_size", "cased", "held_out", "workers")
    how = Preparation(**{name: getattr(options, name) for name in names})
    _show(prepare_text(options.corpus, options.output, how, quiet=options.quiet))


def _pretrain(options: argparse.Namespace) -> None:
    from bench.ten_minutes.clock import Turn, stop_after
    from bench.ten_minutes.contestants import before, recipe_of
    from bench.ten_minutes.pretraining import pretrain
    from bench.ten_minutes.results import MODEL

    after = before(options.name, recipe=options.recipe, after=options.after)
    start = [f"start={options.output / after / MODEL}"] if after else []
    changes = [*options.set, *start]
    recipe = recipe_of(options.name, recipe=options.recipe, changes=changes, minutes=options.minutes, seed=options.seed)
    with stop_after(options.stop_after):
        found = pretrain(
            options.name,
            recipe,
            options.data,
            options.output,
            judging=_judging(options),
            device=options.device,
            quiet=options.quiet,
            turn=Turn(options.turn),
            after=after,
        )
    _show(_short(found))


def _proxies(options: argparse.Namespace) -> None:
    from bench.ten_minutes.clock import stop_after
    from bench.ten_minutes.proxies import run_all, table, variants
    from bench.ten_minutes.results import RESULT

    chosen = variants(options.file, options.only)
    names = ("data", "minutes", "seed", "judge_rows", "judge_data", "device")
    words = [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    try:
        with stop_after(options.stop_after):
            run_all(chosen, options.output, words, together=options.together)
    finally:
        if any((options.output / one.name / RESULT).exists() for one in chosen):
            print(table(chosen, options.output))


def _baseline(options: argparse.Namespace) -> None:
    from bench.ten_minutes.baseline import Settings, baseline
    from bench.ten_minutes.clock import Turn, stop_after

    names = ("size", "minutes", "rate", "rows", "length", "warmup", "dropout", "weight_decay", "seed")
    settings = Settings(**{name: getattr(options, name) for name in names})
    how = {"judging": _judging(options), "device": options.device, "turn": Turn(options.turn)}
    with stop_after(options.stop_after):
        found = baseline(options.name, settings, options.data, options.output, **how)
    _show(_short(found))


def _tasks(options: argparse.Namespace) -> None:
    from bench.ten_minutes.clock import stop_after
    from bench.ten_minutes.tasks import Manner, chosen_tasks, fine_tune
    from bertsmith.training.sweep import parse_learning_rates

    manner = Manner(
        rates=tuple(parse_learning_rates(options.rates)),
        seeds=options.seeds,
        changes=tuple(options.set),
        own_code=options.own_code,
        jobs=options.jobs,
        device=options.device,
        quiet=options.quiet,
    )
    with stop_after(options.stop_after):
        fine_tune(options.names, chosen_tasks(options.task or ["english"]), options.data, options.output, manner)


def _ablations(options: argparse.Namespace) -> None:
    from bench.ten_minutes.ablations import Plan, run_studies
    from bench.ten_minutes.clock import stop_after

    names = ("data", "tasks", "output", "steps", "seeds", "together", "jobs", "device")
    lists = {"chosen": tuple(options.task), "changes": tuple(options.set), "tuning": tuple(options.tune)}
    with stop_after(options.stop_after):
        run_studies(options.studies, Plan(**{name: getattr(options, name) for name in names}, **lists))


def _verdict(options: argparse.Namespace) -> None:
    from bench.ten_minutes.judging import judge_models
    from bench.ten_minutes.tasks import with_folders
    from bertsmith.studies.ablations import candidates

    models = candidates(with_folders(options.names, options.output))
    asked = {"rows": options.judge_rows, "length": options.judge_length, "split": options.split}
    print(judge_models(models, options.data, device=options.device, **asked))


def _table(options: argparse.Namespace) -> None:
    from bench.ten_minutes.table import table

    print(table(options.folders, options.output or options.folders[-1], options.only)["text"])


def _judging(options: argparse.Namespace) -> Any:
    from bench.ten_minutes.pretraining import Judging, with_defaults

    chosen = Judging(every=options.every, rows=options.judge_rows, length=options.judge_length, data=options.judge_data)
    return with_defaults(chosen, options.minutes)


def _short(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what is long."""
    left_out = ("curve", "settings", "fingerprints", "final", "judge")
    return {key: value for key, value in result.items() if key not in left_out} | result["final"]


def _show(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<20} {value}")
