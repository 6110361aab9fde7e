"""Blocks and masks as transformers' example script makes them: documents joined and cut, words hidden anew each time.

The tokens are those of our shards, read by our reader. T tokens, N blocks, L places of a block.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.ten_minutes.judging import document_bounds
from bertsmith.data.shards import Shards
from bertsmith.errors import DataError
from bertsmith.tokenizers.tokenizer import Tokenizer

RATE, MASKED, OTHER = 0.15, 0.8, 0.5  # of what is hidden 80 % is masked, half of the rest becomes another token
IGNORED = -100


def grouped(shards: Shards, tokenizer: Tokenizer, length: int) -> NDArray[np.int32]:
    """Every document between its special tokens, one behind the other, cut every `length` tokens [N, L]."""
    single = tokenizer.frame_ids.single
    text = single.index("a")
    before, after = single[:text], single[text + 1 :]
    bounds = document_bounds(shards)
    sizes = np.diff(bounds)
    shift = len(before) + np.arange(len(sizes)) * (len(single) - 1)  # of a document's first token
    found = np.empty(shards.tokens + len(sizes) * (len(single) - 1), np.int32)
    found[np.arange(shards.tokens) + np.repeat(shift, sizes)] = shards.read(0, shards.tokens)
    for place, token in enumerate(before):
        found[bounds[:-1] + shift - len(before) + place] = token
    for place, token in enumerate(after):
        found[bounds[1:] + shift + place] = token
    blocks = len(found) // length
    if not blocks:
        raise DataError(f"{shards.folder} has only {len(found):,} tokens, less than one block of {length}")
    return found[: blocks * length].reshape(blocks, length)


class Order:
    """Which blocks each step takes: all of them in an order of its own for each epoch."""

    def __init__(self, blocks: int, seed: int) -> None:
        self.blocks, self.seed = blocks, seed
        self._epoch, self._shuffled = -1, np.empty(0, np.int64)

    def take(self, step: int, rows: int) -> NDArray[np.int64]:
        """The numbers of the blocks of a step."""
        places = np.arange(step * rows, (step + 1) * rows)
        return np.concatenate(
            [
                self._of(epoch)[places[places // self.blocks == epoch] % self.blocks]
                for epoch in np.unique(places // self.blocks)
            ]
        )

    def _of(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            self._epoch, self._shuffled = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.blocks)
        return self._shuffled


class Hider:
    """Hides words as the collator for language modelling does."""

    def __init__(self, tokenizer: Tokenizer, device: torch.device) -> None:
        self.mask_id, self.size = tokenizer.mask_id, tokenizer.vocab_size
        self.special = torch.zeros(self.size, dtype=torch.bool)
        self.special[sorted(tokenizer.special_ids)] = True
        self.special = self.special.to(device)
        self.generator = torch.Generator(device)

    def __call__(self, ids: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Blocks [B, L] with words hidden, and the words that were, `IGNORED` elsewhere."""
        self.generator.manual_seed(seed)
        draw = {"generator": self.generator, "device": ids.device}
        hidden = (torch.rand(ids.shape, **draw) < RATE) & ~self.special[ids]
        fate = torch.rand(ids.shape, **draw)
        other = torch.randint(self.size, ids.shape, **draw)
        shown = torch.where(fate < MASKED, self.mask_id, torch.where(fate < MASKED + (1 - MASKED) * OTHER, other, ids))
        return torch.where(hidden, shown, ids), torch.where(hidden, ids, IGNORED)
