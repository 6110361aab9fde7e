"""Peak memory of tokenizer training on a synthetic corpus of any size.

    python bench/tokenizer_memory.py [GIGABYTES]

Words are drawn by a Zipf law with an endless tail, so that the word table meets its bound. Prints the peak of the
summed proportional memory of all processes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from prepare import TreeMemory

LINE = 200_000  # words written at a time


def write(path: Path, size: int) -> None:
    """Zipf words: number n is spelled by n in base 20 with letters, so that no word repeats another."""
    letters = np.frombuffer(b"etaoinshrdlucmfwypgb", dtype=np.uint8)
    draw = np.random.default_rng(0)
    with open(path, "wb") as file:
        while file.tell() < size:
            numbers = np.minimum(draw.zipf(1.25, LINE), 2**40).astype(np.int64)
            spelled = []
            for _ in range(9):
                spelled.append(np.where(numbers > 0, letters[numbers % 20], 0))
                numbers //= 20
            table = np.stack([*spelled, np.full(LINE, 32)], axis=1).astype(np.uint8)
            file.write(table[table > 0].tobytes() + b"\n")


def main() -> None:
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch, "corpus.txt")
        write(corpus, int(gigabytes * 1e9))
        memory = TreeMemory()
        memory.start()
        began = time.perf_counter()
        command = [sys.executable, "-m", "bertsmith", "tokenizer", "train", str(corpus), "-o", f"{scratch}/t", "-q"]
        subprocess.run([*command, "--format", "line"], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        memory.over = True
        print(
            f"{corpus.stat().st_size / 1e9:.2f} GB in {seconds:.0f} s, peak {memory.peak / 1e6:.0f} MB in all processes"
        )


if __name__ == "__main__":
    main()
