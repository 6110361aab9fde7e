"""Throughput of `prepare` against a bare `tokenizers.encode_batch` loop: same text, same cores, same run.

    python bench/prepare.py [TEXT ...]      without TEXT: Python's own documentation, repeated

Interleaved runs, medians. Also prints bytes per token and the peak memory of the process tree.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bertsmith.data import prepare as run
from bertsmith.data.corpus import Corpus, ReadOptions
from bertsmith.data.sample_text import python_documentation
from bertsmith.data.shards import Shards
from bertsmith.system.workers import default_workers
from bertsmith.tokenizers.tokenizer import load
from bertsmith.tokenizers.wordpiece import Config

ROUNDS = 3


def bare(paths: list[str], folder: Path) -> int:
    """The baseline: read, encode_batch, count the ids."""
    backend = load(folder).backend
    tokens, batch = 0, []
    for document in Corpus(paths, ReadOptions()):
        batch.append(document.text)
        if len(batch) == 256:
            tokens += sum(len(encoding.ids) for encoding in backend.encode_batch(batch, add_special_tokens=False))
            batch = []
    return tokens + sum(len(encoding.ids) for encoding in backend.encode_batch(batch, add_special_tokens=False))


def prepared(paths: list[str], folder: Path, output: Path) -> int:
    command = [sys.executable, "-m", "bertsmith", "prepare", *paths, "-t", str(folder), "-o", str(output), "-q"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Shards.open(output).tokens + Shards.open(output, "held-out").tokens


class TreeMemory(threading.Thread):
    """Peak of the summed proportional memory (PSS) of all child processes, sampled."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.over = 0, False

    def run(self) -> None:
        import os

        while not self.over:
            tree, frontier = set(), {os.getpid()}
            while frontier:
                parent = frontier.pop()
                try:
                    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
                except OSError:
                    continue
                tree |= {int(child) for child in children}
                frontier |= {int(child) for child in children}
            self.peak = max(self.peak, sum(map(_pss, tree)))
            time.sleep(0.05)


def _pss(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        paths = sys.argv[1:] or [_own_text(base)]
        folder = base / "tokenizer"
        run.train_tokenizer(paths, folder, settings=Config(), vocab_size=30522, limit=20_000, quiet=True)
        size = sum(path.stat().st_size for path in Corpus(paths, ReadOptions()).files)
        times: dict[str, list[float]] = {"encode_batch": [], "prepare": []}
        memory = TreeMemory()
        memory.start()
        for round_number in range(ROUNDS):
            began = time.perf_counter()
            tokens = bare(paths, folder)
            times["encode_batch"].append(time.perf_counter() - began)
            began = time.perf_counter()
            bertsmith = prepared(paths, folder, base / f"shards-{round_number}")
            times["prepare"].append(time.perf_counter() - began)
        memory.over = True
        written = sum(path.stat().st_size for path in (base / "shards-0").glob("*"))
        print(f"{size / 1e6:.1f} MB of text, {default_workers()} cores, medians of {ROUNDS} interleaved runs")
        for name, seconds in times.items():
            median = statistics.median(seconds)
            print(f"{name:<14} {median:8.2f} s   {size / 1e6 / median:8.2f} MB/s")
        ratio = statistics.median(times["encode_batch"]) / statistics.median(times["prepare"])
        print(f"prepare / encode_batch: {ratio:.2f} (start of processes, sentences, checksums and fsync included)")
        print(f"tokens: {bertsmith:,} prepared, {tokens:,} bare; {written / bertsmith:.3f} bytes per token on disk")
        print(f"peak memory of prepare, all processes together: {memory.peak / 1e6:.0f} MB")


def _own_text(base: Path) -> str:
    path = base / "python.txt"
    text = "\n\n".join(document.text.replace("\n\n", "\n") for document in python_documentation())
    path.write_text("\n\n".join([text] * 4), encoding="utf-8")
    return str(path)


if __name__ == "__main__":
    main()
