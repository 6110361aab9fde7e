"""The trainer: an iterator of optimiser steps. Who logs, scores or saves does so in the loop that drives it.

for step in trainer:
    log.write(**step.facts())
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError, DataError
from bertsmith.training.optimizers import optimizer as optimizers
from bertsmith.training.passes import ComputeConfig, ForwardBackward, Precision, Trainable
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.replay import CudaGraphs, StepOutput, Told
from bertsmith.training.state import TrainingState, differences
from bertsmith.training.step import DeviceValues, Diverged, Scores, Step, stack_scalars
from bertsmith.training.stopper import StopSignal
from bertsmith.training.world import World
from bertsmith.types import Batch, Loss

Feed = Callable[[int], Sequence[Batch]]  # the micro-batches of a step (the first is 0) that this rank takes
AHEAD = 2  # steps that may be under way on a GPU, so that the host makes the next batch while it computes


class Trainer:
    """Steps until the plan is fulfilled or someone asks to stop (`stopped` tells which)."""

    def __init__(
        self,
        model: Trainable,
        feed: Feed,
        *,
        plan: TrainingPlan,
        optimizer: optimizers.Settings,
        precision: Precision = "auto",
        compute: ComputeConfig | None = None,
        world: World | None = None,
        stopper: StopSignal | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.feed, self.plan = model, feed, plan
        self.compute, self.world, self.stop_signal = (
            compute or ComputeConfig(),
            world or World(),
            stopper or StopSignal(),
        )
        self.module, self.groups = cast(nn.Module, model), len(model.layer_groups())
        self.forward_backward = ForwardBackward(
            model, precision=precision, compute=self.compute, world=self.world, seed=seed
        )
        self.parallel = self.forward_backward.parallel
        self.weights = self.parallel.weights(model.layer_groups())
        self.optimizer = optimizer.build(self.weights)
        self.sharded = self.compute.fsdp and self.world.size > 1
        if self.sharded and not self.optimizer.elementwise:
            name = type(optimizer).__module__.rpartition(".")[2]
            raise ConfigError(
                f"compute.fsdp=true shards matrices over the ranks, but {name} needs complete ones: "
                "choose optimizer.kind=adamw, or compute.fsdp=false"
            )
        self._replay = CudaGraphs(self._compute, self.world) if self.forward_backward.uses_cuda_graphs else None
        self.steps_done = 0  # steps
        self.tokens = 0  # of all steps that are settled
        self.skipped_steps = 0  # steps without an update since the last one with
        self.seconds = 0.0  # since the run began, as rank 0 saw it when the last settled step ended
        self.stopped = False
        self._clock, self._began, self._before = clock, clock(), 0.0
        self._warm = False
        self._under_way: deque[Step] = deque()
        self._settled: Step | None = None
        self._awake: tuple[bool, ...] = (True,) * self.groups

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        """The next step, which may still be under way on the device."""
        self._settle(AHEAD if self.world.device.type == "cuda" else 1)
        progress = self.plan.progress(self.steps_done, self.seconds)
        asked = self.stopped or (self.world.size == 1 and self.stop_signal.requested)
        self.stopped = asked and progress < 1
        if self.stopped or progress >= 1:
            raise StopIteration
        if self.skipped_steps >= self.compute.max_skipped_steps:
            raise self._diverged()
        began, mark = self._clock(), self._mark()
        if not self._warm:
            self._began = began  # what came before it was no training
        rates = self.plan.learning_rates(progress, groups=self.groups)
        if self._replay is not None:
            rates = [None if rate is None else float(np.float32(rate)) for rate in rates]  # as the device holds them
        outcome = self._learn(self.feed(self.steps_done), rates)
        reading = DeviceValues(outcome.names, outcome.values, mark)
        self.steps_done += 1
        self._warm_up()
        top = next(rate for rate in reversed(rates) if rate is not None)
        step = Step(self.steps_done, top, outcome.rows, self._clock() - began, reading, outcome.weights)
        self._under_way.append(step)
        return step

    def _mark(self) -> torch.cuda.Event | None:
        """Where a GPU begins a step, after all that it was given before."""
        if self.world.device.type != "cuda":
            return None
        mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        mark.record()
        return mark

    def _learn(self, batches: Sequence[Batch], rates: optimizers.LearningRates) -> StepOutput:
        """One step, replayed where that is possible."""
        if not batches:
            raise DataError(f"step {self.steps_done + 1:,} was given no batch")
        if self._replay is not None and len(batches) == 1:
            self.forward_backward.seed_dropout(self.steps_done, 0)
            told = {"stop": float(self.stop_signal.requested), "seconds": self._elapsed()}
            found = self._replay(batches[0], rates, told, prepare=lambda: self._wake(rates))
            if found is not None:
                return found
        self._wake(rates)
        return self._compute(batches, rates, self._told, seed=True)

    def _compute(
        self, batches: Sequence[Batch], rates: optimizers.LearningRates, told: Told, *, seed: bool = False
    ) -> StepOutput:
        """Gradients of the mean over all micro-batches and ranks, and one update."""
        loss, tokens, rows = self._gradients(batches, seed)
        values = self._update(loss, tokens, rates, told)
        return StepOutput(tuple(values), stack_scalars(values), loss.weights, rows)

    def _told(self) -> dict[str, Tensor]:
        elapsed = self._elapsed() if self.world.is_main else 0.0
        return {"stop": self.world.scalar(self.stop_signal.requested), "seconds": self.world.scalar(elapsed)}

    def _warm_up(self) -> None:
        """Where steps are compiled, the clock of the run starts when the first one of this process is done."""
        if self.forward_backward.compiles and not self._warm:
            if self.world.device.type == "cuda":
                torch.cuda.synchronize()
            self._began = self._clock()
        self._warm = True

    def _elapsed(self) -> float:
        """Seconds of the run so far; while a first step is compiled, its clock stands still."""
        compiling = self.forward_backward.compiles and not self._warm
        return self._before + (0.0 if compiling else self._clock() - self._began)

    def _settle(self, most: int) -> None:
        """Waits until fewer than `most` steps are under way, and takes notice of the others. The same on all ranks."""
        while self._under_way and len(self._under_way) >= most:
            self._settled = self._under_way.popleft()
            numbers = self._settled.numbers
            self.tokens += int(numbers["tokens"])
            self.skipped_steps = self.skipped_steps + 1 if numbers["skip"] else 0
            self.seconds = numbers["seconds"]
            self.stopped = self.stopped or numbers["stop"] > 0

    def _diverged(self) -> Diverged:
        last = self._settled
        found = f" (step {last.number:,}: loss {last.loss}, gradient norm {last.gradient_norm})" if last else ""
        return Diverged(
            f"loss or gradients were not finite in {self.skipped_steps} consecutive steps{found}: the weights were not "
            "updated since and are intact; resume from an earlier checkpoint with a lower learning rate or other data"
        )

    def _wake(self, rates: optimizers.LearningRates) -> None:
        """Parts that sleep get no gradients: they cost nothing and do not count in the norm."""
        awake = tuple(rate is not None for rate in rates)
        self.module.train()
        for part, learns in zip(self.model.layer_groups(), awake, strict=True):
            part.train(learns)  # what sleeps drops nothing: its activations are fixed
        for parameter in self.parallel.parameters.values():
            parameter.grad = None
        if awake != self._awake:
            self._awake = awake
            for weight in self.weights:
                self.parallel.parameters[weight.name].requires_grad_(awake[weight.depth])
            self.parallel.rewrap()

    def _gradients(self, batches: Sequence[Batch], seed: bool) -> tuple[Loss, Tensor, int]:
        """Those of this rank; its loss, all ranks' tokens [] and rows."""
        hidden = [self.forward_backward.corrupt(batch) for batch in batches]
        asked = reduce(_added, [counts for _, counts, _ in hidden])
        tokens = reduce(add, [tokens for _, _, tokens in hidden])
        counts = self.world.all_reduce({**{f"count/{name}": count for name, count in asked.items()}, "tokens": tokens})
        divisors = {name: counts[f"count/{name}"].float() for name in asked}
        last = len(hidden) - 1
        losses = [
            self.forward_backward.accumulate_gradients(
                batch, divisors, step=self.steps_done, micro=micro, last=micro == last, seed=seed
            )
            for micro, (batch, _, _) in enumerate(hidden)
        ]
        rows = sum(len(batch.input_ids) for batch, _, _ in hidden) * self.world.size
        return reduce(add, losses), counts["tokens"], rows

    def _update(self, loss: Loss, tokens: Tensor, rates: optimizers.LearningRates, told: Told) -> dict[str, Tensor]:
        """One update, unless a number is not finite; whether it is, is found out and minded on the device itself."""
        norm = self.parallel.gradient_norm(self.weights)
        sums = self.world.all_reduce({**_named(loss), **told()})
        total = sum(loss.weights[name] * sums[f"sum/{name}"] for name in loss.sums)
        finite = torch.isfinite(norm) & torch.isfinite(cast(Tensor, total))
        divisor = (
            (norm / self.compute.max_grad_norm).clamp(min=1) if self.compute.max_grad_norm else torch.ones_like(norm)
        )
        skip = (~finite).float()
        self.optimizer.step(rates, divisor=torch.where(finite, divisor, 1.0), skip=skip)
        return {**sums, "tokens": tokens, "norm": norm, "skip": skip}

    def evaluate(self, batches: Iterable[Batch]) -> Scores:
        """The mean losses and accuracies of batches, each rank bringing its own, without learning from them."""
        self.module.eval()
        losses = [self.forward_backward.evaluate(batch) for batch in batches]
        if not losses:
            raise DataError("there is nothing to score: no batch was given")
        found = reduce(add, losses)
        sums = self.world.all_reduce(_named(found))
        numbers = DeviceValues(tuple(sums), stack_scalars(sums)).values()
        return Scores.of(numbers, found.weights)

    def state(self) -> TrainingState:
        """Where the run stands, after all steps so far. All ranks must ask; if sharded, only rank 0 has tensors."""
        self._settle(1)
        progress = {"step": self.steps_done, "seconds": self.seconds, "tokens": self.tokens}
        return TrainingState(
            self.full_weights(), self.parallel.gather_full(self.optimizer.state()), progress, self._made_with()
        )

    def full_weights(self) -> dict[str, Tensor]:
        """The module's weights by name, as `state_dict` has them, whole also where they are sharded.

        All ranks must ask; of a sharded model rank 0 gets copies on the CPU, and the others get nothing.
        """
        return self.parallel.gather_full(self.module.state_dict())

    def _made_with(self) -> dict[str, object]:
        found = {**self.world.environment(), "sharded": self.sharded}
        if (
            self.world.device.type == "cpu" and not self.forward_backward.bf16
        ):  # torch itself turns it off at a failing product
            found["onednn"] = bool(torch.backends.mkldnn.enabled)
        return found

    def load(self, state: TrainingState | None) -> tuple[str, ...]:
        """Goes on from rank 0's state, if it has one. What is returned keeps losses from being the same bit for bit."""
        shared = self.world.broadcast_state(state, self.parallel.local_shard)
        if shared is None:
            return ()
        mine = self.module.state_dict()
        if mine.keys() != shared.weights.keys():
            name = sorted(mine.keys() ^ shared.weights.keys())[0]
            raise DataError(f"the checkpoint is of another model: {name} is in only one of them")
        self.parallel.load_weights(shared.weights)
        if shared.optimizer:  # none: a new run that begins with these weights
            self.optimizer.load(shared.optimizer)
        self.steps_done, self.tokens, self.skipped_steps = shared.step, shared.progress["tokens"], 0
        self.seconds = self._before = shared.progress["seconds"]
        self._began = self._clock()
        self._under_way.clear()
        if self._replay is not None:
            self._replay.forget()
        return differences(shared.environment, self._made_with())


def _named(loss: Loss) -> dict[str, Tensor]:
    kinds = (("sum", loss.sums), ("count", loss.counts), ("correct", loss.correct))
    return {f"{kind}/{name}": value for kind, values in kinds for name, value in values.items()}


def _added(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: ours[name] + theirs[name] for name in ours}
