"""Word vectors, TagLM, ELMo and BERT on CoNLL-2003, pre-trained on the same text for the same minutes: one table.

    PYTHONPATH=src python bench/conll_table.py prepare TEXT... -o OUT --vocabulary 50000
    PYTHONPATH=src python bench/conll_table.py pretrain -o OUT --minutes 2
    PYTHONPATH=src python bench/conll_table.py tasks -o OUT --data CONLL --seeds 3 --jobs 12
    PYTHONPATH=src python bench/conll_table.py studies -o OUT --data CONLL --seeds 3 --jobs 12
    PYTHONPATH=src python bench/conll_table.py table -o OUT

The same command resumes an interrupted stage and skips finished work; `--stop-after 540` saves and ends a call in time,
with exit status 75. Minutes count training only, over all calls, without compilation. `--size tiny` is for a CPU: every
stage must get the same size. `--set [NAME:]SETTING=VALUE` overrides settings of all models or rows, or of one; the
words of `pretrain` are models, those of `tasks` rows or their tasks, those of `studies` tables or their tasks.

Rows: the same tagger, two bidirectional LSTM layers over trained word vectors and a character CNN, with random vectors
(`none`) or pre-trained ones (`vectors`); with the states of a forward and a backward language model after layer 1
(`taglm`), or the mix of the layers of an ELMo at its input (`elmo`), beside the pre-trained vectors; and a fine-tuned
BERT (`bert`). Word vectors, ELMo and BERT train for the minutes, each of TagLM's two models for half of them. Entities
are tagged in IOBES with a CRF, but by BERT with a softmax in IOB2, as in the papers; parts of speech with a softmax.

`studies` trains the same tagger for the five tables of `bertsmith lm-features` (`position` with TagLM's two language
models, `models` with these and the ELMo, `layers`, `mix` and `injection` with the ELMo), and `labels`: entity F1 of the
rows `vectors`, `taglm` and `elmo`, and of random word vectors, against the number of labelled sentences, by
`bertsmith sample-efficiency`, which trains its runs one after the other.

All words are cased. BERT has a WordPiece vocabulary of the same size, the others words.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.reports.run_history import FINISHED, RECIPE, is_finished, read_run
from bertsmith.reports.terminal_runs import mean_and_deviation
from bertsmith.system.durable import Disk, checksummed_json, read_checksummed_json
from bertsmith.training.clock import stop_after

MODELS, SHARDS, TASKS, TEST = "models", "shards", "tasks", "test.json"
# the part of the minutes that a model trains for, and its recipe by size
PRETRAINED: dict[str, tuple[float, str, tuple[str, ...]]] = {
    "vectors": (1.0, "word_vectors/{}", ()),
    "forward": (0.5, "awd_lstm/{}", ()),
    "backward": (0.5, "awd_lstm/{}", ("encoder.backward=true",)),
    "elmo": (1.0, "elmo/{}", ()),
    "bert": (1.0, "bert/{}", ()),
}
SIZES: dict[str, dict[str, tuple[str, ...]]] = {
    "quick": {"tagger": ("encoder.hidden=200", "epochs=5"), "bert": ("learning_rate=2e-4", "epochs=5")},
    "tiny": {
        "tagger": ("encoder.hidden=64", "encoder.dropout=0.2", "epochs=8", "batch_size=16", "learning_rate=5e-3"),
        "bert": ("epochs=8", "batch_size=16", "learning_rate=5e-4"),
    },
}
# of `--size tiny`, where it differs from the recipes: fewer steps of more learning
TINY: dict[str, tuple[str, ...]] = {
    "vectors": ("steps=2000",),
    "bert": (
        *("max_length=128", "batch_size=32", "learning_rate=1e-3", "warmup=0.05", "schedule.kind=linear"),
        *("objectives.masked_lm.mask_probability=0.15", "optimizer.kind=adamw"),
    ),
}
TAGGER = (
    *("encoder.kind=taglm", "encoder.cell=lstm", "encoder.characters=cnn", "encoder.character_hidden=50"),
    *("encoder.dropout=0.5", "schedule.kind=linear", "patience=0", "warmup=0.1"),
)
CONLL = {"ner": "conll/conll2003", "pos": "conll/conll2003-pos"}
CRF = ("head.crf=true", "task.label_scheme=IOBES")
NAMES = ("none", "vectors", "taglm", "elmo", "bert")
# the tables of `lm-features`: their frozen models, and settings beside those of the tagger
FEATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "position": (("forward", "backward"), ()),
    "models": (("forward", "backward", "elmo"), ()),
    "layers": (("elmo",), ("encoder.features_at=[0]",)),
    "mix": (("elmo",), ("encoder.features_at=[0]",)),
    "injection": (("elmo",), ("encoder.feature_layers=mix", "encoder.mix_l2=0.1")),
}
STUDIES, LABELS, LABELLED = "studies", "labels", ("vectors", "taglm", "elmo")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        with stop_after(options.stop_after):
            options.stage(options)
    except BertsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(required=True, metavar="STAGE")

    def stage(name: str, run: Callable[[argparse.Namespace], None], about: str) -> argparse.ArgumentParser:
        made = stages.add_parser(name, help=about)
        made.set_defaults(stage=run)
        made.add_argument("-o", "--output", type=Path, required=True, help="folder of the study")
        made.add_argument("--size", choices=list(SIZES), default="quick")
        made.add_argument("--set", action="append", default=[], metavar="[NAME:]SETTING=VALUE")
        made.add_argument("--device", default="auto")
        made.add_argument("--stop-after", type=float, default=0.0, metavar="SECONDS", help="0: never")
        return made

    def tuning(name: str, run: Callable[[argparse.Namespace], None], about: str) -> argparse.ArgumentParser:
        made = stage(name, run, about)
        made.add_argument("--data", type=Path, required=True, metavar="CONLL")
        made.add_argument("--seeds", type=int, default=3)
        made.add_argument("--jobs", type=int, default=1, help="runs in parallel")
        made.add_argument("--task", choices=list(CONLL), action="append", help="default: both")
        return made

    made = stage("prepare", prepare, "train both tokenizers and write the shards")
    made.add_argument("text", nargs="+", type=Path)
    made.add_argument("--vocabulary", type=int, default=50_000)
    made = stage("pretrain", pretrain, "pre-train the models, one after the other")
    made.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(PRETRAINED)}")
    made.add_argument("--minutes", type=float, default=2.0)
    made = tuning("tasks", tasks, "fine-tune and score on dev and test")
    made.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(NAMES)}")
    made = tuning("studies", studies, "tables of lm-features, and a curve of sample efficiency")
    made.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join([*FEATURES, LABELS])}")
    made.add_argument("--sizes", default="1%,10%,100%", help="of the curve")
    made.add_argument("--min-steps", type=int, default=200, help="of its runs")
    stage("table", lambda options: print(table(options.output)), "results so far, as Markdown")
    return parser


def prepare(options: argparse.Namespace) -> None:
    """The shards of words and of pieces."""
    import bertsmith as bs

    kinds: tuple[tuple[str, Any], ...] = (("words", "words"), ("pieces", "wordpiece"))
    for name, kind in kinds:
        shards = options.output / SHARDS / name
        if shards.exists():
            print(f"{shards} is there already", flush=True)
            continue
        texts, tokenizer = [str(path) for path in options.text], options.output / f"tokenizer-{name}"
        how: dict[str, Any] = {"vocab_size": options.vocabulary, "kind": kind, "cased": True, "quiet": True}
        bs.train_tokenizer(texts, tokenizer, **how, overwrite=True)
        made = bs.prepare(texts, shards, tokenizer=tokenizer, quiet=True)
        print(f"{name}: {made.tokens:,} tokens, {made.unknown_word_rate:.1%} unknown words", flush=True)


def chosen(given: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names of the command line, or all."""
    if wrong := [name for name in given if name not in known]:
        raise ConfigError(f"{wrong[0]} is not one of {', '.join(known)}")
    return list(given) or list(known)


def own(changes: Sequence[str], *names: str) -> list[str]:
    """The overrides of `--set` that apply to these names."""
    found = []
    for change in changes:
        name, colon, rest = change.partition(":")
        named = bool(colon) and "=" not in name
        found += [rest] if named and name in names else [] if named else [change]
    return found


def pretrain(options: argparse.Namespace) -> None:
    """Trains the models that are not finished."""
    import torch

    from bertsmith import recipes
    from bertsmith.training.pretrain import pretrain as train
    from bertsmith.training.pretrain_data import PretrainData
    from bertsmith.training.recipe import with_overrides

    for name in chosen(options.names, list(PRETRAINED)):
        share, recipe, settings = PRETRAINED[name]
        settings = (*settings, *(TINY.get(name, ()) if options.size == "tiny" else ()))
        clock = [f"minutes={share * options.minutes}", "eval_every=0"]
        made = with_overrides(recipes.find(recipe.format(options.size)), [*settings, *clock, *own(options.set, name)])
        shards = options.output / SHARDS / ("pieces" if name == "bert" else "words")
        folder = options.output / MODELS / name
        if is_finished(folder, PretrainData.open(shards).with_vocabulary(made)):
            print(f"{name} is finished", flush=True)
            continue
        torch.compiler.reset()
        result = train(made, shards, folder, device=options.device, quiet=True)
        print(f"{name}: {result['steps']:,} steps, {result['tokens']:,} tokens, {result['seconds']:.1f} s", flush=True)


def settings_of(row: str, task: str, options: argparse.Namespace) -> Any:
    """The fine-tuning settings of a row on a task."""
    from bertsmith.training.recipe import make_finetune_config

    if row == "bert":
        changes, model = [*SIZES[options.size]["bert"], *own(options.set, row, task)], "bert"
    else:
        changes, model = [*tagger(task, options), *features_of(row, options)], "vectors"
        changes += [*(["random_init=true"] if row == "none" else []), *own(options.set, row, task, "tagger")]
    folder = finished(options.output / MODELS / model)
    return make_finetune_config(CONLL[task], folder, {"data": options.data}, changes)


def tagger(task: str, options: argparse.Namespace) -> list[str]:
    """The settings of the tagger without features."""
    return [*TAGGER, *SIZES[options.size]["tagger"], *(CRF if task == "ner" else ())]


def features_of(row: str, options: argparse.Namespace) -> list[str]:
    """The frozen models of a row, and where the tagger reads them."""
    folders = [
        f'"{finished(options.output / MODELS / name)}"' for name in needed(row) if name not in ("vectors", "bert")
    ]
    if row == "taglm":
        where = ["encoder.features_at=[1]"]
    elif row == "elmo":
        where = ["encoder.features_at=[0]", "encoder.feature_layers=mix", "encoder.mix_l2=0.1"]
    else:
        return []
    return [f"encoder.features=[{', '.join(folders)}]", *where]


def needed(row: str) -> tuple[str, ...]:
    """The pre-trained models of a row."""
    features = {"taglm": ("forward", "backward"), "elmo": ("elmo",)}
    return ("bert",) if row == "bert" else ("vectors", *features.get(row, ()))


def finished(folder: Path) -> Path:
    """The last model of a finished run."""
    if not (folder / RECIPE).exists() or read_run(folder).state != FINISHED:
        raise ConfigError(f"{folder} is not finished: conll_table.py pretrain {folder.name} resumes it")
    return folder / "last"


def tasks(options: argparse.Namespace) -> None:
    """Fine-tunes with every seed, and scores the best models on test."""
    import bertsmith as bs
    from bertsmith.system.workers import RUN_TIMEOUT, ordered_map
    from bertsmith.training.sweep import BEST, SweepRun, remove_run_files, run_parallel, sweep_runs

    todo: list[SweepRun] = []
    for row, task in product(chosen(options.names, NAMES), options.task or CONLL):
        settings, folder = settings_of(row, task, options), options.output / TASKS / row / task
        rates = [settings.learning_rate]
        runs = sweep_runs(settings, folder, learning_rates=rates, seeds=options.seeds, device=options.device, lean=True)
        todo += [run for run in runs if not ((run.folder / TEST).exists() and is_finished(run.folder, run.config))]
    with closing(run_parallel(todo, jobs=options.jobs)) as done:
        for run, _ in zip(todo, done, strict=True):
            print(f"{run.folder.relative_to(options.output)} is trained", flush=True)
    folders = [run.folder / BEST for run in todo]
    score = partial(bs.evaluate, split="test", device=options.device)
    with closing(ordered_map(score, folders, workers=options.jobs, timeout=RUN_TIMEOUT)) as results:
        for run, result in zip(todo, results, strict=True):
            value = {"metric": result.main_metric, "score": result.scores[result.main_metric]}
            Disk().write_file(run.folder / TEST, [checksummed_json(value)])
            remove_run_files(run.folder, BEST)
    print(table(options.output))


def studies(options: argparse.Namespace) -> None:
    """Trains the tables of `lm-features` and the curve of sample efficiency that are not finished."""
    from bertsmith.studies.lm_features import TableName, lm_features
    from bertsmith.studies.task_setup import TaskSetup

    words, how = finished(options.output / MODELS / "vectors"), {"seeds": options.seeds, "device": options.device}
    how |= {"quiet": True, "report": partial(print, flush=True)}
    for name in chosen(options.names, [*FEATURES, LABELS]):
        if name == LABELS:
            _labels(words, options, how)
            continue
        models, where = FEATURES[name]
        features = [f"{model}={finished(options.output / MODELS / model)}" for model in models]
        setups = [
            TaskSetup(
                CONLL[task],
                {"data": options.data},
                (*tagger(task, options), *where, *own(options.set, name, task, "tagger")),
            )
            for task in options.task or CONLL
        ]
        kind, output = cast(TableName, name), options.output / STUDIES
        lm_features(words, features, setups, output, table=kind, jobs=options.jobs, **how)
    print("\n".join(_studies(options.output)))


def _labels(words: Path, options: argparse.Namespace, how: dict[str, Any]) -> None:
    """Entity F1 against the number of labelled sentences."""
    from bertsmith.studies.sample_efficiency import FROM_SCRATCH, sample_efficiency
    from bertsmith.studies.subset_sizes import parse_sizes

    own_changes = own(options.set, LABELS, "ner", "tagger")
    changes = [
        f"{row}:{change}"
        for row in (*LABELLED, FROM_SCRATCH)
        for change in (*tagger("ner", options), *features_of(row, options), *own_changes)
    ]
    files, sizes = {"data": options.data}, parse_sizes(options.sizes)
    how = {**how, "sizes": sizes, "min_steps": options.min_steps, "changes": changes, "from_scratch": True}
    sample_efficiency(dict.fromkeys(LABELLED, words), CONLL["ner"], files, options.output / STUDIES / LABELS, **how)


def _studies(output: Path) -> Iterator[str]:
    """The studies so far, as Markdown."""
    from bertsmith.studies.lm_features import RESULT
    from bertsmith.studies.lm_features_report import TITLES, caption, score_table
    from bertsmith.studies.sample_efficiency import MARKDOWN

    for name in FEATURES:
        path = output / STUDIES / name / RESULT
        if path.exists():
            result = read_checksummed_json(path)
            yield from ("", f"# {TITLES[name]}", "", f"{caption(result)}.", "", score_table(result).markdown())
    curve = output / STUDIES / LABELS / MARKDOWN
    if curve.exists():
        yield from ("", curve.read_text(encoding="utf-8"))


def table(output: Path) -> str:
    """Mean and standard deviation over the seeds in percent, dev and test, and what the models have read."""
    heads = [
        "",
        *(f"{name}, {split}" for name in ("entities, F1", "parts of speech, accuracy") for split in ("dev", "test")),
    ]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for row in NAMES:
        cells = [cell for task in CONLL for cell in _cells(output / TASKS / row / task)]
        lines.append([row, *cells])
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*rows, "", *_footnotes(output), *_studies(output)])


def _cells(folder: Path) -> Iterator[str]:
    """The scores on dev and on test of the runs that are finished."""
    from bertsmith.training.sweep import best_scores

    tests = [read_checksummed_json(path) for path in sorted(folder.glob(f"*/{TEST}"))]
    runs = [read_run(path.parent) for path in sorted(folder.glob(f"*/{TEST}"))]
    dev = [best_scores(run, test["metric"])[test["metric"]] for run, test in zip(runs, tests, strict=True)]
    for scores in (dev, [test["score"] for test in tests]):
        yield f"{mean_and_deviation(asdict(summarize_seeds(scores)))} ({len(scores)})" if scores else "–"


def _footnotes(output: Path) -> Iterator[str]:
    for name in PRETRAINED:
        if (output / MODELS / name / RECIPE).exists():
            run = read_run(output / MODELS / name)
            seconds, device = float(run.finish.get("seconds", run.seconds)), run.facts.get("device", "?")
            losses = [
                f"{key.removeprefix('loss/')} {curve.last:.3f}" for key, curve in run.held_out.items() if "loss/" in key
            ]
            parameters = run.facts.get("parameters", 0)
            size = f"{parameters / 1e6:.1f} M parameters, {run.steps:,} steps, {run.tokens / 1e6:,.2f} M tokens"
            spent = f"{run.recipe_name}, {run.state}, {seconds / 60:.2f} minutes"
            yield f"- {name}: {spent}, {size}, {', '.join(losses)}, {device}"


if __name__ == "__main__":
    sys.exit(main())
