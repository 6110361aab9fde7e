"""Speed of one training step of BERT by shape and kernel: tokens and useful FLOP a second, and what hiding costs.

PYTHONPATH=src python bench/model_gpu_check.py [size] [tokens a batch]     (on the CPU: tiny 1024)
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


def rows(sizes: list[int]) -> list[Row]:
    """Rows of random words with their frame."""
    random = np.random.default_rng(0)
    found = []
    for size in sizes:
        texts = np.zeros(size, np.int8)
        texts[[0, -1]] = -1
        nothing = np.zeros((size, 2), np.int32)
        ids = random.integers(1000, VOCABULARY.size, size, np.int32)
        found.append(Row(ids, np.zeros(size, np.uint8), texts, nothing, np.zeros(size, np.int32)))
    return found


def batch_of(length: int, tokens: int, *, packed: bool) -> Batch:
    """Full rows of one text; or rows of several texts that fill them to about 99 %."""
    lines = tokens // length
    sizes = [length] * lines if not packed else [length // 4] * (3 * lines) + [length // 8] * (2 * lines)
    labels = {"next_sentence": [number % 2 for number in range(len(sizes))]}
    return collate(rows(sizes), length=length, pack=packed, labels=labels).to(DEVICE)


def seconds(work: Callable[[], object]) -> float:
    """Of one call, after three to warm up."""
    for _ in range(3):
        work()
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    begin = time.perf_counter()
    for _ in range(STEPS):
        work()
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    return (time.perf_counter() - begin) / STEPS


def flops_a_token(config: bert.Config, length: int) -> float:
    """The useful ones of SPEED.md: encoder, attention, and a head over 15 % of the places."""
    block = 6 * (4 * config.width**2 + 2 * config.width * config.inner) + 12 * config.width * length
    return config.layers * block + 0.15 * 6 * (config.vocab_size * config.width + config.width**2)


def line(config: bert.Config, length: int, tokens: int, *, packed: bool, compiled: bool) -> None:
    model = Model.build(config, [masked_lm.Config(), next_sentence.Config()], vocabulary=VOCABULARY).to(DEVICE).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = batch_of(length, tokens, packed=packed)
    forward = torch.compile(model, fullgraph=True) if compiled else model
    hide = torch.compile(model.corrupt, fullgraph=True) if compiled else model.hide

    def step() -> None:
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda"):
            loss = forward(hide(batch)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    took, hiding = seconds(step), seconds(lambda: hide(batch))
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda"):
        kernel = model.encoder._attention_context(batch, return_attentions=False).kernel
    rate = batch.input_ids.numel() / took
    print(
        f"{length:6} {'packed' if packed else 'full':7} {'compiled' if compiled else 'eager':9} {kernel:9} "
        f"dropout {config.attention_dropout:3.1f} {rate / 1e3:9.0f} {rate * flops_a_token(config, length) / 1e12:9.1f} "
        f"{took * 1e3:9.1f} {hiding * 1e3:9.2f}",
        flush=True,
    )


def main(size: str = "base", tokens: str = "65536") -> None:
    config = bert.Config.size(size, vocab_size=VOCABULARY.size)
    print(f"{size}, {tokens} tokens a batch, {DEVICE}; k tokens/s, useful TFLOP/s, ms a step, ms of it hiding")
    for length in (512, 128):
        for packed in (False, True):
            for dropout in (0.0, 0.1):
                for compiled in (False, True) if DEVICE == "cuda" else (False,):
                    settings = replace(config, dropout=dropout, attention_dropout=dropout)
                    line(settings, length, int(tokens), packed=packed, compiled=compiled)


if __name__ == "__main__":
    main(*sys.argv[1:])
