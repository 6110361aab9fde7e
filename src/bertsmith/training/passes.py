"""One micro-batch there and back: precision, compilation, recomputation, the seed of dropout."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch._functorch import config as compiled_gradients
from torch.utils.checkpoint import checkpoint

from bertsmith.errors import ConfigError
from bertsmith.nn import counter_random
from bertsmith.system.devices import supports_fp8
from bertsmith.training.sharding import DataParallel, Parallelism
from bertsmith.training.world import World
from bertsmith.types import Batch, Loss

Precision = Literal["auto", "fp8", "bf16", "fp32"]


class Trainable(Protocol):
    """What training asks of a model, which is also an `nn.Module`."""

    def corrupt(self, batch: Batch) -> Batch:
        """The batch with the questions in it."""

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """How many things are asked of a hidden batch [], by part of the loss."""

    def __call__(self, batch: Batch) -> Loss:
        """The loss of a hidden batch."""

    def layer_groups(self) -> list[nn.Module]:
        """Its parts from bottom to top; every parameter is in exactly one."""

    def enable_fp8(self, *, whole: bool = True) -> None:
        """From here on, where that is faster; weights and their names stay."""


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How a step is computed: speed, memory and reproducibility."""

    max_grad_norm: float = 1.0  # gradient clipping by global norm; 0: none
    compile: bool | None = None  # torch.compile; absent: on CUDA only
    cuda_graphs: bool | Literal["auto"] = "auto"  # replay whole steps as CUDA graphs; auto: if steps are short
    deterministic: bool = False  # bit-identical runs on CUDA too, about a third slower; CPU runs always are
    activation_checkpointing: bool = False  # recompute the activations of layers in the backward pass
    fsdp: bool = False  # shard weights, gradients and optimizer state over the ranks (FSDP2)
    max_skipped_steps: int = 10  # consecutive steps with a non-finite loss or gradient before the run stops

    def __post_init__(self) -> None:
        if self.max_grad_norm < 0 or self.max_skipped_steps < 1:
            raise ConfigError(
                f"compute.max_grad_norm={self.max_grad_norm:g} must be at least 0 and "
                f"compute.max_skipped_steps={self.max_skipped_steps} at least 1"
            )


def check_precision(precision: Precision, compute: ComputeConfig) -> None:
    """Raises where the two cannot be combined."""
    if precision == "fp8" and compute.fsdp:
        raise ConfigError("precision=fp8 does not work with compute.fsdp=true: set precision=bf16")


class ForwardBackward:
    """Forward and backward passes of one model on one rank."""

    def __init__(
        self, model: Trainable, *, precision: Precision, compute: ComputeConfig, world: World, seed: int
    ) -> None:
        self.model, self.world, self.seed = model, world, seed
        device = world.device.type
        self.bf16 = precision in ("fp8", "bf16") or (precision == "auto" and device == "cuda")
        self._autocast = partial(torch.autocast, device, torch.bfloat16, enabled=self.bf16)
        self.compiles = compiles = device == "cuda" if compute.compile is None else compute.compile
        if self.compiles:  # the compiler tells at length which of its own tricks it leaves out
            warnings.filterwarnings("ignore", module=r"torch\._inductor")
            # gradients are computed outside autocast, and are compiled so
            compiled_gradients.backward_pass_autocast = "off"
        if compute.deterministic:
            _forbid_chance()
        if precision == "fp8":
            _check_eight_bits(world.device)
            # weights that are split are gone when the next block wants those of a norm
            model.enable_fp8(whole=not (compute.fsdp and world.size > 1))
        if compute.activation_checkpointing:
            for part in model.layer_groups()[1:-1]:
                _recompute(part)
        self._hide = torch.compile(self._hide_and_count, dynamic=False) if compiles else self._hide_and_count
        module, middle = cast(nn.Module, model), model.layer_groups()[1:-1]
        self.parallel: Parallelism
        if compute.fsdp and world.size > 1:
            from bertsmith.training.splitting import FSDP  # not for who does not split: it takes a second

            self.parallel = FSDP(module, middle, world, compiles=compiles)
        else:
            self.parallel = DataParallel(module, world, compiles=compiles)
        self.uses_cuda_graphs = compute.cuda_graphs is True and device == "cuda" and world.size == 1

    def _hide_and_count(self, batch: Batch) -> tuple[Batch, dict[str, Tensor], Tensor]:
        hidden = self.model.corrupt(batch)
        return hidden, self.model.counts(hidden), (batch.document_ids != 0).sum()

    @torch.no_grad()
    def corrupt(self, batch: Batch) -> tuple[Batch, dict[str, Tensor], Tensor]:
        """The hidden batch on the device, how many things it asks by part, and its tokens []."""
        found: tuple[Batch, dict[str, Tensor], Tensor] = self._hide(batch.to(self.world.device, non_blocking=True))
        return found

    def seed_dropout(self, step: int, micro: int) -> None:
        """Dropout is a function of (seed, step, micro-batch, rank): torch's own generator is seeded with it."""
        _seed_dropout(
            self.world.device, counter_random.stream_key(self.seed, f"dropout/{step}/{micro}/{self.world.rank}")
        )

    def accumulate_gradients(
        self, batch: Batch, counts: Mapping[str, Tensor], *, step: int, micro: int, last: bool, seed: bool = True
    ) -> Loss:
        """Adds to the gradients what this micro-batch contributes to the mean over `counts`; its loss, detached.

        Ranks exchange gradients with the `last` micro-batch of a step. Without `seed` dropout goes by what was seeded.
        """
        if seed:
            self.seed_dropout(step, micro)
        with self.parallel.gradient_sync(last):
            with self._autocast():
                loss = self.parallel(batch)
            total = loss.total(counts) * self.world.size  # the exchange averages over ranks, but the sum is wanted
            total.backward()  # type: ignore[no-untyped-call]
        return Loss(_detached(loss.sums), loss.counts, loss.correct, loss.weights)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Loss:
        """The loss of a batch as the model is, without dropout, not compiled."""
        hidden, _, _ = self._hide_and_count(batch.to(self.world.device, non_blocking=True))
        with self._autocast():
            return self.parallel.evaluate(hidden)


def _check_eight_bits(device: torch.device) -> None:
    if device.type == "cuda" and not supports_fp8(device):
        name = torch.cuda.get_device_name(device)
        raise ConfigError(f"precision=fp8: {name} does not support FP8: set precision=bf16")
    if device.type not in ("cuda", "cpu"):
        raise ConfigError(f"precision=fp8 needs CUDA, not {device.type}: set precision=bf16")


def _forbid_chance() -> None:
    """Has torch take only kernels that add in the same order each time, in this whole process."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    torch.use_deterministic_algorithms(True)
    # nothing of ours reads what it has not written
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _seed_dropout(device: torch.device, seed: int) -> None:
    if device.type == "cpu":  # torch.manual_seed would also note the seed for devices that are not there: 0.5 ms
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _detached(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in values.items()}


def _recompute(part: nn.Module) -> None:
    """Has a part forget its activations and compute them again, dropout included."""
    part.forward = partial(checkpoint, part.forward, use_reentrant=False)
