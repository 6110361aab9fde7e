"""BERT, RoBERTa, ALBERT and ELECTRA on the same text for the same minutes, then fine-tuned alike: one table.

    python bench/family_study.py pretrain bert roberta albert electra --data SHARDS -o OUT --minutes 5
    python bench/family_study.py tasks -o OUT -t glue/sst-2 -t glue/sts-b --data TASKS --rates 1e-4,3e-4 --seeds 3
    python bench/family_study.py table -o OUT

The same command resumes an interrupted stage and skips finished work: a call may be limited in time
(`timeout -s TERM 570 python …`), and `pretrain` and `tasks` may name one member or one task at a time. Minutes count
training only, over all calls, without compilation. Several calls with the same `--lock FILE`
(`python -m bench.family_study pretrain bert --lock FILE …`) compile concurrently and train one at a time. `bert+fresh`
among the names of `tasks` starts from random weights of that shape.

All four have 4 layers of width 512 (ALBERT shares one layer; the embeddings of ALBERT and ELECTRA have width 128;
ELECTRA's generator is a quarter as wide). They train on the same shards with sequences of 128 and a batch size of 512,
each with its own packing and objectives. All share one tokenizer, so byte-level and SentencePiece vocabularies are not
compared, and neither are batch sizes in the thousands: all use AdamW (RoBERTa with its own betas) and a learning rate
that decays linearly to zero. `--set` overrides settings of all, or of one with a `NAME:` prefix. Last models are
fine-tuned.

Word losses are not comparable across members: ALBERT masks n-grams, ELECTRA's word loss is its generator's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertsmith import config
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.reports.run_history import FINISHED, LAST, RECIPE, RunHistory, is_finished, read_run
from bertsmith.reports.terminal_runs import mean_and_deviation
from bertsmith.studies.ablations import BILSTM, CELL, FRESH, NO_MODEL, TABLE, ablate, candidates
from bertsmith.studies.published import METRICS as MEASURES
from bertsmith.studies.task_setup import task_setups
from bertsmith.system.durable import read_checksummed_json
from bertsmith.training.recipe import Recipe, with_overrides

# The recipe of each member and the overrides that give it the common size.
MEMBERS = {
    "bert": ("bert/small", ()),
    "roberta": ("roberta/small", ()),
    "albert": ("albert/small", ()),
    "electra": ("electra/mini", ("encoder.width=512", "encoder.heads=8")),
}
SHARED = (
    "max_length=128",
    "batch_size=512",
    "micro_batch_size=0",
    "optimizer.kind=adamw",
    "learning_rate=1e-3",
    "schedule.kind=linear",
    "warmup=0.05",
    "encoder.dropout=0",
    "encoder.attention_dropout=0",
    "compute.max_grad_norm=1.0",
    "eval_every=0",
    "eval_rows=2048",
    "save_every=2000",
)
SCORES = "tasks"  # folder of the fine-tuning runs
ABSENT = "–"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        options.stage(options)
    except BertsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(required=True, metavar="STAGE")
    stage = stages.add_parser("pretrain", help="pre-train members in sequence")
    stage.set_defaults(stage=pretrain_members)
    stage.add_argument("names", nargs="+", choices=list(MEMBERS), metavar="NAME")
    stage.add_argument("--data", required=True, metavar="SHARDS")
    stage.add_argument("--minutes", type=float, default=5.0, help="of training, each")
    stage.add_argument("--seed", type=int, default=0)
    stage.add_argument("--set", action="append", default=[], metavar="[NAME:]SETTING=VALUE")
    stage.add_argument("--lock", type=Path, metavar="FILE", help="calls with the same lock file train one at a time")
    _add_common(stage)
    stage = stages.add_parser("tasks", help="fine-tune members whose pre-training is finished")
    stage.set_defaults(stage=tune_members)
    stage.add_argument("names", nargs="*", metavar="NAME", help="default: all four; NAME+fresh: random weights")
    stage.add_argument("-t", "--task", action="append", required=True, metavar="TASK")
    stage.add_argument("--data", action="append", required=True, metavar="[TASK=]DIR")
    stage.add_argument("--set", action="append", default=[], metavar="[TASK:]SETTING=VALUE")
    stage.add_argument("--rates", default="", metavar="A,B,...", help="learning rates; the best on dev counts")
    stage.add_argument("--seeds", type=int, default=3)
    stage.add_argument("--jobs", type=int, default=1, help="concurrent fine-tuning runs")
    _add_common(stage)
    stage = stages.add_parser("table", help="results so far, as Markdown")
    stage.set_defaults(stage=lambda options: print(table(options.output)))
    _add_output(stage)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    _add_output(parser)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quiet", action="store_true")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the study")


def recipe_of(name: str, *, minutes: float, seed: int, changes: Sequence[str]) -> Recipe:
    """The recipe of a member with the common and its own overrides."""
    from bertsmith import recipes

    known, own = MEMBERS[name]
    chosen = []
    for change in changes:
        member, colon, rest = change.partition(":")
        named = bool(colon) and "=" not in member
        if named and member not in MEMBERS:
            raise ConfigError(f"--set {change}: {member} is not a member: {', '.join(MEMBERS)}")
        chosen += [rest] if named and member == name else [] if named else [change]
    clock = [f"minutes={minutes}", f"seed={seed}"]
    return with_overrides(recipes.find(known), [*SHARED, *own, *clock, *chosen])


def pretrain_members(options: argparse.Namespace) -> None:
    """Trains the unfinished members."""
    import torch

    from bertsmith.training.pretrain import pretrain
    from bertsmith.training.pretrain_data import PretrainData

    data = PretrainData.open(options.data)
    for name in options.names:
        recipe = recipe_of(name, minutes=options.minutes, seed=options.seed, changes=options.set)
        if is_finished(options.output / name, data.with_vocabulary(recipe)):
            print(f"{name} is finished", flush=True)
            continue
        torch.compiler.reset()  # drop the compiled graphs of the previous member
        with locking_trainer(options.lock) as trainer_class:
            kwargs: dict[str, Any] = {"device": options.device, "quiet": options.quiet, "make": trainer_class}
            result = pretrain(recipe, options.data, options.output / name, **kwargs)
        print(f"{name}: {result['steps']:,} steps, {result['tokens']:,} tokens, {result['seconds']:.1f} s", flush=True)


@contextmanager
def locking_trainer(file: Path | None) -> Iterator[Callable[..., Any]]:
    """A trainer class that waits for the lock after its first compiled step, before its clock starts."""
    from bertsmith.training.trainer import Trainer

    if file is None:
        yield Trainer
        return
    from bertsmith.training.clock import TrainingLock

    with closing(TrainingLock(file)) as lock:

        class LockingTrainer(Trainer):
            def _warm_up(self) -> None:
                if self.builds_kernels and not self._warm:
                    lock.acquire(lambda: self.stop_signal.requested)
                super()._warm_up()

        yield LockingTrainer


def tune_members(options: argparse.Namespace) -> None:
    """Fine-tunes members on the tasks that have no scores yet."""
    from bertsmith.training.sweep import parse_learning_rates

    models: dict[str, None] = {}  # an ordered set
    for name in options.names or list(MEMBERS):
        plain = name.replace(FRESH, "").replace(BILSTM, "")
        if plain not in MEMBERS:
            raise ConfigError(f"{name} is not a member: {', '.join(MEMBERS)}")
        folder = options.output / plain
        if not (folder / RECIPE).exists() or read_run(folder).state != FINISHED:
            raise ConfigError(f"{plain} is not finished: family_study.py pretrain {plain} resumes it")
        models[f"{plain}={folder / LAST}"] = None  # NAME+fresh needs NAME before it
        models |= {name: None} if name != plain else {}
    ablate(
        candidates(list(models)),
        task_setups(options.task, options.data, options.set),
        options.output / SCORES,
        learning_rates=parse_learning_rates(options.rates),
        seeds=options.seeds,
        jobs=options.jobs,
        device=options.device,
        quiet=options.quiet,
        report=lambda text: None if options.quiet else print(text, flush=True),
    )


def table(output: Path) -> str:
    """Cost and scores of every member, finished or not."""
    runs = {name: read_run(output / name) for name in MEMBERS if (output / name / RECIPE).exists()}
    cells = {
        (path.parts[-3], path.parts[-2]): read_checksummed_json(path) for path in (output / SCORES).glob(f"*/*/{CELL}")
    }
    names = list(dict.fromkeys([*runs, *sorted(name for name, _ in cells)]))
    tasks = {folder: cell["result"] for (_, folder), cell in sorted(cells.items())}
    # the metric that `ablate` reports for a task
    measures = {folder: MEASURES.get(results["task"], results["main"]) for folder, results in tasks.items()}
    heads = ["", "parameters", "encoder", "tokens", "tokens/s", "useful PFLOP", "held-out loss (right)"]
    heads += [f"{results['task']}, {measures[folder]}" for folder, results in tasks.items()]
    rows = []
    for name in names:
        facts = _facts(runs[name]) if name in runs else [ABSENT] * 6
        scores = [_score(cells.get((name, task)), measure) for task, measure in measures.items()]
        rows.append([name, *facts, *scores])
    if measures:
        constant_scores = _constant_scores(output / SCORES / TABLE)
        rows.append(["no text", *[ABSENT] * 6, *(constant_scores.get(task, ABSENT) for task in measures)])
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    footnotes = [f"- {name}: {_footnote(run)}" for name, run in runs.items()]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", *footnotes])


def _facts(run: RunHistory) -> list[str]:
    """Parameters in training and in the encoder, tokens, throughput, FLOPs and held-out losses."""
    seconds, facts = float(run.finish.get("seconds", run.seconds)), run.facts
    return [
        f"{facts['parameters'] / 1e6:.2f} M" if "parameters" in facts else ABSENT,
        f"{_encoder_weights(run) / 1e6:.2f} M",
        f"{run.tokens / 1e6:,.2f} M",
        f"{run.tokens / seconds / 1e3:,.1f} k" if seconds else ABSENT,
        f"{facts['flops_per_token'] * run.tokens / 1e15:,.3g}" if "flops_per_token" in facts else ABSENT,
        ", ".join(_losses(run)) or ABSENT,
    ]


def _encoder_weights(run: RunHistory) -> int:
    """Parameters of the encoder, without heads and generator."""
    import torch

    with torch.device("meta"):
        encoder = config.read_file(Recipe, run.folder / RECIPE).encoder.build()
    return sum(weight.numel() for weight in encoder.parameters())


def _losses(run: RunHistory) -> list[str]:
    """The last held-out loss of each objective, with its accuracy if it has one."""
    results = []
    for key, curve in run.held_out.items():
        if key.startswith("loss/"):
            part = key.removeprefix("loss/")
            right = run.held_out.get(f"accuracy/{part}")
            results.append(f"{part} {curve.last:.3f}" + (f" ({right.last:.1%})" if right is not None else ""))
    return results


def _score(cell: Mapping[str, Any] | None, measure: str) -> str:
    """Mean over seeds at the learning rate that is best on dev."""
    if cell is None:
        return ABSENT
    best = max(cell["result"]["learning_rates"], key=lambda row: row["mean"])["learning_rate"]
    results = [run["scores"][measure] for run in cell["result"]["runs"] if run["learning_rate"] == best]
    return mean_and_deviation(asdict(summarize_seeds(results)))


def _constant_scores(path: Path) -> dict[str, str]:
    """Score of the best constant prediction by task folder, for the tasks of the last call."""
    if not path.exists():
        return {}
    row = next(row for row in read_checksummed_json(path)["rows"] if row["name"] == NO_MODEL)
    return {task.replace("/", "-"): mean_and_deviation(cell["score"]) for task, cell in row["cells"].items()}


def _footnote(run: RunHistory) -> str:
    """Progress and device of a run."""
    minutes, seconds = run.recipe["minutes"], float(run.finish.get("seconds", run.seconds))
    device, padding = run.facts.get("device", "?"), run.facts.get("padding")
    spaces = f", {padding:.1%} padding" if padding is not None else ""
    spent = f"{seconds / 60:.2f} of {minutes:g} minutes, {run.steps:,} steps"
    return f"{run.recipe_name}, {run.state}, {spent}, {device}{spaces}"


if __name__ == "__main__":
    sys.exit(main())
