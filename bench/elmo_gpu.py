"""ELMo's training step on a GPU: kernels and CUDA graphs of the LSTM against plain arithmetic, tokens per second.

PYTHONPATH=src python bench/elmo_gpu.py [--rows 384] [--steps 20] [--cells 4096] [--vocabulary 793471] [--rounds 3]

Variants: `plain` is a Python loop of torch operations under autograd; `kernels` the layer of bertsmith without CUDA
graphs; `graphs` with them, as in training. Values and gradients are compared first. Rounds are interleaved. A step is
that of `Trainer`: forward, backward, gradient norm and Adagrad. Then the time of each part alone, and one table of all
medians. A variant that fails prints its error, and the others continue. Without a GPU it runs a small model, to check
the script. The words of the text are random: `bench/pretrain_speed.py SHARDS elmo/original` measures runs on shards.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.encoders import elmo
from bertsmith.model_io.model import Model
from bertsmith.nn.projected_lstm import ProjectedLSTM
from bertsmith.objectives import bidirectional_lm
from bertsmith.tokenizers.spelling import PADDING, spell
from bertsmith.training.distributed import World
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.optimizers import adagrad
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.trainer import Trainer
from bertsmith.types import Batch, Vocabulary

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MULTIPLE, COLUMNS = 64, 8
# Percentages of words of 1, 2, ... bytes among the distinct words of 7,680 tokens of English Wikipedia. The longest of
# these words has 18 bytes (median of 300 such texts), at most 23 in 90 % of them.
LENGTHS = (2, 3, 6, 13, 13, 14, 14, 12, 9, 6, 4, 2, 1, 0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02)
VARIANTS = ("plain", "kernels", "graphs")
Table = list[tuple[str, float]]  # milliseconds of a step and of its parts


def plain_forward(
    lstm: ProjectedLSTM, x: Tensor, state: Any = None, lengths: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """What `ProjectedLSTM.forward` computes, by torch operations under autograd."""
    if torch.is_autocast_enabled(DEVICE.type):
        x = x.to(torch.get_autocast_dtype(DEVICE.type))
    kind, wide = x.dtype, torch.promote_types(x.dtype, torch.float32)
    d, _, n, _ = x.shape
    hidden, cell = state or (x.new_zeros(d, n, lstm.width), x.new_zeros(d, n, lstm.cells, dtype=wide))
    hidden, cell = hidden.to(kind), cell.to(wide)
    with torch.autocast(DEVICE.type, enabled=False):
        inputs, recurrent, project = (w.to(kind) for w in (lstm.weight_ih, lstm.weight_hh, lstm.projection))
        sums = torch.bmm(x.flatten(1, 2), inputs).view(*x.shape[:3], -1)
        outputs = []
        for step in range(x.shape[1]):
            gates = (sums[:, step] + torch.bmm(hidden, recurrent)).to(wide) + lstm.bias[:, None]
            i, j, f, o = gates.chunk(4, -1)
            cell = ((f + 1).sigmoid() * cell + i.sigmoid() * j.tanh()).clamp(-lstm.clips[0], lstm.clips[0])
            hidden = torch.bmm((o.sigmoid() * cell.tanh()).to(kind), project).clamp(-lstm.clips[1], lstm.clips[1])
            outputs.append(hidden)
    return torch.stack(outputs, 1), (hidden.detach(), cell.detach())


@contextmanager
def variant(name: str, model: torch.nn.Module) -> Iterator[None]:
    """The model computes in that way."""
    own = ProjectedLSTM.forward
    for part in model.modules():
        if isinstance(part, ProjectedLSTM) and part.captured is not None:
            part.captured.enabled = name == "graphs"
    if name == "plain":
        ProjectedLSTM.forward = plain_forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ProjectedLSTM.forward = own  # type: ignore[method-assign]


def guarded(what: str, run: Callable[[], Any]) -> Any:
    """The result, or None after an error, which is printed."""
    try:
        return run()
    except Exception as error:
        print(f"{what}: FAILED: {type(error).__name__}: {error}")
        traceback.print_exc(limit=4)
        return None


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def outputs_and_gradients(name: str, lstm: ProjectedLSTM, x: Tensor, state: Any, *, autocast: bool) -> list[Tensor]:
    """Of the second of two runs: graphs are captured in the first one and replayed in both."""
    weights = torch.linspace(-1, 1, x.numel() // x.shape[-1] * lstm.width, device=DEVICE)
    found: list[Any] = []
    with variant(name, lstm):
        for scale in (0.5, 1.0):
            lstm.zero_grad()
            given = (x * scale).requires_grad_()
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
                outputs, after = lstm(given, state)
            (outputs.float().flatten() * weights).sum().backward()
            found = [outputs.float(), *after, given.grad, *(weight.grad for weight in lstm.parameters())]
    return [each.detach().float().clone() for each in found]


def check(rows: int, steps: int, cells: int, width: int) -> None:
    """Values and gradients of the kernels, and of the graphs, beside plain arithmetic."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for kind, limit in (("float32", 1e-4), ("bfloat16", 3e-2)):
        torch.manual_seed(0)
        lstm = ProjectedLSTM(width, cells, width, cell_clip=0.6, projection_clip=0.5).to(DEVICE).train()
        with torch.no_grad():
            for weight in lstm.parameters():
                weight.normal_(0, 1.5 / cells**0.5)
        x = torch.randn(2, steps, rows, width, device=DEVICE)
        state = torch.randn(2, rows, width, device=DEVICE) * 0.3, torch.randn(2, rows, cells, device=DEVICE) * 0.3
        results: dict[str, list[Tensor]] = {}
        for name in VARIANTS:
            run = partial(outputs_and_gradients, name, lstm, x, state, autocast=kind == "bfloat16")
            if (made := guarded(f"check {name} {kind}", run)) is not None:
                results[name] = made
        names = ["outputs", "hidden", "cells", "dx", *(f"d {name}" for name, _ in lstm.named_parameters())]
        for name in (name for name in VARIANTS[1:] if name in results and "plain" in results):
            errors = {
                what: float((one - other).norm() / other.norm().clamp(min=1e-12))
                for what, one, other in zip(names, results[name], results["plain"], strict=True)
            }
            verdict = "ok" if max(errors.values()) < limit else "WRONG"
            print(f"check {name} {kind}: {verdict}", {what: f"{error:.1e}" for what, error in errors.items()})
        if {"graphs", "kernels"} <= results.keys():
            same = all(torch.equal(a, b) for a, b in zip(results["graphs"], results["kernels"], strict=True))
            print(f"check {kind}: graphs and kernels are {'equal bit by bit' if same else 'not equal bit by bit'}")
        if "plain" in results:
            clipped = float((results["plain"][0].abs() >= 0.5).float().mean())
            print(f"check {kind}: {clipped:.1%} of the projections are clipped")


def batches(size: int, rows: int, steps: int, count: int) -> list[Batch]:
    """Windows of words with log-uniform frequencies, spelled; words are as long as those of English Wikipedia."""
    draw = np.random.default_rng(0)
    lengths = draw.choice(np.arange(1, len(LENGTHS) + 1), size, p=np.array(LENGTHS) / sum(LENGTHS))
    made = []
    for number in range(count):
        ids = np.minimum(np.exp(draw.random((rows, steps + 1)) * np.log(size + 1)).astype(np.int64) - 1, size - 1)
        keys, index = np.unique(ids[:, :-1], return_inverse=True)
        spelled = spell([np.base_repr(key, 36).rjust(lengths[key], "x")[: lengths[key]] for key in keys])
        shape = (-(-n // multiple) * multiple for n, multiple in zip(spelled.shape, (MULTIPLE, COLUMNS), strict=True))
        words = np.full(tuple(shape), PADDING, np.int16)
        words[: len(keys), : spelled.shape[1]] = spelled
        zeros = torch.zeros(rows, steps, dtype=torch.int64)
        positions = torch.arange(number * steps, (number + 1) * steps).expand(rows, -1)
        batch = Batch(
            input_ids=torch.from_numpy(ids[:, :-1].copy()),
            position_ids=positions.contiguous(),
            segment_ids=zeros,
            document_ids=torch.ones(rows, steps, dtype=torch.int32),
            special_mask=zeros.bool(),
            sample_ids=zeros + number * rows + torch.arange(rows)[:, None],
            epoch=torch.tensor(0),
            cu_seqlens=torch.arange(0, rows * steps + 1, steps, dtype=torch.int32),
            cls_positions=torch.arange(0, rows * steps, steps),
            max_seqlen=steps,
            dense=True,
            spellings=torch.from_numpy(words),
            spelling_ids=torch.from_numpy(index.reshape(rows, steps)),
            next_ids=torch.from_numpy(ids[:, -1].copy()),
        )
        made.append(batch.map(lambda tensor: tensor.pin_memory()) if DEVICE.type == "cuda" else batch)
    shapes = [each.spellings.shape for each in made if each.spellings is not None]
    print(f"distinct words of a batch and their columns: {', '.join(f'{n:,} x {columns}' for n, columns in shapes)}")
    return made


class SameRate:
    """Stands for the packing, of which the trainer needs no more."""

    def learning_rate_factor(self, step: int) -> float:
        return 1.0


def trainer_of(model: Model, data: list[Batch]) -> Trainer:
    return Trainer(
        model.to(DEVICE),
        lambda step: [data[step % len(data)]],
        plan=TrainingPlan(steps=10**9, learning_rate=0.02),
        optimizer=adagrad.Config(initial=1.0),
        precision="bf16",
        compute=ComputeConfig(max_grad_norm=10.0, cuda_graphs=False),
        world=World(device=DEVICE),
        columns=SameRate(),  # type: ignore[arg-type]
    )


def step_seconds(trainer: Trainer, steps: int) -> float:
    """Of one step; the mean over several, so that the queue of the GPU is full."""
    synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        next(trainer)
    synchronize()
    return (time.perf_counter() - began) / steps


def part_seconds(run: Callable[[], Any], repeats: int = 10) -> float:
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        synchronize()
        began = time.perf_counter()
        run()
        synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def breakdown(model: Model, trainer: Trainer, batch: Batch) -> Table:
    """Median milliseconds of each part alone, forward and backward."""
    found: Table = []
    encoder: Any = model.encoder
    head: Any = model.objectives["bidirectional_lm"]
    batch = model.corrupt(batch.to(DEVICE))
    assert batch.spellings is not None
    rows, steps = batch.input_ids.shape
    width = encoder.config.width
    x = torch.randn(2, steps, rows, width, device=DEVICE, requires_grad=True)
    # in bfloat16, as the LSTM layers return it
    hidden = torch.randn(2 * rows * steps, width, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)

    def words() -> None:
        encoder.words(batch.spellings).float().square().sum().backward()

    def lstms() -> None:
        y = x
        for lstm in encoder.lstms:
            y = lstm(y)[0]
        y.float().sum().backward()

    def softmax() -> None:
        sampled, tries = head.sampler.draw(batch.sample_ids[0, 0])
        head._sampled_loss(hidden, head.labels(batch), sampled, tries)[0].backward()

    def optimizer() -> None:
        norm = trainer.parallel.gradient_norm(trainer.weights)
        rates = [0.02] * len(model.layer_groups())
        trainer.optimizer.step(rates, divisor=torch.ones_like(norm), skip=torch.zeros_like(norm))

    def clean(run: Callable[[], None]) -> Callable[[], None]:
        def cleaned() -> None:
            model.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE.type, torch.bfloat16):
                run()

        return cleaned

    def measure(what: str, run: Callable[[], None]) -> None:
        seconds = guarded(what, lambda: part_seconds(run))
        found.append((what, 1e3 * (seconds or float("nan"))))

    for name in VARIANTS:
        with variant(name, model):
            measure(f"LSTM layers, {name}", clean(lstms))
    with variant("graphs", model):
        measure("character CNN", clean(words))
        measure("sampled softmax", clean(softmax))
        next(trainer)
        guarded("gradients", lambda: trainer._gradients([batch], seed=True))
        measure("gradient norm and Adagrad", optimizer)
    return found


def products(rows: int, cells: int, width: int) -> None:
    """Microseconds of the products of a step: both directions as one batched product, or one after the other."""
    kind = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    for name, inner, outer in (
        ("gates", width, 4 * cells),
        ("projection", cells, width),
        ("gradient of the projection", width, cells),
        ("gradient of the state", 4 * cells, width),
    ):
        left, right = (torch.randn(2, *shape, device=DEVICE, dtype=kind) for shape in ((rows, inner), (inner, outer)))
        out = torch.empty(2, rows, outer, device=DEVICE, dtype=kind)

        def batched(left: Tensor = left, right: Tensor = right, out: Tensor = out) -> None:
            for _ in range(100):
                torch.bmm(left, right, out=out)

        def single(left: Tensor = left, right: Tensor = right, out: Tensor = out) -> None:
            for _ in range(100):
                torch.mm(left[0], right[0], out=out[0])
                torch.mm(left[1], right[1], out=out[1])

        one, other = part_seconds(batched), part_seconds(single)
        rate = 4 * rows * inner * outer / one * 100 / 1e12
        print(f"product {name}: batched {1e4 * one:.1f} us ({rate:.0f} TFLOP/s), two products {1e4 * other:.1f} us")


def main() -> None:
    small = DEVICE.type == "cpu"
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("rows", 8 if small else 384),
        ("steps", 5 if small else 20),
        ("cells", 16 if small else 4096),
        ("width", 8 if small else 512),
        ("vocabulary", 500 if small else 793_471),
        ("samples", 32 if small else 8192),
        ("rounds", 1 if small else 3),
        ("measured", 2 if small else 20),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", nargs="*", default=VARIANTS, choices=VARIANTS)
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {vars(options)}")
    checked = min(options.cells, 1024), min(options.width, 128)
    guarded("check", lambda: check(min(options.rows, 64), min(options.steps, 10), *checked))

    torch.manual_seed(0)
    config = elmo.Config(width=options.width, hidden=options.cells)
    objective = bidirectional_lm.Config(samples=options.samples, weight=float(options.steps))
    model = Model.build(config, [objective], vocabulary=Vocabulary(size=options.vocabulary))
    data = batches(options.vocabulary, options.rows, options.steps, 4)
    trainer = trainer_of(model, data)
    tokens = options.rows * options.steps
    times: dict[str, list[float]] = {name: [] for name in options.only}
    for each in range(options.rounds):
        for name in options.only:
            with variant(name, model):
                guarded(f"{name} warm-up", lambda: step_seconds(trainer, 3))
                seconds = guarded(name, lambda: step_seconds(trainer, options.measured))
            if seconds is not None:
                times[name].append(seconds)
                print(f"round {each + 1}, {name}: {1e3 * seconds:.2f} ms, {tokens / seconds / 1e3:,.1f} k tokens/s")
    if DEVICE.type == "cuda":
        layers = [part.captured for part in model.modules() if isinstance(part, ProjectedLSTM)]
        used = all(one is not None and one.enabled and one._by_shape for one in layers)
        print(f"CUDA graphs of the LSTM layers: {'captured' if used else 'NOT CAPTURED, the variant graphs had none'}")
        print(f"peak memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    guarded("products", lambda: products(options.rows, options.cells, options.width))
    medians = [(f"step, {name}", 1e3 * statistics.median(found)) for name, found in times.items() if found]
    parts = guarded("breakdown", lambda: breakdown(model, trainer, data[0])) or []
    print("\n| | ms | k tokens/s |\n|---|---:|---:|")
    for what, milliseconds in medians + parts:
        rate = f"{tokens / milliseconds:,.1f}" if what.startswith("step") else ""
        print(f"| {what} | {milliseconds:.2f} | {rate} |")


if __name__ == "__main__":
    main()
