"""Studies, which train many models and print one table: features, ablate, lm-features, sample-efficiency, lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import bertsmith.cli.options as opt

app = typer.Typer()
LAYERS_HELP = "Layer selections: embeddings, second_to_last, top, last_four_sum, last_four_concat, all_sum, mix."
LAYERS_DEFAULT = "all; for BERT and its family all but mix"
MODELS_HELP = (
    "Pre-trained model folders. NAME+bilstm repeats a model with a BiLSTM on top, NAME+fresh repeats it "
    "with random weights, NAME+embeddings with heads that read only its embeddings."
)
START_HELP = "Model folder or run to start from; may be repeated."
CHANGES_HELP = "Settings of fine-tuning, e.g. learning_rate=1e-4; of one model: from-scratch:learning_rate=1e-3."
TABLES_HELP = "Table: position, models, layers, mix (its regularisation) or injection (input, output, both)."
SIZES_HELP = "Training examples: numbers, percentages of all of them (0.1%,1%,10%), or all."
LINEAGE_SET_HELP = "Settings of fine-tuning, for all or for one model or task, e.g. bert:epochs=5; may be repeated."
LINEAGE_MODELS_HELP = "Rows of the table, e.g. word-vectors,elmo,gpt,bert."
PAIRS_HELP = "Parallel text for CoVe: a table with source and target, or two line-aligned files (repeat the option)."
TEXT_HELP = f"{opt.CORPUS_HELP} May be repeated."
ONLY_HELP = "Run only these parts, e.g. text,pretrain/bert,tasks/bert."
SENTENCE_HELP = "For example predictions: a sentence with one *marked* word; may be repeated."
STOP_HELP = "Save and exit after this time, with exit status 75; the same command resumes. 0: no limit."
StudyFolder = Annotated[Path, opt.output("DIR", "Folder of the study; finished runs in it are skipped.")]
TASKS_HELP = "Task, e.g. glue/cola, conll/conll2003, squad/1.1, classification; may be repeated."
Tasks = Annotated[
    list[str], typer.Option("--task", "-t", metavar="TASK", help=TASKS_HELP, autocompletion=opt.complete_task)
]
TaskFolders = Annotated[list[str], opt.option("--data", "Folder of a task, or of all; may be repeated.", "[TASK=]DIR")]
SET_HELP = "Settings of fine-tuning, for all tasks or for one; may be repeated."
TaskSettings = Annotated[list[str] | None, opt.option("--set", SET_HELP, "[TASK:]SETTING=VALUE")]


def sweep_options(learning_rates: str, seeds: int, jobs: int, device: str, quiet: bool) -> dict[str, Any]:
    """The keywords of a study that fine-tunes with several learning rates and seeds."""
    from bertsmith.training.sweep import parse_learning_rates

    options: dict[str, Any] = {"seeds": seeds, "jobs": jobs, "device": device, "quiet": quiet}
    return options | {"learning_rates": parse_learning_rates(learning_rates), "report": opt.reporter(quiet)}


@app.command()
def features(
    model: opt.ModelFolder,
    task: opt.TaskName,
    output: StudyFolder,
    overrides: Annotated[list[str] | None, opt.overrides("epochs=20 head.dropout=0.5 task.context=document")] = None,
    train: opt.TrainFile = None,
    dev: opt.DevFile = None,
    test: opt.TestFile = None,
    data: opt.TaskData = None,
    layers: Annotated[str, typer.Option(metavar="A,B,...", help=LAYERS_HELP, show_default=LAYERS_DEFAULT)] = "",
    seeds: Annotated[int, opt.at_least(1, "Taggers per layer selection, each with a different seed.")] = 5,
    jobs: opt.Jobs = 1,
    precision: Annotated[
        str, typer.Option(help="Precision of the features on disk: float32, or float16 for half the size.")
    ] = "float32",
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Train taggers on features of a frozen model. One BiLSTM per layer selection, as in table 7 of the BERT paper."""
    from bertsmith.reports import terminal_runs
    from bertsmith.studies.features import feature_config
    from bertsmith.studies.features import features as study

    files = opt.given(train=train, dev=dev, test=test, data=data)
    settings = feature_config(task, model, files, overrides or [])
    options: dict[str, Any] = {"seeds": seeds, "jobs": jobs, "precision": precision, "device": device}
    names = [name for name in layers.split(",") if name]
    result = study(settings, output, layers=names, quiet=quiet or as_json, **options)
    opt.print_result(result, as_json, lambda: terminal_runs.features(result))


@app.command()
def ablate(
    models: Annotated[list[str], typer.Argument(metavar="[NAME=]FOLDER...", help=MODELS_HELP)],
    task: Tasks,
    data: TaskFolders,
    output: StudyFolder,
    settings: TaskSettings = None,
    learning_rates: opt.LearningRates = "",
    seeds: opt.Seeds = 1,
    jobs: opt.Jobs = 1,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Compare pre-trained models on several tasks. All are fine-tuned alike, as in table 5 of the BERT paper."""
    from bertsmith.reports import terminal_runs
    from bertsmith.studies.ablations import ablate as study
    from bertsmith.studies.ablations import candidates
    from bertsmith.studies.task_setup import task_setups

    options = sweep_options(learning_rates, seeds, jobs, device, quiet or as_json)
    result = study(candidates(models), task_setups(task, data, settings or []), output, **options)
    opt.print_result(result, as_json, lambda: terminal_runs.ablations(result))


@app.command(name="lm-features")
def lm_features(
    model: Annotated[Path, typer.Argument(metavar="VECTORS", help="Model folder of word vectors.")],
    features: Annotated[
        list[str], typer.Option("--features", metavar="[NAME=]FOLDER", help="Frozen language model; may be repeated.")
    ],
    task: Tasks,
    data: TaskFolders,
    output: StudyFolder,
    table: Annotated[str, typer.Option(metavar="NAME", help=TABLES_HELP)] = "position",
    settings: TaskSettings = None,
    learning_rates: opt.LearningRates = "",
    seeds: opt.Seeds = 1,
    jobs: opt.Jobs = 1,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Compare ways to use frozen language models as features. The tables are those of TagLM and ELMo."""
    from bertsmith.reports import terminal_runs
    from bertsmith.studies.lm_features import lm_features as study
    from bertsmith.studies.task_setup import task_setups

    options = sweep_options(learning_rates, seeds, jobs, device, quiet or as_json) | {"table": table}
    result = study(model, features, task_setups(task, data, settings or []), output, **options)
    opt.print_result(result, as_json, lambda: terminal_runs.ablations(result))


@app.command(name="sample-efficiency")
def sample_efficiency(
    model: Annotated[list[str], typer.Option("--model", "-m", metavar="[NAME=]FOLDER", help=START_HELP)],
    task: opt.TaskName,
    output: StudyFolder,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[[MODEL:]SETTING=VALUE]...", help=CHANGES_HELP)
    ] = None,
    train: opt.TrainFile = None,
    dev: opt.DevFile = None,
    test: opt.TestFile = None,
    data: opt.TaskData = None,
    sizes: Annotated[str, typer.Option(metavar="A,B,...", help=SIZES_HELP)] = "100,200,500,1000,all",
    from_scratch: Annotated[
        bool, opt.option("--from-scratch", "Also train the first model from random weights.")
    ] = False,
    seeds: Annotated[int, opt.at_least(1, "Runs per size, each with a different seed and subset.")] = 3,
    min_steps: Annotated[
        int, opt.at_least(0, "Minimum number of optimizer steps; small subsets get more epochs.")
    ] = 200,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Compare models by the labelled examples they need. Fine-tunes each of them on nested training subsets."""
    from bertsmith.studies import sample_efficiency_report
    from bertsmith.studies.sample_efficiency import named_models
    from bertsmith.studies.sample_efficiency import sample_efficiency as study
    from bertsmith.studies.subset_sizes import parse_sizes

    quiet = quiet or as_json
    files = opt.given(train=train, dev=dev, test=test, data=data)
    options: dict[str, Any] = {"sizes": parse_sizes(sizes), "seeds": seeds, "min_steps": min_steps, "device": device}
    options |= {"from_scratch": from_scratch, "quiet": quiet, "report": opt.reporter(quiet)}
    result = study(named_models(model), task, files, output, changes=overrides or [], **options)
    opt.print_result(result, as_json, lambda: sample_efficiency_report.show(result))


@app.command()
def lineage(
    text: Annotated[list[str], typer.Option("--text", metavar="FILE", help=TEXT_HELP)],
    task: Tasks,
    data: TaskFolders,
    output: StudyFolder,
    minutes: Annotated[float, typer.Option(help="Minutes of pre-training of each model.")] = 10.0,
    size: Annotated[str, typer.Option(help="quick: for one GPU; tiny: for a CPU.")] = "quick",
    models: Annotated[str, typer.Option(metavar="A,B,...", help=LINEAGE_MODELS_HELP, show_default="all")] = "",
    pairs: Annotated[list[str] | None, typer.Option("--pairs", metavar="FILE", help=PAIRS_HELP)] = None,
    vocab_size: Annotated[int, typer.Option(help="Size of each vocabulary; 0: 32,768, or 8,192 with --size tiny.")] = 0,
    held_out: Annotated[float, typer.Option(help="Fraction of documents held out for evaluation.")] = 0.01,
    settings: Annotated[list[str] | None, opt.option("--set", LINEAGE_SET_HELP, "[MODEL|TASK:]SETTING=VALUE")] = None,
    learning_rates: opt.LearningRates = "",
    seeds: Annotated[int, opt.at_least(1, "Fine-tuning runs of each model on each task.")] = 3,
    sentence: Annotated[list[str] | None, typer.Option("--sentence", metavar="TEXT", help=SENTENCE_HELP)] = None,
    only: Annotated[str, typer.Option(metavar="PART,...", help=ONLY_HELP)] = "",
    stop_after: Annotated[float, typer.Option(metavar="SECONDS", help=STOP_HELP)] = 0.0,
    keep: Annotated[bool, opt.option("--keep", "Keep the fine-tuned models.")] = False,
    workers: opt.Workers = None,
    jobs: opt.Jobs = 1,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Compare all models from word vectors to ELECTRA. All get the same text, minutes and tasks."""
    from bertsmith.studies.lineage.settings import LineageConfig, split_changes
    from bertsmith.studies.lineage.study import lineage as study
    from bertsmith.studies.lineage.table import show
    from bertsmith.studies.task_setup import task_setups
    from bertsmith.training.sweep import parse_learning_rates

    of_models, of_tasks = split_changes(settings or [])
    given: dict[str, Any] = {"minutes": minutes, "vocab_size": vocab_size, "held_out": held_out, "seeds": seeds}
    given |= {"pairs": tuple(pairs or ()), "models": opt.comma_separated(models), "keep": keep, "workers": workers}
    given |= {"jobs": jobs, "device": device, "changes": tuple(of_models), "size": size}
    given |= {"learning_rates": tuple(parse_learning_rates(learning_rates))}
    given |= {"sentences": tuple(sentence)} if sentence else {}
    chosen = LineageConfig(text=tuple(text), tasks=tuple(task_setups(task, data, of_tasks)), output=output, **given)
    quiet = quiet or as_json
    how: dict[str, Any] = {"only": opt.comma_separated(only), "stop_seconds": stop_after, "quiet": quiet}
    result = study(chosen, **how, report=opt.reporter(quiet))
    opt.print_result(result, as_json, lambda: show(result))
