"""The trainer: an iterator of optimizer steps. The loop that drives it logs, evaluates and saves."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, reduce
from operator import add
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.data.packing.packing import Packing
from bertsmith.errors import ConfigError, DataError
from bertsmith.nn.row_threads import one_thread_per_operation
from bertsmith.training import optimizers
from bertsmith.training.checkpoints import TrainingState, environment_changes
from bertsmith.training.cuda_graphs import CudaGraphs, HostValues, StepOutput
from bertsmith.training.distributed import World
from bertsmith.training.forward_backward import ComputeConfig, ForwardBackward, Precision, Trainable
from bertsmith.training.optimizers import LearningRates
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.plateau import Plateau
from bertsmith.training.recurrent_state import RecurrentState
from bertsmith.training.signals import StopSignal
from bertsmith.training.step import DeviceValues, Diverged, Scores, Step, stack_scalars
from bertsmith.types import Batch, Loss

MicroBatches = Callable[[int], Sequence[Batch]]  # of a step, counted from 0, on this rank
MAX_IN_FLIGHT = 2  # steps on a GPU, so that the host prepares the next one while it computes


class Trainer:
    """Steps until the plan ends or a stop is requested (`stopped` tells which)."""

    def __init__(
        self,
        model: Trainable,
        batches: MicroBatches,
        *,
        plan: TrainingPlan,
        optimizer: optimizers.OptimizerConfig,
        precision: Precision = "auto",
        compute: ComputeConfig | None = None,
        world: World | None = None,
        stop_signal: StopSignal | None = None,
        seed: int = 0,
        columns: Packing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`columns`: the packing of the batches, where rows continue those of the step before."""
        self.model, self.batches, self.plan = model, batches, plan
        self.compute, self.world = compute or ComputeConfig(), world or World()
        self.stop_signal = stop_signal or StopSignal()
        self.module, self.groups = cast(nn.Module, model), len(model.layer_groups())
        self.forward_backward = ForwardBackward(
            model, precision=precision, compute=self.compute, world=self.world, seed=seed
        )
        self.parallel = self.forward_backward.parallel
        top = model.tied_tables() if plan.tied_on_top else ()
        self.weights = self.parallel.weights(model.layer_groups(), top=top)
        self.optimizer = optimizer.build(self.weights)
        self.sharded = self.compute.fsdp and self.world.size > 1
        if self.optimizer.sparse and not self.forward_backward.uses_cuda_graphs:  # graphs have fixed shapes
            self.parallel.use_sparse_gradients()
        over_rows = self.world.device.type == "cpu" and model.threads_over_rows
        self._threads: Callable[[], AbstractContextManager[int | None]]
        self._threads = one_thread_per_operation if over_rows else nullcontext
        if self.sharded and not self.optimizer.elementwise:
            name = type(optimizer).__module__.rpartition(".")[2]
            raise ConfigError(
                f"compute.fsdp=true shards matrices over the ranks, but {name} needs complete ones: "
                "choose optimizer.kind=adamw, or compute.fsdp=false"
            )
        self.plateau = Plateau(plan.schedule)
        self.columns = columns
        self.recurrent_state = None if columns is None else RecurrentState(self.world)
        self._graphs = CudaGraphs(self._compute, self.world) if self.forward_backward.uses_cuda_graphs else None
        self.steps_done = 0
        self.tokens = 0  # of all finished steps
        self.skipped_steps = 0  # since the last update
        self.seconds = 0.0  # of the run when the last finished step ended, by the clock of rank 0
        self.stopped = False
        self._clock, self._began, self._before = clock, clock(), 0.0
        self._warm = False
        self._in_flight: deque[Step] = deque()
        self._finished: Step | None = None
        self._trainable: tuple[bool, ...] = (True,) * self.groups

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        """The next step, which may still be in flight on the device."""
        self._finish_steps(MAX_IN_FLIGHT if self.world.device.type == "cuda" else 1)
        progress = self.plan.progress(self.steps_done, self.seconds)
        stop = self.stopped or (self.world.size == 1 and self.stop_signal.requested)
        self.stopped = stop and progress < 1
        if self.stopped or progress >= 1:
            raise StopIteration
        if self.skipped_steps >= self.compute.max_skipped_steps:
            raise self._diverged()
        began, event = self._clock(), self._start_event()
        if not self._warm:
            self._began = began  # time before the first step is not training time
        rates = self._learning_rates(progress)
        if self._graphs is not None:
            rates = [None if rate is None else float(np.float32(rate)) for rate in rates]  # as on the device
        with self._threads():
            output = self._train(self.batches(self.steps_done), rates)
        values = DeviceValues(output.names, output.values, event)
        self.steps_done += 1
        self._warm_up()
        top = next(rate for rate in reversed(rates) if rate is not None)
        step = Step(self.steps_done, top, output.rows, self._clock() - began, values, output.weights)
        self._in_flight.append(step)
        return step

    def _learning_rates(self, progress: float) -> LearningRates:
        rates = self.plan.learning_rates(progress, groups=self.groups)
        factor = self.plateau.factor
        if self.columns is not None:
            factor *= self.columns.learning_rate_factor(self.steps_done)
        return [None if rate is None else rate * factor for rate in rates]

    def _start_event(self) -> torch.cuda.Event | None:
        """Recorded when the GPU starts this step, after all earlier work."""
        if self.world.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _train(self, batches: Sequence[Batch], rates: LearningRates) -> StepOutput:
        """One step, replayed as a CUDA graph where possible."""
        if not batches:
            raise DataError(f"step {self.steps_done + 1:,} has no batch")
        if self._graphs is not None and len(batches) == 1:
            self.forward_backward.seed_dropout(self.steps_done, 0)
            host_values = {"stop": float(self.stop_signal.requested), "seconds": self._elapsed()}
            output = self._graphs(batches[0], rates, host_values, prepare=lambda: self._set_trainable(rates))
            if output is not None:
                return output
        self._set_trainable(rates)
        return self._compute(batches, rates, self._host_values, seed=True)

    def _compute(
        self, batches: Sequence[Batch], rates: LearningRates, host_values: HostValues, *, seed: bool = False
    ) -> StepOutput:
        """Gradients of the mean over all micro-batches and ranks, and one update."""
        losses, tokens, rows = self._gradients(batches, seed)
        loss = reduce(add, losses)
        values = self._update(loss, tokens, rates, host_values)
        if self.recurrent_state is not None:
            self.recurrent_state.update([one.state for one in losses], values["skip"])
        return StepOutput(tuple(values), stack_scalars(values), loss.weights, rows)

    def _host_values(self) -> dict[str, Tensor]:
        elapsed = self._elapsed() if self.world.is_main else 0.0
        return {"stop": self.world.scalar(self.stop_signal.requested), "seconds": self.world.scalar(elapsed)}

    def _warm_up(self) -> None:
        """Where the first step of this process builds kernels, the clock of the run starts after it."""
        if self.builds_kernels and not self._warm:
            if self.world.device.type == "cuda":
                torch.cuda.synchronize()
            self._began = self._clock()
        self._warm = True

    def _elapsed(self) -> float:
        """Seconds of the run so far, without a first step that builds kernels."""
        building = self.builds_kernels and not self._warm
        return self._before + (0.0 if building else self._clock() - self._began)

    @property
    def builds_kernels(self) -> bool:
        """Whether the first step takes much longer than others: the model is compiled, or on CUDA its kernels are."""
        return self.forward_backward.compiles or self.world.device.type == "cuda"

    def _finish_steps(self, most: int) -> None:
        """Waits until fewer than `most` steps are in flight, and records the finished ones. Equal on all ranks."""
        while self._in_flight and len(self._in_flight) >= most:
            self._finished = self._in_flight.popleft()
            numbers = self._finished.numbers
            self.tokens += int(numbers["tokens"])
            self.skipped_steps = self.skipped_steps + 1 if numbers["skip"] else 0
            self.seconds = numbers["seconds"]
            self.stopped = self.stopped or numbers["stop"] > 0

    def _diverged(self) -> Diverged:
        last = self._finished
        where = f" (step {last.number:,}: loss {last.loss}, gradient norm {last.gradient_norm})" if last else ""
        return Diverged(
            f"loss or gradients were not finite in {self.skipped_steps} consecutive steps{where}: the weights were not "
            "updated since and are intact; resume from an earlier checkpoint with a lower learning rate or other data"
        )

    def _set_trainable(self, rates: LearningRates) -> None:
        """Frozen layer groups get no gradients: they cost nothing and do not count in the norm."""
        trainable = tuple(rate is not None for rate in rates)
        self.module.train()
        self.model.encoder.train(any(trainable[:-1]))  # an encoder may have dropout outside of its groups
        for group, trains in zip(self.model.layer_groups(), trainable, strict=True):
            group.train(trains)  # no dropout in frozen groups: their activations are fixed
        for parameter in self.parallel.parameters.values():
            parameter.grad = None
        if trainable != self._trainable:
            self._trainable = trainable
            for weight in self.weights:
                self.parallel.parameters[weight.name].requires_grad_(trainable[weight.group])
            self.parallel.rewrap()

    def _gradients(self, batches: Sequence[Batch], seed: bool) -> tuple[list[Loss], Tensor, int]:
        """Accumulates this rank's gradients; its losses by micro-batch, and the tokens [] and rows of all ranks."""
        corrupted = [self.forward_backward.corrupt(batch) for batch in batches]
        local = {name: reduce(add, [counts[name] for _, counts, _ in corrupted]) for name in corrupted[0][1]}
        tokens = reduce(add, [tokens for _, _, tokens in corrupted])
        counts = self.world.all_reduce({**{f"count/{name}": count for name, count in local.items()}, "tokens": tokens})
        divisors = {name: counts[f"count/{name}"].float() for name in local}
        accumulate = partial(self.forward_backward.accumulate_gradients, step=self.steps_done, seed=seed)
        rows = [len(batch.input_ids) for batch, _, _ in corrupted]
        states = self.recurrent_state.parts(rows) if self.recurrent_state else [None] * len(rows)
        losses = [
            accumulate(batch, divisors, micro=micro, last=micro == len(corrupted) - 1, state=states[micro])
            for micro, (batch, _, _) in enumerate(corrupted)
        ]
        return losses, counts["tokens"], sum(rows) * self.world.size

    def _update(self, loss: Loss, tokens: Tensor, rates: LearningRates, host_values: HostValues) -> dict[str, Tensor]:
        """One update unless a value is not finite, which is checked on the device without synchronizing."""
        norm = self.parallel.gradient_norm(self.weights)
        sums = self.world.all_reduce({**_by_name(loss), **host_values()})
        total = sum(loss.weights[name] * sums[f"sum/{name}"] for name in loss.sums)
        finite = torch.isfinite(norm) & torch.isfinite(cast(Tensor, total))
        limit = self.compute.max_grad_norm
        divisor = (norm / limit).clamp(min=1) if limit else torch.ones_like(norm)
        skip = (~finite).float()
        self.optimizer.step(rates, divisor=torch.where(finite, divisor, 1.0), skip=skip)
        return {**sums, "tokens": tokens, "norm": norm, "skip": skip}

    def evaluate(self, batches: Iterable[Batch]) -> Scores:
        """Mean losses and accuracies of batches, each rank with its own, without training.

        Rows that continue each other have a state of their own, which is new in the first batch.
        """
        self.module.eval()
        losses: list[Loss] = []
        for batch in batches:
            state = losses[-1].state if self.recurrent_state and losses else None
            losses.append(self.forward_backward.evaluate(batch, state))
        if not losses:
            raise DataError("no batch to evaluate")
        loss = reduce(add, losses)
        sums = self.world.all_reduce(_by_name(loss))
        return Scores.of(DeviceValues(tuple(sums), stack_scalars(sums)).values(), loss.weights)

    def state(self) -> TrainingState:
        """The state after all steps so far. All ranks must call it; with FSDP only rank 0 gets tensors."""
        self._finish_steps(1)
        progress: dict[str, Any] = {"step": self.steps_done, "seconds": self.seconds, "tokens": self.tokens}
        progress |= {"plateau": plateau} if (plateau := self.plateau.state()) else {}
        optimizer = self.parallel.gather_full(self.optimizer.state())
        recurrent = self.recurrent_state.gather() if self.recurrent_state else ()
        return TrainingState(self.full_weights(), optimizer, progress, self._environment(), recurrent)

    def full_weights(self) -> dict[str, Tensor]:
        """The module's `state_dict` with full tensors, also with FSDP.

        All ranks must call it; with FSDP rank 0 gets copies on the CPU, and the others get nothing.
        """
        return self.parallel.gather_full(self.module.state_dict())

    def _environment(self) -> dict[str, object]:
        environment = {**self.world.environment(), "sharded": self.sharded}
        if self.world.device.type == "cpu" and not self.forward_backward.bf16:  # torch disables it after a failure
            environment["onednn"] = bool(torch.backends.mkldnn.enabled)
        return environment

    def load(self, state: TrainingState | None) -> tuple[str, ...]:
        """Resumes from rank 0's state, if it has one. Returns differences that prevent bit-identical losses."""
        shared = self.world.broadcast_state(state, self.parallel.local_shard)
        if shared is None:
            return ()
        names = self.module.state_dict().keys()
        if names != shared.weights.keys():
            name = sorted(names ^ shared.weights.keys())[0]
            raise DataError(f"the checkpoint belongs to another model: {name} is in only one of them")
        self.parallel.load_weights(shared.weights)
        if shared.optimizer:  # empty: a new run that starts from these weights
            self.optimizer.load(shared.optimizer)
        if self.recurrent_state is not None:
            self.recurrent_state.load(shared.recurrent)
        self.plateau.load(shared.progress.get("plateau", {}))
        self.steps_done, self.tokens, self.skipped_steps = shared.step, shared.progress["tokens"], 0
        self.seconds = self._before = shared.progress["seconds"]
        self._began = self._clock()
        self._in_flight.clear()
        if self._graphs is not None:
            self._graphs.forget()
        return environment_changes(shared.environment, self._environment())


def _by_name(loss: Loss) -> dict[str, Tensor]:
    kinds = (("sum", loss.sums), ("count", loss.counts), ("correct", loss.correct))
    return {f"{kind}/{name}": value for kind, values in kinds for name, value in values.items()}
