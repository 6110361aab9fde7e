"""Pre-training speed of RoBERTa, ALBERT and ELECTRA against transformers, one process, interleaved rounds.

    python bench/family_gpu.py SHARDS [--cases roberta/base/512 albert/base/512 electra/small/128] [--peers compiled]
        [--set encoder.dropout=0]... [--tokens 65536] [--rounds 3] [--steps 20] [--lock FILE [--of 3]] [--device cuda]

A case is FAMILY/SIZE/LENGTH. bertsmith: packed text from shards with the data pipeline of a run, with the packing and
objectives of the recipe. transformers: RobertaForMaskedLM; AlbertForPreTraining; for ELECTRA ElectraForMaskedLM as
generator and ElectraForPreTraining as discriminator with shared embeddings, as in the paper: samples at masked tokens,
discriminator loss times 50. It gets a batch of random tokens without padding that is on the device and already masked;
bertsmith reads and masks text in every step. Both: size, dropout and vocabulary of the recipe on these shards, bf16
autocast on CUDA, AdamW (LAMB has no fused peer), gradients clipped to 1. `eager` is the peer without compilation.

The tokenizer of the shards needs a mask token; positions of `roberta` start at padding_id + 1 on both sides. ALBERT's
n-grams consist of tokens where the tokenizer does not mark continuations of words. Tokens do not count padding; model
TFLOP/s as in `bertsmith.training.roofline`. Medians of interleaved rounds; × is bertsmith over the peer. bertsmith
trains in the fastest precision of this device. `--lock`, `--of` as in `pretrain_gpu.py`.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from needless_masks import skip_needless_masks
from pretrain_gpu import Candidate, bertsmith_step, exclusive_device, timed, warmed_up
from torch import Tensor, nn

from bertsmith import recipes
from bertsmith.errors import ConfigError
from bertsmith.model_io import huggingface
from bertsmith.model_io.model import Model
from bertsmith.objectives.generator import HEAD_WIDTH
from bertsmith.objectives.replaced_token import Config as ReplacedTokenConfig
from bertsmith.system.devices import measure_peak_flops
from bertsmith.training.distributed import World
from bertsmith.training.pretrain import resolve_auto
from bertsmith.training.pretrain_data import PretrainData
from bertsmith.training.recipe import Recipe, with_overrides
from bertsmith.training.roofline import flops_per_token
from bertsmith.types import IGNORE_INDEX

CASES = ("roberta/base/512", "albert/base/512", "electra/small/128")
MASKED = 0.15  # share of the tokens
SPECIAL = 8  # ids that random tokens do not have, such as padding
BERTSMITH = "bertsmith"


def main(words: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Prints the table; returns tokens per second by case and candidate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards")
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="FAMILY/SIZE/LENGTH")
    parser.add_argument("--peers", nargs="*", default=["compiled"], choices=["compiled", "eager"])
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of both sides")
    parser.add_argument("--tokens", type=int, default=65_536, help="tokens per step, with padding")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lock", metavar="FILE", help="a file that is locked during timing")
    parser.add_argument("--of", type=int, default=0, metavar="N", help="number of calls that share the lock file")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(words)
    world, data = World(device=torch.device(options.device)), PretrainData.open(options.shards)
    peak = measure_peak_flops(world.device, torch.bfloat16 if options.device == "cuda" else torch.float32)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}; peak {peak / 1e12:.2f} TFLOP/s; {options.tokens:,} tokens per step")
    heads = f"{'k tokens/s':>10} {'slowest–fastest':>17} {'model TFLOP/s':>14} {'MFU':>10} {'GiB':>6} {'×':>5}"
    print(f"{'':<40} {heads}", flush=True)
    return {case: compare(recipe_of(case, data, options), data, world, options, peak) for case in options.cases}


def recipe_of(case: str, data: PretrainData, options: argparse.Namespace) -> Recipe:
    """The recipe of a case, with one micro-batch per step."""
    name, _, length = case.rpartition("/")
    if not length.isdigit() or name.partition("/")[0] not in MODELS:
        raise ConfigError(
            f"{case} is not a case: expected one of {', '.join(MODELS)}, a size and a length, such as {CASES[0]}"
        )
    rows = max(1, options.tokens // int(length))
    changes = [f"max_length={length}", f"batch_size={rows}", f"micro_batch_size={rows}", "steps=1000000"]
    changes += ["optimizer.kind=adamw", "compute.max_grad_norm=1.0", *options.set]
    return data.with_vocabulary(with_overrides(recipes.find(name), changes))


def compare(
    recipe: Recipe, data: PretrainData, world: World, options: argparse.Namespace, peak: float
) -> dict[str, float]:
    """One case: all candidates are built, warmed up, and timed alternately."""
    torch.compiler.reset()  # or the next case would be compiled with dynamic shapes
    recipe, _ = resolve_auto(recipe, Path("no run yet"), world)
    makers: dict[str, Callable[[], Callable[[], int]]] = {
        BERTSMITH: lambda: bertsmith_step("real", recipe, data, world)
    }
    for kind in options.peers:
        makers[f"transformers {kind}"] = partial(transformers_step, kind, recipe, data, world)
    flops = model_flops(recipe)
    candidates = [warmed_up(name, make, flops) for name, make in makers.items()]
    speeds: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    with exclusive_device(options.lock, options.of, recipe.name):
        for _ in range(options.rounds):
            for candidate in candidates:
                speeds[candidate.name].append(timed(candidate, options.steps))
    medians = {name: statistics.median(rates) for name, rates in speeds.items()}
    for candidate in candidates:
        show(
            f"{recipe.name}/{recipe.max_length} {recipe.precision}",
            candidate,
            speeds[candidate.name],
            peak,
            medians[BERTSMITH],
        )
    del candidates, candidate
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    return medians


def show(case: str, candidate: Candidate, rates: Sequence[float], peak: float, bertsmith_rate: float) -> None:
    """One line of the table."""
    median = statistics.median(rates)
    spread, flops = f"{min(rates) / 1e3:.1f}–{max(rates) / 1e3:.1f}", median * candidate.flops
    ratio = "" if candidate.name == BERTSMITH else f"{bertsmith_rate / median:.2f}"
    line = f"{median / 1e3:10.1f} {spread:>17} {flops / 1e12:14.2f} {flops / peak:10.1%}"
    print(f"{case + ' ' + candidate.name:<40} {line} {candidate.memory:6.1f} {ratio:>5}", flush=True)


def model_flops(recipe: Recipe) -> float:
    """Per token, equal for both sides; with ELECTRA's generator."""
    with torch.device("meta"):
        model = Model.build(recipe.encoder, recipe.objectives.values())
    labels = {"masked_lm": MASKED, "replaced_token": 1.0}
    return flops_per_token(model, length=recipe.max_length, labels=labels)


def transformers_step(kind: str, recipe: Recipe, data: PretrainData, world: World) -> Callable[[], int]:
    """A training step of transformers' model."""
    skip_needless_masks()
    torch.manual_seed(0)
    device, rows, length = world.device, recipe.batch_size, recipe.max_length
    model = MODELS[recipe.name.partition("/")[0]](recipe).to(device).train()
    inputs = {name: value.to(device) for name, value in random_batch(recipe, data.tokenizer.mask_id).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model, dynamic=False) if kind == "compiled" else model

    def step() -> int:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = forward(**inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.compute.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return rows * length

    return step


def random_batch(recipe: Recipe, mask_id: int | None) -> dict[str, Tensor]:
    """The arguments of the peer: random tokens without padding, masked."""
    rows, length, family = recipe.batch_size, recipe.max_length, recipe.name.partition("/")[0]
    ids = torch.randint(SPECIAL, recipe.encoder.vocab_size, (rows, length))
    indices = torch.randperm(rows * length)[: max(1, round(MASKED * rows * length))].sort().values
    labels = torch.full((rows * length,), IGNORE_INDEX).scatter(0, indices, ids.flatten()[indices]).view(rows, length)
    assert mask_id is not None
    masked = torch.where(labels == IGNORE_INDEX, ids, mask_id)
    inputs = {"input_ids": masked, "labels": labels}
    if family == "albert":
        inputs["sentence_order_label"] = torch.randint(0, 2, (rows,))
    if family == "electra":
        inputs["indices"] = indices
    return inputs


class LossModel(nn.Module):
    """A transformers model that returns its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        """The loss []."""
        loss: Tensor = self.model(**inputs).loss
        return loss


class Electra(nn.Module):
    """transformers' generator and discriminator with shared embeddings (P-ELECTRA §2, §3.2)."""

    def __init__(self, generator: Any, discriminator: Any, *, weight: float) -> None:
        super().__init__()
        self.generator, self.discriminator, self.weight = generator, discriminator, weight
        generator.electra.embeddings = discriminator.electra.embeddings
        generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight

    def forward(self, input_ids: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """The loss [] of a batch [B, L] masked at flat `indices` [R]; no gradient flows through samples."""
        generated = self.generator(input_ids=input_ids, labels=labels)
        with torch.no_grad():
            logits = generated.logits.flatten(0, 1)[indices].float()
            noise = -torch.log(-torch.log(torch.rand_like(logits)))
            samples = (logits + noise).argmax(-1)
            filled = input_ids.flatten().scatter(0, indices, samples).view_as(input_ids)
            original = torch.where(labels == IGNORE_INDEX, input_ids, labels)
            replaced = (filled != original).long()
        discriminated = self.discriminator(input_ids=filled, labels=replaced)
        total: Tensor = generated.loss + self.weight * discriminated.loss
        return total


def config_of(encoder: Any) -> Any:
    """transformers' config of an encoder, with sdpa attention."""
    import transformers

    family = huggingface.families()[type(encoder).__module__.rpartition(".")[2]]
    config = getattr(transformers, f"{family.classes}Config")(**family.config_values(encoder))
    config._attn_implementation = "sdpa"
    return config


def roberta(recipe: Recipe) -> nn.Module:
    """With masked LM."""
    import transformers

    return LossModel(transformers.RobertaForMaskedLM(config_of(recipe.encoder)))


def albert(recipe: Recipe) -> nn.Module:
    """With masked LM and sentence order."""
    import transformers

    return LossModel(transformers.AlbertForPreTraining(config_of(recipe.encoder)))


def electra(recipe: Recipe) -> nn.Module:
    """With a generator of the recipe's width, as deep as the discriminator."""
    import transformers

    objective: ReplacedTokenConfig = recipe.objectives["replaced_token"]
    width = max(1, round(objective.generator_width * recipe.encoder.width))
    generator = replace(recipe.encoder, width=width, heads=max(1, width // HEAD_WIDTH), feed_forward=4 * width)
    return Electra(
        transformers.ElectraForMaskedLM(config_of(generator)),
        transformers.ElectraForPreTraining(config_of(recipe.encoder)),
        weight=objective.discriminator_weight,
    )


MODELS: dict[str, Callable[[Recipe], nn.Module]] = {"roberta": roberta, "albert": albert, "electra": electra}

if __name__ == "__main__":
    main()
