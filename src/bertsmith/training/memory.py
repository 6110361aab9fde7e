"""Memory of a run: an estimate before it starts, the memory that there is, and the setting that fits.

A CPU run that needs more than the machine has is killed by the operating system, without a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError
from bertsmith.model_io.model import Model
from bertsmith.system.devices import cpu_memory_bytes, swap_bytes
from bertsmith.training.trainer import Trainer
from bertsmith.types import Batch


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes of a run, and how they change with the rows (or examples) of one forward."""

    weights: int
    rows: int  # of one forward
    row_activations: int = 0  # bytes of each row
    fixed_activations: int = 0
    unit: str = "rows"

    @property
    def activations(self) -> int:
        return self.row_activations * self.rows

    @property
    def fixed(self) -> int:
        """Weights, gradients, two moments, and activations that do not grow with the rows."""
        return 4 * self.weights + self.fixed_activations

    @property
    def total(self) -> int:
        return self.fixed + self.activations

    def describe(self, available: int) -> str:
        states = f"{format_bytes(4 * self.weights)} for weights, gradients and moments"
        forward = f"{format_bytes(self.activations)} for {self.rows:,} {self.unit} of one forward"
        return f"needs about {format_bytes(self.total)}: {states}, {forward}; {format_bytes(available)} available"

    def advice(self, available: int, *, batch_size: int, checkpointing: bool) -> str:
        """The setting to change; micro-batches must divide `batch_size` evenly."""
        most = min(self.rows // 2, (available - self.fixed) // max(self.row_activations, 1))
        fitting = [rows for rows in range(1, most + 1) if batch_size % rows == 0]
        if fitting:
            return f"set micro_batch_size={fitting[-1]}"
        first = "" if checkpointing else "set compute.activation_checkpointing=true, or "
        return f"{first}take a smaller encoder or max_length"

    def refuse(self, *, batch_size: int, checkpointing: bool) -> None:
        """Raises if a CPU run clearly cannot fit: a lower bound of its memory exceeds that of the machine and swap.

        The bound counts weights and activations together, or weights, gradients and one moment; a real run also needs
        the other moment and temporary tensors, about a quarter more.
        """
        swap = swap_bytes()
        if swap is None:  # it may grow with the need
            return
        least = max(3 * self.weights, self.weights + self.fixed_activations + self.activations)
        available = cpu_memory_bytes()
        if least > available + swap:
            advice = self.advice(available, batch_size=batch_size, checkpointing=checkpointing)
            raise BertsmithError(f"the run {self.describe(available)}: {advice}")


def activation_bytes(trainer: Trainer, batch: Batch) -> int:
    """Bytes that an eager forward keeps for its backward besides the weights; a compiled one may keep less."""
    model, device = trainer.module, trainer.world.device
    assert isinstance(model, Model)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.train()
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=trainer.forward_backward.bf16)
    with torch.random.fork_rng(devices=[]):
        with torch.no_grad():
            corrupted = model.corrupt(batch.to(device))
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor), autocast:
            model(corrupted)
    return sum(kept.values())


def available_bytes(device: torch.device) -> int:
    """Memory of this device for a run alone on it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    return cpu_memory_bytes()


def tensor_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def format_bytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
