"""The ranks of a run as torchrun starts them; a single process does not need torch.distributed."""

from __future__ import annotations

import os
import platform
import secrets
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

import bertsmith
from bertsmith.errors import PeerLostError, StoppedError
from bertsmith.training.checkpoints import TrainingState
from bertsmith.training.signals import StopSignal
from bertsmith.training.step import exact_dtype

TIMEOUT = timedelta(minutes=10)  # of collectives and of the rendezvous
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class World:
    """Rank, world size and device of this process."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this rank logs and saves."""
        return self.rank == 0

    def scalar(self, value: float) -> Tensor:
        """A number as a tensor [] on the device, without synchronizing."""
        return torch.full((), value, dtype=exact_dtype(self.device), device=self.device)

    def all_reduce(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum of each scalar [] over all ranks, in one collective."""
        if self.size == 1:
            return dict(values)
        stacked = torch.stack([value.detach().to(exact_dtype(self.device)) for value in values.values()])
        dist.all_reduce(stacked)
        return dict(zip(values, stacked.unbind(), strict=True))

    def gather_rows(self, tensor: Tensor) -> Tensor:
        """The tensors [n, ...] of all ranks, concatenated [ranks * n, ...]. All ranks must call it."""
        if self.size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def data_parallel(self, model: nn.Module) -> nn.Module:
        """The model wrapped in DistributedDataParallel; the model itself on a single rank."""
        if self.size == 1:
            return model
        with warnings.catch_warnings():
            # torch 2.13 renames broadcast_buffers, and earlier versions do not know the new name
            warnings.simplefilter("ignore", FutureWarning)
            # the pooler has no gradient if no objective reads it; the search for such parameters is cheap
            return DistributedDataParallel(
                model, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=True
            )

    def environment(self) -> dict[str, Any]:
        """What two runs must have in common to be bit-identical."""
        cuda = self.device.type == "cuda"
        return {
            "bertsmith": bertsmith.__version__,
            "torch": torch.__version__,
            "machine": platform.machine(),
            "device": torch.cuda.get_device_name(self.device) if cuda else self.device.type,
            "threads": torch.get_num_threads(),
            "ranks": self.size,
        }

    def broadcast_state(
        self, state: TrainingState | None, local_shard: Callable[[str, Tensor], Tensor]
    ) -> TrainingState | None:
        """Rank 0's state on all ranks, of each weight the `local_shard` that the rank keeps.

        Only rank 0 needs access to the checkpoints, and no rank holds more than one full tensor on its device.
        """
        if self.size == 1:
            return state
        message: list[Any] = [None]
        source: dict[str, dict[str, Tensor]] = {}
        if state is not None:
            numbered = {str(number): tensor for number, tensor in enumerate(state.recurrent)}
            source = {"weights": state.weights, "optimizer": state.optimizer, "recurrent": numbered}
        if self.is_main and state is not None:
            each = [(kind, name, tensor) for kind, tensors in source.items() for name, tensor in tensors.items()]
            shapes = [(kind, name, tensor.shape, tensor.dtype) for kind, name, tensor in each]
            message = [(shapes, state.progress, state.environment)]
        dist.broadcast_object_list(message)
        if message[0] is None:
            return None
        shapes, progress, environment = message[0]
        received: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}, "recurrent": {}}
        for kind, name, shape, dtype in shapes:
            if self.is_main:
                tensor = source[kind][name].to(self.device).contiguous()
            else:
                tensor = torch.empty(shape, dtype=dtype, device=self.device)
            dist.broadcast(tensor, src=0)
            received[kind][name] = tensor if kind == "recurrent" else local_shard(name, tensor)
        recurrent = tuple(received["recurrent"].values())
        return TrainingState(received["weights"], received["optimizer"], progress, environment, recurrent)


@contextmanager
def join_process_group(device: str = "cpu", *, backend: str | None = None) -> Iterator[World]:
    """The world that torchrun's environment variables describe, left at the end; one rank where there are none.

    Each rank of a machine uses the GPU of its local rank. `backend` is NCCL on GPUs and gloo elsewhere.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World(device=torch.device(device))
        return
    local = torch.device(device)
    if local.type == "cuda":
        local = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(local)
    shared, rank, size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    store = private_store(shared, rank=rank, size=size, timeout=TIMEOUT)
    backend = backend or ("nccl" if local.type == "cuda" else "gloo")
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield World(rank, size, local)
    except StoppedError:
        dist.barrier()  # until rank 0 has saved: as soon as one rank ends, torchrun ends the others
        raise
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):  # gloo raises plain RuntimeErrors
            raise
        reason = textwrap.shorten(str(error), 200, placeholder="…")
        message = f"another rank has ended, and this one cannot continue without it: {reason}"
        raise PeerLostError(message, stop_requested=StopSignal.received) from error
    finally:
        dist.destroy_process_group()


def private_store(store: Store, *, rank: int, size: int, timeout: timedelta) -> Store:
    """A prefix of the store that only the ranks of this launch know. Every rank must call it.

    torchrun keeps one store through all restarts, so a fast rank could read the address of a rank that has died; and
    each machine counts restarts on its own, so that the count is not a safe prefix. Each rank but the first publishes a
    new token. Rank 0 replies to every token with the prefix, and ranks confirm the reply to their own token.
    """
    mine = secrets.token_hex(8)
    store.set_timeout(timeout)
    if rank == 0:
        _reply_to_ranks(store, mine, size, time.monotonic() + timeout.total_seconds())
        return PrefixStore(mine, store)
    store.set(f"token/{rank}", mine)
    prefix = store.get(f"reply/{rank}/{mine}").decode()  # waits for it
    store.set(f"confirmed/{prefix}/{rank}", "")
    return PrefixStore(prefix, store)


def _reply_to_ranks(store: Store, prefix: str, size: int, deadline: float) -> None:
    waiting = set(range(1, size))
    while waiting:
        for rank in sorted(waiting):
            if store.check([f"confirmed/{prefix}/{rank}"]):
                waiting.remove(rank)
            elif store.check([f"token/{rank}"]):
                store.set(f"reply/{rank}/{store.get(f'token/{rank}').decode()}", prefix)
        if waiting and time.monotonic() > deadline:
            raise PeerLostError(f"rank {min(waiting)} did not start: start all machines with the same command")
        time.sleep(POLL_SECONDS)
