"""BERT, RoBERTa, ALBERT and ELECTRA on the same text for the same minutes, then fine-tuned alike: one table.

    python bench/family_study.py pretrain bert roberta albert electra --data SHARDS -o OUT --minutes 5
    python bench/family_study.py tasks -o OUT -t glue/sst-2 -t glue/sts-b --data TASKS --rates 1e-4,3e-4 --seeds 3
    python bench/family_study.py table -o OUT

Every stage goes on where it was stopped when the same command is given again, and does nothing twice: a call may be
cut short, `timeout -s TERM 570 python …`, and `pretrain` and `tasks` may name one member or one task at a time. Minutes
are those of learning, over all calls; compiling is not counted. Several calls that name the same file with `--turn`
(`python -m bench.family_study pretrain bert --turn FILE …`) compile at the same time and learn one after the other.
`bert+fresh` among the names of `tasks` begins with random weights in that shape.

All four have 4 layers of 512 (ALBERT's are one layer, ALBERT's and ELECTRA's tables have a width of 128, ELECTRA's
generator is a quarter as wide) and read the same shards in rows of 128, 512 rows a step, each in its own packing and
with its own objectives. So the tokenizer is one for all: byte-level and SentencePiece vocabularies are not part of the
comparison. Nor are batches of thousands of rows: all learn by AdamW, RoBERTa with betas of its own, at a rate that
falls straight to zero. `--set` changes that for all, or with `NAME:` before it for one. Last models are fine-tuned.

Losses of words do not compare across members: ALBERT hides n-grams, ELECTRA's words are its generator's.
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
from bertsmith.studies.ablations import BILSTM, CELL, FRESH, NO_MODEL, TABLE, ablate, candidates, trials
from bertsmith.studies.published import METRICS as MEASURES
from bertsmith.system.durable import read_checksummed_json
from bertsmith.training.recipe import Recipe, with_overrides

# The recipe that each begins with, and what makes it as large as the others.
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
SCORES = "tasks"  # folder of the fine-tunings
ABSENT = "–"


def main(words: Sequence[str] | None = None) -> int:
    """Does what the words ask; the exit status."""
    options = _parser().parse_args(words)
    try:
        options.stage(options)
    except BertsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(required=True, metavar="STAGE")
    one = stages.add_parser("pretrain", help="members, one after the other")
    one.set_defaults(stage=pretrain_members)
    one.add_argument("names", nargs="+", choices=list(MEMBERS), metavar="NAME")
    one.add_argument("--data", required=True, metavar="SHARDS")
    one.add_argument("--minutes", type=float, default=5.0, help="of learning, each")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--set", action="append", default=[], metavar="[NAME:]SETTING=VALUE")
    one.add_argument("--turn", type=Path, metavar="FILE", help="learn when no other call does that names it")
    _add_common(one)
    one = stages.add_parser("tasks", help="fine-tune members whose pre-training is finished")
    one.set_defaults(stage=tune_members)
    one.add_argument("names", nargs="*", metavar="NAME", help="all four if none; NAME+fresh: without what it learned")
    one.add_argument("-t", "--task", action="append", required=True, metavar="TASK")
    one.add_argument("--data", action="append", required=True, metavar="[TASK=]DIR")
    one.add_argument("--set", action="append", default=[], metavar="[TASK:]SETTING=VALUE")
    one.add_argument("--rates", default="", metavar="A,B,...", help="the best on dev counts")
    one.add_argument("--seeds", type=int, default=3)
    one.add_argument("--jobs", type=int, default=1, help="fine-tunings at a time")
    _add_common(one)
    one = stages.add_parser("table", help="what there is so far, as Markdown")
    one.set_defaults(stage=lambda options: print(table(options.output)))
    _add_output(one)
    return parser


def _add_common(one: argparse.ArgumentParser) -> None:
    _add_output(one)
    one.add_argument("--device", default="auto")
    one.add_argument("--quiet", action="store_true")


def _add_output(one: argparse.ArgumentParser) -> None:
    one.add_argument("-o", "--output", type=Path, required=True, help="folder of the study")


def recipe_of(name: str, *, minutes: float, seed: int, changes: Sequence[str]) -> Recipe:
    """What a member is trained by; of the changes those for all and its own."""
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
    """Trains each that is not finished."""
    import torch

    from bertsmith.training.pretrain import pretrain
    from bertsmith.training.pretrain_data import PretrainData

    data = PretrainData.open(options.data)
    for name in options.names:
        recipe = recipe_of(name, minutes=options.minutes, seed=options.seed, changes=options.set)
        if is_finished(options.output / name, data.with_vocabulary(recipe)):
            print(f"{name} is finished", flush=True)
            continue
        torch.compiler.reset()  # graphs of the member before would only be in the way
        with patient(options.turn) as made:
            how: dict[str, Any] = {"device": options.device, "quiet": options.quiet, "make": made}
            found = pretrain(recipe, options.data, options.output / name, **how)
        print(f"{name}: {found['steps']:,} steps, {found['tokens']:,} tokens, {found['seconds']:.1f} s", flush=True)


@contextmanager
def patient(file: Path | None) -> Iterator[Callable[..., Any]]:
    """What makes trainers that wait for the lock on the file after their first compiled step, before minutes begin."""
    from bertsmith.training.trainer import Trainer

    if file is None:
        yield Trainer
        return
    from bench.ten_minutes.clock import Turn

    with closing(Turn(file)) as turn:

        class Patient(Trainer):
            def _warm_up(self) -> None:
                if self.forward_backward.compiles and not self._warm:
                    turn.take(lambda: self.stop_signal.requested)
                super()._warm_up()

        yield Patient


def tune_members(options: argparse.Namespace) -> None:
    """Fine-tunes what is not fine-tuned yet."""
    from bertsmith.training.sweep import parse_learning_rates

    words: dict[str, None] = {}  # each once, in order
    for name in options.names or list(MEMBERS):
        plain = name.replace(FRESH, "").replace(BILSTM, "")
        if plain not in MEMBERS:
            raise ConfigError(f"{name} is not a member: {', '.join(MEMBERS)}")
        folder = options.output / plain
        if not (folder / RECIPE).exists() or read_run(folder).state != FINISHED:
            raise ConfigError(f"{plain} is not finished: family_study.py pretrain {plain} resumes it")
        words[f"{plain}={folder / LAST}"] = None  # a name with a mark needs the one without before it
        words |= {name: None} if name != plain else {}
    ablate(
        candidates(list(words)),
        trials(options.task, options.data, options.set),
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
    # what `ablate` tells of a task
    measures = {folder: MEASURES.get(found["task"], found["main"]) for folder, found in tasks.items()}
    heads = ["", "parameters", "encoder", "tokens", "tokens/s", "useful PFLOP", "held-out loss (right)"]
    heads += [f"{found['task']}, {measures[folder]}" for folder, found in tasks.items()]
    rows = []
    for name in names:
        facts = _facts(runs[name]) if name in runs else [ABSENT] * 6
        scores = [_score(cells.get((name, task)), measure) for task, measure in measures.items()]
        rows.append([name, *facts, *scores])
    if measures:
        said = _without_text(output / SCORES / TABLE)
        rows.append(["no text", *[ABSENT] * 6, *(said.get(task, ABSENT) for task in measures)])
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    footing = [f"- {name}: {_footing(run)}" for name, run in runs.items()]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", *footing])


def _facts(run: RunHistory) -> list[str]:
    """Weights that were trained and those of the encoder, in millions; what was read, how fast, and what came of it."""
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
    """Of the part that is fine-tuned: without heads and without a generator."""
    import torch

    with torch.device("meta"):
        encoder = config.read_file(Recipe, run.folder / RECIPE).encoder.build()
    return sum(weight.numel() for weight in encoder.parameters())


def _losses(run: RunHistory) -> list[str]:
    """The last of each part, and the share that was right where something can be."""
    found = []
    for key, curve in run.held_out.items():
        if key.startswith("loss/"):
            part = key.removeprefix("loss/")
            right = run.held_out.get(f"accuracy/{part}")
            found.append(f"{part} {curve.last:.3f}" + (f" ({right.last:.1%})" if right is not None else ""))
    return found


def _score(cell: Mapping[str, Any] | None, measure: str) -> str:
    """Over the seeds, of the rate that is best on dev; nothing where the seeds are not through."""
    if cell is None:
        return ABSENT
    best = max(cell["result"]["learning_rates"], key=lambda row: row["mean"])["learning_rate"]
    found = [run["scores"][measure] for run in cell["result"]["runs"] if run["learning_rate"] == best]
    return mean_and_deviation(asdict(summarize_seeds(found)))


def _without_text(path: Path) -> dict[str, str]:
    """By folder of a task, the score of the best answer that looks at no text; of the last call's tasks."""
    if not path.exists():
        return {}
    nothing = next(row for row in read_checksummed_json(path)["rows"] if row["name"] == NO_MODEL)
    return {task.replace("/", "-"): mean_and_deviation(cell["score"]) for task, cell in nothing["cells"].items()}


def _footing(run: RunHistory) -> str:
    """How far it is, and on what it stood."""
    minutes, seconds = run.recipe["minutes"], float(run.finish.get("seconds", run.seconds))
    device, padding = run.facts.get("device", "?"), run.facts.get("padding")
    spaces = f", {padding:.1%} padding" if padding is not None else ""
    spent = f"{seconds / 60:.2f} of {minutes:g} minutes, {run.steps:,} steps"
    return f"{run.recipe_name}, {run.state}, {spent}, {device}{spaces}"


if __name__ == "__main__":
    sys.exit(main())
