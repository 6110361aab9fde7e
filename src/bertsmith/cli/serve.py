"""The command serve: models over HTTP."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from bertsmith import load
from bertsmith.cli.options import Device, Opening, at_least, opens_model, option
from bertsmith.errors import BertsmithError, DataError
from bertsmith.server.settings import Limits

app = typer.Typer()
DEFAULTS = Limits()
REQUIRED_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def seconds(purpose: str) -> Any:
    return typer.Option(help=f"Seconds {purpose}.")


@app.command()
@opens_model
def serve(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Model folders or run folders; NAME=FOLDER sets the name.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 selects a free one.")] = 8080,
    api_key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Require the API key in this file.")] = None,
    allowed_host: Annotated[
        list[str] | None, option("--allowed-host", "Another host name to answer to; * for any.", metavar="NAME")
    ] = None,
    runs: Annotated[Path | None, typer.Option(metavar="DIR", help="Show the runs and evaluations below DIR.")] = None,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="float32, bfloat16 or int8.")] = "float32",
    json_logs: Annotated[bool, option("--json-logs", "Log JSON lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not log requests.")] = False,
    max_texts: Annotated[int, at_least(1, "Maximum number of texts per request.")] = DEFAULTS.max_texts,
    max_bytes_per_text: Annotated[int, at_least(1, "Maximum size of a text in bytes.")] = DEFAULTS.max_bytes_per_text,
    max_body: Annotated[int, at_least(1, "Maximum size of a request body in bytes.")] = DEFAULTS.max_body,
    max_numbers: Annotated[int, at_least(1, "Maximum count of numbers in a response.")] = DEFAULTS.max_numbers,
    max_requests: Annotated[int, at_least(1, "Maximum number of concurrent requests.")] = DEFAULTS.max_requests,
    max_connections: Annotated[int, at_least(1, "Maximum number of connections.")] = DEFAULTS.max_connections,
    max_rejections: Annotated[
        int, at_least(0, "Maximum number of rejected requests that are delayed at once.")
    ] = DEFAULTS.max_rejections,
    batch_tokens: Annotated[int | None, at_least(1, "Tokens per batch; default: depends on the device.")] = None,
    max_queued_tokens: Annotated[int, at_least(1, "Maximum number of queued tokens.")] = DEFAULTS.max_queued_tokens,
    deadline: Annotated[float, seconds("from request to response")] = DEFAULTS.deadline,
    read_seconds: Annotated[float, seconds("to receive a header, and a body")] = DEFAULTS.read_seconds,
    write_seconds: Annotated[float, seconds("to send a response")] = DEFAULTS.write_seconds,
    idle_seconds: Annotated[float, seconds("that an idle connection is kept open")] = DEFAULTS.idle_seconds,
    drain_seconds: Annotated[float, seconds("to finish requests at shutdown")] = DEFAULTS.drain_seconds,
    *,
    opening: Opening,
) -> None:
    """Serve models over HTTP. Embeddings, labels, entities, answers, masked words, attention, and a web page."""
    options = dict(locals())
    if missing := [name for name in REQUIRED_PACKAGES if find_spec(name) is None]:
        raise BertsmithError(f"serving needs {', '.join(missing)}: pip install 'bertsmith[serve]'")
    limits = Limits(**{name: value for name, value in options.items() if hasattr(DEFAULTS, name)})
    from bertsmith.model_io.run_folder import find_model_folder
    from bertsmith.server.app import build
    from bertsmith.server.monitoring import Log
    from bertsmith.server.server import listen
    from bertsmith.server.server import serve as serve_models
    from bertsmith.server.settings import AllowedHosts, name_models, read_api_key

    api_key = None if api_key_file is None else read_api_key(api_key_file)
    if runs is not None and not runs.is_dir():
        raise DataError(f"--runs {runs} is not a folder")
    hosts = AllowedHosts(host, tuple(allowed_host or ())) if allowed_host or api_key is None else None
    named = [(name, find_model_folder(folder)) for name, folder in name_models(models)]
    log = Log(as_json=json_logs, quiet=quiet)
    with listen(host, port) as listener:
        how: dict[str, Any] = {"device": device, "precision": precision, **opening}
        opened = {name: load(folder, **how) for name, folder in named}
        access: dict[str, Any] = {"api_key": api_key, "allowed_hosts": hosts}
        serve_models(build(opened, limits=limits, log=log, runs=runs, **access), listener)
