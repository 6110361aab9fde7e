"""Speed of reading random rows from shards in the page cache, of writing them, and their bytes per token.

PYTHONPATH=src python bench/shards_read.py [millions of tokens]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bertsmith.data.shards import EncodedDocuments, ShardBuilder, Shards, verify
from bertsmith.data.shards.reader import Part

SENTENCE, DOCUMENT, UNIT = 15, 20, 1 << 20  # tokens per sentence, sentences per document, tokens per work unit
READ = 1 << 25  # tokens read per measurement


def build(folder: Path, millions: int) -> float:
    """Seconds to write that many random tokens."""
    tokens = np.random.default_rng(0).integers(0, 30_000, UNIT, np.uint16)
    sentences = np.full(-(-UNIT // SENTENCE), SENTENCE, np.uint16)
    sentences[-1] = UNIT - SENTENCE * (len(sentences) - 1)
    documents = np.full(-(-len(sentences) // DOCUMENT), DOCUMENT, np.uint32)
    documents[-1] = len(sentences) - DOCUMENT * (len(documents) - 1)
    begin = time.perf_counter()
    with ShardBuilder(folder, tokenizer_files={}, fingerprint="0", vocab_size=30_000, settings={}) as builder:
        for unit in range(-(-millions * 10**6 // UNIT)):
            builder.add(unit, {"train": EncodedDocuments(tokens, sentences, documents)}, {})
        builder.finish()
    return time.perf_counter() - begin


def read_rows(shards: Shards, length: int, rows: int) -> float:
    """Tokens per second in batches of `rows` random rows."""
    batches = max(1, READ // (length * rows))
    starts = np.random.default_rng(length).integers(0, shards.tokens - length, (batches, rows))
    begin = time.perf_counter()
    for batch in starts:
        shards.read(batch, np.full(rows, length))
    return batches * rows * length / (time.perf_counter() - begin)


def starts_of(parts: list[Part]) -> int:
    return sum(int(part.sentence_starts[-1]) + len(part.document_starts) for part in parts)


def main(millions: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "shards")
        seconds = build(folder, millions)
        shards = Shards.open(folder)
        size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        print(f"{shards.tokens:,} tokens in {len(shards.parts)} files, {size / shards.tokens:.3f} bytes per token")
        print(f"{'':34}{'M tokens/s':>12}")
        print(f"{'write':34}{shards.tokens / seconds / 1e6:12.0f}")
        begin = time.perf_counter()
        assert all(report.ok for report in verify(folder))
        print(f"{'verify':34}{shards.tokens / (time.perf_counter() - begin) / 1e6:12.0f}")
        print(f"{'read 256 x 128, first touch':34}{read_rows(shards, 128, 256) / 1e6:12.0f}")
        shards.read([0], [shards.tokens])
        for rows, length in ((256, 128), (4096, 128), (256, 512), (4096, 512)):
            print(f"{f'read {rows} x {length}, checked':34}{read_rows(shards, length, rows) / 1e6:12.0f}")
        begin = time.perf_counter()
        starts_of(shards.parts)
        print(f"{'sentence and document starts':34}{shards.tokens / (time.perf_counter() - begin) / 1e6:12.0f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
