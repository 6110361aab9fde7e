"""Pre-training speed: bertsmith against transformers, same shapes and tokens per step, one process, interleaved rounds.

    python bench/pretrain_gpu.py SHARDS [--cases base/512 base/128 large/512 tiny/128 gpt-base/512] [--dropout 0 0.1]
        [--bertsmith real full graphs] [--peers eager compiled modernbert] [--set precision=bf16]... [--rounds 3]
        [--profile] [--lock FILE [--of 3]]

bertsmith: `real` is packed text from shards with the data pipeline of a run, `full` random tokens in rows without
padding, `graphs` is `real` as CUDA graphs; all with the recipe's objectives and optimizer, gradient clipping, in the
fastest precision of this device. transformers: BertForPreTraining or OpenAIGPTLMHeadModel, sdpa, bf16 autocast, fused
AdamW, gradient clipping, random tokens in rows without padding, logits at every token. ModernBERT has its own size in
every case. Tokens do not count padding; model TFLOP/s as in `bertsmith.training.roofline`, equal for all candidates of
one shape; the peak is that of a large matrix product on this device. Medians of interleaved rounds. `--profile` shows
the kernels of a step of bertsmith. With `--lock` several calls may compile at the same time: each waits for the lock on
that file before it is timed, and with `--of` also until that many of them have compiled, so that nothing else runs.
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from needless_masks import skip_needless_masks

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

WARMUP_STEPS = 6
MAX_WAIT = 180  # seconds that calls wait for each other
LABELS_PER_TOKEN = {"masked_lm": 0.15, "causal_lm": 1.0}


@dataclass
class Candidate:
    """A training loop: `step` trains one step and returns its number of tokens."""

    name: str
    step: Callable[[], int]
    flops: float  # per token
    memory: float = 0.0  # GiB


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shards")
    parser.add_argument("--cases", nargs="+", default=["base/512"])
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0, 0.1])
    parser.add_argument("--bertsmith", nargs="*", default=["real", "full"])
    parser.add_argument("--peers", nargs="*", default=["compiled"])
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of bertsmith")
    parser.add_argument("--tokens", type=int, default=65_536, help="tokens per step, with padding")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--lock", metavar="FILE", help="a file that is locked during timing")
    parser.add_argument("--of", type=int, default=0, metavar="N", help="number of calls that share the lock file")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    world = World(device=torch.device(options.device))
    peak = measure_peak_flops(world.device, torch.bfloat16 if options.device == "cuda" else torch.float32)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}; peak {peak / 1e12:.0f} TFLOP/s; {options.tokens:,} tokens per step")
    print(f"{'':<40} {'k tokens/s':>10} {'slowest–fastest':>17} {'model TFLOP/s':>14} {'MFU':>10} {'GiB':>6}")
    data = PretrainData.open(options.shards)
    for case in options.cases:
        for dropout in options.dropout:
            compare(case, dropout, data, world, options, peak)


def compare(
    case: str, dropout: float, data: PretrainData, world: World, options: argparse.Namespace, peak: float
) -> dict[str, float]:
    """One shape: all candidates are built, warmed up, and timed alternately."""
    name, length = case.split("/")[0], int(case.split("/")[1])
    family, _, size = name.rpartition("-")
    rows = options.tokens // length
    changes = [f"max_length={length}", f"batch_size={rows}", f"micro_batch_size={rows}", "steps=1000000"]
    changes += [f"encoder.dropout={dropout}", f"encoder.attention_dropout={dropout}", *options.set]
    recipe = data.with_vocabulary(with_overrides(recipes.find(f"{family or 'bert'}/{size}"), changes))
    recipe, _ = resolve_auto(recipe, Path("no run yet"), world)
    precision = recipe.precision.replace("auto", "fp32")
    makers: dict[str, Callable[[], Callable[[], int]]] = {}
    for kind in options.bertsmith:
        makers[f"bertsmith {kind} {precision}"] = partial(bertsmith_step, kind, recipe, data, world)
    for kind in options.peers:
        makers[f"transformers {kind}"] = partial(transformers_step, kind, recipe, rows, length, dropout, world)
    token_flops = model_flops(recipe)
    candidates = [warmed_up(f"{case} dropout {dropout:g} {name}", make, token_flops) for name, make in makers.items()]
    speeds: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    with exclusive_device(options.lock, options.of, case):
        for _ in range(options.rounds):
            for candidate in candidates:
                speeds[candidate.name].append(timed(candidate, options.steps))
        if options.profile:
            for candidate in candidates[: len(options.bertsmith)]:
                profiled(candidate)
    for candidate in candidates:
        rates, median = speeds[candidate.name], statistics.median(speeds[candidate.name])
        flops = median * candidate.flops
        spread = f"{min(rates) / 1e3:.1f}–{max(rates) / 1e3:.1f}"
        print(
            f"{candidate.name:<40} {median / 1e3:10.1f} {spread:>17} {flops / 1e12:14.1f} {flops / peak:10.1%} "
            f"{candidate.memory:6.1f}",
            flush=True,
        )
    return {name: statistics.median(rates) for name, rates in speeds.items()}


@contextmanager
def exclusive_device(file: str | None, of: int, name: str) -> Iterator[None]:
    """Exclusive use of the device among calls with the same file, once `of` of them are ready or time is up."""
    if file is None:
        yield
        return
    if of:
        ready = Path(f"{file}.ready")
        ready.mkdir(exist_ok=True)
        (ready / f"{name.replace('/', '-')}-{os.getpid()}").touch()  # two calls may time the same case
        until = time.monotonic() + MAX_WAIT
        while len(list(ready.iterdir())) < of and time.monotonic() < until:
            time.sleep(0.1)
    with open(file, "w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield


def profiled(candidate: Candidate, steps: int = 3, most: int = 30) -> None:
    """The kernels of a step, longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            candidate.step()
        torch.cuda.synchronize()
    milliseconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in profile.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            milliseconds[event.name[:100]] += event.device_time_total / steps / 1e3
            calls[event.name[:100]] += 1
    print(f"{candidate.name}: {sum(milliseconds.values()):.2f} ms of kernels per step")
    for name, spent in milliseconds.most_common(most):
        print(f"{spent:9.3f} ms {calls[name] / steps:6.1f} × {name}")


def warmed_up(name: str, make: Callable[[], Callable[[], int]], flops: float) -> Candidate:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    candidate = Candidate(name, make(), flops)
    for _ in range(WARMUP_STEPS):
        candidate.step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        candidate.memory = (torch.cuda.max_memory_allocated() - before) / 2**30
    return candidate


def timed(candidate: Candidate, steps: int) -> float:
    """Tokens per second."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    tokens = sum(candidate.step() for _ in range(steps))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return tokens / (time.perf_counter() - start)


def model_flops(recipe: Recipe) -> float:
    from bertsmith.model_io.model import Model

    with torch.device("meta"):
        model = Model.build(recipe.encoder, recipe.objectives.values())
    return flops_per_token(model, length=recipe.max_length, labels=LABELS_PER_TOKEN)


def bertsmith_step(kind: str, recipe: Recipe, data: PretrainData, world: World) -> Callable[[], int]:
    if kind == "graphs":
        recipe = with_overrides(recipe, ["compute.cuda_graphs=true"])
    if kind in ("real", "graphs"):
        packing = data.packing(recipe)
        loader: Any = PretrainLoader(recipe, packing, world)
        share = token_share(loader(0))
    else:
        batch = full_batch(recipe)
        loader, share = (lambda step: [batch]), 1.0
    trainer: Trainer = make_trainer(recipe, data, loader, world, StopSignal())
    tokens = recipe.batch_size * recipe.max_length

    def step() -> int:
        next(trainer)
        return round(tokens * share)

    return step


def token_share(batches: list[Batch]) -> float:
    """The share of tokens that are not padding, which is nearly the same in every step."""
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
    batch = collate(rows, length=length, labels=labels)
    return batch.to("cuda") if torch.cuda.is_available() else batch


def transformers_step(
    kind: str, recipe: Recipe, rows: int, length: int, dropout: float, world: World
) -> Callable[[], int]:
    import transformers

    skip_needless_masks()
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
    elif "causal_lm" in recipe.objectives:
        shape: Any = recipe.encoder
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        sizes = {"n_embd": shape.width, "n_layer": shape.layers, "n_head": shape.heads, "n_positions": max(length, 512)}
        config = transformers.OpenAIGPTConfig(vocab_size=vocabulary, **sizes, **rates)
        model = transformers.OpenAIGPTLMHeadModel(config)
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
    share = LABELS_PER_TOKEN["causal_lm" if "causal_lm" in recipe.objectives else "masked_lm"]
    labels = torch.where(torch.rand(rows, length, device=world.device) < share, ids, -100)
    inputs = {"input_ids": ids, "labels": labels}
    if "next_sentence" in recipe.objectives and kind != "modernbert":
        inputs["next_sentence_label"] = torch.randint(0, 2, (rows,), device=world.device)

    def step() -> int:
        with torch.autocast(world.device.type, torch.bfloat16, enabled=world.device.type == "cuda"):
            loss = forward(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return rows * length

    return step


if __name__ == "__main__":
    main()
