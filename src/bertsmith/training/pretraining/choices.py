"""What a recipe leaves to the machine, settled before a run begins; a run that goes on keeps what it began with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bertsmith import config
from bertsmith.model_io.model import Model
from bertsmith.nn import autotune
from bertsmith.nn.meta_device import on_meta_device
from bertsmith.system.devices import measure_peak_flops, supports_fp8
from bertsmith.training.flops import is_short
from bertsmith.training.loop import with_saved_precision
from bertsmith.training.passes import Precision
from bertsmith.training.recipe import Recipe
from bertsmith.training.roofline import device_seconds
from bertsmith.training.world import World


def resolve_auto(recipe: Recipe, folder: Path, world: World) -> tuple[Recipe, dict[str, Any]]:
    """The recipe with its precision and the use of graphs chosen, and what was measured for it."""
    recipe, measured = _with_precision(recipe, folder, world)
    if recipe.compute.cuda_graphs == config.AUTO and world.device.type == "cuda":
        graphs = recipe.compute.compile is not False and world.size == 1 and _is_short(recipe, world)
        recipe = replace(recipe, compute=replace(recipe.compute, cuda_graphs=graphs))
    return recipe, measured


def _is_short(recipe: Recipe, world: World) -> bool:
    with on_meta_device():
        model = Model.build(recipe.encoder, recipe.objectives.values())
    peak = measure_peak_flops(world.device, torch.bfloat16)
    return is_short(model, places=_places(recipe, world), length=recipe.max_length, peak=peak)


def _with_precision(recipe: Recipe, folder: Path, world: World) -> tuple[Recipe, dict[str, Any]]:
    """On CUDA eight bits where these are faster, else bfloat16: the first rank measures.

    Runs that must be the same bit for bit are not left to a measurement, nor are those that take no compiled steps or
    share out weights.
    """
    recipe = with_saved_precision(recipe, folder)
    if recipe.precision != config.AUTO or world.device.type != "cuda":
        return recipe, {}
    times = _measured(recipe, world) if world.is_main else {}
    told = world.all_reduce({"eight": world.scalar(bool(times) and autotune.fp8_is_faster(times))})
    precision: Precision = "fp8" if told["eight"] > 0 else "bf16"
    recipe = replace(recipe, precision=precision)
    return recipe, {"precision_seconds": times} if times else {}


def _measured(recipe: Recipe, world: World) -> autotune.Times:
    """Seconds by precision; nothing where there is no choice."""
    compute = recipe.compute
    if compute.deterministic or compute.fsdp or compute.compile is False or not supports_fp8(world.device):
        return {}
    with on_meta_device():
        block = autotune.find_fp8_block(Model.build(recipe.encoder, recipe.objectives.values()))
    if block is None:
        return {}
    clock = partial(device_seconds, device=world.device)
    return autotune.time_fp8(block, _rows(recipe, world), recipe.max_length, world.device, clock=clock)


def _places(recipe: Recipe, world: World) -> int:
    return _rows(recipe, world) * int(recipe.max_length)


def _rows(recipe: Recipe, world: World) -> int:
    """What a device learns from at a time."""
    return recipe.rank_rows(world.size)
