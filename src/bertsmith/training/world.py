"""The ranks that train together, as torchrun starts them; one process alone needs no torch.distributed."""

from __future__ import annotations

import os
import platform
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

import bertsmith
from bertsmith.errors import PeerLostError, StoppedError
from bertsmith.training.meeting import private_store
from bertsmith.training.state import TrainingState
from bertsmith.training.step import exact_dtype
from bertsmith.training.stopper import StopSignal

PATIENCE = timedelta(minutes=10)  # until a rank that does not answer is an error


@dataclass(frozen=True)
class World:
    """Who we are among how many, and on which device."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that logs and saves."""
        return self.rank == 0

    def scalar(self, value: float) -> Tensor:
        """A number of the host's [] on the device, without waiting for it."""
        return torch.full((), value, dtype=exact_dtype(self.device), device=self.device)

    def all_reduce(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each number [] summed over all ranks, in one exchange."""
        if self.size == 1:
            return dict(values)
        together = torch.stack([value.detach().to(exact_dtype(self.device)) for value in values.values()])
        dist.all_reduce(together)
        return dict(zip(values, together.unbind(), strict=True))

    def data_parallel(self, model: nn.Module) -> nn.Module:
        """The model with gradients that are averaged over all ranks; itself where there is only one."""
        if self.size == 1:
            return model
        with warnings.catch_warnings():
            # torch 2.13 would have broadcast_buffers under a name that earlier ones do not know
            warnings.simplefilter("ignore", FutureWarning)
            # a pooler that no objective reads has no gradient: the search for such costs next to nothing
            return DistributedDataParallel(
                model, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=True
            )

    def environment(self) -> dict[str, Any]:
        """What a run must have in common with another to give the same numbers bit for bit."""
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
        self, state: TrainingState | None, piece: Callable[[str, Tensor], Tensor]
    ) -> TrainingState | None:
        """Rank 0's state, on all ranks, the `piece` that each wants of every tensor; only rank 0's own is looked at.

        So only rank 0 needs to see the checkpoints, and no rank has more than one whole tensor on its device.
        """
        if self.size == 1:
            return state
        outline = _outline(state) if self.is_main and state is not None else None
        message: list[Any] = [outline]
        dist.broadcast_object_list(message)
        if message[0] is None:
            return None
        shapes, progress, made_with = message[0]
        mine = {"weights": state.weights, "optimizer": state.optimizer} if state is not None else {}
        received: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}}
        for kind, name, shape, dtype in shapes:
            if self.is_main:
                tensor = mine[kind][name].to(self.device).contiguous()
            else:
                tensor = torch.empty(shape, dtype=dtype, device=self.device)
            dist.broadcast(tensor, src=0)
            received[kind][name] = piece(name, tensor)
        return TrainingState(received["weights"], received["optimizer"], progress, made_with)


def _outline(
    state: TrainingState,
) -> tuple[list[tuple[str, str, torch.Size, torch.dtype]], dict[str, Any], dict[str, Any]]:
    """What must be known of a state before its tensors can be received."""
    kinds = {"weights": state.weights, "optimizer": state.optimizer}
    shapes = [
        (kind, name, tensor.shape, tensor.dtype) for kind, tensors in kinds.items() for name, tensor in tensors.items()
    ]
    return shapes, state.progress, state.environment


@contextmanager
def join_process_group(device: str = "cpu", *, backend: str | None = None) -> Iterator[World]:
    """The world that torchrun's environment describes, left at the end; one process alone where there is none.

    Each rank of a machine takes the GPU of its number. `backend` is NCCL on GPUs and gloo elsewhere.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World(device=torch.device(device))
        return
    place = torch.device(device)
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(place)
    found, rank, size = next(iter(rendezvous("env://", timeout=PATIENCE)))
    store = private_store(found, rank=rank, size=size, patience=PATIENCE)
    backend = backend or ("nccl" if place.type == "cuda" else "gloo")
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        yield World(rank, size, place)
    except StoppedError:
        dist.barrier()  # until rank 0 has saved: as soon as one rank ends, torchrun ends the others
        raise
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):  # which has no kind of its own
            raise
        reason = textwrap.shorten(str(error), 200, placeholder="…")
        message = f"another rank has gone, and this one cannot go on without it: {reason}"
        raise PeerLostError(message, stop_requested=StopSignal.received) from error
    finally:
        dist.destroy_process_group()
