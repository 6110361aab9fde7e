"""Fine-tuning speed on SQuAD-shaped data: ours against transformers, same model, batch and precision, in one run.

    python bench/finetune_gpu.py SQUAD.json VOCAB_FOLDER [--size base] [--rows 32] [--length 384] [--rounds 3]

Ours: rows packed without padding, one compiled graph. transformers: BertForQuestionAnswering with sdpa, bf16 autocast,
fused AdamW, clipping, every window padded to the full length as its script does; eager and compiled. Windows a second,
medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
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
from bertsmith.training.finetune_data import FinetuneLoader
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.trainer import Trainer

STEPS, WARM = 30, 8


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
    asked = task.rows(task.examples("train"), tokenizer, max_length=options.length, training=True)
    mean = np.mean([len(one.rows[0]) for one in asked])
    print(f"{len(asked):,} windows, {mean:.0f} tokens on average, {torch.cuda.get_device_name()}", flush=True)
    runs: dict[str, Callable[[], float]] = {
        "bertsmith": ours(asked, tokenizer, options, graphs=True),
        "bertsmith, no graphs": ours(asked, tokenizer, options, graphs=False),
        "transformers": theirs(asked, options, compiled=False),
        "transformers, compiled": theirs(asked, options, compiled=True),
    }
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            found[name].append(run())
    medians = {name: statistics.median(speeds) for name, speeds in found.items()}
    for name, speed in medians.items():
        ratio = medians["bertsmith"] / speed
        print(f"{name:<24} {speed:8.1f} windows/s  {speed * mean / 1e3:8.1f} k tokens/s  ours is {ratio:.2f} ×")


def ours(asked: list[Features], tokenizer: Any, options: argparse.Namespace, *, graphs: bool) -> Callable[[], float]:
    """A trainer that goes on from call to call."""
    torch.manual_seed(0)
    world = World(device=torch.device("cuda"))
    config = bert.Config.size(options.size, vocab_size=tokenizer.vocab_size)
    total = WARM + STEPS * options.rounds
    feeder = FinetuneLoader(
        asked,
        "span",
        length=options.length,
        padding_id=tokenizer.padding_id,
        batch_size=options.rows,
        micro_batch_size=0,
        steps=total,
        seed=0,
        world=world,
    )
    trainer = Trainer(
        Model.build(config, [span.Config()]),
        feeder,
        plan=TrainingPlan(steps=total, learning_rate=3e-5),
        optimizer=adamw.Config(),
        compute=ComputeConfig(cuda_graphs=graphs),
        world=world,
    )
    for _ in range(WARM):
        next(trainer)

    def run() -> float:
        return timed(lambda: next(trainer), options.rows)

    return run


def theirs(asked: list[Features], options: argparse.Namespace, *, compiled: bool) -> Callable[[], float]:
    """transformers' model in the loop of its script, without its logging."""
    import transformers

    layers, width = bert.Config.sizes[options.size]
    config = transformers.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, intermediate_size=4 * width
    )
    config._attn_implementation = "sdpa"
    model: Any = transformers.BertForQuestionAnswering(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=True)
    forward: Any = torch.compile(model) if compiled else model
    place = iter(range(1 << 30))

    def step() -> None:
        first = next(place) * options.rows % (len(asked) - options.rows)
        batch = {
            name: value.pin_memory().cuda(non_blocking=True)
            for name, value in padded(asked[first : first + options.rows], options.length).items()
        }
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM):
        step()

    def run() -> float:
        return timed(step, options.rows)

    return run


def padded(asked: list[Features], length: int) -> dict[str, torch.Tensor]:
    """The same windows, one to a row, filled up to the full length."""
    ids, kinds, mask = (np.zeros((len(asked), length), np.int64) for _ in range(3))
    for place, one in enumerate(asked):
        row = one.rows[0]
        ids[place, : len(row)], kinds[place, : len(row)], mask[place, : len(row)] = row.ids, row.segment_ids, 1
    targets = torch.tensor([one.target for one in asked])
    return {
        "input_ids": torch.from_numpy(ids),
        "token_type_ids": torch.from_numpy(kinds),
        "attention_mask": torch.from_numpy(mask),
        "start_positions": targets[:, 0].contiguous(),
        "end_positions": targets[:, 1].contiguous(),
    }


def timed(step: Callable[[], Any], rows: int) -> float:
    """Windows a second over STEPS steps."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return STEPS * rows / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
