"""The one seam through which a predictor computes: wishes and items in, results out.

Whoever asks makes items of texts and says by a wish what is to come of them; who computes them, and beside whose, is
not their concern. Knows no wish by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.data.collate import collate_unpadded
from bertsmith.model_io.model import Model
from bertsmith.types import Batch, Row

BATCH_TOKENS = {"cuda": 65_536}  # of one forward; elsewhere FEW_TOKENS
DEFAULT_BATCH_TOKENS = 1024  # as fast as four times as many, and whoever comes next waits less


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What one result is computed from; it is never torn apart."""

    rows: tuple[Row, ...]  # one, or one for each choice
    indices: NDArray[np.int64] | None = None  # of the row, that are read [R]; None where the wish says which

    @property
    def tokens(self) -> int:
        return sum(map(len, self.rows))


class Query(Protocol):
    """What is computed of items: a frozen dataclass. Items of equal wishes may be computed together."""

    name: ClassVar[str]  # one word for those who count
    one_per_batch: ClassVar[bool]  # results are so large that every item has a forward of its own

    @property
    def objective(self) -> str:
        """Whose answers these are; it reads the items' places."""

    def forward(self, model: Model, batch: Batch, items: Sequence[ModelInput]) -> list[Any]:
        """A result for each item of a batch."""


class Backend(Protocol):
    """Whoever computes."""

    def run(self, wish: Query, items: Sequence[ModelInput]) -> list[Any]:
        """One result for each item, in order."""


class LocalBackend:
    """Computes in the caller's thread. Threads may share one: nothing in it changes.

    A forward has all its texts in one line without padding, those of equal length side by side: matrices see only real
    tokens, and attention is one product for each length, without a mask. A token so costs less than three quarters of
    what it does in groups of like length that are padded, and less than half of what it does in groups of equal
    length, which are too small to keep a processor busy (LOG.md).
    """

    def __init__(
        self, model: Model, *, padding_id: int, device: str, autocast: bool = False, batch_tokens: int | None = None
    ) -> None:
        self.model = model
        self.padding_id = padding_id
        self.device = device
        self.autocast = autocast  # in bfloat16, as far as the device computes in it
        self.batch_tokens = batch_tokens or BATCH_TOKENS.get(device, DEFAULT_BATCH_TOKENS)

    def run(self, wish: Query, items: Sequence[ModelInput]) -> list[Any]:
        """See `Computing`."""
        found: list[Any] = [None] * len(items)
        for group in self._groups(wish, items):
            some = [items[number] for number in group]
            for number, result in zip(group, self._forward(wish, some), strict=True):
                found[number] = result
        return found

    def _groups(self, wish: Query, items: Sequence[ModelInput]) -> list[list[int]]:
        """The numbers of items that share a forward, in the order of their lengths."""
        longest = [max(map(len, item.rows)) for item in items]
        order = sorted(range(len(items)), key=longest.__getitem__)
        groups: list[list[int]] = []
        tokens = 0
        for number in order:
            tokens += items[number].tokens
            if not groups or wish.one_per_batch or tokens > self.batch_tokens:
                groups.append([])
                tokens = items[number].tokens
            groups[-1].append(number)
        return groups

    def _forward(self, wish: Query, items: Sequence[ModelInput]) -> list[Any]:
        rows = [row for item in items for row in item.rows]
        read = {wish.objective: [item.indices for item in items]} if items[0].indices is not None else None
        batch = collate_unpadded(rows, padding_id=self.padding_id, indices=read).to(self.device)
        with torch.inference_mode(), torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            return wish.forward(self.model, batch, items)
