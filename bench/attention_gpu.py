"""Attention there and back over packed texts: our kernels against torch's, and their tiles against each other.

    PYTHONPATH=src python bench/attention_gpu.py [--lengths 512 128] [--dropout 0 0.1] [--heads 12]
        [--tiles | --registers 0 128 96]

65,536 places in rows of a length; nine rows in ten hold one text, the others two. `dense cuDNN` lets texts of a row see
each other: it is there as a mark. Milliseconds of one layer, medians; `off` is the greatest difference from
float32. `--tiles` times our kernels for many sizes of tiles: queries, keys, warps, stages; `--registers` those that are
in use, in eight bits, as CUDA graphs, with at most so many registers a thread (0: as the compiler likes).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bertsmith.nn import packed_attention
from bertsmith.training.roofline import device_seconds, median_seconds

PLACES, WIDTH, NAMES = 65_536, 64, ("M", "N", "num_warps", "num_stages")
FORWARD = [*product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))]
BACKWARD = [*product((16, 32, 64), (32, 64, 128), (4, 8), (2, 3, 4))]


class World:
    """Random queries, keys, values and gradients, and texts in rows of a length."""

    def __init__(self, length: int, heads: int) -> None:
        self.rows, self.length, self.heads = PLACES // length, length, heads
        bounds = [bound for row in range(self.rows) for bound in self._begins(row)] + [PLACES]
        self.bounds = torch.tensor(bounds, dtype=torch.int32, device="cuda")
        text = torch.searchsorted(self.bounds, torch.arange(PLACES, dtype=torch.int32, device="cuda"), right=True)
        self.begin, self.end = self.bounds[text - 1].contiguous(), self.bounds[text].contiguous()
        document = self.begin.view(self.rows, length)
        self.mask = (document[:, :, None] == document[:, None, :]).unsqueeze(1)
        torch.manual_seed(0)
        self.qkv = torch.randn(PLACES, 3, heads, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        self.gradient = torch.randn(PLACES, heads, WIDTH, device="cuda", dtype=torch.bfloat16)

    def _begins(self, row: int) -> list[int]:
        begin = row * self.length
        return [begin, begin + self.length // 3] if row % 10 == 0 else [begin]

    def ours(self, dropout: float) -> Tensor:
        return packed_attention.attend(self.qkv, self.begin, self.end, dropout=dropout, causal=False)

    def rowwise(self, dropout: float, mask: Tensor | None, qkv: Tensor | None = None) -> Tensor:
        parts = (self.qkv if qkv is None else qkv).unbind(1)
        q, k, v = (part.view(self.rows, self.length, self.heads, WIDTH).transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(q, k, v, mask, dropout).transpose(1, 2).reshape(PLACES, self.heads, WIDTH)

    def flash(self, dropout: float) -> Tensor:
        q, k, v = self.qkv.unbind(1)
        length = self.length
        found: Tensor = torch.ops.aten._flash_attention_forward(
            q, k, v, self.bounds, self.bounds, length, length, dropout, False, False
        )[0]
        return found

    def there_and_back(self, attend: Callable[[], Tensor]) -> None:
        torch.autograd.grad(attend(), self.qkv, self.gradient)


def milliseconds(run: Callable[[], object]) -> float:
    return 1e3 * median_seconds(run, torch.device("cuda"))


def compare(world: World, dropout: float) -> None:
    exact = world.qkv.detach().float().requires_grad_()
    truth = world.rowwise(0.0, world.mask, exact)
    (right,) = torch.autograd.grad(truth, exact, world.gradient.float())
    ways: dict[str, tuple[Callable[[float], Tensor], bool]] = {
        "bertsmith": (world.ours, False),
        "flash, variable lengths": (world.flash, False),
        "masked cuDNN": (partial(world.rowwise, mask=world.mask), True),
        "dense cuDNN": (partial(world.rowwise, mask=None), True),
    }
    for name, (attend, cudnn) in ways.items():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if cudnn else torch.enable_grad():
            taken = milliseconds(partial(world.there_and_back, partial(attend, dropout)))
            found = attend(0.0)
            (back,) = torch.autograd.grad(found, world.qkv, world.gradient)
        off = f"off {(found - truth).abs().max():.4f} there, {(back - right).abs().max():.4f} back"
        print(f"{world.length:5} dropout {dropout:<4} {name:<26} {taken:7.3f} ms  {off if name[0] != 'd' else ''}")


def tiles(world: World, dropout: float) -> None:
    """Each size of tiles, best first."""
    for way, table, sizes in (
        ("there", packed_attention.FORWARD, FORWARD),
        ("there and back", packed_attention.BACKWARD, BACKWARD),
    ):
        kept, found = dict(table), {}
        for size in sizes:
            table.update(zip(NAMES, size, strict=True))
            run = partial(world.ours, dropout)
            try:
                found[size] = milliseconds(run if way == "there" else partial(world.there_and_back, run))
            except Exception as error:  # a tile that no multiprocessor has room for
                print(f"{size}: {type(error).__name__}")
        table.update(kept)
        best = sorted(found.items(), key=lambda each: each[1])
        print(f"{world.length} dropout {dropout}, {way}: " + ", ".join(f"{size} {ms:.3f}" for size, ms in best[:8]))


def registers(world: World, dropout: float, most: list[int]) -> None:
    """Fewer of them let more blocks run at a time; too few are kept in memory."""
    qkv = world.qkv.detach()
    place = qkv, world.begin, world.end, packed_attention.draw_chances(PLACES, qkv.device, dropout)
    there = partial(packed_attention.attend_forth_eight, *place, dropout, False, 8.0)
    out, lse, *_ = there()
    back = partial(packed_attention.attend_back_eight, world.gradient, *place, out, lse, dropout, False, 16.0)
    for way, table, run in (("there", packed_attention.FORWARD, there), ("back", packed_attention.BACKWARD, back)):
        kept, found = dict(table), {}
        for count in most:
            table.update({"maxnreg": count} if count else {})
            try:
                found[count] = 1e3 * device_seconds(run, qkv.device)
            except Exception as error:  # fewer than it can do with
                print(f"{count} registers: {type(error).__name__}")
            table.pop("maxnreg", None)
        told = ", ".join(f"{count or 'any'} {ms:.3f}" for count, ms in found.items())
        print(f"{world.length} dropout {dropout}, {way} in eight bits, {kept}: registers {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 128])
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0, 0.1])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--registers", nargs="+", type=int, default=[], metavar="N", help="at most, instead of tiles")
    asked = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for length in asked.lengths:
        world = World(length, asked.heads)
        for dropout in asked.dropout:
            if asked.registers:
                registers(world, dropout, asked.registers)
            else:
                (tiles if asked.tiles else compare)(world, dropout)


if __name__ == "__main__":
    main()
