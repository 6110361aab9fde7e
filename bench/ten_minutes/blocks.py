"""Blocks and masks as in transformers' example script: concatenated documents cut into blocks, dynamic masking.

Tokens are read from bertsmith's shards. T tokens, N blocks, L positions of a block.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.ten_minutes.held_out import document_bounds
from bertsmith.data.shards import Shards
from bertsmith.errors import DataError
from bertsmith.tokenizers.tokenizer import Tokenizer

RATE, MASKED, OTHER = 0.15, 0.8, 0.5  # 80 % of the chosen tokens are masked, half of the rest replaced
IGNORED = -100


def grouped(shards: Shards, tokenizer: Tokenizer, length: int) -> NDArray[np.int32]:
    """Documents with their special tokens, concatenated and cut every `length` tokens [N, L]."""
    single = tokenizer.frame_ids.single
    text = single.index("a")
    before, after = single[:text], single[text + 1 :]
    bounds = document_bounds(shards)
    sizes = np.diff(bounds)
    shift = len(before) + np.arange(len(sizes)) * (len(single) - 1)  # of a document's first token
    stream = np.empty(shards.tokens + len(sizes) * (len(single) - 1), np.int32)
    stream[np.arange(shards.tokens) + np.repeat(shift, sizes)] = shards.read(0, shards.tokens)
    for offset, token in enumerate(before):
        stream[bounds[:-1] + shift - len(before) + offset] = token
    for offset, token in enumerate(after):
        stream[bounds[1:] + shift + offset] = token
    blocks = len(stream) // length
    if not blocks:
        raise DataError(f"{shards.folder} has only {len(stream):,} tokens, less than one block of {length}")
    return stream[: blocks * length].reshape(blocks, length)


class Order:
    """Blocks of each step: a new permutation of all blocks in each epoch."""

    def __init__(self, blocks: int, seed: int) -> None:
        self.blocks, self.seed = blocks, seed
        self._epoch, self._shuffled = -1, np.empty(0, np.int64)

    def take(self, step: int, rows: int) -> NDArray[np.int64]:
        """Block indices of a step."""
        positions = np.arange(step * rows, (step + 1) * rows)
        return np.concatenate(
            [
                self._of(epoch)[positions[positions // self.blocks == epoch] % self.blocks]
                for epoch in np.unique(positions // self.blocks)
            ]
        )

    def _of(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            self._epoch, self._shuffled = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.blocks)
        return self._shuffled


class MaskingCollator:
    """Masks tokens as DataCollatorForLanguageModeling does."""

    def __init__(self, tokenizer: Tokenizer, device: torch.device) -> None:
        self.mask_id, self.size = tokenizer.mask_id, tokenizer.vocab_size
        self.special = torch.zeros(self.size, dtype=torch.bool)
        self.special[sorted(tokenizer.special_ids)] = True
        self.special = self.special.to(device)
        self.generator = torch.Generator(device)

    def __call__(self, ids: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Masked blocks [B, L] and labels, `IGNORED` at unmasked positions."""
        self.generator.manual_seed(seed)
        draw = {"generator": self.generator, "device": ids.device}
        selected = (torch.rand(ids.shape, **draw) < RATE) & ~self.special[ids]
        draws = torch.rand(ids.shape, **draw)
        other = torch.randint(self.size, ids.shape, **draw)
        replaced = torch.where(
            draws < MASKED, self.mask_id, torch.where(draws < MASKED + (1 - MASKED) * OTHER, other, ids)
        )
        return torch.where(selected, replaced, ids), torch.where(selected, ids, IGNORED)
