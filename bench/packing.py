"""Throughput, padding, opening time and memory of the packings on one core.

PYTHONPATH=src python bench/packing.py [shard set | millions of random tokens]

`M/s` is million tokens of batches per second, padding included; `reading` is the ratio to only reading rows of that
length from the same shards; `target` the ratio to the required 2 M tokens per second. Documents and sentences of random
text have the lengths of English Wikipedia.
"""

from __future__ import annotations

import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np

from bertsmith import config
from bertsmith.data.packing.packing import FOLDER, Packing, PackingConfig
from bertsmith.data.shards import EncodedDocuments, ShardBuilder, Shards
from bertsmith.types import Frame

FRAME = Frame((101, "a", 102), (101, "a", 102, "b", 102), (0, 0, 0, 1, 1))
BATCH_TOKENS = 65_536
SECONDS = 2.0  # per measurement
TARGET = 2e6  # tokens per second
UNIT = 1 << 22  # tokens of a work unit


def build(folder: Path, tokens: int) -> None:
    """Random text; sentences have 27 and documents 3,400 tokens on average."""
    random = np.random.default_rng(0)
    words = random.integers(1000, 30_000, 2 * UNIT, np.uint16)
    with ShardBuilder(folder, tokenizer_files={}, fingerprint="0", vocab_size=30_000, settings={}) as builder:
        for unit in range(-(-tokens // UNIT)):
            sentences = np.clip(random.lognormal(3.1, 0.65, UNIT // 27), 1, 400).astype(np.uint16)
            ends = np.cumsum(np.clip(random.lognormal(4.0, 1.4, UNIT // 500), 1, 5000).astype(np.int64))
            ends = np.append(ends[ends < len(sentences)], len(sentences))
            documents = np.diff(ends, prepend=0).astype(np.uint32)
            size = int(sentences.sum(dtype=np.int64))
            builder.add(unit, {"train": EncodedDocuments(words[:size], sentences, documents)}, {})
        builder.finish()


def opened(settings: PackingConfig, shards: Shards, length: int) -> tuple[Packing, float]:
    begin = time.perf_counter()
    packing = settings.build(shards, frame=FRAME, padding_id=0, seed=1, max_length=length)
    return packing, time.perf_counter() - begin


def memory(settings: PackingConfig, shards: Shards, length: int) -> tuple[float, float]:
    """Bytes per token of the corpus: of an open packing, and the peak while opening it."""
    tracemalloc.start()
    packing, _ = opened(settings, shards, length)
    current, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert packing.rows_per_epoch
    return current / shards.tokens, peak / shards.tokens


def speed(packing: Packing) -> tuple[float, float]:
    """Tokens per second of processor time, and the fraction of padding."""
    rows = BATCH_TOKENS // packing.max_length
    packing.batch(0, batch_size=rows)
    begin, step, size, tokens = time.process_time(), 0, 0, 0
    while time.process_time() - begin < SECONDS:
        step += 1
        batch = packing.batch(step, batch_size=rows)
        size, tokens = size + batch.input_ids.size, tokens + batch.tokens
    return size / (time.process_time() - begin), 1 - tokens / size


def read_speed(shards: Shards, length: int) -> float:
    """Tokens per second of only reading rows."""
    rows = BATCH_TOKENS // length
    random = np.random.default_rng(length)
    begin, tokens = time.process_time(), 0
    while time.process_time() - begin < SECONDS:
        tokens += len(shards.read(random.integers(0, shards.tokens - length, rows), length))
    return tokens / (time.process_time() - begin)


def cases() -> list[tuple[str, dict[str, bool]]]:
    """Every packing with its defaults, and with each boolean setting inverted."""
    result: list[tuple[str, dict[str, bool]]] = []
    for kind in config.kinds(FOLDER):
        defaults = config.to_dict(config.find_kind(FOLDER, kind).Config())
        switches = [{name: not value} for name, value in defaults.items() if isinstance(value, bool)]
        result += [(kind, change) for change in ({}, *switches)]
    return result


def main(folder: Path) -> None:
    shards = Shards.open(folder)
    shards.read([0], [shards.tokens])  # checked and in the page cache
    print(f"{shards.tokens:,} tokens, {shards.sentences:,} sentences, {shards.documents:,} documents\n")
    print(f"{'':46}{'speed':>9}{'of':>9}{'':>9}{'texts/':>7}{'':>9}{'':>9}{'bytes per token':>15}")
    names = ("M/s", "reading", "target", "row", "padding", "open s", "open", "peak")
    print(f"{'':46}" + "".join(f"{name:>{width}}" for name, width in zip(names, (9, 9, 9, 7, 9, 9, 7, 8), strict=True)))
    for length in (128, 512):
        plain = read_speed(shards, length)
        for kind, change in cases():
            settings = config.find_kind(FOLDER, kind).Config(**change)
            packing, seconds = opened(settings, shards, length)
            rate, padding = speed(packing)
            current, peak = memory(settings, shards, length)
            what = " ".join([kind, str(length), *(f"{name}={str(value).lower()}" for name, value in change.items())])
            print(
                f"{what:46}{rate / 1e6:9.1f}{rate / plain:9.2f}{rate / TARGET:8.1f}x{packing.texts_per_row:7}"
                f"{padding:9.2%}{seconds:9.2f}{current:7.2f}{peak:8.2f}"
            )


if __name__ == "__main__":
    argument = sys.argv[1] if len(sys.argv) > 1 else "50"
    if argument.isdecimal():
        with tempfile.TemporaryDirectory() as name:
            build(Path(name, "shards"), int(argument) * 10**6)
            main(Path(name, "shards"))
    else:
        main(Path(argument))
