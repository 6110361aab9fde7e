"""Commands for a fine-tuned model: evaluate, predict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import bertsmith.cli.options as opt
from bertsmith.data.text_files import looks_like_path
from bertsmith.errors import BertsmithError

app = typer.Typer()
Tuned = Annotated[Path, typer.Argument(metavar="MODEL", help="Fine-tuned model folder, or its run folder.")]
TASK_HELP = "Task, e.g. glue/cola, or a fine-tuning recipe; default: the task of the run."
TaskName = Annotated[
    str, typer.Option("--task", "-t", metavar="TASK", help=TASK_HELP, autocompletion=opt.complete_task)
]
MORE_HELP = "Further models, whose probabilities are averaged with those of MODEL; then settings, e.g. max_length=256."
Words = Annotated[list[str] | None, typer.Argument(metavar="[MODEL]... [SETTING=VALUE]...", help=MORE_HELP)]
ENCODING_HELP = "Character encoding of the files, e.g. cp949; the setting task.encoding."
Encoding = Annotated[str | None, typer.Option(help=ENCODING_HELP)]


@app.command()
@opt.opens_model
def evaluate(
    model: Tuned,
    task: TaskName = "",
    overrides: Words = None,
    data: opt.TaskData = None,
    dev: opt.DevFile = None,
    file: Annotated[Path | None, opt.option("--file", "Examples of the split.", "FILE")] = None,
    split: Annotated[str, typer.Option(help="train, dev or test.", autocompletion=opt.complete_split)] = "dev",
    encoding: Encoding = None,
    output: Annotated[Path | None, opt.output("DIR", "Folder for scores, HTML page and submission files.")] = None,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Evaluate a fine-tuned model, or an ensemble. Reports scores, baseline, confusion matrix, calibration, errors."""
    from bertsmith.errors import DataError
    from bertsmith.evaluation import ensemble, evaluator, terminal
    from bertsmith.evaluation.evaluation import evaluate_with
    from bertsmith.evaluation.output_files import write_evaluation

    if sum(path is not None for path in (data, dev, file)) > 1:
        raise BertsmithError("pass only one of --data, --dev and --file: each names the examples")
    if dev and split != "dev":
        raise BertsmithError(f"--dev names the examples of dev: with --split {split} pass --file FILE")
    models, changes = _models_and_changes(model, overrides, encoding)
    runs = [evaluator.finetune_config_of(one, opening.get("head")) for one in models]
    given = opt.given(**{"data": data, split: dev or file})
    files = ensemble.shared_files(models, runs, given, split=split)
    settings = [evaluator.make_evaluation_config(run, task, changes) for run in runs]
    opened = ensemble.open_models(settings, models, files, device=device, **opening)
    result = evaluate_with(opened, settings[0], split, quiet=quiet or as_json, run=None if given else runs[0])
    if not result.scores and not (output and result.submission):
        raise DataError(f"{split} has no labels: choose another --split, or use bertsmith predict")
    written = write_evaluation(result, output) if output else []
    facts = result.to_dict() | {"written": [str(path) for path in written]}
    opt.print_result(facts, as_json, lambda: terminal.print_evaluation(result, written))


@app.command()
@opt.opens_model
def predict(
    model: Tuned,
    file: Annotated[Path, opt.option("--file", "Examples; their labels, if any, are ignored.", "FILE")],
    task: TaskName = "",
    overrides: Words = None,
    with_text: Annotated[bool, opt.option("--with-text", "Also write the text of each example.")] = False,
    encoding: Encoding = None,
    output: Annotated[Path | None, opt.output("FILE", "Write to this .jsonl, .csv or .tsv file.")] = None,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Predict all examples of a file. Several models predict as an ensemble. Without -o, print JSON lines on stdout."""
    from bertsmith.evaluation import ensemble, evaluator
    from bertsmith.evaluation.output_files import check_output, json_lines, prediction_rows, write_predictions

    if output:
        check_output(output)
    models, changes = _models_and_changes(model, overrides, encoding)
    runs = [evaluator.finetune_config_of(one, opening.get("head")) for one in models]
    settings = [evaluator.make_evaluation_config(run, task, changes) for run in runs]
    opened = ensemble.open_models(settings, models, {"test": file}, device=device, **opening)
    rows = prediction_rows(opened, with_text=with_text, quiet=quiet or as_json)
    if output is None:
        for line in json_lines(rows):
            sys.stdout.write(line)
        return
    count = write_predictions(rows, output)
    facts = {"model": opened.name, "task": opened.task.name, "examples": count, "output": str(output)}
    opt.print_result(facts, as_json)


def _models_and_changes(model: Path, words: list[str] | None, encoding: str | None) -> tuple[list[Path], list[str]]:
    """The models, and the settings with --encoding; a file among the words has an option of its own."""
    models, changes = [model], [f"task.encoding={encoding}"] if encoding else []
    for word in words or []:
        if Path(word).is_dir():
            models.append(Path(word))
        elif "=" not in word and looks_like_path(word):
            advice = f"pass a file of examples with --file {word}"
            if not Path(word).exists() and not Path(word).suffix:
                advice = "no such folder, if it is a further model"
            raise BertsmithError(f"{word} is not a setting: {advice}")
        else:
            changes.append(word)
    return models, changes
