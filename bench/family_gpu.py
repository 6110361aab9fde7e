"""Pre-training speed of the family: RoBERTa, ALBERT and ELECTRA against transformers, in one process, round by round.

    python bench/family_gpu.py SHARDS [--cases roberta/base/512 albert/base/512 electra/small/128] [--peers compiled]
        [--set encoder.dropout=0]... [--tokens 65536] [--rounds 3] [--steps 20] [--turn FILE [--of 3]] [--device cuda]

A case is FAMILY/SIZE/LENGTH. Ours: packed text from shards by the run's own data path, with the packing and objectives
of the recipe. transformers: RobertaForMaskedLM; AlbertForPreTraining; for ELECTRA ElectraForMaskedLM as generator and
ElectraForPreTraining as discriminator over one set of tables, joined in one module as in the paper: guesses drawn at
hidden places, 50 times the loss of judging. It is given a batch of random tokens in full rows that lies on the device
and whose words are already hidden; ours reads its text and hides its words anew in every step. Both: the shape,
dropout and vocabulary of the recipe on these shards, bf16 autocast on CUDA, AdamW (LAMB has no fused peer), gradients
clipped to 1. `eager` is the peer that is not compiled.

Shards of any tokenizer that has a mask will do; of `roberta` positions begin behind its padding's number, on both
sides. ALBERT's n-grams are of tokens wherever the tokenizer does not tell which tokens go on with a word. Tokens are
real ones, padding does not count; useful TFLOP/s as in `bertsmith.training.roofline`. Medians of interleaved rounds;
× is ours over the peer. Ours trains in the fastest precision of this device. `--turn`, `--of` as in `pretrain_gpu.py`.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from needless_masks import leave_out as leave_out_masks
from pretrain_gpu import Candidate, made, ours, timed, turn
from torch import Tensor, nn

from bertsmith import recipes
from bertsmith.errors import ConfigError
from bertsmith.model_io import huggingface
from bertsmith.model_io.model import Model
from bertsmith.objectives.generator import HEAD_WIDTH
from bertsmith.objectives.replaced_token import Config as Judging
from bertsmith.system.devices import measure_peak_flops
from bertsmith.training.distributed import World
from bertsmith.training.pretrain import resolve_auto
from bertsmith.training.pretrain_data import PretrainData
from bertsmith.training.recipe import Recipe, with_overrides
from bertsmith.training.roofline import flops_per_token
from bertsmith.types import IGNORE_INDEX

CASES = ("roberta/base/512", "albert/base/512", "electra/small/128")
HIDDEN = 0.15
SPECIAL = 8  # ids that no random token has: padding is among them
OURS = "bertsmith"


def main(words: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Prints the table; tokens a second by case and candidate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards")
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="FAMILY/SIZE/LENGTH")
    parser.add_argument("--peers", nargs="*", default=["compiled"], choices=["compiled", "eager"])
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of both sides")
    parser.add_argument("--tokens", type=int, default=65_536, help="places in a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turn", metavar="FILE", help="a file that is locked while something is timed")
    parser.add_argument("--of", type=int, default=0, metavar="N", help="calls that share the file of --turn")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(words)
    world, data = World(device=torch.device(options.device)), PretrainData.open(options.shards)
    peak = measure_peak_flops(world.device, torch.bfloat16 if options.device == "cuda" else torch.float32)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}; ceiling {peak / 1e12:.2f} TFLOP/s; {options.tokens:,} places a step")
    heads = f"{'k tokens/s':>10} {'slowest–fastest':>17} {'useful TFLOP/s':>14} {'of ceiling':>10} {'GiB':>6} {'×':>5}"
    print(f"{'':<40} {heads}", flush=True)
    return {case: compare(recipe_of(case, data, options), data, world, options, peak) for case in options.cases}


def recipe_of(case: str, data: PretrainData, options: argparse.Namespace) -> Recipe:
    """The recipe of a case, a step's rows all at once."""
    name, _, length = case.rpartition("/")
    if not length.isdigit() or name.partition("/")[0] not in MODELS:
        raise ConfigError(f"{case} is no case: {', '.join(MODELS)}, then a size and a length, such as {CASES[0]}")
    rows = max(1, options.tokens // int(length))
    changes = [f"max_length={length}", f"batch_size={rows}", f"micro_batch_size={rows}", "steps=1000000"]
    changes += ["optimizer.kind=adamw", "compute.max_grad_norm=1.0", *options.set]
    return data.with_vocabulary(with_overrides(recipes.find(name), changes))


def compare(
    recipe: Recipe, data: PretrainData, world: World, options: argparse.Namespace, peak: float
) -> dict[str, float]:
    """One case: everybody built, warmed up, and timed in turn."""
    torch.compiler.reset()  # graphs of the case before would have the next ones compiled for any length
    recipe, _ = resolve_auto(recipe, Path("no run yet"), world)
    makers: dict[str, Callable[[], Callable[[], int]]] = {OURS: lambda: ours("real", recipe, data, world)}
    for kind in options.peers:
        makers[f"transformers {kind}"] = lambda kind=kind: theirs(kind, recipe, data, world)
    useful = useful_flops(recipe)
    candidates = [made(name, make, useful) for name, make in makers.items()]
    speeds: dict[str, list[float]] = {one.name: [] for one in candidates}
    with turn(options.turn, options.of, recipe.name):
        for _ in range(options.rounds):
            for one in candidates:
                speeds[one.name].append(timed(one, options.steps))
    middles = {name: statistics.median(found) for name, found in speeds.items()}
    for one in candidates:
        show(
            f"{recipe.name}/{recipe.max_length} {recipe.precision}",
            one,
            speeds[one.name],
            peak,
            middles[OURS],
        )
    del candidates, one
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    return middles


def show(case: str, one: Candidate, found: Sequence[float], peak: float, ours: float) -> None:
    """One line of the table."""
    middle = statistics.median(found)
    spread, flops = f"{min(found) / 1e3:.1f}–{max(found) / 1e3:.1f}", middle * one.useful
    ratio = "" if one.name == OURS else f"{ours / middle:.2f}"
    line = f"{middle / 1e3:10.1f} {spread:>17} {flops / 1e12:14.2f} {flops / peak:10.1%} {one.memory:6.1f} {ratio:>5}"
    print(f"{case + ' ' + one.name:<40} {line}", flush=True)


def useful_flops(recipe: Recipe) -> float:
    """For each token, the same for both sides; ELECTRA's generator is in it."""
    with torch.device("meta"):
        model = Model.build(recipe.encoder, recipe.objectives.values())
    asked = {"masked_lm": HIDDEN, "replaced_token": 1.0}
    return flops_per_token(model, length=recipe.max_length, labels=asked)


def theirs(kind: str, recipe: Recipe, data: PretrainData, world: World) -> Callable[[], int]:
    """A step of transformers' same model."""
    leave_out_masks()
    torch.manual_seed(0)
    device, rows, length = world.device, recipe.batch_size, recipe.max_length
    model = MODELS[recipe.name.partition("/")[0]](recipe).to(device).train()
    given = {name: value.to(device) for name, value in random_batch(recipe, data.tokenizer.mask_id).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model, dynamic=False) if kind == "compiled" else model

    def step() -> int:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = forward(**given)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.compute.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return rows * length

    return step


def random_batch(recipe: Recipe, mask_id: int | None) -> dict[str, Tensor]:
    """Random tokens in full rows, words hidden as the recipe's family hides them; what the family's peer takes."""
    rows, length, family = recipe.batch_size, recipe.max_length, recipe.name.partition("/")[0]
    ids = torch.randint(SPECIAL, recipe.encoder.vocab_size, (rows, length))
    places = torch.randperm(rows * length)[: max(1, round(HIDDEN * rows * length))].sort().values
    labels = torch.full((rows * length,), IGNORE_INDEX).scatter(0, places, ids.flatten()[places]).view(rows, length)
    assert mask_id is not None
    hidden = torch.where(labels == IGNORE_INDEX, ids, mask_id)
    given = {"input_ids": hidden, "labels": labels}
    if family == "albert":
        given["sentence_order_label"] = torch.randint(0, 2, (rows,))
    if family == "electra":
        given["places"] = places
    return given


class Alone(nn.Module):
    """A model of transformers that returns its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: Tensor) -> Tensor:
        """The loss []."""
        loss: Tensor = self.model(**given).loss
        return loss


class Electra(nn.Module):
    """transformers' generator and discriminator over one set of tables (P-ELECTRA §2, §3.2)."""

    def __init__(self, generator: Any, discriminator: Any, *, weight: float) -> None:
        super().__init__()
        self.generator, self.discriminator, self.weight = generator, discriminator, weight
        generator.electra.embeddings = discriminator.electra.embeddings
        generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight

    def forward(self, input_ids: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        """The loss [] of a hidden batch [B, L] whose flat places [R] are asked; no gradient goes through guesses."""
        guessed = self.generator(input_ids=input_ids, labels=labels)
        with torch.no_grad():
            logits = guessed.logits.flatten(0, 1)[places].float()
            noise = -torch.log(-torch.log(torch.rand_like(logits)))
            drawn = (logits + noise).argmax(-1)
            filled = input_ids.flatten().scatter(0, places, drawn).view_as(input_ids)
            original = torch.where(labels == IGNORE_INDEX, input_ids, labels)
            replaced = (filled != original).long()
        judged = self.discriminator(input_ids=filled, labels=replaced)
        total: Tensor = guessed.loss + self.weight * judged.loss
        return total


def config_of(encoder: Any) -> Any:
    """transformers' settings of an encoder of ours, with its fused attention."""
    import transformers

    family = huggingface.find(type(encoder).__module__.rpartition(".")[2])
    found = getattr(transformers, f"{family.classes}Config")(**family.config_values(encoder))
    found._attn_implementation = "sdpa"
    return found


def roberta(recipe: Recipe) -> nn.Module:
    """With its masked words."""
    import transformers

    return Alone(transformers.RobertaForMaskedLM(config_of(recipe.encoder)))


def albert(recipe: Recipe) -> nn.Module:
    """With its masked words and the order of sentences."""
    import transformers

    return Alone(transformers.AlbertForPreTraining(config_of(recipe.encoder)))


def electra(recipe: Recipe) -> nn.Module:
    """With a generator of the share of the width that the recipe says, as deep as the discriminator."""
    import transformers

    judging: Judging = recipe.objectives["replaced_token"]
    width = max(1, round(judging.generator_width * recipe.encoder.width))
    narrow = replace(recipe.encoder, width=width, heads=max(1, width // HEAD_WIDTH), feed_forward=4 * width)
    return Electra(
        transformers.ElectraForMaskedLM(config_of(narrow)),
        transformers.ElectraForPreTraining(config_of(recipe.encoder)),
        weight=judging.discriminator_weight,
    )


MODELS: dict[str, Callable[[Recipe], nn.Module]] = {"roberta": roberta, "albert": albert, "electra": electra}

if __name__ == "__main__":
    main()
