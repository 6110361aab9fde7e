"""Speed, padding, opening time and memory of the packings, from one core, as figures and as ratios.

PYTHONPATH=src python bench/packing.py [shard set | millions of made-up tokens]

`speed` is places of finished batches a second, padding included; `of reading` compares it with only reading rows of
that length from the same shards; `needed` with the 2 M places a second that a packing must give. Documents and
sentences of made-up text have the sizes of English Wikipedia.
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
PLACES = 65_536  # of a batch
SECONDS = 2.0  # for each measurement
NEEDED = 2e6
UNIT = 1 << 22  # tokens a work unit


def build(folder: Path, tokens: int) -> None:
    """Made-up text: random words, sentences of 27 tokens and documents of 3,400 in the mean."""
    chance = np.random.default_rng(0)
    words = chance.integers(1000, 30_000, 2 * UNIT, np.uint16)
    with ShardBuilder(folder, tokenizer_files={}, fingerprint="0", vocab_size=30_000, settings={}) as builder:
        for unit in range(-(-tokens // UNIT)):
            sentences = np.clip(chance.lognormal(3.1, 0.65, UNIT // 27), 1, 400).astype(np.uint16)
            ends = np.cumsum(np.clip(chance.lognormal(4.0, 1.4, UNIT // 500), 1, 5000).astype(np.int64))
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
    """Bytes a token of the corpus: held by an open packing, and at most while it was opened."""
    tracemalloc.start()
    packing, _ = opened(settings, shards, length)
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert packing.rows_per_epoch
    return held / shards.tokens, most / shards.tokens


def speed(packing: Packing) -> tuple[float, float]:
    """Places a second of processor time, and the share of padding."""
    rows = PLACES // packing.max_length
    packing.batch(0, batch_size=rows)
    begin, step, places, tokens = time.process_time(), 0, 0, 0
    while time.process_time() - begin < SECONDS:
        step += 1
        batch = packing.batch(step, batch_size=rows)
        places, tokens = places + batch.input_ids.size, tokens + batch.tokens
    return places / (time.process_time() - begin), 1 - tokens / places


def reading(shards: Shards, length: int) -> float:
    """Tokens a second when rows are only read."""
    rows = PLACES // length
    chance = np.random.default_rng(length)
    begin, tokens = time.process_time(), 0
    while time.process_time() - begin < SECONDS:
        tokens += len(shards.read(chance.integers(0, shards.tokens - length, rows), length))
    return tokens / (time.process_time() - begin)


def cases() -> list[tuple[str, dict[str, bool]]]:
    """Every packing as it is; then with each switch turned."""
    found: list[tuple[str, dict[str, bool]]] = []
    for kind in config.kinds(FOLDER):
        defaults = config.to_dict(config.find_kind(FOLDER, kind).Config())
        switches = [{name: not value} for name, value in defaults.items() if isinstance(value, bool)]
        found += [(kind, change) for change in ({}, *switches)]
    return found


def main(folder: Path) -> None:
    shards = Shards.open(folder)
    shards.read([0], [shards.tokens])  # checked and in the page cache
    print(f"{shards.tokens:,} tokens, {shards.sentences:,} sentences, {shards.documents:,} documents\n")
    print(f"{'':46}{'speed':>9}{'of':>9}{'':>9}{'texts':>7}{'':>9}{'':>9}{'bytes a token':>15}")
    names = ("M/s", "reading", "needed", "a row", "padding", "open s", "held", "most")
    print(f"{'':46}" + "".join(f"{name:>{width}}" for name, width in zip(names, (9, 9, 9, 7, 9, 9, 7, 8), strict=True)))
    for length in (128, 512):
        plain = reading(shards, length)
        for kind, change in cases():
            settings = config.find_kind(FOLDER, kind).Config(**change)
            packing, seconds = opened(settings, shards, length)
            rate, padding = speed(packing)
            held, most = memory(settings, shards, length)
            what = " ".join([kind, str(length), *(f"{name}={str(value).lower()}" for name, value in change.items())])
            print(
                f"{what:46}{rate / 1e6:9.1f}{rate / plain:9.2f}{rate / NEEDED:8.1f}x{packing.texts_per_row:7}"
                f"{padding:9.2%}{seconds:9.2f}{held:7.2f}{most:8.2f}"
            )


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else "50"
    if asked.isdecimal():
        with tempfile.TemporaryDirectory() as name:
            build(Path(name, "shards"), int(asked) * 10**6)
            main(Path(name, "shards"))
    else:
        main(Path(asked))
