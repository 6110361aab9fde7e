"""Speed of one training step of BERT by shape and attention kernel: tokens and FLOPs per second, time of masking.

PYTHONPATH=src python bench/model_gpu_check.py [size] [tokens per batch]     (on the CPU: tiny 1024)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from bertsmith.data.collate import collate
from bertsmith.encoders import bert
from bertsmith.model_io.model import Model
from bertsmith.objectives import masked_lm, next_sentence
from bertsmith.types import Batch, Row, Vocabulary

VOCABULARY = Vocabulary(
    size=30_522, mask_id=103, special_ids=(0, 100, 101, 102, 103), is_continuation=np.arange(30_522) > 20_000
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 20 if DEVICE == "cuda" else 2


def random_rows(sizes: list[int]) -> list[Row]:
    """Rows of random tokens."""
    random = np.random.default_rng(0)
    rows = []
    for size in sizes:
        texts = np.zeros(size, np.int8)
        texts[[0, -1]] = -1
        nothing = np.zeros((size, 2), np.int32)
        ids = random.integers(1000, VOCABULARY.size, size, np.int32)
        rows.append(Row(ids, np.zeros(size, np.uint8), texts, nothing, np.zeros(size, np.int32)))
    return rows


def batch_of(length: int, tokens: int, *, packed: bool) -> Batch:
    """Rows of one text without padding; or rows of several texts, filled to about 99 %."""
    batch_size = tokens // length
    sizes = [length] * batch_size if not packed else [length // 4] * (3 * batch_size) + [length // 8] * (2 * batch_size)
    labels = {"next_sentence": [number % 2 for number in range(len(sizes))]}
    return collate(random_rows(sizes), length=length, pack=packed, labels=labels).to(DEVICE)


def seconds(run: Callable[[], object]) -> float:
    """Of one call, after three warm-up calls."""
    for _ in range(3):
        run()
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    start = time.perf_counter()
    for _ in range(STEPS):
        run()
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    return (time.perf_counter() - start) / STEPS


def flops_per_token(config: bert.Config, length: int) -> float:
    """Model FLOPs: encoder, attention, and an MLM head at 15 % of the tokens."""
    block = 6 * (4 * config.width**2 + 2 * config.width * config.inner) + 12 * config.width * length
    return config.layers * block + 0.15 * 6 * (config.vocab_size * config.width + config.width**2)


def measure(config: bert.Config, length: int, tokens: int, *, packed: bool, compiled: bool) -> None:
    model = Model.build(config, [masked_lm.Config(), next_sentence.Config()], vocabulary=VOCABULARY).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = batch_of(length, tokens, packed=packed)
    forward = torch.compile(model, fullgraph=True) if compiled else model
    corrupt = torch.compile(model.corrupt, fullgraph=True) if compiled else model.corrupt

    def step() -> None:
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda"):
            loss = forward(corrupt(batch)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step_time, corrupt_time = seconds(step), seconds(lambda: corrupt(batch))
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda"):
        kernel = model.encoder._attention_context(batch, return_attentions=False).kernel
    throughput = batch.input_ids.numel() / step_time
    tflops = throughput * flops_per_token(config, length) / 1e12
    print(
        f"{length:6} {'packed' if packed else 'dense':7} {'compiled' if compiled else 'eager':9} {kernel:9} "
        f"dropout {config.attention_dropout:3.1f} {throughput / 1e3:9.0f} {tflops:9.1f} "
        f"{step_time * 1e3:9.1f} {corrupt_time * 1e3:9.2f}",
        flush=True,
    )


def main(size: str = "base", tokens: str = "65536") -> None:
    config = bert.Config.size(size, vocab_size=VOCABULARY.size)
    print(f"{size}, {tokens} tokens per batch, {DEVICE}; k tokens/s, model TFLOP/s, ms per step, ms of masking")
    for length in (512, 128):
        for packed in (False, True):
            for dropout in (0.0, 0.1):
                for compiled in (False, True) if DEVICE == "cuda" else (False,):
                    settings = replace(config, dropout=dropout, attention_dropout=dropout)
                    measure(settings, length, int(tokens), packed=packed, compiled=compiled)


if __name__ == "__main__":
    main(*sys.argv[1:])
