"""Commands for causal language models: generate, score."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

import bertsmith.cli.options as opt
from bertsmith import load
from bertsmith.cli.inference import one_text_per_line
from bertsmith.data.text_files import check_source

app = typer.Typer()
NEW_TOKENS_HELP = "Maximum number of new tokens; default: 64, or fewer if the model has fewer positions left."
TEMPERATURE_HELP = "0 is greedy decoding; above 0, tokens are sampled, with 1 from the model's own distribution."
SCORED_HELP = "A file of texts (txt: one per line), a text, or - to read one per line from stdin."
STOP_HELP = "End a text before this string; may be repeated."


@app.command()
@opt.opens_model
def generate(
    model: opt.ModelFolder,
    prompt: Annotated[
        str,
        typer.Argument(metavar="PROMPT|FILE", help="A prompt, a file with one per line, or - to read them from stdin."),
    ],
    max_new_tokens: Annotated[int | None, typer.Option(metavar="N", help=NEW_TOKENS_HELP)] = None,
    temperature: Annotated[float, typer.Option(help=TEMPERATURE_HELP)] = 0.0,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Sample from the K most likely tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Sample from the most likely tokens whose probabilities add up to P.")
    ] = 1.0,
    repetition_penalty: Annotated[
        float, typer.Option(metavar="X", help="Above 1, tokens that the text already has become less likely.")
    ] = 1.0,
    stop: Annotated[list[str] | None, opt.option("--stop", STOP_HELP, "TEXT")] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", metavar="N", help="Number of texts for each prompt.")] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Random seed of sampling; default: a different one each time.")
    ] = None,
    encoding: opt.Encoding = "utf-8",
    errors: opt.DecodingErrors = "strict",
    limit: opt.Limit = None,
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Continue a text with a causal language model."""
    from bertsmith.inference.text_files import read_texts
    from bertsmith.reports import terminal_predictions

    if prompt == "-":
        prompts = opt.stdin_texts(encoding, errors, limit)
    elif os.path.isfile(prompt):
        prompts = read_texts(prompt, opt.read_options("line", "text", encoding, errors), limit=limit)
    else:
        prompts = [check_source(prompt)]
        opt.check_text_options(encoding=encoding, errors=errors, limit=limit)
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
        "stop": stop or (),
        "samples": samples,
        "seed": seed,
    }
    predictor = load(model, device=device, **opening)
    if len(prompts) == samples == 1 and not as_json:
        terminal_predictions.stream(prompts[0], predictor.generate_stream(prompts[0], **options))
        return
    results = predictor.generate(prompts, **options)
    lists = [one if isinstance(one, list) else [one] for one in results]
    facts = [{"prompt": text, "results": some} for text, some in zip(prompts, lists, strict=True)]
    opt.print_result({"generated": facts}, as_json, lambda: terminal_predictions.generated(facts))


@app.command()
@opt.opens_model
def score(
    model: opt.ModelFolder,
    source: Annotated[str, typer.Argument(metavar="FILE|TEXT", help=SCORED_HELP)],
    file_format: opt.FileFormat = "auto",
    field: opt.Field = "text",
    encoding: opt.Encoding = "utf-8",
    errors: opt.DecodingErrors = "strict",
    limit: opt.Limit = None,
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Score texts with a causal language model. Prints surprisal of each token, perplexity, nats per byte."""
    from bertsmith.inference.scoring import total_score
    from bertsmith.inference.text_files import read_texts
    from bertsmith.reports import terminal_predictions

    reading = opt.read_options(one_text_per_line(file_format, source), field, encoding, errors)
    file_options = {"format": file_format, "field": field, "encoding": encoding, "errors": errors, "limit": limit}
    if os.path.isfile(source):
        texts = read_texts(source, reading, limit=limit)
    else:
        check_source(source)
        opt.check_text_options(stdin=source == "-", **file_options)
        texts = opt.stdin_texts(encoding, errors, limit) if source == "-" else [source]
    results = load(model, device=device, **opening).score(texts)
    total = total_score(texts, results)
    scored = [{"text": text, **one} for text, one in zip(texts, results, strict=True)]
    opt.print_result({**total, "texts": scored}, as_json, lambda: terminal_predictions.scores(scored, total))
