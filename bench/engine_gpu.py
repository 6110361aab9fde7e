"""The batching engine on a GPU: many threads that embed one text at a time, compared with one call; single texts.

PYTHONPATH=src python bench/engine_gpu.py --texts FILE --vocabulary vocab.txt [--threads 32 128] [--count 2048]

FILE has one text per line, not sorted by length; vocab.txt is a WordPiece vocabulary; weights are random, BERT-base in
bfloat16. The threads are closed-loop clients that share the texts. Rounds are interleaved; medians. Then clients at a
fixed rate of half the throughput: latency in multiples of that of a single text. `--backend none` computes nothing and
needs no GPU: what remains is the work of the threads, the engine and the tokenizer.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.encoders import bert
from bertsmith.inference.engine import Engine
from bertsmith.inference.forward import BATCH_TOKENS, ModelInput, Query
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model import Model
from bertsmith.objectives import masked_lm
from bertsmith.tokenizers.wordpiece import WordPiece

SWITCH_INTERVAL = 2e-4  # of `bertsmith serve`


class NoBackend:
    """Returns zeros."""

    def __init__(self, width: int) -> None:
        self.result = np.zeros(width, np.float32)

    def run(self, query: Query, inputs: Sequence[ModelInput]) -> list[Any]:
        return [self.result] * len(inputs)


def in_threads(predictor: Predictor, texts: Sequence[str], threads: int) -> list[float]:
    """Latencies in seconds of one call per text."""
    remaining, latencies = iter(texts), list[float]()

    def client() -> None:
        for text in remaining:
            began = time.perf_counter()
            predictor.encode(text)
            latencies.append(time.perf_counter() - began)

    own = [threading.Thread(target=client) for _ in range(threads)]
    for thread in own:
        thread.start()
    for thread in own:
        thread.join()
    return latencies


def at_rate(predictor: Predictor, texts: Sequence[str], rate: float) -> list[float]:
    """Latencies in seconds of calls that begin at a fixed rate."""
    latencies, began = list[float](), time.perf_counter()
    numbers = iter(range(len(texts)))

    def client() -> None:
        for number in numbers:
            due = began + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            predictor.encode(texts[number])
            latencies.append(time.perf_counter() - due)

    own = [threading.Thread(target=client) for _ in range(64)]
    for thread in own:
        thread.start()
    for thread in own:
        thread.join()
    return latencies


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--size", default="base", choices=sorted(bert.Config.sizes))
    parser.add_argument("--backend", default="local", choices=["local", "none"])
    parser.add_argument("--device", help="default: cuda, or cpu without a backend")
    parser.add_argument("--threads", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--count", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="of one text at a time")
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL)
    texts = options.texts.read_text(encoding="utf-8").splitlines()[: options.count]
    tokenizer = WordPiece.build([line for line in options.vocabulary.read_text(encoding="utf-8").split("\n") if line])
    torch.manual_seed(0)
    model = Model.build(bert.Config.size(options.size, vocab_size=tokenizer.vocab_size), [masked_lm.Config()])
    device = options.device or ("cuda" if options.backend == "local" else "cpu")
    predictor = Predictor(model, tokenizer, device=device, precision="bfloat16")
    if options.backend == "none":
        predictor = predictor.with_backend(NoBackend(model.encoder.width))
    one_call, one_call_cpu, expected = list[float](), list[float](), predictor.encode(texts)
    with Engine(predictor.backend, batch_tokens=BATCH_TOKENS.get(device)) as engine:
        shared: Any = predictor.with_backend(engine)
        actual = np.stack([predictor.encode(text) for text in texts[:256]])
        print(f"one text at a time and one call: max abs diff {np.abs(actual - expected[:256]).max():.1e}")
        results: dict[int, list[tuple[float, float, float]]] = {threads: [] for threads in options.threads}
        for threads in options.threads:  # captures the graphs
            in_threads(shared, texts, threads)
        for _ in range(options.rounds):
            began, cpu_began = time.perf_counter(), time.process_time()
            predictor.encode(texts)
            one_call_cpu.append(time.process_time() - cpu_began)
            one_call.append(time.perf_counter() - began)
            for threads, rounds in results.items():
                began, cpu_began = time.perf_counter(), time.process_time()
                latencies = in_threads(shared, texts, threads)
                cpu = time.process_time() - cpu_began
                rounds.append((time.perf_counter() - began, quantile(latencies, 0.99), cpu))
        call = statistics.median(one_call)
        cpu = 1e6 * statistics.median(one_call_cpu) / len(texts)
        print(f"one call: {len(texts) / call:.0f} texts/s, {cpu:.0f} us of CPU per text")
        for threads, rounds in results.items():
            wall, p99, cpu = map(statistics.median, zip(*rounds, strict=True))
            ratio = f"{call / wall:.2f} of one call, {1e6 * cpu / len(texts):.0f} us of CPU per text"
            print(f"{threads} threads: {len(texts) / wall:.0f} texts/s, {ratio}, p99 {1e3 * p99:.2f} ms")
        alone = sorted(_timed(shared, text) for text in texts[:512])
        single = statistics.median(alone)
        short = statistics.median(_timed(shared, "a short text of a few words") for _ in range(200))
        print(f"single text, engine: short {1e3 * short:.2f} ms; median {1e3 * single:.2f} ms")
        for share in (0.25, 0.5):
            rate = share * len(texts) / statistics.median(wall for wall, *_ in results[options.threads[0]])
            latencies = at_rate(shared, texts * 2, rate)
            p50, p99 = (1e3 * quantile(latencies, one) for one in (0.5, 0.99))
            ratio = f"{p99 / single / 1e3:.1f} x a single text"
            print(f"at {share:.0%} of the throughput: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {ratio}")
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(lambda: [predictor.encode(text) for text in texts[:1000]])
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def _timed(predictor: Predictor, text: str) -> float:
    began = time.perf_counter()
    predictor.encode(text)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
