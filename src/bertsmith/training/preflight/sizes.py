"""How big things are: a recipe's model without making it, what a forward keeps, what a device has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from bertsmith.data.collate import from_packed
from bertsmith.data.packing.packing import PackedBatch
from bertsmith.model_io.model import Model
from bertsmith.nn.meta_device import on_meta_device
from bertsmith.training.recipe import Recipe
from bertsmith.training.trainer import Trainer


def parameters(recipe: Recipe) -> int:
    """Of the encoder and all heads; takes no memory."""
    with on_meta_device():
        model = Model.build(recipe.encoder, recipe.objectives.values())
    return sum(weight.numel() for weight in model.parameters())


def recipe_facts(recipe: Recipe) -> dict[str, int]:
    """The figures by which recipes are told apart."""
    return {
        "parameters": parameters(recipe),
        "max_length": recipe.max_length,
        "batch_size": recipe.batch_size,
        "steps": recipe.steps,
    }


def tensor_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Of all tensors together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def kept_for_backward(trainer: Trainer, packed: PackedBatch) -> int:
    """Bytes that a forward of this batch keeps besides the weights, not compiled: a compiled one may keep less."""
    model, device = cast(Model, trainer.module), trainer.world.device
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.train()
    with torch.no_grad():
        batch = model.corrupt(from_packed(packed).to(device))
    half = torch.autocast(device.type, torch.bfloat16, enabled=trainer.forward_backward.bf16)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), half:
        model(batch)
    return sum(kept.values())


def available_bytes(device: torch.device) -> int:
    """Memory that a run alone on this device could have."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
