"""Runs commands in this process, in a folder with text, tokenizers, shards, models, runs and damaged files.

Writes outside this folder are refused and recorded, and what takes long ends as by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch._dynamo  # noqa: F401 # an interrupted import of it is not repeated
from command_line import Done, call
from finetune_fixtures import made_up, write
from model_io.folder_fixtures import tokenizer
from server.http_fixtures import KINDS, predictor

from bertsmith.errors import StoppedError
from bertsmith.model_io.model_folder import save_model
from bertsmith.system import workers
from bertsmith.training.trainer import Trainer

SECONDS = 5.0  # of one command, then it is interrupted
MEMORY = 6 << 30  # bytes that a command may allocate
MAX_PROCESSES = 256
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PATH_EVENTS = {"os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "shutil.rmtree", "os.symlink", "os.link"}


def make_files(base: Path) -> Path:
    """The folder in which commands run: `work` is the working directory, the files of `original` are its copies."""
    folder = base / "original"
    folder.mkdir()
    rows = made_up("classification", 12, 0)
    write(folder / "dev.jsonl", rows)
    write(folder / "texts.jsonl", rows)
    text = "".join(f"{row['text']}.\nthe cat sat on a mat.\nthe end.\n\n" for row in rows * 3)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    lines = [f"{row['text']},{row['label']}\n" for row in rows]
    (folder / "train.csv").write_text("text,label\n" + "".join(lines), encoding="utf-8")
    (folder / "tags.txt").write_text("the O\ngold B-X\n\na O\ncat B-X\n\n" * 4, encoding="utf-8")
    for name in ("corpus", "empty", "unreadable", "broken-model", "task"):
        (folder / name).mkdir()
    for name in ("train.csv", "dev.csv"):
        shutil.copy(folder / "train.csv", folder / "task" / name)
    shutil.copy(folder / "text.txt", folder / "corpus" / "a.txt")
    for name in ("\udcff.txt", "a b.txt", "unreadable.txt", "unreadable/text.txt", "key.txt"):
        (folder / name).write_text("a key of the cat that sat on a mat", encoding="utf-8")
    (folder / "key.txt").write_text("a-key-that-nobody-guesses\n", encoding="utf-8")
    (folder / "empty.txt").touch()
    (folder / "binary.txt").write_bytes(np.random.default_rng(0).bytes(3000))
    (folder / "bad.json").write_text('{"a": [1, NaN', encoding="utf-8")
    (folder / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    (folder / "bad.toml").write_text('steps = "\\u0000"\n[encoder]\nkind = 3\nlayers = inf\n', encoding="utf-8")
    (folder / "broken-model" / "config.json").write_text('{"model_type": "bert", "num_hidden_layers": 1e300}')
    for name, target in {"dangling": "nowhere", "loop": "loop", "link": "m-words"}.items():
        (folder / name).symlink_to(target)
    for name in KINDS:
        save_model(predictor(name).model, tokenizer(), folder / f"m-{name}")
    with contextlib.chdir(folder):
        pretrain = "pretrain bert/tiny -d shards -o run -q --device cpu steps=1 batch_size=2 max_length=16 eval_rows=1"
        for line in (
            "tokenizer train text.txt -o t --vocab-size 120 -q --workers 1",
            "prepare text.txt -t t -o shards -q --held-out 0.1 --workers 1",
            f"{pretrain} encoder.layers=1 encoder.width=16",
            "finetune m-words -t classification --train train.csv --dev train.csv -o tuned -q --device cpu epochs=0.1",
            "init --task classification -o tuning.toml task.text=text",
            "init bert/tiny -o pretraining.toml steps=1 batch_size=2 max_length=16",
        ):
            done = call(*line.split())
            assert done.returncode == 0, done.stderr
    for name in ("run", "tuned"):
        shutil.copytree(folder / name, folder / "runs" / name)
    (base / "work").mkdir()
    return base


class Refused(BaseException):
    """A write outside the folder, or too many processes."""


class Guard:
    """Watches the changes to files: those outside `base` are refused, others mark the copies as used."""

    def __init__(self) -> None:
        self.base = ""
        self.changed = True
        self.refused: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.base or not (event == "open" or event.startswith(("os.", "shutil."))):
            return
        if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.fsdecode(arguments[0])
            if "/unreadable" in f"/{path}":
                raise PermissionError(13, "Permission denied", path)
            if event == "open" and int(arguments[2] or 0) & WRITING:
                self._write(event, path)
        elif event == "os.rename":
            self._write(event, *arguments[:2])
        elif event in PATH_EVENTS:
            path = arguments[1 if event in ("os.symlink", "os.link") else 0]
            if not isinstance(path, int):  # the descriptor of a file that was opened
                self._write(event, path)

    def _write(self, event: str, *paths: Any) -> None:
        for path in paths:
            whole = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
            if (path == "/dev/null" and event == "open") or "__pycache__" in whole:
                continue
            if not f"{whole}/".startswith(f"{self.base}/"):
                self.refused.append(f"{event} {path}")
                raise Refused(f"{event} {path}")
            self.changed = True


@cache
def guard() -> Guard:
    return Guard()


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Interrupts long work, bounds memory and processes, and stops training after two steps."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def stop(*_: object, **__: object) -> Any:
        raise StoppedError("stopped")

    class Pool:
        def __init__(self, count: int, *_: object, **__: object) -> None:
            if count > MAX_PROCESSES:
                guard().refused.append(f"{count} processes")
            stop()

    step = Trainer.__next__
    begun: dict[int, int] = {}

    def two_steps(self: Trainer) -> Any:
        begun[id(self)] = begun.get(id(self), 0) + 1
        if begun[id(self)] > 2:
            self.stop_signal.request()
        return step(self)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)}
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with (
        mock.patch.object(Trainer, "__next__", two_steps),
        mock.patch.object(workers, "ProcessPoolExecutor", Pool),
        mock.patch("bertsmith.server.server.serve", lambda gateway, listener: gateway.service.close(seconds=1)),
        mock.patch("bertsmith.cli.demo._write_text", stop),
        mock.patch("bertsmith.export.onnx._write_model", stop),
        mock.patch("webbrowser.open", return_value=True),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat \xff"), encoding="utf-8")),
        warnings.catch_warnings(),
    ):
        warnings.showwarning = warnings._showwarning_orig  # type: ignore[attr-defined] # not pytest's
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, most))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def run(base: Path, words: Sequence[str]) -> Done:
    """Runs a command in `work`, with fresh copies of the files if the last command changed any."""
    work, watch = base / "work" / "deep", guard()
    if watch.changed or not work.exists():
        shutil.rmtree(base / "work")
        shutil.copytree(base / "original", work, symlinks=True)
    watch.changed, watch.refused, watch.base = False, [], str(base.resolve())
    try:
        temporary = {"TMPDIR": str(base), "TORCHINDUCTOR_CACHE_DIR": str(base / "torch")}
        with (
            contextlib.chdir(work),
            mock.patch.object(tempfile, "tempdir", str(base)),
            mock.patch.dict(os.environ, temporary),
            limited(),
        ):
            return call(*words)
    finally:
        watch.base = ""
