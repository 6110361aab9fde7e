"""Throughput and latency of text embeddings, compared with the transformers library.

PYTHONPATH=src python bench/predictor.py --texts FILE --vocabulary vocab.txt [--size base] [--device cuda] [--count 256]

FILE has one text per line, not sorted by length; vocab.txt is a WordPiece vocabulary. Weights are random, and equal.
transformers uses its fast tokenizer and batches of 32 texts, padded to the longest, with scaled_dot_product_attention.
bertsmith gets all texts in one call, or batches of 32. Both compute the mean over tokens; the first token's vector is
compared too. On CUDA both use bfloat16 autocast. Rounds are interleaved; medians. `--layouts` compares batch layouts,
`--precisions` data types.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertModel, BertTokenizerFast

from bertsmith.data.collate import collate, collate_unpadded
from bertsmith.encoders import bert
from bertsmith.inference.engine import Engine
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.tokenizers.wordpiece import WordPiece
from bertsmith.types import Row

Vectors = NDArray[np.float32]
BATCH_SIZE, THREADS = 32, 32


class Baseline:
    """Padded batches with transformers."""

    def __init__(self, folder: Path, *, device: str) -> None:
        self.model = BertModel.from_pretrained(folder, attn_implementation="sdpa").eval().to(device)
        self.tokenizer = BertTokenizerFast.from_pretrained(folder)
        self.device = device

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], pooling: str = "mean") -> Vectors:
        vectors = []
        for start in range(0, len(texts), BATCH_SIZE):
            inputs = self.tokenizer(
                list(texts[start : start + BATCH_SIZE]),
                padding=True,
                truncation=True,
                max_length=512,
                return_tensors="pt",
            ).to(self.device)
            autocast = torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else nullcontext()
            with autocast:
                hidden = self.model(**inputs).last_hidden_state.float()
            if pooling == "first":
                vectors.append(hidden[:, 0].cpu())
                continue
            mask = inputs["attention_mask"][:, :, None].float()
            vectors.append(((hidden * mask).sum(1) / mask.sum(1)).cpu())
        return torch.cat(vectors).numpy()


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


def in_batches(predictor: Predictor, texts: Sequence[str]) -> Vectors:
    return np.concatenate(
        [predictor.encode(texts[start : start + BATCH_SIZE]) for start in range(0, len(texts), BATCH_SIZE)]
    )


def in_threads(predictor: Predictor, texts: Sequence[str], pool: ThreadPoolExecutor) -> Vectors:
    return np.stack(list(pool.map(predictor.encode, texts)))


def medians(variants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """Wall and CPU seconds of each variant; rounds are interleaved."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            wall, cores = time.perf_counter(), time.process_time()
            run()
            times[name].append((time.perf_counter() - wall, time.process_time() - cores))
    return {name: tuple(map(statistics.median, zip(*group, strict=True))) for name, group in times.items()}  # type: ignore[misc]


def report(results: dict[str, tuple[float, float]], texts: int, *, baseline: str) -> None:
    for name, (wall, cores) in results.items():
        ratio, core_ratio = results[baseline][0] / wall, results[baseline][1] / cores
        print(
            f"  {name:34s} {texts / wall:9.2f} texts/s   x{ratio:5.2f}   CPU seconds {cores:7.2f}  x{core_ratio:5.2f}"
        )


def latency(predictor: Predictor, baseline: Baseline, texts: Sequence[str], rounds: int) -> None:
    """Latency of single texts of all lengths."""
    taken: dict[str, list[float]] = {"bertsmith": [], "transformers": []}
    for text in list(texts)[:10] * rounds:
        for name, encode in (("bertsmith", predictor.encode), ("transformers", lambda one: baseline.encode([one]))):
            began = time.perf_counter()
            encode(text)
            taken[name].append(time.perf_counter() - began)
    bertsmith, reference = (1000 * statistics.median(group) for group in taken.values())
    print(
        f"one text, median: bertsmith {bertsmith:.2f} ms, transformers {reference:.2f} ms, x{reference / bertsmith:.2f}"
    )


def layouts(predictor: Predictor, texts: Sequence[str], rounds: int) -> None:
    """Batch layouts of the same texts with the same encoder; `tokens` is the size of a batch."""
    encode, frame = predictor.tokenizer.encode, predictor.tokenizer.frame
    rows = sorted((frame(encode(text), max_length=predictor.max_length) for text in texts), key=len)
    encoder = predictor.model.encoder

    def forward(batch: Any) -> None:
        with torch.inference_mode():
            encoder(batch.to(predictor.device), pool=False)

    def groups(tokens: int, *, padded: bool) -> Iterator[list[Row]]:
        group: list[Row] = []
        for row in reversed(rows):
            cost = (len(group) + 1) * len(group[0]) if padded and group else sum(map(len, group)) + len(row)
            if group and cost > tokens:
                yield group
                group = []
            group.append(row)
        yield group

    def rows_of(group: list[Row], **options: Any) -> Any:
        return collate(group, length=max(map(len, group)), **options)

    variants: dict[str, Callable[[], Any]] = {
        "equal lengths": lambda: [forward(rows_of(list(group))) for _, group in groupby(rows, key=len)]
    }
    for tokens in (1024, 4096):
        variants[f"padded, {tokens}"] = lambda n=tokens: [forward(rows_of(group)) for group in groups(n, padded=True)]  # type: ignore[misc]
        variants[f"packed rows, {tokens}"] = lambda n=tokens: [
            forward(rows_of(group, pack=True)) for group in groups(n, padded=False)
        ]  # type: ignore[misc]
    for tokens in (512, 1024, 2048, 4096, 8192, 16_384):
        variants[f"unpadded, {tokens}"] = lambda n=tokens: [
            forward(collate_unpadded(group)) for group in groups(n, padded=False)
        ]  # type: ignore[misc]
    print(f"layouts: {sum(map(len, rows))} tokens, {len({len(row) for row in rows})} lengths")
    report(medians(variants, rounds), len(texts), baseline="padded, 4096")


def precisions(folder: Path, texts: Sequence[str], device: str, rounds: int) -> None:
    """Effect of the data type on normalized embeddings and on speed."""
    names: tuple[Any, ...] = ("float32", "bfloat16", "int8")
    opened = {name: Predictor.open(folder, device=device, precision=name) for name in names}
    exact = opened["float32"].encode(texts, normalize=True)
    for name, one in opened.items():
        results = one.encode(texts, normalize=True)
        difference, cosine = np.abs(results - exact).max(), (results * exact).sum(1).min()
        print(f"{name}: max abs diff from float32 {difference:.1e}, min cosine {cosine:.5f}")
    variants: dict[str, Callable[[], Any]] = {name: lambda one=one: one.encode(texts) for name, one in opened.items()}  # type: ignore[misc]
    report(medians(variants, rounds), len(texts), baseline="float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--size", default="base", choices=sorted(bert.Config.sizes))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layouts", action="store_true")
    parser.add_argument("--precisions", action="store_true")
    options = parser.parse_args()
    texts = options.texts.read_text(encoding="utf-8").splitlines()[: options.count]
    words = [line for line in options.vocabulary.read_text(encoding="utf-8").split("\n") if line]
    tokenizer = WordPiece.build(words)
    print(f"{options.size} on {options.device}, {len(texts)} texts, {torch.get_num_threads()} threads, {load()}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        torch.manual_seed(0)
        save_model(Model.build(bert.Config.size(options.size, vocab_size=len(words)), []), tokenizer, folder)
        if options.precisions:
            return precisions(folder, texts, options.device, options.rounds)
        precision: Any = "bfloat16" if options.device == "cuda" else "float32"
        predictor = Predictor.open(folder, device=options.device, precision=precision)
        if options.layouts:
            return layouts(predictor, texts, options.rounds)
        compare(predictor, Baseline(folder, device=options.device), texts, options.rounds)


def compare(predictor: Predictor, baseline: Baseline, texts: Sequence[str], rounds: int) -> None:
    lengths = [min(count, 512) for count in predictor.count_tokens(texts)]
    padded = sum(
        max(part) * len(part) for part in (lengths[at : at + BATCH_SIZE] for at in range(0, len(texts), BATCH_SIZE))
    )
    print(f"{sum(lengths)} tokens; {padded / sum(lengths):.2f} positions per token in padded batches of {BATCH_SIZE}")
    for pooling in ("mean", "first"):
        bertsmith, reference = predictor.encode(texts[:64], pooling=pooling), baseline.encode(texts[:64], pooling)
        print(f"max abs diff, {pooling}: {np.abs(bertsmith - reference).max():.1e}")
    with Engine(predictor.backend) as engine, ThreadPoolExecutor(THREADS) as pool:
        shared = predictor.with_backend(engine)
        variants: dict[str, Callable[[], Any]] = {
            "transformers, batches of 32": lambda: baseline.encode(texts),
            "bertsmith, batches of 32": lambda: in_batches(predictor, texts),
            "bertsmith, one call": lambda: predictor.encode(texts),
            f"engine, {THREADS} threads, one text each": lambda: in_threads(shared, texts, pool),
        }
        results = medians(variants, rounds)
        report(results, len(texts), baseline="transformers, batches of 32")
        print(f"engine: {results['bertsmith, one call'][0] / results[list(variants)[-1]][0]:.2f} of one call")
    latency(predictor, baseline, texts, rounds)
    print(load())


if __name__ == "__main__":
    main()
