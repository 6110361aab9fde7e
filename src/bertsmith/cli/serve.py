"""The verb that puts models behind HTTP."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from bertsmith.cli.options import Device
from bertsmith.errors import BertsmithError, DataError
from bertsmith.server.settings import Limits

app = typer.Typer()
USUAL = Limits()
NEEDS = ("fastapi", "uvicorn", "prometheus_client")


@app.command()
def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Model folders or run folders; NAME=FOLDER to name one."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 8080,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ask callers for the key in this file.", show_default=False)
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Show the runs and evaluations below DIR.", show_default=False)
    ] = None,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="float32, bfloat16 or int8.")] = "float32",
    json_logs: Annotated[bool, typer.Option("--json-logs", help="A JSON object for each log line.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line for each request.")] = False,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts in one request.")] = USUAL.max_texts,
    max_bytes_per_text: Annotated[
        int, typer.Option(min=1, help="Bytes of one text in UTF-8.")
    ] = USUAL.max_bytes_per_text,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of one request.")] = USUAL.max_body,
    max_numbers: Annotated[int, typer.Option(min=1, help="Numbers in one answer.")] = USUAL.max_numbers,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests in work at once.")] = USUAL.max_requests,
    max_connections: Annotated[int, typer.Option(min=1, help="Connections open at once.")] = USUAL.max_connections,
    max_rejections: Annotated[
        int, typer.Option(min=0, help="Callers kept waiting to be refused.")
    ] = USUAL.max_rejections,
    batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens computed together; default: what suits the device.", show_default=False),
    ] = None,
    max_queued_tokens: Annotated[int, typer.Option(min=1, help="Tokens that may wait.")] = USUAL.max_queued_tokens,
    deadline: Annotated[float, typer.Option(help="Seconds from a request to its answer.")] = USUAL.deadline,
    read_seconds: Annotated[
        float, typer.Option(help="Seconds for a header, and for a body, to arrive.")
    ] = USUAL.read_seconds,
    write_seconds: Annotated[float, typer.Option(help="Seconds for an answer to be taken.")] = USUAL.write_seconds,
    idle_seconds: Annotated[
        float, typer.Option(help="Seconds between two requests of a connection.")
    ] = USUAL.idle_seconds,
    drain_seconds: Annotated[float, typer.Option(help="Seconds to finish when told to stop.")] = USUAL.drain_seconds,
) -> None:
    """Serve models over HTTP, with a page to try them: vectors, answers, labels, entities, attention."""
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise BertsmithError(f"serving needs {', '.join(missing)}: pip install 'bertsmith[serve]'")
    limits = Limits(
        max_texts=max_texts,
        max_bytes_per_text=max_bytes_per_text,
        max_body=max_body,
        max_numbers=max_numbers,
        max_requests=max_requests,
        max_connections=max_connections,
        max_rejections=max_rejections,
        batch_tokens=batch_tokens,
        max_queued_tokens=max_queued_tokens,
        deadline=deadline,
        read_seconds=read_seconds,
        write_seconds=write_seconds,
        idle_seconds=idle_seconds,
        drain_seconds=drain_seconds,
    )
    from bertsmith.evaluation.evaluator import find_model_folder
    from bertsmith.inference.predictor import Predictor
    from bertsmith.server.keys import read_api_key
    from bertsmith.server.models import name_models
    from bertsmith.server.monitoring import Log
    from bertsmith.server.server import listen
    from bertsmith.server.server import serve as serve_models

    api_key = None if api_key_file is None else read_api_key(api_key_file)
    if runs is not None and not runs.is_dir():
        raise DataError(f"--runs {runs} is no folder")
    named = [(name, find_model_folder(folder)) for name, folder in name_models(models)]
    log = Log(as_json=json_logs, quiet=quiet)
    with listen(host, port) as listener:
        chosen: Any = precision  # the predictor checks it
        opened = [(name, Predictor.open(folder, device=device, precision=chosen)) for name, folder in named]
        serve_models(opened, listener, limits=limits, log=log, api_key=api_key, runs=runs)
