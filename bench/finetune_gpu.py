"""Fine-tuning speed on SQuAD: bertsmith against transformers, same model, batch size and precision, in one run.

    python bench/finetune_gpu.py SQUAD.json VOCAB_FOLDER [--size base] [--rows 32] [--length 384] [--rounds 3]

bertsmith: packed rows without padding, one compiled graph. transformers: BertForQuestionAnswering with sdpa, bf16
autocast, fused AdamW, gradient clipping, every window padded to the full length as in its script; eager and compiled.
Windows per second, medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.encoders import bert
from bertsmith.model_io.model import Model
from bertsmith.objectives import span
from bertsmith.tasks import squad
from bertsmith.tasks.task import Features
from bertsmith.tokenizers.tokenizer import load
from bertsmith.training.distributed import World
from bertsmith.training.finetune_loader import FinetuneLoader, SampleOrder
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.trainer import Trainer

STEPS, WARMUP_STEPS = 30, 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("--size", default="base")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    tokenizer = load(options.vocabulary)
    task = squad.Config().build(files={"train": options.file})
    features = task.rows(task.examples("train"), tokenizer, max_length=options.length, training=True)
    mean = np.mean([len(feature.rows[0]) for feature in features])
    print(f"{len(features):,} windows, {mean:.0f} tokens on average, {torch.cuda.get_device_name()}", flush=True)
    runs: dict[str, Callable[[], float]] = {
        "bertsmith": bertsmith_run(features, tokenizer, options, graphs=True),
        "bertsmith, no graphs": bertsmith_run(features, tokenizer, options, graphs=False),
        "transformers": transformers_run(features, options, compiled=False),
        "transformers, compiled": transformers_run(features, options, compiled=True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            speeds[name].append(run())
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, speed in medians.items():
        ratio = medians["bertsmith"] / speed
        print(f"{name:<24} {speed:8.1f} windows/s  {speed * mean / 1e3:8.1f} k tokens/s  bertsmith/this: {ratio:.2f}")


def bertsmith_run(
    features: list[Features], tokenizer: Any, options: argparse.Namespace, *, graphs: bool
) -> Callable[[], float]:
    """A trainer that continues from call to call."""
    torch.manual_seed(0)
    world = World(device=torch.device("cuda"))
    config = bert.Config.size(options.size, vocab_size=tokenizer.vocab_size)
    total = WARMUP_STEPS + STEPS * options.rounds
    loader = FinetuneLoader(
        features,
        ["span"],
        SampleOrder(len(features), seed=0, batch_size=options.rows),
        length=options.length,
        padding_id=tokenizer.padding_id,
        micro_batch_size=0,
        steps=total,
        world=world,
    )
    trainer = Trainer(
        Model.build(config, [span.Config()]),
        loader,
        plan=TrainingPlan(steps=total, learning_rate=3e-5),
        optimizer=adamw.Config(),
        compute=ComputeConfig(cuda_graphs=graphs),
        world=world,
    )
    for _ in range(WARMUP_STEPS):
        next(trainer)

    def run() -> float:
        return windows_per_second(lambda: next(trainer), options.rows)

    return run


def transformers_run(features: list[Features], options: argparse.Namespace, *, compiled: bool) -> Callable[[], float]:
    """transformers' model in the training loop of its script, without logging."""
    import transformers

    layers, width = bert.Config.sizes[options.size]
    config = transformers.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, intermediate_size=4 * width
    )
    config._attn_implementation = "sdpa"
    model: Any = transformers.BertForQuestionAnswering(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=True)
    forward: Any = torch.compile(model) if compiled else model
    numbers = count()

    def step() -> None:
        first = next(numbers) * options.rows % (len(features) - options.rows)
        batch = {
            name: value.pin_memory().cuda(non_blocking=True)
            for name, value in padded(features[first : first + options.rows], options.length).items()
        }
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARMUP_STEPS):
        step()

    def run() -> float:
        return windows_per_second(step, options.rows)

    return run


def padded(features: list[Features], length: int) -> dict[str, torch.Tensor]:
    """The same windows, one per row, padded to the full length."""
    ids, segment_ids, mask = (np.zeros((len(features), length), np.int64) for _ in range(3))
    for index, feature in enumerate(features):
        row = feature.rows[0]
        ids[index, : len(row)], segment_ids[index, : len(row)], mask[index, : len(row)] = row.ids, row.segment_ids, 1
    targets = torch.tensor([feature.target for feature in features])
    return {
        "input_ids": torch.from_numpy(ids),
        "token_type_ids": torch.from_numpy(segment_ids),
        "attention_mask": torch.from_numpy(mask),
        "start_positions": targets[:, 0].contiguous(),
        "end_positions": targets[:, 1].contiguous(),
    }


def windows_per_second(step: Callable[[], Any], rows: int) -> float:
    """Windows per second over STEPS steps."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return STEPS * rows / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
