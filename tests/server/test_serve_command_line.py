"""`bertsmith serve` on the command line: errors in one line, a server that starts, drains and ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import httpx
import pytest
from command_line import call
from model_io.folder_fixtures import folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("models") / "bert")


def one_line(*words: object, status: int = 2) -> str:
    done = call("serve", *words)
    assert done.returncode == status, done
    assert done.stderr.count("\n") == 1
    assert not done.stdout
    return done.stderr


def test_invalid_settings_are_one_line_errors(place: Path, tmp_path: Path) -> None:
    assert "nowhere" in one_line(tmp_path / "nowhere", status=65)
    assert "--host nowhere.invalid" in one_line(place, "--host", "nowhere.invalid", "--port", 0)
    assert "not an address of this machine" in one_line(place, "--host", "192.0.2.1", "--port", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use: choose another --port" in one_line(place, "--port", port)
    assert "greater than 0" in one_line(place, "--deadline", 0)
    assert "is not a folder" in one_line(place, "--runs", tmp_path / "none", status=65)
    assert "is unknown" in one_line(place, "--port", 0, "--device", "abacus")


def test_api_key_file_errors_never_contain_the_key(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "key"
    assert "cannot be read" in one_line(place, "--api-key-file", file, status=65)
    for content in (b"", b"short", b"two words in one line of text", b"line one of it all\nline two", b"\xff" * 20):
        file.write_bytes(content)
        line = one_line(place, "--api-key-file", file, status=65 if content[:1] == b"\xff" else 2)
        assert "one key" in line
        assert not content or content.decode("latin-1") not in line


def test_missing_packages_are_named(place: Path) -> None:
    with mock.patch("bertsmith.cli.serve.find_spec", return_value=None):
        line = one_line(place)
    assert "fastapi, uvicorn, prometheus_client: pip install 'bertsmith[serve]'" in line


def test_server_runs_until_sigterm(place: Path, tmp_path: Path) -> None:
    key = "0123456789abcdef0123"
    (tmp_path / "key").write_text(f"{key}\n")
    words = ["serve", place, f"again={place}", "--port", 0, "--json-logs", "--api-key-file", tmp_path / "key"]
    command = [sys.executable, "-m", "bertsmith", *map(str, words), "--device", "cpu"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = json.loads(process.stderr.readline())
        assert told["models"] == "bert, again"
        with httpx.Client(base_url=told["address"], transport=httpx.HTTPTransport(retries=5)) as client:
            assert client.get("/info").status_code == 401
            models = client.get("/info", headers={"authorization": f"Bearer {key}"}).json()["models"]
        assert [one["name"] for one in models] == ["bert", "again"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        ends = [json.loads(line) for line in process.stderr]
    assert [line["event"] for line in ends] == ["request", "request", "stopping", "stopped"]
