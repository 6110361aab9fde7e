"""Tokenizer training: bertsmith with one and two workers against the trainer of the tokenizers library.

    python bench/tokenizer_training.py [CORPUS] [--megabytes 100] [--kind wordpiece] [--vocab-size 30522]

Without CORPUS the text is the source of Python's own library, which is on every machine. Each run is a process of its
own: its CPU time is all processes', its peak memory the parent's and, after the plus sign, the largest worker's.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from itertools import islice, tee
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from bertsmith.tokenizers import training
from bertsmith.tokenizers.tokenizer import kind

RUNS = {"tokenizers": 0, "bertsmith, 1 worker": 1, "bertsmith, 2 workers": 2}


def lines(corpus: str, megabytes: float) -> Iterator[str]:
    """The lines of the corpus, up to that many megabytes."""
    left = int(megabytes * 1e6)
    for path in [Path(corpus)] if corpus else sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                left -= len(line.encode())
                if left < 0:
                    return
                yield line


def train_tokenizers(name: str, texts: Iterator[str], size: int) -> list[str]:
    """The library's trainer: normalise, split, count and train in one call."""
    if name == "wordpiece":
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        texts, sample = tee(texts)
        korean = any(training.HANGUL.search(line) for line in islice(sample, 1000))
        del sample
        backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=not korean)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer: Any = trainers.WordPieceTrainer(
            vocab_size=size, min_frequency=2, limit_alphabet=1000, special_tokens=specials, show_progress=False
        )
    else:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=size - 1,
            min_frequency=2,
            special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    backend.train_from_iterator(texts, trainer)
    return list(backend.get_vocab())


def train_bertsmith(name: str, texts: Iterator[str], size: int, workers: int) -> list[str]:
    config = kind(name).config()
    counts = training.count_words(texts, config.word_splitter(), workers=workers)
    return config.train(counts, vocab_size=size).tokens()


def one_run(options: argparse.Namespace) -> None:
    """In a subprocess: one timed training run, its result on standard output."""
    texts = lines(options.corpus, options.megabytes)
    begin = time.perf_counter()
    if options.workers:
        tokens = train_bertsmith(options.kind, texts, options.vocab_size, options.workers)
    else:
        tokens = train_tokenizers(options.kind, texts, options.vocab_size)
    seconds = time.perf_counter() - begin
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    unit = 1 if sys.platform == "darwin" else 1024
    result = {
        "seconds": seconds,
        "processor": sum(usage.ru_utime + usage.ru_stime for usage in usages),
        "peaks": [usage.ru_maxrss * unit / 1e6 for usage in usages],
        "tokens": tokens,
    }
    json.dump(result, sys.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", nargs="?", default="")
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--kind", choices=["wordpiece", "byte_bpe"], default="wordpiece")
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.workers is not None:
        one_run(options)
        return
    results = {}
    for label, workers in RUNS.items():
        command = [sys.executable, __file__, *sys.argv[1:], "--workers", str(workers)]
        results[label] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{options.kind}, {options.vocab_size} tokens, {options.megabytes:g} MB of {options.corpus or 'Python'}")
    print(f"{'':18}{'seconds':>9}{'ratio':>8}{'CPU s':>8}{'peak MB':>12}{'same tokens':>14}")
    own = results["tokenizers"]
    for label, result in results.items():
        same = len(set(result["tokens"]) & set(own["tokens"])) / len(own["tokens"])
        peak = " + ".join(f"{size:.0f}" for size in result["peaks"] if size)
        ratio = result["seconds"] / own["seconds"]
        numbers = f"{result['seconds']:9.1f}{ratio:8.2f}{result['processor']:8.1f}"
        print(f"{label:18}{numbers}{peak:>12}{same:14.1%}")


if __name__ == "__main__":
    main()
