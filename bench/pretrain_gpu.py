"""Pre-training speed: ours against transformers, same shapes, same number of tokens, one process, interleaved rounds.

    python bench/pretrain_gpu.py SHARDS [--cases base/512 base/128 large/512 tiny/128] [--dropout 0 0.1]
        [--ours real full graphs] [--peers eager compiled modernbert] [--set precision=bf16]... [--rounds 3]
        [--profile] [--turn FILE [--of 3]]

Ours: `real` is packed text from shards by the run's own data path, `full` random tokens in rows without padding,
`graphs` is `real` replayed as CUDA graphs; all with masked LM and next sentence, the paper's optimiser, clipping, in
the precision that a run finds fastest. transformers: BertForPreTraining, sdpa, bf16
autocast, fused AdamW, clipping, random tokens in full rows, as it computes them: logits for every place. ModernBERT is
its own size whatever the case. Tokens are real ones; useful TFLOP/s as in `bertsmith.training.roofline`, the same for
everybody of one shape; the ceiling is a large product of matrices on this device. Medians of interleaved rounds.
`--profile` shows
where the device's time goes in a step of ours. With `--turn` several calls may compile at the same time: each waits for
the lock on that file before it is timed, and with `--of` also until so many of them have compiled: then nothing else is
under way.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from needless_masks import leave_out as leave_out_masks

from bertsmith import recipes
from bertsmith.data.collate import collate
from bertsmith.encoders import bert
from bertsmith.encoders.transformer_encoder import HEAD_WIDTH
from bertsmith.system.devices import measure_peak_flops
from bertsmith.training.distributed import World
from bertsmith.training.pretrain import make_trainer, resolve_auto
from bertsmith.training.pretrain_data import PretrainData, PretrainLoader
from bertsmith.training.recipe import Recipe, with_overrides
from bertsmith.training.roofline import flops_per_token
from bertsmith.training.signals import StopSignal
from bertsmith.training.trainer import Trainer
from bertsmith.types import Batch, Row

WARM = 6
PATIENCE = 180  # seconds that calls wait for each other
ASKED = {"masked_lm": 0.15}


@dataclass
class Candidate:
    """Something that trains: `step` takes one step and says how many tokens it was, `wait` ends what is under way."""

    name: str
    step: Callable[[], int]
    useful: float  # FLOP for each token
    memory: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shards")
    parser.add_argument("--cases", nargs="+", default=["base/512"])
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0, 0.1])
    parser.add_argument("--ours", nargs="*", default=["real", "full"])
    parser.add_argument("--peers", nargs="*", default=["compiled"])
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of ours")
    parser.add_argument("--tokens", type=int, default=65_536, help="places in a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--turn", metavar="FILE", help="a file that is locked while something is timed")
    parser.add_argument("--of", type=int, default=0, metavar="N", help="calls that share the file of --turn")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    world = World(device=torch.device(options.device))
    peak = measure_peak_flops(world.device, torch.bfloat16 if options.device == "cuda" else torch.float32)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}; ceiling {peak / 1e12:.0f} TFLOP/s; {options.tokens:,} places a step")
    print(f"{'':<40} {'k tokens/s':>10} {'slowest–fastest':>17} {'useful TFLOP/s':>14} {'of ceiling':>10} {'GiB':>6}")
    data = PretrainData.open(options.shards)
    for case in options.cases:
        for dropout in options.dropout:
            compare(case, dropout, data, world, options, peak)


def compare(
    case: str, dropout: float, data: PretrainData, world: World, options: argparse.Namespace, peak: float
) -> dict[str, float]:
    """One shape: everybody built, warmed up, and timed in turn."""
    size, length = case.split("/")[0], int(case.split("/")[1])
    rows = options.tokens // length
    changes = [f"max_length={length}", f"batch_size={rows}", f"micro_batch_size={rows}", "steps=1000000"]
    changes += [f"encoder.dropout={dropout}", f"encoder.attention_dropout={dropout}", *options.set]
    recipe = data.with_vocabulary(with_overrides(recipes.find(f"bert/{size}"), changes))
    recipe, _ = resolve_auto(recipe, Path("no run yet"), world)
    precision = recipe.precision.replace("auto", "fp32")
    makers: dict[str, Callable[[], Callable[[], int]]] = {}
    for kind in options.ours:
        makers[f"bertsmith {kind} {precision}"] = lambda kind=kind: ours(kind, recipe, data, world)
    for kind in options.peers:
        makers[f"transformers {kind}"] = lambda kind=kind: theirs(kind, recipe, rows, length, dropout, world)
    useful = useful_flops(recipe, data)
    candidates = [made(f"{case} dropout {dropout:g} {name}", make, useful) for name, make in makers.items()]
    speeds: dict[str, list[float]] = {one.name: [] for one in candidates}
    with turn(options.turn, options.of, case):
        for _ in range(options.rounds):
            for one in candidates:
                speeds[one.name].append(timed(one, options.steps))
        if options.profile:
            for one in candidates[: len(options.ours)]:
                profiled(one)
    for one in candidates:
        found, middle = speeds[one.name], statistics.median(speeds[one.name])
        flops = middle * one.useful
        spread = f"{min(found) / 1e3:.1f}–{max(found) / 1e3:.1f}"
        print(
            f"{one.name:<40} {middle / 1e3:10.1f} {spread:>17} {flops / 1e12:14.1f} {flops / peak:10.1%} "
            f"{one.memory:6.1f}",
            flush=True,
        )
    return {name: statistics.median(found) for name, found in speeds.items()}


@contextmanager
def turn(file: str | None, of: int, name: str) -> Iterator[None]:
    """Alone on the device, among calls that name the same file; when `of` of them are ready, or some have failed."""
    if file is None:
        yield
        return
    if of:
        ready = Path(f"{file}.ready")
        ready.mkdir(exist_ok=True)
        (ready / f"{name.replace('/', '-')}-{os.getpid()}").touch()  # two calls may time the same case
        until = time.monotonic() + PATIENCE
        while len(list(ready.iterdir())) < of and time.monotonic() < until:
            time.sleep(0.1)
    with open(file, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def profiled(one: Candidate, steps: int = 3, most: int = 30) -> None:
    """What the device does in a step, longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            one.step()
        torch.cuda.synchronize()
    taken: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in profile.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            taken[event.name[:100]] += event.device_time_total / steps / 1e3
            calls[event.name[:100]] += 1
    print(f"{one.name}: {sum(taken.values()):.2f} ms of kernels a step")
    for name, spent in taken.most_common(most):
        print(f"{spent:9.3f} ms {calls[name] / steps:6.1f} × {name}")


def made(name: str, make: Callable[[], Callable[[], int]], useful: float) -> Candidate:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    one = Candidate(name, make(), useful)
    for _ in range(WARM):
        one.step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        one.memory = (torch.cuda.max_memory_allocated() - before) / 2**30
    return one


def timed(one: Candidate, steps: int) -> float:
    """Tokens a second."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    tokens = sum(one.step() for _ in range(steps))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return tokens / (time.perf_counter() - began)


def useful_flops(recipe: Recipe, data: PretrainData) -> float:
    from bertsmith.model_io.model import Model

    with torch.device("meta"):
        model = Model.build(recipe.encoder, recipe.objectives.values())
    return flops_per_token(model, length=recipe.max_length, labels=ASKED)


def ours(kind: str, recipe: Recipe, data: PretrainData, world: World) -> Callable[[], int]:
    if kind == "graphs":
        recipe = with_overrides(recipe, ["compute.cuda_graphs=true"])
    if kind in ("real", "graphs"):
        packing = data.packing(recipe)
        feeder: Any = PretrainLoader(recipe, packing, world)
        share = real_share(feeder(0))
    else:
        batch = full_batch(recipe)
        feeder, share = (lambda step: [batch]), 1.0
    trainer: Trainer = make_trainer(recipe, data, feeder, world, StopSignal())
    places = recipe.batch_size * recipe.max_length

    def step() -> int:
        next(trainer)
        return round(places * share)

    return step


def real_share(batches: list[Batch]) -> float:
    """What part of the places holds text; the packing keeps it nearly the same in every step."""
    return float(np.mean([(batch.document_ids != 0).float().mean().item() for batch in batches]))


def full_batch(recipe: Recipe) -> Batch:
    random, length = np.random.default_rng(0), recipe.max_length
    rows = []
    for _ in range(recipe.batch_size):
        ids = random.integers(1000, recipe.encoder.vocab_size - 64, length).astype(np.int32)
        texts = np.zeros(length, np.int8)
        texts[[0, length // 2, -1]] = -1
        segments = (np.arange(length) > length // 2).astype(np.uint8)
        rows.append(Row(ids, segments, texts, np.zeros((length, 2), np.int32), np.zeros(length, np.int32)))
    labels = {"next_sentence": random.integers(0, 2, len(rows)).tolist()}
    found = collate(rows, length=length, labels=labels)
    return found.to("cuda") if torch.cuda.is_available() else found


def theirs(kind: str, recipe: Recipe, rows: int, length: int, dropout: float, world: World) -> Callable[[], int]:
    import transformers

    leave_out_masks()
    torch.manual_seed(0)
    config: Any
    vocabulary = recipe.encoder.vocab_size
    if kind == "modernbert":
        special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
        config = transformers.ModernBertConfig(
            vocab_size=vocabulary, max_position_embeddings=max(length, 512), **special
        )
        config._attn_implementation = "sdpa"
        model: Any = transformers.ModernBertForMaskedLM(config)
    else:
        layers, width = bert.Config.sizes[recipe.name.split("/")[1]]
        config = transformers.BertConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // HEAD_WIDTH,
            intermediate_size=4 * width,
            max_position_embeddings=max(length, 512),
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        config._attn_implementation = "sdpa"
        model = transformers.BertForPreTraining(config)
    model.to(world.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = model if kind == "eager" else torch.compile(model)
    ids = torch.randint(1000, vocabulary - 64, (rows, length), device=world.device)
    labels = torch.where(torch.rand(rows, length, device=world.device) < ASKED["masked_lm"], ids, -100)
    given = {"input_ids": ids, "labels": labels}
    if kind != "modernbert":
        given["next_sentence_label"] = torch.randint(0, 2, (rows,), device=world.device)

    def step() -> int:
        with torch.autocast(world.device.type, torch.bfloat16, enabled=world.device.type == "cuda"):
            loss = forward(**given).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return rows * length

    return step


if __name__ == "__main__":
    main()
