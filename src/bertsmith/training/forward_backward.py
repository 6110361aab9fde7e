"""Forward and backward of one micro-batch: precision, compilation, activation checkpointing, the seed of dropout."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint

from bertsmith.errors import ConfigError
from bertsmith.nn import counter_random
from bertsmith.system.devices import supports_fp8
from bertsmith.training.distributed import World
from bertsmith.training.parallelism import DataParallel, State
from bertsmith.types import Batch, Loss

Precision = Literal["auto", "fp8", "bf16", "fp32"]


class Trainable(Protocol):
    """The model as training sees it; it is also an `nn.Module`."""

    @property
    def encoder(self) -> nn.Module:
        """Its part below the heads: all layer groups but the last."""

    def corrupt(self, batch: Batch) -> Batch:
        """The batch with corrupted inputs and labels."""

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The number of labels [] of a corrupted batch, by loss term."""

    @property
    def compiles(self) -> bool:
        """Whether torch.compile and CUDA graphs suit it."""

    @property
    def threads_over_rows(self) -> bool:
        """Whether its step on a CPU mainly runs threads over parts of the rows (`nn.row_threads`)."""

    def __call__(self, batch: Batch, state: State | None = None) -> Loss:
        """The loss of a corrupted batch; `state`: `Loss.state` of the previous batch, for stateful encoders."""

    def layer_groups(self) -> list[nn.Module]:
        """Its layer groups, bottom first; every parameter is in exactly one."""

    def tied_tables(self) -> list[nn.Parameter]:
        """The token tables of the encoder that are also the output of a head."""

    def enable_fp8(self, *, whole: bool = True) -> None:
        """Computes in FP8 from here on, where that is faster; weights and their names stay."""


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Settings of speed, memory and reproducibility."""

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
        device, sharded = world.device.type, compute.fsdp and world.size > 1
        self.bf16 = precision in ("fp8", "bf16") or (precision == "auto" and device == "cuda")
        self._autocast = partial(torch.autocast, device, torch.bfloat16, enabled=self.bf16)
        compiles = device == "cuda" if compute.compile is None else compute.compile
        self.compiles = compiles = compiles and model.compiles
        if compiles:  # the compiler warns at length about optimizations that it leaves out
            warnings.filterwarnings("ignore", module=r"torch\._inductor")
            functorch_config.backward_pass_autocast = "off"  # as in eager mode
        if compute.deterministic:
            _use_deterministic_algorithms()
        if precision == "fp8":
            _check_fp8(world.device)
            # a sharded weight is gone when the next block reads the weight of a norm
            model.enable_fp8(whole=not sharded)
        layers = model.layer_groups()[1:-1]
        if compute.activation_checkpointing:
            for layer in layers:
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        self._corrupt = torch.compile(self._corrupt_and_count, dynamic=False) if compiles else self._corrupt_and_count
        module = cast(nn.Module, model)
        self.parallel: DataParallel
        if sharded:
            from bertsmith.training.fsdp import FSDP  # this import takes a second

            self.parallel = FSDP(module, layers, world, compiles=compiles)
        else:
            self.parallel = DataParallel(module, world, compiles=compiles)
        captured = compute.cuda_graphs is True and device == "cuda" and world.size == 1
        self.uses_cuda_graphs = captured and model.compiles

    def _corrupt_and_count(self, batch: Batch) -> tuple[Batch, dict[str, Tensor], Tensor]:
        corrupted = self.model.corrupt(batch)
        return corrupted, self.model.counts(corrupted), batch.count_tokens()

    @torch.no_grad()
    def corrupt(self, batch: Batch) -> tuple[Batch, dict[str, Tensor], Tensor]:
        """The corrupted batch on the device, its number of labels by loss term, and its number of tokens []."""
        moved = batch.to(self.world.device, non_blocking=True)
        corrupted: tuple[Batch, dict[str, Tensor], Tensor] = self._corrupt(moved)
        return corrupted

    def seed_dropout(self, step: int, micro: int) -> None:
        """Dropout is a function of (seed, step, micro-batch, rank): torch's own generator is seeded with them."""
        name = f"dropout/{step}/{micro}/{self.world.rank}"
        _seed_dropout(self.world.device, counter_random.stream_key(self.seed, name))

    def accumulate_gradients(
        self,
        batch: Batch,
        counts: Mapping[str, Tensor],
        *,
        step: int,
        micro: int,
        last: bool,
        seed: bool = True,
        state: State | None = None,
    ) -> Loss:
        """Adds the gradients of this micro-batch's share of the mean over `counts`; returns its loss, detached.

        Ranks average gradients in the `last` micro-batch of a step. Without `seed` the generator stays as it is.
        """
        if seed:
            self.seed_dropout(step, micro)
        with self.parallel.gradient_sync(last):
            with self._autocast():
                loss = self.parallel(batch, state)
            total = loss.total(counts) * self.world.size  # ranks average gradients, but their sum is needed
            total.backward()  # type: ignore[no-untyped-call]
        sums = {name: value.detach() for name, value in loss.sums.items()}
        return replace(loss, sums=sums)

    @torch.no_grad()
    def evaluate(self, batch: Batch, state: State | None = None) -> Loss:
        """The loss of a batch in eager mode; dropout as the module's mode says."""
        corrupted, _, _ = self._corrupt_and_count(batch.to(self.world.device, non_blocking=True))
        with self._autocast():
            return self.parallel.evaluate(corrupted, state)


def _check_fp8(device: torch.device) -> None:
    if device.type == "cuda" and not supports_fp8(device):
        name = torch.cuda.get_device_name(device)
        raise ConfigError(f"precision=fp8: {name} does not support FP8: set precision=bf16")
    if device.type not in ("cuda", "cpu"):
        raise ConfigError(f"precision=fp8 needs CUDA, not {device.type}: set precision=bf16")


def _use_deterministic_algorithms() -> None:
    """Restricts torch to kernels with a fixed order of summation, in the whole process."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    torch.use_deterministic_algorithms(True)
    # no code here reads uninitialized memory
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _seed_dropout(device: torch.device, seed: int) -> None:
    if device.type == "cpu":  # torch.manual_seed would also record the seed for absent devices: 0.5 ms
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
